package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// fieldNode is the log field with the name of a node.
const fieldNode = systemd.FieldNode

// session is the work on one Node: an agent, whose source is what stands for the instance, and whose record is in memory. It ends when nothing
// is left to be done for any event, or when the Node is gone. Nobody stands guard afterwards; the cordon does.
type session struct {
	term     *term
	instance *instance
	node     node
	since    time.Time // when it began to wait
	urgent   atomic.Bool

	// The term's mutex guards what follows.
	begun bool // its turn has come, and an agent works for it
	// closed is set once its Node was cordoned while it waits, or needed not be; cordoned if this process has done it.
	closed, cordoned bool
	deadline         time.Time // the nearest of its events, while it waits; zero if there is none
	// events are those that the agent knows, by ID. rested are those for which nothing is being done any more.
	events   map[string]event.Event
	rested   map[string]bool
	outcomes map[string]event.Outcome
	notes    map[string]*note // to be written at the end; nil removes the note of an event
	// staysClosedFor is an event for which the node stays cordoned although nothing more is done for it.
	staysClosedFor event.Event
	sink           event.Sink
	over           bool // it takes in nothing more
	stop           context.CancelFunc
	record         *memoryRecord
	rules          policy.Settings
}

// begin begins a drain whose turn has come. The term's mutex is held.
func (t *term) begin(s *session) {
	s.begun, s.rules = true, t.policy()
	ctx, stop := context.WithCancel(t.ctx)
	s.stop = stop
	s.record = s.recordFromNode()
	t.background(func(context.Context) {
		defer stop()
		stands := s.stillStands(ctx)
		if stands {
			s.runAgent(ctx)
			s.handOverCordon(t.ctx)
			s.writeNotes(t.ctx)
		}
		t.mu.Lock()
		if s.sink = nil; s.cordoned && !s.hasClosed() {
			s.begun, s.events = false, nil // keepWaiting takes that back.
		} else {
			s.over, s.instance.drain = true, nil
		}
		t.mu.Unlock()
		t.queue.AddAfter(s.instance.id, time.Second) // The informer may not show yet what was written.
		t.wake()
	})
}

// hasClosed reports whether the agent has taken over the cordon that was set while the drain waited. It has not if nothing stands any more, or
// if the rules have changed.
func (s *session) hasClosed() bool {
	return slices.ContainsFunc(s.record.Entries(), func(e state.Entry) bool { return !e.CordonedAt.IsZero() })
}

// stillStands asks EC2 again about what can be over by now, as the drain has waited for its turn. It reports whether anything is left.
func (s *session) stillStands(ctx context.Context) bool {
	t, in := s.term, s.instance
	t.mu.Lock()
	waited := time.Since(s.since) > asksAgain
	hints := slices.Collect(maps.Values(in.hints))
	t.mu.Unlock()
	for _, h := range hints {
		if !waited || stopTime(h).IsZero() {
			continue
		}
		if over, _ := t.isOver(ctx, in, h, s.node); over {
			t.endOvertaken(in, h, s.node)
		}
	}
	_, ok := t.nodes.now(s.node)
	t.mu.Lock()
	defer t.mu.Unlock()
	return ok && len(s.events) > 0 && ctx.Err() == nil
}

// update tells the agent what stands now. The term's mutex is held.
func (s *session) update(events []event.Event) {
	news := map[event.Kind]bool{}
	for _, ev := range events {
		before, known := s.events[ev.ID]
		if known && before.State == ev.State && before.Code == ev.Code && before.Deadline.Equal(ev.Deadline) && before.Until.Equal(ev.Until) {
			continue
		}
		s.events[ev.ID] = ev
		delete(s.rested, ev.ID)
		news[ev.Kind] = true
		if isUrgent(ev) {
			s.urgent.Store(true)
		}
	}
	for kind := range news {
		s.announce(kind)
	}
}

// drop forgets an event as if it had never been announced, and ends the drain if none is left. The term's mutex is held.
func (s *session) drop(id string) {
	ev, ok := s.events[id]
	if !ok {
		return
	}
	delete(s.events, id)
	delete(s.rested, id)
	s.announce(ev.Kind)
	s.endIfRested()
}

// endIfRested ends a drain that has begun if nothing is left to be done for any event; keepWaiting ends one that waits. The term's mutex is held.
func (s *session) endIfRested() {
	if s.begun && len(s.rested) == len(s.events) {
		s.over = true
		s.stop()
	}
}

// announce tells the agent, if it runs, the current events of a kind. The term's mutex is held.
func (s *session) announce(kind event.Kind) {
	if s.sink == nil {
		return
	}
	var events []event.Event
	for _, ev := range s.events {
		if ev.Kind == kind {
			events = append(events, ev)
		}
	}
	s.sink.Snapshot(event.Snapshot{Kind: kind, Events: events})
}

// Run implements agent.Source.
func (s *session) Run(ctx context.Context, sink event.Sink) error {
	s.term.mu.Lock()
	s.sink = sink
	kinds := map[event.Kind]bool{}
	for _, ev := range s.events {
		kinds[ev.Kind] = true
	}
	for kind := range kinds {
		s.announce(kind)
	}
	s.term.mu.Unlock()
	<-ctx.Done()
	return nil
}

// KeepWarm implements agent.Identity. The credential is the whole process's, and is kept valid elsewhere.
func (s *session) KeepWarm(ctx context.Context, report func(node string, err error)) {
	report(s.node.name, nil)
	<-ctx.Done()
}

// runAgent runs an agent for the Node until nothing is left to be done or ctx ends.
func (s *session) runAgent(ctx context.Context) {
	t := s.term
	var tainting sync.WaitGroup
	defer tainting.Wait()
	if t.opts.Taints.any() {
		tainting.Go(func() { s.keepTaints(ctx) })
	}
	listeners, end := t.listeners(s.node, s.record.Entries)
	defer func() { end(t.ctx.Err() != nil) }() // Another process keeps the conditions then.
	_ = agent.New(agent.Config{
		Sources: []agent.Source{s}, Identity: s, Node: t.drainNode(s.node, s.urgent.Load), NodeName: s.node.name, Record: s.record, Policy: s.rules,
		BootID: s.node.bootID, NodeSeen: true, ClaimRead: true, Log: t.opts.Log, DryRun: t.opts.DryRun, Settled: s.onOutcome,
		Rested: func(ev event.Event, again time.Time) { s.onRested(ctx, ev, again) }, Listeners: listeners,
	}).Run(ctx) // Its source never fails.
}

// drainNode returns the Node for an agent to act on. urgent, if not nil, reports whether its requests go before those of other nodes.
func (f *Fleet) drainNode(on node, urgent func() bool) agent.Node {
	options := f.rules.Load().Drain
	options.Writer, options.UID, options.Requests, options.Urgent = drain.Queue, on.uid, f.requests, urgent
	options.Unchanged = func(version string) bool {
		now := f.nodes.watched(on)
		return now != nil && now.ResourceVersion == version
	}
	if own := f.opts.Own; on.name == own.Node {
		options.Last = own.Namespace + "/" + own.Pod
	}
	n := drain.New(f.opts.Client, on.name, options)
	if f.opts.DryRun {
		return drain.NewDryRun(n)
	}
	return n
}

// leftAlone reports whether operators want the node left alone for all of its events; it takes no place of others then. The term's mutex is
// held.
func (s *session) leftAlone() bool {
	for id := range s.events {
		if s.outcomes[id] != event.LeftAlone {
			return false
		}
	}
	return len(s.events) > 0
}

// onOutcome takes in the outcome of an event so far. It implements agent.Config.Settled.
func (s *session) onOutcome(ev event.Event, outcome event.Outcome) {
	s.term.mu.Lock()
	defer s.term.mu.Unlock()
	if outcome == event.LeftAlone && s.outcomes[ev.ID] != outcome {
		s.term.wake()
	}
	s.outcomes[ev.ID] = outcome
}

// onRested takes in that nothing is being done for an event any more, or not before a time. It implements agent.Config.Rested. The agent goes
// on trying what fails. An event whose time has run out ends, too.
func (s *session) onRested(ctx context.Context, ev event.Event, again time.Time) {
	t := s.term
	t.mu.Lock()
	defer t.mu.Unlock()
	known, ours := s.events[ev.ID]
	outcome := s.outcomes[ev.ID]
	ends := again.IsZero() || outcome == event.OutOfTime
	switch {
	case !ours || s.rested[ev.ID] || !sameEvent(known, ev):
		return
	case !ends && s.record.entry(ev.ID).Error != "":
		return
	}
	s.rested[ev.ID] = true
	s.settle(ev, ends, again)
}

// sameEvent reports whether two events are described in the same words.
func sameEvent(a, b event.Event) bool {
	return a.State == b.State && a.Code == b.Code && a.Deadline.Equal(b.Deadline)
}

// settle settles the hint of an event that rests, notes the event, and ends the drain with its last event. The term's mutex is held.
func (s *session) settle(ev event.Event, ends bool, again time.Time) {
	t, in, outcome, entry := s.term, s.instance, s.outcomes[ev.ID], s.record.entry(ev.ID)
	if ends && s.staysClosed(entry) && (s.staysClosedFor.ID == "" || !isNoted(ev.Kind)) {
		s.staysClosedFor = ev
	}
	s.addNote(ev, again)
	for _, h := range in.hints {
		if h.Event.ID != ev.ID || h.busy || !h.stands {
			continue
		}
		h.busy = true
		t.background(func(ctx context.Context) {
			switch {
			case !ends:
				t.endHint(in, h, true, time.Until(again))
			case outcome == event.LeftAlone:
				t.endLeftAlone(in, h)
			default:
				t.finish(ctx, in, h, outcome)
			}
		})
	}
	s.endIfRested()
}

// budgetEnd is when the budget of an event is used up. The term's mutex is held.
func (s *session) budgetEnd(ev event.Event) time.Time {
	e := s.record.entry(ev.ID)
	return cmp.Or(e.FirstSeen, time.Now()).Add(s.rules[ev.Kind].Budget).Round(0)
}

// staysClosed reports whether the node stays cordoned for an event for which nothing more is done, until operators or the end of the event say
// otherwise. A cordon with a time to live does not count.
func (s *session) staysClosed(e state.Entry) bool {
	done := e.Phase == state.Drained || e.Phase == state.Cordoned || e.Phase == state.Incomplete || e.LeftAlone
	return done && e.OnNode && !e.Released() && !s.expires(e.Event.Kind)
}

// expires reports whether the cordon for a kind of event has a time to live.
func (s *session) expires(kind event.Kind) bool {
	rule := s.rules[kind]
	return rule.Action == policy.Cordon && rule.CordonFor > 0
}

// handOverCordon gives a cordon that expires, or that is lifted when EC2 withdraws its event, to an event for which the node is to stay
// cordoned. Nothing else remembers that event once its message is deleted.
func (s *session) handOverCordon(ctx context.Context) {
	t := s.term
	t.mu.Lock()
	to := s.staysClosedFor
	t.mu.Unlock()
	passes := func(kind event.Kind) bool { return s.expires(kind) || isNoted(kind) && !isNoted(to.Kind) }
	cordoned := passes(event.Kind(s.node.cordon.Kind)) ||
		slices.ContainsFunc(s.record.Entries(), func(e state.Entry) bool { return passes(e.Event.Kind) })
	if to.ID == "" || !cordoned {
		return
	}
	err := t.change(ctx, s.node, func(now *corev1.Node) map[string]any {
		claim, ours := cordonOf(now.Annotations[drain.CordonAnnotation])
		if !now.Spec.Unschedulable || !ours || claim.Event == to.ID || !passes(event.Kind(claim.Kind)) {
			return nil
		}
		claim.Event, claim.Kind, claim.BootID = to.ID, string(to.Kind), now.Status.NodeInfo.BootID
		claim.Events = append(claim.Events, to.ID)
		text, _ := json.Marshal(claim) // a struct of strings and a time always encodes
		return annotation(drain.CordonAnnotation, string(text))
	})
	if err != nil && ctx.Err() == nil {
		t.opts.Log.WithField(fieldNode, s.node.name).Warnf("cannot change what the cordon is for; the node may be uncordoned too early: %s", err)
	}
}

// annotation is a patch that sets an annotation, or removes it if value is nil.
func annotation(key string, value any) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}}
}

// addNote prepares the note of an event about which nothing is being done any more. The term's mutex is held.
func (s *session) addNote(ev event.Event, again time.Time) {
	if !isNoted(ev.Kind) {
		return
	}
	if s.notes == nil {
		s.notes = map[string]*note{}
	}
	s.notes[ev.ID] = nil
	if ev.State != event.Pending {
		return
	}
	n := &note{Event: ev.ID, Code: ev.Code, At: ev.Deadline}
	if again.IsZero() || s.outcomes[ev.ID] == event.OutOfTime {
		n.Action = s.rules.Asks(state.Entry{Event: ev})
	}
	s.notes[ev.ID] = n
}

// writeNotes writes the notes to the Node.
func (s *session) writeNotes(ctx context.Context) {
	t, in := s.term, s.instance
	t.mu.Lock()
	fresh := maps.Clone(s.notes)
	if in.notes == nil && len(fresh) > 0 {
		in.notes = map[string]*note{}
	}
	maps.Copy(in.notes, fresh)
	t.mu.Unlock()
	if len(fresh) == 0 {
		return
	}
	err := t.change(ctx, s.node, func(now *corev1.Node) map[string]any {
		before := notesOf(now.Annotations[NotesAnnotation])
		t.mu.Lock()
		after := in.allNotes(node{notes: before})
		t.mu.Unlock()
		if len(before) == 0 && len(after) == 0 {
			return nil
		}
		return annotation(NotesAnnotation, after.text())
	})
	if err != nil && ctx.Err() == nil {
		t.opts.Log.WithField(fieldNode, s.node.name).Warnf("cannot note an event on the node; it may be acted on again: %s", err)
	}
}

// recordFromNode rebuilds the record from the Node's cordon, if nth-queue has set it for one of the events. If the node is schedulable all the
// same, operators have lifted that cordon: only the pods that were there before are evicted for that event. A cordon of anybody else is not
// the drain's to undo. Events that are noted were reported before. Budgets begin now, as the Node may have waited since it was cordoned. The
// term's mutex is held.
func (s *session) recordFromNode() *memoryRecord {
	b, on := &memoryRecord{changed: make(chan struct{}, 1)}, s.node
	now := time.Now().UTC().Round(0)
	noted := s.instance.allNotes(on)
	for id, ev := range s.events {
		waited := s.cordoned && ev.State == event.Pending // It was reported to nobody yet.
		closed := on.ours && on.cordon.Event == id && !waited
		known, found := noted.of(ev)
		if !closed && !(found && known.At.Equal(ev.Deadline)) && ev.State == event.Pending {
			continue
		}
		e := state.Entry{Event: ev, Phase: state.Seen, BootID: on.bootID, ListedIn: on.bootID, FirstSeen: now, Changed: now}
		if closed {
			since := cmp.Or(event.CredibleTime(on.cordon.Since), now)
			e.Phase, e.BootID, e.OnNode, e.Changed, e.CordonedAt = state.Cordoned, on.cordon.BootID, true, since, since
			if !on.unschedulable {
				e.Phase, e.ReleasedAt = state.Draining, since
			}
		}
		if ev.State != event.Pending { // The agent hears that it is over together with what still stands.
			e.Event.State, e.Missing = event.Pending, now
		}
		b.entries = append(b.entries, e)
	}
	return b
}

// memoryRecord is an agent.Record in memory.
type memoryRecord struct {
	changed chan struct{} // has an element when an entry was put

	mu      sync.Mutex
	entries []state.Entry
}

// Entries implements agent.Record.
func (b *memoryRecord) Entries() []state.Entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.entries)
}

// Put implements agent.Record.
func (b *memoryRecord) Put(written func(error), entries ...state.Entry) {
	b.mu.Lock()
	for _, e := range entries {
		i := slices.IndexFunc(b.entries, func(other state.Entry) bool { return other.Event.ID == e.Event.ID })
		if i < 0 {
			b.entries = append(b.entries, e)
		} else {
			b.entries[i] = e
		}
	}
	b.mu.Unlock()
	loop.Nudge(b.changed)
	written(nil)
}

// Flush implements agent.Record.
func (b *memoryRecord) Flush(context.Context) error { return nil }

func (b *memoryRecord) entry(id string) state.Entry {
	for _, e := range b.Entries() {
		if e.Event.ID == id {
			return e
		}
	}
	return state.Entry{}
}
