package fleet

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// fieldNode is the field of what is said about a node.
const fieldNode = systemd.FieldNode

// attend runs an agent for the node until nothing is left for it to do, or ctx ends.
func (s *session) attend(ctx context.Context, t *term, held *corev1.Node) {
	f := s.fleet
	f.mu.Lock()
	s.book, s.rules = s.remembered(held), f.policy()
	f.mu.Unlock()
	s.spend()
	var extras sync.WaitGroup
	defer extras.Wait()
	extras.Go(func() {
		marking, end := t.finishing(ctx)
		defer end()
		s.mark(marking)
	})
	var listeners []agent.Listener
	if f.opts.Listeners != nil {
		var end func(lost bool)
		listeners, end = f.opts.Listeners(s.node, s.entries)
		defer func() { end(isLost(context.Cause(ctx))) }()
	}
	mind := &mind{session: s}
	_ = agent.New(agent.Config{
		Sources: []agent.Source{mind}, Identity: mind,
		Node: f.target(s.node, s.urgent.Load), NodeName: s.node, Record: s.book, Policy: s.rules,
		BootID: held.Status.NodeInfo.BootID, NodeSeen: true, ClaimRead: true, Log: f.opts.Log, DryRun: f.opts.DryRun,
		Settled: s.settled, Rested: func(ev event.Event, again time.Time) { s.rested(ctx, ev, again) }, Listeners: listeners,
	}).Run(ctx) // Its one source never gives up.
}

// entries are what is known of the node's events: of those that the session is for, and of others.
func (s *session) entries() []record.Entry {
	own := s.book.Entries()
	return append(own, s.fleet.beside(s.node, own)...)
}

// target is a node as it is acted upon. urgent, if not nil, tells whether that waits behind nothing else.
func (f *Fleet) target(name string, urgent func() bool) agent.Node {
	options := f.rules.Load().Drain
	options.Writer, options.Requests, options.Urgent = drain.Queue, f.claims.gate, urgent
	if urgent != nil && options.RestartWait > 0 {
		options.Restart = f.restart.of(name, urgent)
	}
	if own := f.opts.Own; name == own.Node {
		options.Last = own.Namespace + "/" + own.Pod
	}
	n := drain.New(f.opts.Client, name, options)
	if f.opts.DryRun {
		return drain.NewDryRun(n)
	}
	return n
}

// remembered is the book that the node itself has kept: the cordon that it bears, if nth-queue has set it for one of these events.
// Where the node takes pods all the same, people have lifted that cordon, which is an order: only those pods go for the event that
// were there before. What others have cordoned it for, the nth on the machine among them, is theirs to undo. An event that has begun before
// has no more time because it left no cordon. f.mu is held.
func (s *session) remembered(held *corev1.Node) *book {
	b := &book{}
	n := s.fleet.nodes.of(held)
	for id, t := range s.tasks {
		if since, known := s.fleet.spending[id]; known {
			seen := time.Now().Round(0).Add(-time.Since(since))
			b.entries = append(b.entries, record.Entry{
				Event: t.notice.Event, Phase: record.Seen, BootID: n.bootID, ListedIn: n.bootID, FirstSeen: seen, Changed: seen,
			})
		}
	}
	claim := n.cordon
	if t, ours := s.tasks[claim.Event]; ours && n.ours {
		since := cmp.Or(event.CredibleTime(claim.Since), time.Now().UTC().Round(0))
		e := record.Entry{
			Event: t.notice.Event, Phase: record.Cordoned, BootID: claim.BootID, ListedIn: n.bootID, OnNode: true,
			FirstSeen: since, Changed: since, CordonedAt: since,
		}
		if !held.Spec.Unschedulable {
			// Its message is back, so that a drain, if its rule asks for one, has not come to its end.
			e.Phase, e.Reopened = record.Draining, true
		}
		b.Put(func(error) {}, e)
	}
	return s.told(b, n)
}

// told adds to a book what was told before of events whose time had not come then. f.mu is held.
func (s *session) told(b *book, n node) *book {
	for id, t := range s.tasks {
		ev, now := t.notice.Event, time.Now().UTC().Round(0)
		if known, noted := n.notes.find(ev); noted && known.At.Equal(ev.Deadline) && b.entry(id).Phase == "" {
			b.entries = append(b.entries, record.Entry{
				Event: ev, Phase: record.Seen, BootID: n.bootID, ListedIn: n.bootID, FirstSeen: now, Changed: now,
			})
		}
	}
	return b
}

// book is a record in memory.
type book struct {
	mu      sync.Mutex
	entries []record.Entry
}

// Entries implements agent.Record.
func (b *book) Entries() []record.Entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.entries)
}

// Put implements agent.Record.
func (b *book) Put(written func(error), entries ...record.Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range entries {
		i := slices.IndexFunc(b.entries, func(other record.Entry) bool { return other.Event.ID == e.Event.ID })
		if i < 0 {
			b.entries = append(b.entries, e)
		} else {
			b.entries[i] = e
		}
	}
	written(nil)
}

// Flush implements agent.Record.
func (b *book) Flush(context.Context) error { return nil }

func (b *book) entry(id string) record.Entry {
	for _, e := range b.Entries() {
		if e.Event.ID == id {
			return e
		}
	}
	return record.Entry{}
}

// mind is what the agent is told by: which node it is, and what is announced for it.
type mind struct {
	session *session
}

// KeepWarm implements agent.Identity. The credential is everybody's, and is kept warm elsewhere.
func (m *mind) KeepWarm(ctx context.Context, tell func(node string, err error)) {
	tell(m.session.node, nil)
	<-ctx.Done()
}

// Run implements agent.Source.
func (m *mind) Run(ctx context.Context, sink event.Sink) error {
	s := m.session
	s.fleet.mu.Lock()
	s.sink = sink
	for _, kind := range event.QueuedKinds() {
		if events := s.events(kind); len(events) > 0 {
			sink.Snapshot(event.Snapshot{Kind: kind, Events: events})
		}
	}
	s.fleet.mu.Unlock()
	<-ctx.Done()
	return nil
}

// mark puts the taints on the node that its events bring. It is done beside the drain and never holds it up.
func (s *session) mark(ctx context.Context) {
	f := s.fleet
	var wanted []corev1.Taint
	f.mu.Lock()
	for _, t := range s.tasks {
		if ev := t.notice.Event; f.policy()[ev.Kind].Action != policy.Notify && ev.State == event.Pending && !t.lifts {
			wanted = append(wanted, f.opts.Taints.wanted(t.notice.Event, t.notice.Stopped)...)
		}
	}
	f.mu.Unlock()
	if len(wanted) == 0 || f.opts.DryRun {
		return
	}
	if err := f.taint(ctx, s.node, wanted); err != nil && ctx.Err() == nil {
		f.opts.Log.WithField(fieldNode, s.node).Warn(err)
	}
}
