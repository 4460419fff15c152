package fleet

import (
	"context"
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
	deadline time.Time        // the nearest of its events, while it waits; zero if there is none
	goal     policy.Goal      // what the agent decides first
	events   map[string]*task // those that the agent knows, by ID
	sink     event.Sink       // the agent's; nil while it does not run
	stop     context.CancelFunc
}

// task is an event of a session.
type task struct {
	event.Event
	rests   bool          // nothing is being done for it any more
	outcome event.Outcome // so far
}

// open returns the events for which something is being done. The term's mutex is held.
func (s *session) open() []*task {
	return slices.DeleteFunc(slices.Collect(maps.Values(s.events)), func(t *task) bool { return t.rests })
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
	s.instance.record = s.record
	ctx, stop := context.WithCancel(t.ctx)
	s.stop = stop
	t.background(func(context.Context) {
		defer stop()
		s.runAgent(ctx)
		t.mu.Lock()
		s.stage, s.sink = ended, nil
		t.dispatch()
		t.mu.Unlock()
		// The watch may not show yet what was written. To know that would take the version of each write, also of those of pkg/drain. If a
		// watch is later than a second, an event may be reported twice.
		loop.Await(t.ctx, nil, time.Second)
		t.mu.Lock()
		if s.instance.drain == s {
			s.instance.drain = nil
		}
		t.mu.Unlock()
		t.queue.Add(s.instance.id)
	})
}

// update passes what stands now on to the agent. The term's mutex is held.
func (s *session) update(events []event.Event) {
	changed := false
	for _, ev := range events {
		known := s.events[ev.ID]
		if known != nil && sameEvent(known.Event, ev) && known.Until.Equal(ev.Until) {
			continue
		}
		if known == nil {
			known = &task{}
			s.events[ev.ID] = known
		}
		known.Event, known.rests, changed = ev, false, true
		if isUrgent(ev) {
			s.urgent.Store(true)
		}
	}
	if changed {
		s.announce()
	}
}

// endIfRested ends a drain that has begun if nothing is left to be done for any event. The term's mutex is held.
func (s *session) endIfRested() {
	if s.stage == working && len(s.open()) == 0 {
		s.stage = ending
		s.stop()
	}
}

// announce passes all events to the agent, if it runs. The term's mutex is held.
func (s *session) announce() {
	if s.sink == nil {
		return
	}
	kinds := map[event.Kind][]event.Event{}
	for _, known := range s.events {
		kinds[known.Kind] = append(kinds[known.Kind], known.Event)
	}
	for kind, events := range kinds {
		s.sink.Snapshot(event.Snapshot{Kind: kind, Events: events})
	}
}

// Run implements agent.Source.
func (s *session) Run(ctx context.Context, sink event.Sink) {
	s.term.mu.Lock()
	s.sink = sink
	s.announce()
	s.term.mu.Unlock()
	<-ctx.Done()
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
			for !s.keep() && loop.Await(ctx, s.record.changed, firstPause) { // The drain may last for hours without another change.
			}
		}
	})
	var listeners []agent.Listener
	if t.opts.Listeners != nil {
		listeners = t.opts.Listeners(s.node.name, string(s.node.uid), s.record.Entries)
	}
	agent.New(agent.Config{
		Sources: []agent.Source{s}, Identity: s, Node: t.drainNode(s.node, s.urgent.Load), NodeName: s.node.name, Record: s.record, Policy: s.rules,
		BootID: s.node.bootID, Remote: true, Log: t.opts.Log, DryRun: t.opts.DryRun, Settled: s.onOutcome,
		Rested: s.onRested, Listeners: listeners,
	}).Run(ctx)
	keeping.Wait()
	for range 5 { // The watch may not show the cordon yet.
		if s.keep() || !loop.Await(t.ctx, nil, firstPause/4) {
			break
		}
	}
}

// isClosing reports whether the agent is about to cordon the node.
func (s *session) isClosing() bool {
	return slices.ContainsFunc(s.record.Entries(), func(e state.Entry) bool {
		return e.UnderWay() && e.CordonedAt.IsZero() && !e.Released() && !e.LeftAlone
	})
}

// keep brings the taints and the claim on the Node in line with the record, and reports whether that has succeeded. The taints are part of
// nth-queue's cordon: what ends the cordon takes them off.
func (s *session) keep() (kept bool) {
	t, entries := s.term, s.record.Entries()
	wanted := s.taints(entries)
	current := true
	err := t.change(t.ctx, s.node, nil, func(now *corev1.Node) map[string]any {
		patch := map[string]any{}
		if text, needed := t.nodes.claimOf(now, entries); needed {
			patch = annotation(drain.CordonAnnotation, text)
		}
		_, own := t.nodes.cordonOf(now.Annotations[drain.CordonAnnotation])
		current = own && now.Spec.Unschedulable || len(wanted) == 0
		if taints := withTaints(now.Spec.Taints, wanted); own && now.Spec.Unschedulable && len(taints) > len(now.Spec.Taints) {
			patch["spec"] = map[string]any{"taints": taints}
		}
		if len(patch) == 0 {
			return nil
		}
		return patch
	})
	if err != nil && t.ctx.Err() == nil {
		t.opts.Log.WithField(fieldNode, s.node.name).Warnf("cannot write taints and claim to the Node: %s; retrying", err)
	}
	return err == nil && current
}

// drainNode returns the Node for an agent to act on. urgent, if not nil, reports whether its requests go before those of other nodes.
func (f *Fleet) drainNode(on node, urgent func() bool) agent.Node {
	options := f.rules.Load().Drain
	options.Writer, options.UID, options.Requests, options.Urgent = f.opts.Lease, on.uid, f.requests, urgent
	options.OwnTaint = f.opts.Taints.isOwn
	options.Watched = func() *corev1.Node { return f.nodes.watched(on) }
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
	return len(s.events) > 0 && !slices.ContainsFunc(s.open(), func(t *task) bool { return t.outcome != event.LeftAlone })
}

// onOutcome takes in the outcome of an event so far. It implements agent.Config.Settled.
func (s *session) onOutcome(ev event.Event, outcome event.Outcome) {
	s.term.mu.Lock()
	defer s.term.mu.Unlock()
	known := s.events[ev.ID]
	if known == nil {
		return
	}
	if outcome == event.LeftAlone && known.outcome != outcome {
		defer s.term.dispatch() // Its place is free for another one.
	}
	known.outcome = outcome
}

// onRested takes in that nothing is being done for an event any more. It implements agent.Config.Rested. After an error, the agent tries again
// until the time of the event has run out.
func (s *session) onRested(ev event.Event, again time.Time) {
	s.term.mu.Lock()
	defer s.term.mu.Unlock()
	known := s.events[ev.ID]
	if known == nil || known.rests || !sameEvent(known.Event, ev) { // The agent speaks of an earlier version.
		return
	}
	if triesAgain := !again.IsZero() && s.record.entry(ev.ID).Error != ""; triesAgain && known.outcome != event.OutOfTime {
		return
	}
	known.rests = true
	s.settleHints(known)
}

// sameEvent reports whether two versions of an event have the same state, code and deadline.
func sameEvent(a, b event.Event) bool {
	return a.State == b.State && a.Code == b.Code && a.Deadline.Equal(b.Deadline)
}

// settleHints settles the hints of an event that rests, and ends the drain with its last event. The term's mutex is held.
func (s *session) settleHints(rested *task) {
	t, in, outcome := s.term, s.instance, rested.outcome
	for _, h := range in.hints {
		if h.Event.ID == rested.ID && !h.busy && h.stands {
			h.busy = true
			t.background(func(ctx context.Context) { t.finish(ctx, in, h, outcome) })
		}
	}
	s.endIfRested()
}

// annotation is a patch that sets an annotation, or removes it if text is "".
func annotation(key, text string) map[string]any {
	var value any
	if text != "" {
		value = text
	}
	return map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}}
}
