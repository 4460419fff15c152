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
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// fieldNode is the log field with the name of a node.
const fieldNode = systemd.FieldNode

// session is the drain of one Node by an agent. The session implements the agent's source: it passes on the events that stand for the instance. It
// ends when all events rest, or when the Node is gone. After its end nothing watches the node, and the cordon keeps pods away.
type session struct {
	term        *term
	instance    *instance
	node        node
	since       time.Time // when the session began to wait or, after that, to work
	urgent      atomic.Bool
	record      *record
	requestOver atomic.Bool // a request of finish.go was made or given up

	// The term's mutex guards what follows.
	stage     stage
	deadline  time.Time        // the nearest deadline of the events, while the session waits; noDeadline if none has one
	goal      policy.Goal      // what the agent will decide first
	rules     policy.Settings  // those of the goal
	takesTurn bool             // the goal is maintenance that nth-queue finishes, so that the session takes the turn of its group: see term.turn
	events    map[string]*task // the events for the agent, by ID
	sink      event.Sink       // the agent's; nil while the agent does not run
	stop      context.CancelFunc
}

// task is an event of a session.
type task struct {
	event.Event
	rests   bool          // the agent has nothing to do for the event
	outcome event.Outcome // the last one that the agent reported
}

// open returns the events that do not rest. The term's mutex is held.
func (s *session) open() []*task {
	return slices.DeleteFunc(slices.Collect(maps.Values(s.events)), func(t *task) bool { return t.rests })
}

// stage is how far a session has come.
type stage int

const (
	waiting stage = iota // The session waits for its turn.
	working              // The agent runs.
	ending               // The agent is being stopped, and gets no more events.
	ended                // The agent has ended, and the watch may not show its last writes yet.
)

// runs reports whether there is a session that has begun. The term's mutex is held.
func (s *session) runs() bool { return s != nil && s.stage != waiting }

// begin begins a session whose turn has come. A goroutine runs the agent, and has the instance looked at when the agent has ended. The term's mutex
// is held.
func (t *term) begin(s *session) {
	s.stage, s.since = working, time.Now()
	s.instance.record = s.record
	ctx, stop := context.WithCancel(t.ctx)
	s.stop = stop
	t.work.Go(func() {
		defer stop()
		s.runAgent(ctx)
		t.mu.Lock()
		s.stage, s.sink = ended, nil
		t.dispatch()
		t.mu.Unlock()
		// The taints and the claim have to outlast the agent, and need its cordon; the next look needs all that was written to the Node. The watch may
		// not show it yet. Until it shows a cordon, the node looks as if operators had uncordoned it. Other writes have a second to show: later, an
		// event may be reported twice.
		for seconds := range 30 { // A watch that lags for longer is not waited for.
			isShown := seconds > 0 && !s.watchLags()
			s.syncNode() // An API server that refuses taints holds nothing up.
			if isShown || !loop.Await(t.ctx, nil, time.Second) {
				break
			}
		}
		t.mu.Lock()
		s.instance.drain = nil // Only a session that waits is ever replaced.
		t.mu.Unlock()
		t.queue.Add(s.instance.id)
	})
}

// watchLags reports whether the watch does not show yet that nth-queue has cordoned or uncordoned the Node, as the record says. A Node that
// operators have uncordoned still has the annotation of the cordon.
func (s *session) watchLags() bool {
	cordoned := slices.ContainsFunc(s.record.Entries(), func(e state.Entry) bool { return e.OnNode && !e.CordonedAt.IsZero() && !e.Released() })
	now, exists := s.term.nodes.now(s.node)
	looksUncordoned := !now.unschedulable && !now.hasOwnCordon
	looksCordoned := now.unschedulable && now.hasOwnCordon
	return exists && !s.term.opts.DryRun && (cordoned && looksUncordoned || !cordoned && looksCordoned)
}

// update passes the events that stand now on to the agent, if any is new or has changed. The term's mutex is held.
func (s *session) update(events []event.Event) {
	changed := false
	for _, ev := range events {
		known := s.events[ev.ID]
		if known != nil && sameEvent(known.Event, ev) {
			if known.rests && known.outcome != "" { // Its message may have come again. Without an outcome, its hook would be completed by nobody.
				s.settleHints(known)
			}
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

// endIfRested ends a session that has begun if all of its events rest. The term's mutex is held.
func (s *session) endIfRested() {
	if s.stage == working && len(s.open()) == 0 {
		s.stage = ending
		s.stop()
	}
}

// announce passes all events to the agent, if the agent runs. The term's mutex is held.
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

// Run implements agent.Source. After the first events, update calls announce for others.
func (s *session) Run(ctx context.Context, sink event.Sink) {
	s.term.mu.Lock()
	s.sink = sink
	s.announce()
	s.term.mu.Unlock()
	<-ctx.Done()
}

// KeepWarm implements agent.Identity. It only reports the Node's name, as the process has one credential for all Nodes.
func (s *session) KeepWarm(ctx context.Context, report func(node string, err error)) {
	report(s.node.name, nil)
	<-ctx.Done()
}

// runAgent runs an agent for the Node until ctx ends; s.stop ends ctx when all events rest. Meanwhile it writes the taints and the claim to the Node.
func (s *session) runAgent(ctx context.Context) {
	t := s.term
	var syncing sync.WaitGroup
	syncing.Go(func() {
		for loop.Await(ctx, s.record.changed, loop.Forever) {
			if s.isAboutToCordon() { // The write would conflict with the agent's cordon. The record changes again after the cordon.
				continue
			}
			for !s.syncNode() && loop.Await(ctx, s.record.changed, firstPause) { // Another change of the record may be hours away, so syncNode is repeated.
			}
		}
	})
	var listeners []agent.Listener
	if t.opts.Listeners != nil {
		listeners = t.opts.Listeners(s.node.name, string(s.node.uid), s.record.Entries)
	}
	agent.New(agent.Config{
		Sources: []agent.Source{s}, Identity: s, Node: t.drainNode(s.node, s.urgent.Load), NodeName: s.node.name, Record: s.record, Policy: s.rules,
		BootID: s.node.bootID, Remote: true, Reboot: s.carryOut, Log: t.opts.Log, DryRun: t.opts.DryRun, Settled: s.onOutcome,
		Rested: s.onRested, Listeners: listeners,
	}).Run(ctx)
	syncing.Wait()
}

// isAboutToCordon reports whether the agent is about to cordon the node: an entry is under way and has no cordon yet, and operators do not forbid one.
func (s *session) isAboutToCordon() bool {
	return slices.ContainsFunc(s.record.Entries(), func(e state.Entry) bool {
		mayCordon := !e.Released() && !e.LeftAlone
		return e.UnderWay() && e.CordonedAt.IsZero() && mayCordon
	})
}

// syncNode brings the taints and the claim on the Node in line with the record. It adds taints only to a Node that is cordoned for this Lease; whatever
// ends the cordon takes them off. done is false if the write has failed, or if the cordon that taints belong to is not shown yet.
func (s *session) syncNode() (done bool) {
	t, entries := s.term, s.record.Entries()
	wanted := s.taints(entries)
	isCurrent := true // The Node has the cordon for the wanted taints.
	_, err := t.change(t.ctx, s.node, kube.InTurn, func(now *corev1.Node) map[string]any {
		patch := map[string]any{}
		if text, needed := t.nodes.claimOf(now, entries); needed {
			patch = annotation(drain.CordonAnnotation, text)
		}
		on := t.nodes.parse(now)
		isCordoned := on.hasOwnCordon && on.unschedulable
		isCurrent = isCordoned || len(wanted) == 0
		taints := withTaints(now.Spec.Taints, wanted)
		if on.ready && !slices.Contains(wanted, outOfService) { // A machine that runs again is not out of service, even if another event keeps the cordon.
			taints = slices.DeleteFunc(taints, func(taint corev1.Taint) bool { return taint.MatchTaint(&outOfService) && t.opts.Taints.isOwn(taint) })
		}
		if isCordoned && len(taints) != len(now.Spec.Taints) {
			patch["spec"] = map[string]any{"taints": taints}
		}
		if len(patch) == 0 {
			return nil
		}
		return patch
	})
	if err != nil && t.ctx.Err() == nil {
		t.opts.Log.WithField(fieldNode, s.node.name).Warnf("cannot write nth-queue's taints and cordon annotation to the node: %s; retrying", err)
	}
	return err == nil && isCurrent
}

// drainNode returns the Node for an agent to act on. urgent reports whether the agent's requests go before those of other nodes.
func (f *Fleet) drainNode(on node, urgent func() bool) agent.Node {
	options := f.opts.Drain
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

// leftAlone reports whether operators opted the node out, for all events that do not rest. Such a session does not count for Limits. The term's mutex
// is held.
func (s *session) leftAlone() bool {
	open := s.open()
	return len(open) > 0 && !slices.ContainsFunc(open, func(t *task) bool { return t.outcome != event.LeftAlone })
}

// onOutcome keeps the latest outcome of an event. If the event is left alone from now on, another session may begin in its place. It implements
// agent.Config.Settled.
func (s *session) onOutcome(ev event.Event, outcome event.Outcome) {
	s.term.mu.Lock()
	defer s.term.mu.Unlock()
	known := s.events[ev.ID]
	if known == nil {
		return
	}
	if outcome == event.LeftAlone && known.outcome != outcome {
		defer s.term.dispatch() // after the outcome is set
	}
	known.outcome = outcome
}

// onRested marks an event as one that rests, and settles its hints. It implements agent.Config.Rested. An event with an error does not rest while the
// agent will try again in time.
func (s *session) onRested(ev event.Event, again time.Time) {
	s.term.mu.Lock()
	defer s.term.mu.Unlock()
	known := s.events[ev.ID]
	isLatest := known != nil && sameEvent(known.Event, ev) // The agent may not have seen the latest version of the event yet.
	if !isLatest || known.rests || s.requesting(s.record.entry(ev.ID)) {
		return
	}
	retries := !again.IsZero() && s.record.entry(ev.ID).Error != ""
	if retries && known.outcome != event.OutOfTime {
		return
	}
	known.rests = true
	s.settleHints(known)
}

// sameEvent reports whether two versions of an event have the same state, code and times.
func sameEvent(a, b event.Event) bool {
	return a.State == b.State && a.Code == b.Code && a.Deadline.Equal(b.Deadline) && a.Until.Equal(b.Until)
}

// settleHints settles the hints of an event that rests, each in a goroutine. If all events rest now, it ends the session. The term's mutex is held.
func (s *session) settleHints(rested *task) {
	t, inst, outcome := s.term, s.instance, rested.outcome
	for _, h := range inst.hints {
		if h.Event.ID == rested.ID && !h.busy && h.accepted {
			h.busy = true
			t.work.Go(func() { t.completeAndSettle(inst, h, outcome) })
		}
	}
	s.endIfRested()
}

// annotation returns a patch that sets an annotation to a text, or removes the annotation if the value is nil.
func annotation(key string, value any) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}}
}
