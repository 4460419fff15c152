package main

import (
	"cmp"
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
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// backlog is how many happenings and notices wait for the webhook at most: those of some hundred nodes at once.
const backlog = 1024

// notices are those who pass on what happens to nodes: the meter and the webhook for all nodes, and for each node one who
// tells the cluster.
type notices struct {
	cfg     config.Kubernetes
	dryRun  bool
	log     *logrus.Entry
	meter   *meter
	webhook *notify.Webhook
	client  notify.Identity // without a node
	nodes   *descriptions
	turns   *turns
	rules   atomic.Pointer[policy.Settings]

	passing context.Context // of all who pass on; it ends after the drains
	stop    context.CancelFunc
	work    sync.WaitGroup

	mu sync.Mutex
	// keepers are those who keep the conditions of nodes, by node.
	keepers map[string]*notify.Kubernetes
}

func newNotices(ctx context.Context, cfg config.Queue, client notify.Identity, turns *turns, meter *meter, log *logrus.Entry) *notices {
	n := &notices{
		cfg: cfg.Kubernetes, dryRun: cfg.DryRun, log: log, meter: meter, client: client,
		nodes: &descriptions{}, turns: turns,
	}
	n.passing, n.stop = context.WithCancel(context.WithoutCancel(ctx))
	n.webhook = daemon.NewWebhook(&cfg.Common, log, meter.counted(), notify.WebhookOptions{
		Backlog: backlog,
		Machine: func(ctx context.Context, node string) notify.Machine { return machineOf(n.nodes.of(ctx, node)) },
		Node: func(ctx context.Context, node string) (string, map[string]string) {
			return node, n.nodes.of(ctx, node).Labels
		},
	})
	if meter != nil {
		meter.waiting = n.webhook.Waiting
	}
	n.use(cfg)
	return n
}

// use lets what is told from now on follow other settings.
func (n *notices) use(cfg config.Queue) {
	rules := policyOf(cfg.Events)
	n.rules.Store(&rules)
	webhook, err := settings.Webhook(cfg.Webhook, "nth-queue", settings.Own)
	if err != nil { // What is wrong with the settings was told when they were judged.
		n.trouble(err)
	}
	n.webhook.Use(webhook)
}

func (n *notices) trouble(err error) {
	n.log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble).Warn(err)
}

// begin passes on from now on. The function that it returns ends that, when everything has been told; what hangs is left behind.
func (n *notices) begin() (end func()) {
	n.work.Go(func() { n.webhook.Run(n.passing) })
	if n.meter != nil {
		n.work.Go(func() { n.meter.Run(n.passing) })
	}
	return func() {
		n.stop()
		program.Within(program.LastWords, n.work.Wait)
	}
}

// of makes those who are told what happens to a node; it implements fleet.Options.Listeners.
func (n *notices) of(node string, entries func() []state.Entry) (told []agent.Listener, end func(lost bool)) {
	told = []agent.Listener{n.webhook}
	if n.meter != nil {
		told = append(told, n.meter)
	}
	forget := func(bool) { n.webhook.Forget(node) }
	if n.dryRun || !n.cfg.Condition && !n.cfg.LifecycleConditions && !n.cfg.Events {
		return told, forget
	}
	identity := notify.Identity{Client: n.client.Client, Node: node}
	k := notify.NewKubernetes(notify.KubernetesOptions{
		Identity:  func(context.Context) (notify.Identity, error) { return identity, nil },
		Entries:   entries,
		Rules:     func() policy.Settings { return *n.rules.Load() },
		Condition: n.cfg.Condition, Lifecycle: n.cfg.LifecycleConditions, Writer: drain.Queue, Events: n.cfg.Events,
		Source: n.cfg.EventSource, Annotations: n.cfg.EventAnnotations,
		Describe: func(ctx context.Context) map[string]string { return annotationsOf(n.nodes.of(ctx, node)) },
		Turn:     n.turns.take, Dropped: n.meter.counted().EventsDropped, Trouble: n.trouble,
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

// keep lets somebody tell the cluster of a node, who alone keeps its conditions from now on: an earlier one may still have to write what
// stands there no more.
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

// annotationsOf are the annotations of Events by which people tell machines apart, as far as a Node tells of them.
func annotationsOf(d fleet.Description) map[string]string {
	return map[string]string{
		"availability-zone": d.Zone, "instance-id": d.Instance, "instance-type": d.Type, "region": d.Region,
		"local-hostname": d.LocalName, "local-ipv4": d.LocalIP, "public-hostname": d.PublicName, "public-ipv4": d.PublicIP,
	}
}

// descriptions are what was asked about nodes a moment ago.
type descriptions struct {
	ask func(ctx context.Context, node string) (fleet.Description, error)

	mu    sync.Mutex
	known map[string]described
}

type described struct {
	fleet.Description
	until time.Time
}

// describeAgain is how long a description is good enough, and mostDescribed how many are kept.
const describeAgain, mostDescribed = time.Minute, 512

// of describes a node as far as it can be asked for within ctx.
func (d *descriptions) of(ctx context.Context, node string) fleet.Description {
	d.mu.Lock()
	known, there := d.known[node]
	d.mu.Unlock()
	if there && time.Now().Before(known.until) {
		return known.Description
	}
	found, err := d.ask(ctx, node)
	if err != nil {
		return known.Description // The notice goes without, or with what was known.
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.known) >= mostDescribed || d.known == nil {
		d.known = map[string]described{}
	}
	d.known[node] = described{found, time.Now().Add(describeAgain)}
	return found
}

// meter is what counts, where the settings ask for metrics. Where they do not it is nil, and nobody is told anything for
// its sake.
type meter struct {
	*metrics.Metrics
	counts  daemon.Counts
	queue   *sqs.Queue
	board   *statusReporter
	fleet   *fleet.Fleet
	waiting func() int // notices
}

func newMeter(cfg config.Queue, log *logrus.Entry) *meter {
	m := &meter{waiting: func() int { return 0 }}
	m.Metrics = daemon.NewMetrics("nth-queue", &cfg.Common, log, metrics.Options{
		Queue:   true,
		Stuck:   func() error { return cmp.Or(m.queue.Stuck(), m.fleet.LeaseError()) },
		Ready:   func() error { return m.board.unready() },
		Waiting: func() int { return m.waiting() },
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

// judges makes a queue and a fleet what the meter's health is judged by, and a board what tells whether it is ready.
func (m *meter) judges(messages *sqs.Queue, nodes *fleet.Fleet, board *statusReporter) {
	if m != nil {
		m.queue, m.fleet, m.board = messages, nodes, board
	}
}

// troubles are why metrics cannot be had at present.
func (m *meter) troubles() []string {
	if m == nil {
		return nil
	}
	return m.Troubles()
}

// counted is where is counted what both programs count.
func (m *meter) counted() daemon.Counts {
	if m == nil {
		return daemon.Counts{}
	}
	return m.counts
}

// telling counts what becomes of messages, and then lets it be told.
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

// show notes how things stand.
func (m *meter) show(status state.Status, nodes fleet.Status, messages sqs.Status) {
	if m == nil {
		return
	}
	m.Show(status)
	m.ShowQueue(metrics.QueueStatus{
		InFlight: messages.Held, Oldest: messages.Oldest, Up: messages.Up, Heard: messages.Answered,
		Leased: nodes.LeaseError == nil, Known: nodes.Nodes, Draining: nodes.Draining, Waiting: nodes.Waiting,
	})
}

const (
	// writers is how many requests that tell the cluster something are made at the same time, for all nodes together: the
	// drains need the API server more.
	writers = 4
	// yielding is how long an Event waits for evictions to be over. It is as true afterwards, and has its time in it.
	yielding = 10 * time.Second
)

// turns lets those who tell the cluster something ask the API server, a few at a time, and Events only while nobody asks
// for evictions: in a storm, Events would be half of all that is written.
type turns struct {
	places chan struct{}
	// quiet returns a channel that is closed once nobody asks for evictions.
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
