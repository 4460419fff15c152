package main

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// notices has the listeners, which report to others what the agent does: to the cluster, the webhook and the metrics.
type notices struct {
	listeners []agent.Listener
	work      []func(context.Context) // what the listeners do in the background; each ends soon after its context
}

// newNotices returns the listeners. alive says whether the daemon works, for the heartbeat. A dry run writes only the heartbeat to the cluster; it
// also posts to the webhook, as a dry run.
func newNotices(
	cfg config.Config, kubelet *identity.Kubelet, store *record.Store, metadata *imds.Source, alive func() bool, meter *metrics.Metrics, log *logrus.Entry,
) *notices {
	n, rules, machine := &notices{}, policyOf(cfg), &machine{ask: metadata.Instance}
	if !cfg.DryRun || cfg.Kubernetes.Heartbeat > 0 {
		k := notify.NewKubernetes(notify.KubernetesOptions{
			Rules:     rules,
			Condition: true,
			Labels:    cfg.Kubernetes.Labels,
			Heartbeat: cfg.Kubernetes.Heartbeat,
			Alive:     alive,
			DryRun:    cfg.DryRun,
			Events:    cfg.Kubernetes.Events && !cfg.DryRun,
			Source:    "nth",
			Trouble:   func(err error) { log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble).Warn(err) },
		})
		n.add(k.Node("", func(ctx context.Context) (notify.Identity, error) {
			id, err := kubelet.Identity(ctx)
			return notify.Identity{Client: id.Client, Node: id.Node}, err
		}, store.Entries), k.Run)
	}
	webhook := daemon.NewWebhook("nth", &cfg.Common, log, meter)
	n.add(webhook.Node(notify.Subject{
		Machine: machine.describe,
		Node: func(ctx context.Context) (string, map[string]string) { // The notice is sent without what cannot be read.
			id, err := kubelet.Identity(ctx)
			if err != nil {
				return "", nil
			}
			labels, _ := id.Labels(ctx)
			return id.Node, labels
		},
	}), webhook.Run)
	n.add(meter, meter.Run)
	return n
}

// add adds a listener. work is what it does in the background until its context ends.
func (n *notices) add(l agent.Listener, work func(context.Context)) {
	n.listeners, n.work = append(n.listeners, l), append(n.work, work)
}

// run runs the daemon and the listeners. These end after the daemon, so that they report its end. After daemon.ReportTimeout, a listener that
// hangs is left running.
func (n *notices) run(ctx context.Context, daemonRun func(context.Context)) {
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	for _, w := range n.work {
		work.Go(func() { w(working) })
	}
	daemonRun(ctx)
	stop()
	daemon.Within(daemon.ReportTimeout, work.Wait)
}

// machine caches the description of this instance. It is read when it is first needed, which is when something is announced, and
// never before a drain.
type machine struct {
	ask func(context.Context) (imds.Instance, error)

	mu       sync.Mutex
	known    notify.Machine
	complete bool
	again    time.Time // when to ask again for an incomplete description; zero at first
}

// describeAgain is how long an incomplete description is used.
const describeAgain = 30 * time.Second

// describe returns as much of the description as could be read. It asks once more after describeAgain if a part is missing.
func (m *machine) describe(ctx context.Context) notify.Machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.complete || time.Now().Before(m.again) {
		return m.known
	}
	known, err := m.ask(ctx) // The polling of the metadata service reports its errors.
	m.known, m.complete, m.again = notify.Machine(known), err == nil, time.Now().Add(describeAgain)
	return m.known
}
