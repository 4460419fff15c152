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
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// backlog is how many notices may wait for the webhook: those of some hundred nodes at once.
const backlog = 1024

// notices reports what happens to nodes: to the metrics and the webhook, which are shared by all nodes, and to the cluster, by one
// notify.Kubernetes for each node.
type notices struct {
	cfg     config.Kubernetes
	dryRun  bool
	log     *logrus.Entry
	meter   *meter
	webhook *notify.Webhook
	client  notify.Identity // without a node
	nodes   *descriptions
	turns   *turns
	degrade func(fault string) // adds a fault to the status
	rules   atomic.Pointer[policy.Settings]

	passing context.Context // of all listeners; it ends after the drains
	stop    context.CancelFunc
	work    sync.WaitGroup

	mu sync.Mutex
	// keepers keep the conditions of nodes, by node.
	keepers map[string]*notify.Kubernetes
}

func newNotices(ctx context.Context, cfg config.Queue, client notify.Identity, turns *turns, meter *meter, log *logrus.Entry) *notices {
	n := &notices{
		cfg: cfg.Kubernetes, dryRun: cfg.DryRun, log: log, meter: meter, client: client,
		nodes: &descriptions{}, turns: turns,
	}
	n.passing, n.stop = context.WithCancel(context.WithoutCancel(ctx))
	n.webhook = daemon.NewWebhook(&cfg.Common, log, meter.counted(), func(fault string) { n.degrade(fault) }, notify.WebhookOptions{
		Limit:   backlog,
		Machine: func(ctx context.Context, node string) notify.Machine { return machineOf(n.nodes.of(ctx, node)) },
		Node: func(ctx context.Context, node string) (string, map[string]string) {
			return node, n.nodes.of(ctx, node).Labels
		},
	})
	n.use(cfg)
	return n
}

// use replaces the settings for later notices.
func (n *notices) use(cfg config.Queue) {
	rules := policyOf(cfg.Events)
	n.rules.Store(&rules)
	webhook, err := settings.Webhook(cfg.Webhook, "nth-queue", settings.Own)
	if err != nil { // The fault was logged when the settings were read.
		n.trouble(err)
	}
	n.webhook.Use(webhook)
}

func (n *notices) trouble(err error) {
	n.log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble).Warn(err)
}

// begin starts to deliver. end waits, for a while, until everything is delivered.
func (n *notices) begin() (end func()) {
	n.work.Go(func() { n.webhook.Run(n.passing) })
	if n.meter != nil {
		n.work.Go(func() { n.meter.Run(n.passing) })
	}
	return func() {
		n.stop()
		daemon.Within(daemon.ReportTimeout, n.work.Wait)
	}
}

// of returns the listeners for a node; it implements fleet.Options.Listeners.
func (n *notices) of(node string, entries func() []state.Entry) (told []agent.Listener, end func(lost bool)) {
	told = []agent.Listener{n.webhook}
	if n.meter != nil {
		told = append(told, n.meter)
	}
	forget := func(bool) { n.webhook.Forget(node) }
	if n.dryRun || !n.cfg.Condition && !n.cfg.Events {
		return told, forget
	}
	identity := notify.Identity{Client: n.client.Client, Node: node}
	k := notify.NewKubernetes(notify.KubernetesOptions{
		Identity:  func(context.Context) (notify.Identity, error) { return identity, nil },
		Entries:   entries,
		Rules:     func() policy.Settings { return *n.rules.Load() },
		Condition: n.cfg.Condition, Writer: drain.Queue, Events: n.cfg.Events,
		Source: "nth-queue", Annotations: n.cfg.EventAnnotations,
		Describe: func(ctx context.Context) map[string]string { return annotationsOf(n.nodes.of(ctx, node)) },
		Turn:     n.turns.take, Trouble: n.trouble,
	})
	n.keep(node, k)
	return append(told, k), func(lost bool) {
		if lost {
			k.Cede()
		}
		k.Finish()
		forget(lost)
	}
}

// keep runs a notify.Kubernetes, which alone keeps the conditions of its node from now on: an earlier one may still have to be written.
func (n *notices) keep(node string, k *notify.Kubernetes) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.keepers == nil {
		n.keepers = map[string]*notify.Kubernetes{}
	}
	if before := n.keepers[node]; before != nil {
		before.Cede()
	}
	n.keepers[node] = k
	n.work.Go(func() {
		k.Run(n.passing)
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.keepers[node] == k {
			delete(n.keepers, node)
		}
	})
}

func machineOf(d fleet.Description) notify.Machine {
	return notify.Machine{
		ID: d.Instance, Type: d.Type, Region: d.Region, Zone: d.Zone,
		LocalIP: d.LocalIP, LocalName: d.LocalName, PublicIP: d.PublicIP, PublicName: d.PublicName,
	}
}

// annotationsOf returns the annotations of Events that describe a node's machine.
func annotationsOf(d fleet.Description) map[string]string {
	return map[string]string{
		"availability-zone": d.Zone, "instance-id": d.Instance, "instance-type": d.Type, "region": d.Region,
		"local-hostname": d.LocalName, "local-ipv4": d.LocalIP, "public-hostname": d.PublicName, "public-ipv4": d.PublicIP,
	}
}

// descriptions caches what Nodes say about their machines.
type descriptions struct {
	ask func(ctx context.Context, node string) (fleet.Description, error)

	mu    sync.Mutex
	known map[string]described
}

type described struct {
	fleet.Description
	until time.Time
}

// describeAgain is how long a description is cached, and mostDescribed how many are.
const describeAgain, mostDescribed = time.Minute, 512

// of returns the description of a node; an outdated or empty one if the API server does not answer within ctx.
func (d *descriptions) of(ctx context.Context, node string) fleet.Description {
	d.mu.Lock()
	known, there := d.known[node]
	d.mu.Unlock()
	if there && time.Now().Before(known.until) {
		return known.Description
	}
	found, err := d.ask(ctx, node)
	if err != nil {
		return known.Description
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.known) >= mostDescribed || d.known == nil {
		d.known = map[string]described{}
	}
	d.known[node] = described{found, time.Now().Add(describeAgain)}
	return found
}

// meter counts for the metrics. It is nil, and does nothing, if the settings ask for no metrics.
type meter struct {
	*metrics.Metrics
	counts   daemon.Counts
	queue    *sqs.Queue
	reporter *statusReporter
}

func newMeter(cfg config.Queue, log *logrus.Entry) *meter {
	m := &meter{}
	m.Metrics = daemon.NewMetrics("nth-queue", &cfg.Common, log, metrics.Options{
		Queue:  true,
		Stuck:  func() error { return m.queue.Stuck() },
		Ready:  func() error { return m.reporter.unready() },
		Leader: func() string { return m.reporter.leader() },
	})
	if m.Metrics == nil {
		return nil
	}
	m.counts = daemon.CountIn(m.Metrics)
	for _, what := range sqs.Whats() {
		m.Messages(string(what))
	}
	return m
}

// judges sets what health and readiness depend on.
func (m *meter) judges(messages *sqs.Queue, reporter *statusReporter) {
	if m != nil {
		m.queue, m.reporter = messages, reporter
	}
}

// troubles are the current errors of the metrics server.
func (m *meter) troubles() []string {
	if m == nil {
		return nil
	}
	return m.Troubles()
}

// counted returns the counters that nth has, too.
func (m *meter) counted() daemon.Counts {
	if m == nil {
		return daemon.Counts{}
	}
	return m.counts
}

// telling counts what happens to messages before it is reported to tell.
func (m *meter) telling(tell func(sqs.Report)) func(sqs.Report) {
	if m == nil {
		return tell
	}
	return func(r sqs.Report) {
		m.Message(string(r.What))
		if r.What == sqs.Received && r.Receives <= 1 && !r.Sent.IsZero() {
			m.Received(time.Since(r.Sent))
		}
		tell(r)
	}
}

// show updates the gauges.
func (m *meter) show(status state.Status, nodes fleet.Status, messages sqs.Status) {
	if m == nil {
		return
	}
	m.Show(status)
	m.ShowQueue(metrics.QueueStatus{
		InFlight: messages.Held, Oldest: messages.Oldest, Up: messages.Up || !nodes.Leads, Heard: messages.Answered,
		Leads: nodes.Leads, Known: nodes.Nodes, Draining: nodes.Draining, Waiting: nodes.Waiting,
	})
}

const (
	// writers is how many requests are made at the same time to report something in the cluster, for all nodes together: the drains need the
	// API server more.
	writers = 4
	// yielding is how long an Event waits until there are no evictions. It carries its own time.
	yielding = 10 * time.Second
)

// turns limits the requests that report something in the cluster, and makes Events wait for evictions: in a storm, Events would be half of
// all writes.
type turns struct {
	places chan struct{}
	// quiet returns a channel that is closed once no evictions are requested.
	quiet func() <-chan struct{}
}

func newTurns(quiet func() <-chan struct{}) *turns {
	return &turns{places: make(chan struct{}, writers), quiet: quiet}
}

// take waits for a turn; it implements notify.KubernetesOptions.Turn.
func (t *turns) take(ctx context.Context, hurried bool) (end func(), err error) {
	late := make(chan struct{})
	timer := time.AfterFunc(yielding, func() { close(late) })
	defer timer.Stop()
	for {
		if !hurried {
			if err := either(ctx, t.quiet(), late); err != nil {
				return nil, err
			}
		}
		select {
		case t.places <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if hurried || isClosed(t.quiet()) || isClosed(late) {
			return func() { <-t.places }, nil
		}
		<-t.places // Evictions have begun meanwhile.
	}
}

// either waits until one of the channels is closed. The error is ctx's.
func either(ctx context.Context, a, b <-chan struct{}) error {
	select {
	case <-a:
	case <-b:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
