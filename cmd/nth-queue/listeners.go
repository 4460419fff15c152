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
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// notices reports what happens to nodes: to the metrics, the webhook and the cluster.
type notices struct {
	meter   *meter
	webhook *notify.Webhook
	cluster *notify.Kubernetes // nil if nothing is written to the cluster
	client  notify.Identity    // without a node
	// describe describes a node's machine.
	describe func(node string) fleet.Description
	labels   func(ctx context.Context, node string) (map[string]string, error) // of a Node
	mayWrite func() error                                                      // an error unless this process leads

	reporting context.Context // of all listeners; it ends after the drains
	stop      context.CancelFunc
	work      sync.WaitGroup
}

// newNotices returns the notices of a fleet. serve sets the fields that depend on the fleet before begin.
func newNotices(ctx context.Context, cfg config.Queue, client notify.Identity, meter *meter, log *logrus.Entry) *notices {
	n := &notices{meter: meter, client: client}
	n.reporting, n.stop = context.WithCancel(context.WithoutCancel(ctx))
	n.webhook = daemon.NewWebhook("nth-queue", &cfg.Common, log, meter.Metrics)
	if !cfg.DryRun && (cfg.Kubernetes.Condition || cfg.Kubernetes.Events) {
		n.cluster = notify.NewKubernetes(notify.KubernetesOptions{
			Rules:     policyOf(cfg.Events),
			Condition: cfg.Kubernetes.Condition, Labels: cfg.Kubernetes.Labels, Events: cfg.Kubernetes.Events,
			Source: "nth-queue", Brief: true,
			MayWrite: func() error { return n.mayWrite() },
			Trouble:  func(err error) { log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble).Warn(err) },
		})
	}
	return n
}

// begin starts to deliver notices. end waits until all are delivered, for daemon.ReportTimeout at most.
func (n *notices) begin() (end func()) {
	n.work.Go(func() { n.webhook.Run(n.reporting) })
	n.work.Go(func() { n.meter.Run(n.reporting) })
	if n.cluster != nil {
		n.work.Go(func() { n.cluster.Run(n.reporting) })
	}
	return func() {
		n.stop()
		daemon.Within(daemon.ReportTimeout, n.work.Wait)
	}
}

// of returns the listeners for a drain of a node; it implements fleet.Options.Listeners.
func (n *notices) of(node, uid string, entries func() []state.Entry) []agent.Listener {
	listeners := []agent.Listener{n.meter, n.webhook.Node(notify.Subject{
		Machine: func(context.Context) notify.Machine { return machineOf(n.describe(node)) },
		Node: func(ctx context.Context) (string, map[string]string) {
			labels, _ := n.labels(ctx, node) // The notice is sent without them.
			return node, labels
		},
	})}
	if n.cluster == nil {
		return listeners
	}
	identity := notify.Identity{Client: n.client.Client, Node: node, UID: uid}
	return append(listeners, n.cluster.Node(node, func(context.Context) (notify.Identity, error) { return identity, nil }, entries))
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
