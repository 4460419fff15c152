package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ena"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// notices are those who pass on what happens.
type notices struct {
	listeners []agent.Listener
	work      []func(context.Context) // of the listeners; each ends soon after its context
	rules     atomic.Pointer[policy.Settings]
	// waiting counts the notices that wait for the webhook.
	waiting func() int
	// reposted lets the webhook follow other settings.
	reposted func(config.Config)
}

// listenerDeps is what those who pass something on are made of.
type listenerDeps struct {
	identity *kubelet.Kubelet
	record   *record.Store
	machine  *machine
	alive    func() bool // the daemon does its work
	counts   daemon.Counts
	log      *logrus.Entry
}

func newNotices(cfg config.Config, from listenerDeps) *notices {
	n := &notices{}
	n.use(policyOf(cfg.Events))
	n.addKubernetes(cfg, from)
	n.addWebhook(cfg, from)
	return n
}

// use replaces the rules by which things are described.
func (n *notices) use(rules policy.Settings) { n.rules.Store(&rules) }

func (n *notices) add(l agent.Listener, work func(context.Context)) {
	n.listeners = append(n.listeners, l)
	n.work = append(n.work, work)
}

// around runs the daemon while what it tells is passed on. The listeners end after it, so that they hear its last word; one that hangs is
// left behind.
func (n *notices) around(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		passing, stop := context.WithCancel(context.WithoutCancel(ctx))
		var passed sync.WaitGroup
		for _, work := range n.work {
			passed.Go(func() { work(passing) })
		}
		defer func() {
			stop()
			program.Within(program.LastWords, passed.Wait)
		}()
		return run(ctx)
	}
}

// trouble returns what tells the journal that something could not be passed on.
func (f listenerDeps) trouble() func(error) {
	return func(err error) { f.log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble).Warn(err) }
}

// addKubernetes adds what tells the cluster. A dry run writes its heartbeat there, and nothing else.
func (n *notices) addKubernetes(cfg config.Config, from listenerDeps) {
	cluster := cfg.Kubernetes.ToldCluster
	if cfg.DryRun {
		cluster = config.ToldCluster{Condition: cluster.Condition && cfg.Kubernetes.Heartbeat > 0}
	}
	if !cluster.Condition && !cluster.LifecycleConditions && !cluster.Events {
		return
	}
	k := notify.NewKubernetes(notify.KubernetesOptions{
		Identity: func(ctx context.Context) (notify.Identity, error) {
			id, err := from.identity.Identity(ctx)
			return notify.Identity{Client: id.Client, Node: id.Node}, err
		},
		Entries:     from.record.Entries,
		Rules:       func() policy.Settings { return *n.rules.Load() },
		Condition:   cluster.Condition,
		Heartbeat:   cfg.Kubernetes.Heartbeat,
		Alive:       from.alive,
		DryRun:      cfg.DryRun,
		Lifecycle:   cluster.LifecycleConditions,
		Writer:      drain.Host,
		Events:      cluster.Events,
		Source:      cluster.EventSource,
		Annotations: cluster.EventAnnotations,
		Describe:    func(ctx context.Context) map[string]string { return annotationsOf(from.machine.describe(ctx)) },
		Dropped:     from.counts.EventsDropped,
		Trouble:     from.trouble(),
	})
	n.add(k, k.Run)
}

// annotationsOf are the annotations of Events by which people tell machines apart, by the names that the
// container-based handler gives them. All are there, also where a machine has no such thing.
func annotationsOf(i imds.Instance) map[string]string {
	return map[string]string{
		"account-id":          i.Account,
		"availability-zone":   i.Zone,
		"instance-id":         i.ID,
		"instance-life-cycle": i.LifeCycle,
		"instance-type":       i.Type,
		"local-hostname":      i.LocalName,
		"local-ipv4":          i.LocalIP,
		"public-hostname":     i.PublicName,
		"public-ipv4":         i.PublicIP,
		"region":              i.Region,
	}
}

// machine is the description of this machine. It is asked for when it is first wanted, which is when something is
// announced, and not by what is urgent.
type machine struct {
	ask func(context.Context) (imds.Instance, error)

	mu    sync.Mutex
	known imds.Instance
	again time.Time // when to ask again for what could not be read; zero if it has not been asked
	whole bool
}

// describeAgain is how long an incomplete description is good enough.
const describeAgain = 30 * time.Second

// describe returns what could be read of the description so far, within ctx.
func (m *machine) describe(ctx context.Context) imds.Instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.whole || time.Now().Before(m.again) {
		return m.known
	}
	known, err := m.ask(ctx) // what is missing is trouble of the metadata service, which is told elsewhere
	m.known, m.whole, m.again = known, err == nil, time.Now().Add(describeAgain)
	return known
}

// addWebhook adds what tells people's own endpoints. It is there, and idle, also while there are none: a reload may bring
// one. Of a dry run, too, it tells, and says that it is one.
func (n *notices) addWebhook(cfg config.Config, from listenerDeps) {
	webhook := daemon.NewWebhook(&cfg.Common, from.log, from.counts, notify.WebhookOptions{
		Machine: func(ctx context.Context, _ string) notify.Machine {
			i := from.machine.describe(ctx)
			return notify.Machine{
				ID: i.ID, Type: i.Type, LifeCycle: i.LifeCycle, Account: i.Account, Region: i.Region, Zone: i.Zone,
				LocalIP: i.LocalIP, LocalName: i.LocalName, PublicIP: i.PublicIP, PublicName: i.PublicName,
			}
		},
		Node: func(ctx context.Context, _ string) (string, map[string]string) { return described(ctx, from.identity) },
	})
	n.waiting = webhook.Waiting
	n.reposted = func(cfg config.Config) {
		to, err := settings.Webhook(cfg.Webhook, "nth", settings.Own)
		if err != nil { // What is wrong with the settings was told when they were judged.
			from.log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble).Error(err)
		}
		webhook.Use(to)
		webhook.Resume(from.record.Entries(), time.Now(), n.rules.Load().Describe)
	}
	n.reposted(cfg)
	n.add(webhook, webhook.Run)
}

// described asks for the node's name and labels.
func described(ctx context.Context, borrowed *kubelet.Kubelet) (string, map[string]string) {
	id, err := borrowed.Identity(ctx)
	if err != nil {
		return "", nil
	}
	labels, err := id.Labels(ctx)
	if err != nil {
		return id.Node, nil // The notice goes without.
	}
	return id.Node, labels
}

// webhook checks the webhook, and posts a test if that is asked for.
func (c *check) webhook(ctx context.Context, cfg config.Config, looked settings.Findings, post bool) {
	c.Unit(looked.Unit)
	c.Webhook(ctx, cfg.Webhook, looked.Unit.Find, looked.Webhook, post, func(ctx context.Context) string {
		id, err := kubelet.New(kubelet.Options{Kubeconfig: cfg.Kubernetes.Kubeconfig}).Identity(ctx)
		if err != nil {
			return "unknown"
		}
		return id.Node
	})
}

// meter is what counts, where the settings ask for metrics. Where they do not it is nil, and nobody is told anything for
// its sake.
type meter struct {
	*metrics.Metrics
	counts  daemon.Counts
	source  agent.Pulse
	waiting func() int // notices
}

func newMeter(cfg config.Config, log *logrus.Entry) *meter {
	m := &meter{waiting: func() int { return 0 }}
	m.Metrics = daemon.NewMetrics("nth", &cfg.Common, log, metrics.Options{
		LinkLocalExceeded: ena.NewReader("/").LinkLocalExceeded,
		Stuck:             func() error { return m.source.Stuck() },
		Waiting:           func() int { return m.waiting() },
	})
	if m.Metrics == nil {
		return nil
	}
	m.counts = daemon.CountIn(m.Metrics)
	return m
}

// join makes the meter one of those who are told, source what its health is judged by, and node what it has forecasts of.
func (m *meter) join(n *notices, source agent.Pulse, node *localNode) {
	if m == nil {
		return
	}
	m.source, m.waiting = source, n.waiting
	n.add(m, m.Run)
	n.work = append(n.work, forecaster{node.forecast, m.Forecast}.run)
}

// counted is where is counted what both programs count.
func (m *meter) counted() daemon.Counts {
	if m == nil {
		return daemon.Counts{}
	}
	return m.counts
}

// troubles are why metrics cannot be had at present.
func (m *meter) troubles() []string {
	if m == nil {
		return nil
	}
	return m.Troubles()
}

// ask has the meter told of each request to the metadata service.
func (m *meter) ask(opts *imds.Options) {
	if m == nil {
		return
	}
	opts.Observe = func(p imds.Poll) { m.Polled(p.Document, string(p.Result), p.Latency) }
	opts.Renewed = m.Renewed
}

// statusWriter is somebody who is shown how things stand.
type statusWriter interface{ Show(state.Status) }

// both shows to the file and to the meter.
func (m *meter) both(file statusWriter) statusWriter {
	if m == nil {
		return file
	}
	return bothWriters{file, m}
}

type bothWriters [2]statusWriter

func (t bothWriters) Show(s state.Status) {
	for _, to := range t {
		to.Show(s)
	}
}

// longestSilence is how old the last status may be of a daemon that is alive. The loop shows one every ten seconds at least.
const longestSilence = 30 * time.Second

// watching knows by the status that is shown whether the daemon does its work, which the heartbeat on the Node proves to others.
type watching struct {
	statusWriter

	mu     sync.Mutex
	shown  time.Time // with its monotonic reading; zero if nothing was shown
	good   bool
	source agent.Pulse
}

// Show implements shower.
func (w *watching) Show(s state.Status) {
	w.mu.Lock()
	w.shown, w.good = time.Now(), isWatching(s)
	w.mu.Unlock()
	w.statusWriter.Show(s)
}

// isWatching tells whether nth could act for its node, and whether each kind that the metadata service is asked for can be told of.
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

// follow has the heartbeat end also if this source comes to a stop.
func (w *watching) follow(source agent.Pulse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.source = source
}

// alive reports whether the daemon has done its work just now.
func (w *watching) alive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.good && time.Since(w.shown) < longestSilence && w.source != nil && w.source.Stuck() == nil
}
