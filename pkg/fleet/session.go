package fleet

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// session is what is being done for one node: from when its first event comes until nothing is left to be done for any.
type session struct {
	fleet *Fleet
	node  string
	group string
	place placeKey
	// urgent tells that what is done for it waits behind no other node.
	urgent atomic.Bool

	// The fleet's mutex guards what follows.
	begun bool // it is no longer in the line
	tasks map[string]*task
	// announced are the events of all tasks that it ever had: that a message has come to its end takes nothing back of what it says.
	announced map[string]event.Event
	// outcomes are what has come of its events so far.
	outcomes map[string]event.Outcome
	// notes are what is to be noted on the Node of what has come of events; nil is for what needs no note any more.
	notes map[string]*note
	// lasting is an event that the node was drained or cordoned for and whose message has come to its end.
	lasting event.Event
	// sink gets the events while there is an agent; nil without one.
	sink event.Sink
	// over tells that it takes no more tasks.
	over bool
	stop context.CancelFunc
	// ended is closed when nothing more is done for the node.
	ended chan struct{}
	// claimed is the text of its claim on the Node. lose, if not nil, ends it when something else stands there; looked is the version of
	// the Node, as the watch has shown it, that was last looked at for that.
	claimed, looked string
	lose            context.CancelCauseFunc
	book            *book
	// rules are those by which it was begun, and goes on.
	rules policy.Settings
}

// join gives a task to its node's session. A new one goes into the line.
func (f *Fleet) join(n node, t *task) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Paused() {
		t.again(0)
		return
	}
	s := f.sessions[n.name]
	if s == nil || s.over {
		s = &session{
			fleet: f, node: n.name, group: n.group, place: placeOf(n.name), tasks: map[string]*task{}, announced: map[string]event.Event{},
			outcomes: map[string]event.Outcome{}, ended: make(chan struct{}),
		}
		f.sessions[n.name] = s
	}
	ev := t.notice.Event
	if s.book != nil {
		f.spend(t, time.Now())
	}
	if other, there := s.tasks[ev.ID]; there && other != t {
		t.follow(other)
		return
	}
	s.tasks[ev.ID], s.announced[ev.ID] = t, ev
	if s.announce(ev.Kind); s.sink != nil {
		f.background(s.mark)
	}
	pressed := urgent(ev) || t.lifts
	if pressed {
		s.urgent.Store(true)
	}
	if !s.begun {
		f.line.join(s.placeOf(t, time.Now()))
		f.nudge()
	}
}

// placeOf is the place in the line that one of the session's tasks calls for.
func (s *session) placeOf(t *task, since time.Time) place {
	ev := t.notice.Event
	return place{node: s.node, group: s.group, urgent: urgent(ev) || t.lifts, deadline: ev.Deadline, since: since}
}

// announce tells the agent, if there is one, of the events of a kind. f.mu is held.
func (s *session) announce(kind event.Kind) {
	if s.sink != nil {
		s.sink.Snapshot(event.Snapshot{Kind: kind, Events: s.events(kind)})
	}
}

// events are those of a kind that the session is or was for. One has the end of its budget as its deadline where the machine is lost then
// although people would have it kept. f.mu is held.
func (s *session) events(kind event.Kind) []event.Event {
	var all []event.Event
	for id, ev := range s.announced {
		if ev.Kind != kind {
			continue
		}
		if t := s.tasks[id]; t != nil && t.lost {
			ev.Deadline = s.fleet.ends(t).Round(0)
		}
		all = append(all, ev)
	}
	return all
}

// dispatch lets those in the line begin for whom there is room.
func (f *Fleet) dispatch(t *term) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.line.limits = f.limits()
	f.hurry()
	f.start(t, f.line.hurried())
	limited := f.line.limits.Draining > 0 || f.line.limits.Group > 0
	switch {
	case f.opts.DryRun:
		f.start(t, f.line.next(f.busy(t, nil)))
	case len(f.line.places) > 0:
		f.leases.hurry()
		f.settle(t)
	case limited && len(f.draining()) > 0, f.placed:
		f.settle(t)
	}
}

// start begins the sessions of nodes that are in the line. f.mu is held.
func (f *Fleet) start(t *term, begin []place) {
	for _, p := range begin {
		s := f.sessions[p.node]
		if s == nil || s.begun || t.ctx.Err() != nil {
			continue
		}
		s.begun = true
		if p.urgent {
			s.urgent.Store(true) // Its deadline may have come near in the line.
		}
		ctx, stop := context.WithCancel(t.ctx)
		s.stop = stop
		f.work.Add(1)
		t.sessions.Go(func() {
			defer f.work.Done()
			defer close(s.ended)
			defer stop()
			s.run(ctx, t)
		})
	}
	f.line.leave(begin)
}

// run claims the node, lets an agent do what is to be done for it, and ends the claim.
func (s *session) run(ctx context.Context, t *term) {
	held, err := s.claim(ctx, t)
	if err != nil {
		s.end(err)
		return
	}
	claimed, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	text := held.Annotations[ClaimAnnotation]
	if !s.fleet.opts.DryRun {
		s.bear(text, lost)
	}
	if s.sift(claimed, held) {
		s.attend(claimed, t, held)
	}
	cause := context.Cause(claimed)
	if !isLost(cause) {
		s.keepClosed(t.leased) // While the claim stands, so that no other works on the node.
		s.keepNotes(t.leased)
	}
	s.end(cause)
	if !s.fleet.opts.DryRun && !isLost(cause) {
		s.release(t.leased, text)
	}
}

// bear takes in the claim that the Node bears from now on. What the watch shows of the Node may be from before.
func (s *session) bear(text string, lost context.CancelCauseFunc) {
	f := s.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	known, _ := f.nodes.named(s.node)
	s.claimed, s.looked, s.lose = text, known.version, lost
}

// mindClaims looks at the Nodes on which the watch shows something else than our claims.
func (f *Fleet) mindClaims(t *term) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sessions {
		if s.lose == nil {
			continue
		}
		if now, there := f.nodes.named(s.node); there && now.claim != s.claimed && now.version != s.looked {
			s.looked = now.version
			t.sessions.Go(func() { s.mindClaim(t.ctx) })
		}
	}
}

// mindClaim ends the session if its claim is not on its Node any more. The watch may only have been behind.
func (s *session) mindClaim(ctx context.Context) {
	f := s.fleet
	ctx, leave, err := f.claims.enter(ctx, s.urgent.Load())
	if err != nil {
		return
	}
	defer leave()
	now, err := f.opts.Client.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{})
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		s.looked = "" // It is looked at again.
	case now.Annotations[ClaimAnnotation] != s.claimed:
		s.lose(errLost)
	}
}

// claimTries is how often in a row a claim may fail before its messages go back into the queue.
const claimTries = 2

// claim waits until the node is ours to drain, and returns the Node as it is then, with the claim. It fails with
// the context's error, because there is no such Node, because another process is to drain it, or because the API server does not
// take the claim: another process may have a better way to it.
func (s *session) claim(ctx context.Context, t *term) (*corev1.Node, error) {
	f := s.fleet
	for failures := 0; ; {
		news := f.nodes.news()
		known, there := f.nodes.named(s.node)
		if !there {
			return nil, errGone
		}
		if f.opts.DryRun {
			return &corev1.Node{}, nil
		}
		if err := s.leaveToOthers(ctx, t.process, known); err != nil {
			return nil, err
		}
		held, err := s.take(ctx, t, known)
		switch {
		case err == nil:
			return held, nil
		case apierrors.IsNotFound(err):
			return nil, errGone
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		var other errClaimed
		wait := time.Second
		if errors.As(err, &other) {
			wait = other.look
		} else {
			news = nil
			s.spend()
			f.opts.Log.WithField(fieldNode, s.node).Warn(err)
			if failures++; failures == claimTries {
				return nil, errUnclaimed
			}
		}
		if !drain.Await(ctx, news, wait) {
			return nil, ctx.Err()
		}
	}
}

// take claims the node, as it is known when its turn has come.
func (s *session) take(ctx context.Context, t *term, known node) (*corev1.Node, error) {
	f := s.fleet
	if err := f.claims.free(t.process, known); err != nil {
		return nil, err // Nobody else is to wait for that.
	}
	ctx, leave, err := f.claims.enter(ctx, s.urgent.Load())
	if err != nil {
		return nil, err
	}
	defer leave()
	if now, there := f.nodes.named(s.node); there {
		known = now
	}
	return f.claims.take(ctx, t.process, known)
}

// spend takes in that the budgets of the session's events count from now on, or from when an earlier session has begun with them, as the
// book says.
func (s *session) spend() {
	f := s.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, t := range s.tasks {
		since := time.Now()
		if s.book != nil {
			if e := s.book.entry(id); !e.FirstSeen.IsZero() {
				since = since.Add(min(e.FirstSeen.Sub(since.Round(0)), 0))
			}
		}
		for _, same := range append([]*task{t}, t.others...) {
			f.spend(same, since)
		}
	}
}

// errUnclaimed says that the API server does not take the claim.
var errUnclaimed = errors.New("the node cannot be claimed")

// errGone says that the Node is not there any more.
var errGone = errors.New("there is no such Node any more")

// release ends the claim. If that does not work out, endOrphans does.
func (s *session) release(ctx context.Context, text string) {
	if err := s.fleet.claims.release(ctx, s.node, text); err != nil {
		s.fleet.opts.Log.WithField(fieldNode, s.node).Debugf("ending the claim: %s", err)
	}
}

// end takes the session out of the fleet, and gives back what is left of it. Without a Node nothing is left to be done.
func (s *session) end(cause error) {
	f := s.fleet
	f.mu.Lock()
	s.over, s.sink = true, nil
	tasks := s.tasks
	if f.sessions[s.node] == s {
		delete(f.sessions, s.node)
	}
	f.mu.Unlock()
	var others errOthers
	for _, t := range tasks {
		switch {
		case errors.Is(cause, errGone):
			f.finish(t, event.Drained)
		case errors.As(cause, &others):
			t.again(others.pause)
		case errors.Is(cause, errLost), errors.Is(cause, errUnclaimed):
			t.failed()
		default:
			t.again(0) // We are to stop, or have no Lease: others can go on at once.
		}
	}
	f.nudge()
}

// abandon gives back what has not begun.
func (f *Fleet) abandon(back func(*task)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, s := range f.sessions {
		if s.begun {
			continue
		}
		delete(f.sessions, name)
		for _, t := range s.tasks {
			back(t)
		}
	}
	f.line.places = nil
}

// leftAlone tells whether people want the node left alone for all that it waits for: others need not wait in line for that. f.mu is held.
func (s *session) leftAlone() bool {
	for id := range s.tasks {
		if s.outcomes[id] != event.LeftAlone {
			return false
		}
	}
	return len(s.tasks) > 0
}

// settled takes in what has come of an event so far.
func (s *session) settled(ev event.Event, outcome event.Outcome) {
	f := s.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if outcome == event.LeftAlone && s.outcomes[ev.ID] != outcome {
		f.nudge()
	}
	s.outcomes[ev.ID] = outcome
}

// fellShort tells whether the rules that hold now ask for more than those by which the session goes on: a hook is not completed before that is
// done.
func (s *session) fellShort(kind event.Kind) bool {
	return s.fleet.policy()[kind].Action.Exceeds(s.rules[kind].Action)
}

// rested takes in that nothing is being done about an event now: for ever, or until a time. What is out of time is at its end, too: a
// message that came again would take a place in the line for it again, and tell of its end again.
func (s *session) rested(ctx context.Context, ev event.Event, again time.Time) {
	f := s.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ours := s.tasks[ev.ID]
	if !ours || t.replaced {
		return
	}
	entry, ends := s.book.entry(ev.ID), again.IsZero() || s.outcomes[ev.ID] == event.OutOfTime
	if ends && f.lasting(entry) && (s.lasting.ID == "" || !revocable(ev.Kind)) {
		s.lasting = ev
	}
	if t.replaced = ends && s.replaces(t); t.replaced {
		f.work.Go(func() { s.replace(ctx, t) })
		return
	}
	s.noted(t.notice.Event, entry, again)
	switch {
	case ends:
		s.conclude(t)
	case entry.Error == "" && t.listed:
		t.done() // EC2 keeps it in mind.
	case entry.Error == "":
		t.again(time.Until(again))
	case s.overdue(entry):
		return // What is done now is the last effort, and comes to its end soon.
	default:
		t.failed()
	}
	s.left(ev.ID)
}

// left takes in that the session is done with an event. What is known of it by then is noted at once if the session goes on: if it loses its
// claim, nobody else would know. f.mu is held.
func (s *session) left(id string) {
	delete(s.tasks, id)
	if len(s.tasks) > 0 {
		s.fleet.background(s.keepNotes)
		return
	}
	s.over = true
	s.stop()
}

// conclude ends a task for whose event nothing more is going to be done. f.mu is held.
func (s *session) conclude(t *task) {
	f, outcome := s.fleet, s.outcomes[t.notice.Event.ID]
	switch {
	case outcome == event.LeftAlone:
		f.leave(t)
	case f.awaited(t) && s.fellShort(t.notice.Event.Kind):
		t.failed()
	case f.removes(t):
		until := f.patienceWithNode(t)
		f.background(func(ctx context.Context) { f.remove(ctx, s.node, t, until) })
	default:
		f.finish(t, outcome)
	}
}

// overdue tells whether the time of an event has come to its end.
func (s *session) overdue(e record.Entry) bool {
	deadline, _ := s.rules.Deadline(e)
	return !deadline.IsZero() && !deadline.After(time.Now())
}
