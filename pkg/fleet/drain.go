package fleet

import (
	"cmp"
	"context"
	"fmt"
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

// session is the work on one Node: an agent, whose source is what stands for the instance, and whose record is that of the Node. It ends
// when nothing is left to be done for any event, or when the Node is gone. Nobody stands guard afterwards; the cordon does.
type session struct {
	term     *term
	instance *instance
	node     node
	since    time.Time // when it began to wait
	urgent   atomic.Bool
	rules    policy.Settings
	record   *record

	// The term's mutex guards what follows.
	stage    stage
	deadline time.Time   // the nearest of its events, while it waits; zero if there is none
	goal     policy.Goal // what the agent decides first
	// events are those that the agent knows, by ID. rested are those for which nothing is being done any more.
	events   map[string]event.Event
	rested   map[string]bool
	outcomes map[string]event.Outcome
	sink     event.Sink
	stop     context.CancelFunc
}

// stage is how far a session has come.
type stage int

const (
	waiting stage = iota // for its turn
	working              // its agent runs
	ending               // its agent is stopped, and hears of nothing more
	ended                // its agent has ended, and the informer may not show yet what that has written
)

// begin begins a drain whose turn has come. The term's mutex is held.
func (t *term) begin(s *session) {
	s.stage, s.rules = working, t.policy()
	ctx, stop := context.WithCancel(t.ctx)
	s.stop = stop
	t.background(func(context.Context) {
		defer stop()
		if s.recheck(ctx) {
			s.runAgent(ctx)
		}
		t.mu.Lock()
		s.stage, s.sink = ended, nil
		if t.opts.DryRun {
			s.instance.dryRun = merged(s.instance.dryRun, s.record.Entries())
		}
		t.dispatch()
		t.mu.Unlock()
		loop.Await(t.ctx, nil, time.Second) // The informer may not show yet what was written.
		t.mu.Lock()
		if s.instance.drain == s {
			s.instance.drain = nil
		}
		t.mu.Unlock()
		t.queue.Add(s.instance.id)
	})
}

// recheck asks EC2 again about stops, which may be over by now if the drain has waited for its turn. It reports whether the drain is to
// begin: its Node must still exist.
func (s *session) recheck(ctx context.Context) bool {
	t, in := s.term, s.instance
	t.mu.Lock()
	waited := time.Since(s.since) > asksAgain
	hints := slices.Collect(maps.Values(in.hints))
	t.mu.Unlock()
	overtaken := false
	for _, h := range hints {
		if !waited || stopTime(h).IsZero() {
			continue
		}
		if over, _ := t.isOver(ctx, in, h, s.node); over {
			t.endOvertaken(in, h, s.node)
			overtaken = true
		}
	}
	now, ok := t.nodes.now(s.node)
	if ok && overtaken { // Its cordon is to be taken back.
		t.mu.Lock()
		s.record = newRecord(t.entriesOf(now, slices.Collect(maps.Values(s.events))))
		t.mu.Unlock()
	}
	return ok && ctx.Err() == nil
}

// update passes what stands now on to the agent. The term's mutex is held.
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

// endIfRested ends a drain that has begun if nothing is left to be done for any event. The term's mutex is held.
func (s *session) endIfRested() {
	if s.stage == working && len(s.rested) == len(s.events) {
		s.stage = ending
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

// runAgent runs an agent for the Node until nothing is left to be done or ctx ends, and keeps on the Node what is to outlast it.
func (s *session) runAgent(ctx context.Context) {
	t := s.term
	t.mu.Lock()
	s.endIfRested() // Then only the record has to be brought up to date.
	t.mu.Unlock()
	var keeping sync.WaitGroup
	keep := s.keeper()
	keeping.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.record.changed:
			}
			if s.isClosing() { // A cordon that is on its way would be in conflict.
				continue
			}
			for !keep(t.ctx) && loop.Await(ctx, s.record.changed, longestPause) { // The drain may last for hours without another change.
			}
		}
	})
	listeners, end := t.listeners(s.node, s.record.Entries)
	defer func() { end(t.ctx.Err() != nil) }() // Another process keeps the conditions then.
	_ = agent.New(agent.Config{
		Sources: []agent.Source{s}, Identity: s, Node: t.drainNode(s.node, s.urgent.Load), NodeName: s.node.name, Record: s.record, Policy: s.rules,
		BootID: s.node.bootID, NodeSeen: true, ClaimRead: true, Log: t.opts.Log, DryRun: t.opts.DryRun, Settled: s.onOutcome,
		Rested: func(ev event.Event, again time.Time) { s.onRested(ctx, ev, again) }, Listeners: listeners,
	}).Run(ctx) // Its source never fails.
	keeping.Wait()
	keep(t.ctx)
}

// isClosing reports whether the agent is about to cordon the node.
func (s *session) isClosing() bool {
	return slices.ContainsFunc(s.record.Entries(), func(e state.Entry) bool {
		return e.UnderWay() && e.CordonedAt.IsZero() && !e.Released() && !e.LeftAlone
	})
}

// keeper returns a function that writes the taints and the record to the Node, if they have changed since its last call, and reports whether
// that has succeeded. Once the node was closed and is not any more, all taints of nth-queue are taken off.
func (s *session) keeper() func(ctx context.Context) (kept bool) {
	t := s.term
	_, closed := s.taints(s.record.Entries())
	before := fmt.Sprint(s.node.recorded, []corev1.Taint(nil), false)
	return func(ctx context.Context) (kept bool) {
		entries := s.record.Entries()
		text := recordText(entries)
		wanted, closes := s.taints(entries)
		closed = closed || closes
		lifted := closed && !closes
		news := fmt.Sprint(text, wanted, lifted)
		if news == before {
			return true
		}
		err := t.change(ctx, s.node, func(now *corev1.Node) map[string]any {
			patch := map[string]any{}
			if text != now.Annotations[RecordAnnotation(t.opts.Lease)] {
				patch = annotation(RecordAnnotation(t.opts.Lease), text)
			}
			if taints := t.opts.Taints.changed(now.Spec.Taints, wanted, lifted); !slices.Equal(taints, now.Spec.Taints) {
				patch["spec"] = map[string]any{"taints": taints}
			}
			if len(patch) == 0 {
				return nil
			}
			return patch
		})
		if err == nil {
			before = news
		} else if ctx.Err() == nil {
			t.opts.Log.WithField(fieldNode, s.node.name).Warnf("cannot write taints and record to the Node: %s; retrying", err)
		}
		return err == nil
	}
}

// drainNode returns the Node for an agent to act on. urgent, if not nil, reports whether its requests go before those of other nodes.
func (f *Fleet) drainNode(on node, urgent func() bool) agent.Node {
	options := f.rules.Load().Drain
	options.Writer, options.UID, options.Requests, options.Urgent = f.opts.Lease, on.uid, f.requests, urgent
	options.OwnTaint = f.opts.Taints.isOwn
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

// leftAlone reports whether operators opted the node out for all of its events. Such a drain does not count for Limits. The term's mutex is
// held.
func (s *session) leftAlone() bool {
	for id := range s.events {
		if !s.rested[id] && s.outcomes[id] != event.LeftAlone {
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
		defer s.term.dispatch() // Its place is free for another one.
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

// sameEvent reports whether two versions of an event have the same state, code and deadline.
func sameEvent(a, b event.Event) bool {
	return a.State == b.State && a.Code == b.Code && a.Deadline.Equal(b.Deadline)
}

// settle settles the hints of an event that rests, and ends the drain with its last event. If ends is not set, their messages go back to the
// queue until again. The term's mutex is held.
func (s *session) settle(ev event.Event, ends bool, again time.Time) {
	t, in, outcome := s.term, s.instance, s.outcomes[ev.ID]
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

// annotation is a patch that sets an annotation, or removes it if text is "".
func annotation(key, text string) map[string]any {
	var value any
	if text != "" {
		value = text
	}
	return map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}}
}
