package agent

import (
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// emit logs a transition and passes it to the listeners.
func (a *Agent) emit(t state.Transition) { a.pass(a.log(t)) }

// log completes a transition, writes it to the journal and returns it. Unlike emit, it does not pass it to the listeners.
func (a *Agent) log(t state.Transition) state.Transition {
	t.At, t.Node = a.now(), a.node
	t.Plan = a.cfg.Policy.Describe(t.Entry)
	a.journal.OnTransition(t)
	return t
}

// pass passes a transition to the listeners.
func (a *Agent) pass(t state.Transition) {
	t.At, t.Node = a.now(), a.node
	for _, l := range a.cfg.Listeners {
		l.OnTransition(t)
	}
}

// actions are what is done about an event in each phase.
var actions = map[state.Phase]policy.Action{
	state.Cordoning: policy.Cordon, state.Cordoned: policy.Cordon,
	state.Draining: policy.Drain, state.Drained: policy.Drain, state.Incomplete: policy.Drain,
	state.Undoing: policy.Uncordon,
}

// emitStep emits a transition of a step for an event: its beginning, something on the way, or its end.
func (a *Agent) emitStep(action policy.Action, e state.Entry, t state.Transition) {
	t.Action, t.Entry, t.Reason, t.Total, t.Left = string(action), e, a.cfg.Policy.Reason(e), a.total, a.left
	if action == policy.Drain {
		t.Deadline, t.Hard = a.cfg.Policy.Deadline(e)
	}
	if began, known := a.steps[e.Event.ID]; known {
		t.Took = time.Since(began)
	} else if a.work != nil {
		t.Took = time.Since(a.work.began) // An earlier process has begun it.
	}
	a.emit(t)
}

// emitChange emits what has changed from before to e, an entry in the record. met is false if the event had no entry before.
func (a *Agent) emitChange(before state.Entry, met bool, e state.Entry) {
	met = met && (before.Phase != state.Closed || e.Phase == state.Closed) // A closed event that is announced again is a new one.
	a.emitCordonOrLeftAlone(before, e)
	if met && policy.SameNews(before, e) {
		return
	}
	if met && actions[before.Phase] != actions[e.Phase] { // A step of the action before, if it is still under way, is stopped.
		a.emitCalledBack(before, e)
	}
	if kind := eventChange(before, met, e); kind != "" {
		a.emit(state.Transition{Kind: kind, Entry: e})
	}
	if met && before.Phase != e.Phase {
		a.emitStepEnd(before, e)
	}
}

// emitCordonOrLeftAlone emits what has changed for an event about the node: it is cordoned, or operators want it left alone.
func (a *Agent) emitCordonOrLeftAlone(before, e state.Entry) {
	if before.CordonedAt.IsZero() && !e.CordonedAt.IsZero() && a.work != nil {
		kind := state.CordonFound
		if a.work.state.Ours {
			kind = state.NodeCordoned
		}
		a.emitStep(actions[before.Phase], e, state.Transition{Kind: kind})
	}
	switch {
	case e.LeftAlone && !before.LeftAlone:
		a.emitStep(actions[e.Phase], e, state.Transition{Kind: state.LeftAlone})
		delete(a.steps, e.Event.ID)
	case before.LeftAlone && !e.LeftAlone && e.UnderWay():
		a.log(state.Transition{Kind: state.LeftAloneNoMore, Entry: e})
	}
}

// emitStepEnd emits the end of the step for an event, if the event's new phase is one.
func (a *Agent) emitStepEnd(before, e state.Entry) {
	t := state.Transition{Kind: state.Done}
	switch e.Phase {
	case state.Cordoned:
		if e.Released() { // Operators have lifted the cordon.
			a.emitCalledBack(before, e)
			return
		}
	case state.Drained:
		if a.result.NodeGone {
			t.Outcome = state.NodeGone
		}
	case state.Incomplete: // The drain may still end.
		t.Kind = state.RanOut
		if a.result.Cordon == drain.CordonNone {
			t.Outcome = state.NeverClosed
		}
	case state.Seen, state.Cordoning, state.Draining, state.Undoing, state.Closed:
		return
	}
	a.emitStep(actions[e.Phase], e, t)
	if e.Phase != state.Incomplete {
		delete(a.steps, e.Event.ID)
	}
}

// eventChange is the transition of the event itself; "" if there is none. met is whether the event was known before. The caller has already
// left out entries without news, so one whose phase is the same has changed in another way.
func eventChange(before state.Entry, met bool, e state.Entry) state.TransitionKind {
	switch {
	case e.Phase == state.Closed:
		return state.ClosedWith
	case !met:
		return state.Announced
	case before.Missing.IsZero() && !e.Missing.IsZero():
		return state.Missed
	case e.Phase == state.Seen, before.Phase == e.Phase:
		return state.Changed
	}
	return ""
}

// emitCalledBack emits that the step for an event was stopped, unless it was reported as ended.
func (a *Agent) emitCalledBack(before, e state.Entry) {
	if _, begun := a.steps[e.Event.ID]; begun && before.Phase != state.Incomplete {
		a.emitStep(actions[before.Phase], e, state.Transition{Kind: state.CalledBack})
	}
	delete(a.steps, e.Event.ID)
}

// beginSteps begins a step for each event of the goal that has none.
func (a *Agent) beginSteps(goal policy.Goal) {
	for _, e := range a.unfinished() {
		if _, known := a.steps[e.Event.ID]; !known {
			a.steps[e.Event.ID] = time.Now()
			a.emitStep(actions[e.Phase], e, state.Transition{Kind: state.Begun, Until: a.deadline(goal)})
		}
	}
}

// handleProgress handles a report of the guard: it keeps what the policy decides by, and emits what happened.
func (a *Agent) handleProgress(p drain.Progress) {
	w := a.work
	if w == nil || w.task == nil { // A late report of a guard that has ended.
		return
	}
	if p.Kind == state.NodeReopened {
		a.decide() // Record first for which events the node was closed.
	}
	a.total, a.left = p.Total, p.Left
	if !w.stopping { // Otherwise the agent no longer decides by this guard's state.
		// Somebody has uncordoned the node. It is decided now for which events: the others also want the pods gone that came since, so the
		// node does not count as drained until then.
		if p.State.Open && w.guardGoal.Close {
			p.State.Drained = false
		}
		w.state, w.reported = p.State, p.Generation
	}
	if p.Kind == state.NodeClosed || p.Kind == state.NodeFoundClosed {
		a.decide() // Report that for each event before what happens to pods.
	}
	w.noteHolders(p)
	a.emitProgress(p)
}

// noteHolders keeps track of what holds back pods, and of the load balancers that are waited for.
func (w *work) noteHolders(p drain.Progress) {
	switch p.Kind { // The others change neither.
	case state.PodHeld:
		w.held[p.Pod] = "PDB " + p.Detail
	case state.PodRefused:
		if p.Pod != "" { // Otherwise a request for the node was refused.
			w.held[p.Pod] = p.Detail
		}
	case state.PodOverdue, state.PodHeldAgain:
		w.held[p.Pod] = p.Detail
	case state.PodEvicted, state.PodDeleted, state.PodGone, state.PodSpared:
		delete(w.held, p.Pod)
	case state.TargetsLeft:
		w.targets = p.Detail
	case state.TargetsOut:
		w.targets = ""
	}
}

// emitProgress emits or logs a report of the guard. What concerns a pod is emitted for the most urgent event.
func (a *Agent) emitProgress(p drain.Progress) {
	t := transitionOf(p, time.Since(a.work.began))
	t.Entry = a.first()
	switch p.Kind {
	case state.NodeEmpty, state.GoalChanged, state.PodHeldAgain: // These are only about p.State.
	case state.NodeUnclosable:
		a.recordCordonFailed(t)
	case state.NodeClosed, state.NodeFoundClosed, state.NodeReopened, state.NodeOptedOut, state.NodeExcluded:
		a.emitNode(p, t)
	case state.PodRefused, state.PodEvicted, state.PodDeleted, state.PodHeld, state.PodGone, state.PodSpared:
		if p.Pod == "" { // What is refused concerns the node.
			a.log(t)
			break
		}
		a.emitStep(a.work.goal.Action, t.Entry, t)
	case state.PodsFound:
		if len(a.unfinished()) > 0 || p.Total > 0 { // A node that stays empty is not worth a message.
			a.log(t)
		}
	default:
		a.log(t)
	}
}

// transitionOf returns the transition for a report of the guard; the caller adds the event's entry. took is how long the work has taken.
func transitionOf(p drain.Progress, took time.Duration) state.Transition {
	t := state.Transition{
		Kind: p.Kind, Pod: p.Pod, PodUID: p.PodUID, Total: p.Total, Left: p.Left, Detail: p.Detail, Took: took,
	}
	if p.Kind == state.PodRefused && p.Pod != "" { // It is reported like a pod that a budget holds. Without a pod it concerns the node.
		t.Kind, t.Outcome = state.PodHeld, state.Refused
	}
	return t
}

// emitNode logs what happened to the Node.
func (a *Agent) emitNode(p drain.Progress, t state.Transition) {
	worthLogging := true
	switch p.Kind { // The others are always logged.
	case state.NodeClosed: // A cordon that an earlier guard or process has set was logged then.
		worthLogging = p.Detail != string(drain.CordonOurs)
	case state.NodeReopened:
		worthLogging = a.recordReopened(p)
		if slices.ContainsFunc(a.unfinished(), func(e state.Entry) bool { return e.Phase == state.Draining }) {
			t.Action = string(policy.Drain) // It continues with the pods from before the uncordon.
		}
	}
	if worthLogging {
		a.log(t)
	}
	a.clearCordonFailed()
}

// handleIdentity handles what the identity reports: it keeps the node's name, and logs when the credential comes, goes or changes.
func (a *Agent) handleIdentity(node string, err error) {
	switch {
	case err == nil && (a.waiting != nil || a.node != node):
		a.node = node
		if a.cfg.Service != nil { // Otherwise the caller has named the node.
			a.log(state.Transition{Kind: state.IdentityFound})
		}
	case err != nil && (a.waiting == nil || !kube.EqualIgnoringDigits(a.waiting.Error(), err.Error())):
		a.log(state.Transition{Kind: state.IdentityWaiting, Err: err})
	}
	a.waiting = err
}

// handleFailedLook records since when and why looks for a kind fail, and emits that. The first failure of an outage is logged.
func (a *Agent) handleFailedLook(kind event.Kind, err error, at time.Time) {
	known, lasts := a.trouble[kind]
	if !lasts {
		known.since = at
	}
	if !kube.EqualIgnoringDigits(err.Error(), known.err) { // The status shows it.
		known.err = err.Error()
	}
	known.last = at
	a.trouble[kind] = known
	t := state.Transition{Kind: state.SourceLost, Entry: state.Entry{Event: event.Event{Kind: kind}}, Err: err}
	if !lasts {
		a.log(t)
	}
	a.pass(t)
}

// failing reports whether the last look for a kind failed.
func (a *Agent) failing(kind event.Kind) bool {
	t, lasts := a.trouble[kind]
	return lasts && !a.looked[kind].After(t.last)
}

// recoveredAfter is how long after the last failed look an outage is over, if looks succeed: a source that fails every few seconds has one outage.
const recoveredAfter = 10 * time.Second

// emitRecovered ends the outages that are over, and emits that.
func (a *Agent) emitRecovered() {
	for kind, t := range a.trouble {
		if a.failing(kind) || a.now().Sub(t.last) < recoveredAfter {
			continue
		}
		delete(a.trouble, kind)
		a.emit(state.Transition{
			Kind: state.SourceBack, Entry: state.Entry{Event: event.Event{Kind: kind}}, Took: a.looked[kind].Sub(t.since).Round(time.Second),
		})
	}
}
