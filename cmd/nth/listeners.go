package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// notices has the listeners, which report to others what the agent does: to the cluster, the webhook and the metrics.
type notices struct {
	listeners []agent.Listener
	work      []func(context.Context) // what the listeners do in the background; each ends soon after its context
	rules     atomic.Pointer[policy.Settings]
	// useWebhook applies settings to the webhook.
	useWebhook func(config.Config)
}

// listenerDeps is what listeners are made of.
type listenerDeps struct {
	identity *identity.Kubelet
	record   *record.Store
	machine  *machine
	alive    func() bool // whether the daemon works, for the heartbeat
	meter    *metrics.Metrics
	log      *logrus.Entry
}

// newNotices returns the listeners that report to the cluster and to the webhook.
func newNotices(cfg config.Config, from listenerDeps) *notices {
	n := &notices{}
	n.use(policyOf(cfg))
	n.addKubernetes(cfg, from)
	n.addWebhook(cfg, from)
	return n
}

// use replaces the rules by which events are described.
func (n *notices) use(rules policy.Settings) { n.rules.Store(&rules) }

// add adds a listener. work is what it does in the background until its context ends.
func (n *notices) add(l agent.Listener, work func(context.Context)) {
	n.listeners = append(n.listeners, l)
	n.work = append(n.work, work)
}

// around returns a function that runs the daemon and the listeners. These end after the daemon, so that they report its end. After
// daemon.ReportTimeout, a listener that hangs is left running.
func (n *notices) around(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		working, stop := context.WithCancel(context.WithoutCancel(ctx))
		var work sync.WaitGroup
		for _, w := range n.work {
			work.Go(func() { w(working) })
		}
		defer func() {
			stop()
			daemon.Within(daemon.ReportTimeout, work.Wait)
		}()
		return run(ctx)
	}
}

// addKubernetes adds the listener that reports to the cluster. A dry run only writes the heartbeat.
func (n *notices) addKubernetes(cfg config.Config, from listenerDeps) {
	if cfg.DryRun && cfg.Kubernetes.Heartbeat == 0 {
		return
	}
	k := notify.NewKubernetes(notify.KubernetesOptions{
		Identity: func(ctx context.Context) (notify.Identity, error) {
			id, err := from.identity.Identity(ctx)
			return notify.Identity{Client: id.Client, Node: id.Node}, err
		},
		Entries:   from.record.Entries,
		Rules:     func() policy.Settings { return *n.rules.Load() },
		Condition: true,
		Labels:    cfg.Kubernetes.Labels,
		Heartbeat: cfg.Kubernetes.Heartbeat,
		Alive:     from.alive,
		DryRun:    cfg.DryRun,
		Events:    cfg.Kubernetes.Events && !cfg.DryRun,
		Source:    "nth",
		Machine:   from.machine.describe,
		Trouble:   func(err error) { from.log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble).Warn(err) },
	})
	n.add(k, k.Run)
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

// addWebhook adds the webhook. Without an address it is idle, as a reload may set one. It also reports a dry run, as such.
func (n *notices) addWebhook(cfg config.Config, from listenerDeps) {
	const limit = 0 // The default of the webhook is enough for one node.
	webhook := daemon.NewWebhook(&cfg.Common, from.log, from.meter, limit)
	n.useWebhook = func(cfg config.Config) {
		to, err := settings.Webhook(cfg.Webhook, "nth", settings.Own)
		if err != nil { // Faults in the settings were reported when they were validated.
			from.log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble).Error(err)
		}
		webhook.Use(to)
	}
	n.useWebhook(cfg)
	n.add(webhook.Node(notify.Subject{
		Machine: from.machine.describe,
		Node:    func(ctx context.Context) (string, map[string]string) { return nameAndLabels(ctx, from.identity) },
	}), webhook.Run)
}

// nameAndLabels returns the node's name and labels for the webhook, as far as they can be read.
func nameAndLabels(ctx context.Context, kubelet *identity.Kubelet) (string, map[string]string) {
	id, err := kubelet.Identity(ctx)
	if err != nil { // The notice is sent without them.
		return "", nil
	}
	labels, err := id.Labels(ctx)
	if err != nil {
		return id.Node, nil // The notice is sent without labels.
	}
	return id.Node, labels
}

// webhook checks the webhook. If post is true, it posts a test, which names the node if the identity can be read.
func (c *check) webhook(ctx context.Context, cfg config.Config, found settings.Findings, post bool) {
	c.Unit(found.Unit)
	c.Webhook(ctx, cfg.Webhook, found.Unit.Find, found.Webhook, post, func(ctx context.Context) string {
		id, err := c.host.newKubelet(cfg, nil).Identity(ctx)
		if err != nil {
			return ""
		}
		return id.Node
	})
}

// statusWriter takes the daemon's status.
type statusWriter interface{ Show(state.Status) }

// longestSilence is how old the last status of a daemon that is alive may be. The loop writes one at least every ten seconds.
const longestSilence = 30 * time.Second

// liveness passes the status on, and derives from it whether the daemon works, for the heartbeat on the Node.
type liveness struct {
	statusWriter
	meter *metrics.Metrics

	mu     sync.Mutex
	shown  time.Time // when the last status came; with a monotonic reading
	good   bool      // by isWatching for that status
	source agent.HealthChecker
}

// Show implements statusWriter.
func (l *liveness) Show(s state.Status) {
	l.mu.Lock()
	l.shown, l.good = time.Now(), isWatching(s)
	l.mu.Unlock()
	l.statusWriter.Show(s)
	l.meter.Show(s)
}

// isWatching reports whether nth has an identity and can poll all documents, and has not stopped.
func isWatching(s state.Status) bool {
	if s.Node == "" || s.Identity.Trouble != "" || !s.Stopped.IsZero() {
		return false
	}
	for _, d := range s.Documents {
		if d.Trouble != "" || d.LastGood.IsZero() {
			return false
		}
	}
	return true
}

// follow makes alive depend on the source, too. Before that, alive is false.
func (l *liveness) follow(source agent.HealthChecker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.source = source
}

// alive reports whether the daemon works: its last status is recent and says so, and its source is not stuck.
func (l *liveness) alive() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.good && time.Since(l.shown) < longestSilence && l.source != nil && l.source.Stalled() == nil
}
