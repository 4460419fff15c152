package main

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

const (
	// backlog is how many notices may wait for the webhook: those of some hundred nodes at once.
	backlog = 1024
	// writers is how many Events, and how many conditions, are written at the same time for all nodes together: the drains need the API
	// server more.
	writers = 8
	// unwritten is how long a drain that has ended keeps its place among the drains at once, if Events or conditions of it still have to be
	// written. So these do not pile up.
	unwritten = 2 * time.Second
)

// notices reports what happens to nodes: to the metrics and the webhook, which are shared by all nodes, and to the cluster, by one
// notify.Kubernetes for each node.
type notices struct {
	cfg     config.Kubernetes
	dryRun  bool
	log     *logrus.Entry
	meter   *meter
	webhook *notify.Webhook
	client  notify.Identity // without a node
	// describe describes a node's machine.
	describe func(node string) fleet.Description
	labels   func(ctx context.Context, node string) (map[string]string, error) // of a Node
	mayWrite func() error                                                      // an error unless this process leads
	writes   *kube.Gate
	rules    policy.Settings

	reporting context.Context // of all listeners; it ends after the drains
	stop      context.CancelFunc
	work      sync.WaitGroup

	mu sync.Mutex
	// keepers keep the conditions of nodes, by node.
	keepers map[string]*notify.Kubernetes
}

// newNotices returns the notices of a fleet. serve sets the fields that depend on the fleet before begin.
func newNotices(ctx context.Context, cfg config.Queue, client notify.Identity, meter *meter, log *logrus.Entry) *notices {
	n := &notices{
		cfg: cfg.Kubernetes, dryRun: cfg.DryRun, log: log, meter: meter, client: client,
		writes: kube.NewGate(writers), rules: policyOf(cfg.Events),
	}
	n.reporting, n.stop = context.WithCancel(context.WithoutCancel(ctx))
	n.webhook = daemon.NewWebhook("nth-queue", &cfg.Common, log, meter.Metrics, backlog)
	return n
}

// trouble logs why a notice could not be reported.
func (n *notices) trouble(err error) {
	n.log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble).Warn(err)
}

// begin starts to deliver notices. end waits until all are delivered, for daemon.ReportTimeout at most.
func (n *notices) begin() (end func()) {
	n.work.Go(func() { n.webhook.Run(n.reporting) })
	n.work.Go(func() { n.meter.Run(n.reporting) })
	return func() {
		n.stop()
		daemon.Within(daemon.ReportTimeout, n.work.Wait)
	}
}

// of returns the listeners for a drain of a node; it implements fleet.Options.Listeners. The fleet calls end after the drain. lost says that
// another process leads now, and keeps the Node's condition.
func (n *notices) of(node, uid string, entries func() []state.Entry) (listeners []agent.Listener, end func(lost bool)) {
	listeners = []agent.Listener{n.meter, n.webhook.Node(notify.Subject{
		Machine: func(context.Context) notify.Machine { return machineOf(n.describe(node)) },
		Node: func(ctx context.Context) (string, map[string]string) {
			labels, _ := n.labels(ctx, node) // The notice is sent without them.
			return node, labels
		},
	})}
	if n.dryRun || !n.cfg.Condition && !n.cfg.Events {
		return listeners, func(bool) {}
	}
	identity := notify.Identity{Client: n.client.Client, Node: node, UID: uid}
	k := notify.NewKubernetes(notify.KubernetesOptions{
		Identity:  func(context.Context) (notify.Identity, error) { return identity, nil },
		Entries:   entries,
		Rules:     func() policy.Settings { return n.rules },
		Condition: n.cfg.Condition, Labels: n.cfg.Labels, Events: n.cfg.Events,
		Source: "nth-queue", Brief: true,
		Turn: func(ctx context.Context, condition bool) (func(), error) {
			if err := n.mayWrite(); condition && err != nil { // The next leader keeps the conditions.
				return nil, err
			}
			precedence := kube.InTurn
			if condition { // It is more urgent than an Event.
				precedence = kube.First
			}
			return n.writes.Enter(ctx, precedence)
		},
		Trouble: n.trouble,
	})
	written := n.keep(node, k)
	return append(listeners, k), func(lost bool) {
		if lost {
			k.Cede()
		}
		k.Finish()
		if !lost {
			loop.Await(n.reporting, written, unwritten)
		}
	}
}

// keep runs a notify.Kubernetes, which alone keeps the condition of its node from now on. The one of an earlier drain of the node may still run,
// and cedes the condition. The channel is closed when everything is written.
func (n *notices) keep(node string, k *notify.Kubernetes) (written <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.keepers == nil {
		n.keepers = map[string]*notify.Kubernetes{}
	}
	if before := n.keepers[node]; before != nil {
		before.Cede()
	}
	n.keepers[node] = k
	ended := make(chan struct{})
	n.work.Go(func() {
		defer close(ended)
		k.Run(n.reporting)
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.keepers[node] == k {
			delete(n.keepers, node)
		}
	})
	return ended
}

// machineOf converts a fleet's description of a machine to that of a notice.
func machineOf(d fleet.Description) notify.Machine {
	return notify.Machine{
		ID: d.Instance, Type: d.Type, Region: d.Region, Zone: d.Zone,
		LocalIP: d.LocalIP, LocalName: d.LocalName, PublicIP: d.PublicIP, PublicName: d.PublicName,
	}
}

// meter has the metrics, and what health and readiness depend on.
type meter struct {
	*metrics.Metrics
	queue    *sqs.Queue
	reporter *statusReporter
}

// newMeter returns the metrics. serve sets the fields queue and reporter before anything is served.
func newMeter(cfg config.Queue, log *logrus.Entry) *meter {
	m := &meter{}
	m.Metrics = daemon.NewMetrics("nth-queue", &cfg.Common, log, metrics.Options{
		Queue:  true,
		Stuck:  func() error { return m.queue.Stalled() },
		Ready:  func() error { return m.reporter.unready() },
		Leader: func() string { return m.reporter.leader() },
	})
	for _, what := range sqs.Outcomes() {
		m.Messages(string(what)) // It counts from 0, so that an increase is seen.
	}
	return m
}

// counting returns a function that counts what happens to messages, and then calls report.
func (m *meter) counting(report func(sqs.Report)) func(sqs.Report) {
	return func(r sqs.Report) {
		m.Message(string(r.Outcome))
		if r.Outcome == sqs.Received && r.Receives <= 1 && !r.Sent.IsZero() { // Only the first receipt shows how late a message is.
			m.Received(time.Since(r.Sent))
		}
		report(r)
	}
}

// show updates the gauges. A process that does not lead reads no messages, and counts as up.
func (m *meter) show(status state.Status, nodes fleet.Status, messages sqs.Status) {
	m.Show(status)
	m.ShowQueue(metrics.QueueStatus{
		InFlight: messages.Held, Oldest: messages.Oldest, Up: messages.Up || !nodes.Leads, LastAnswer: messages.Answered,
		Leads: nodes.Leads, Known: nodes.Nodes, Draining: nodes.Draining, Waiting: nodes.Waiting,
	})
}
