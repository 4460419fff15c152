package agent

import (
	"errors"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// emit logs a transition and passes it to the listeners.
func (a *Agent) emit(t state.Transition) {
	t = a.log(t)
	for _, l := range a.cfg.Listeners {
		l.OnTransition(t)
	}
}

// log completes a transition, writes it to the journal and returns it. Unlike emit, it does not pass it to the listeners.
func (a *Agent) log(t state.Transition) state.Transition {
	t.At, t.Node = a.now(), a.node
	t.Plan = a.cfg.Policy.Describe(t.Entry)
	a.write(t)
	return t
}

// actions are what is done about an event in each phase.
var actions = map[state.Phase]policy.Action{
	state.Cordoning: policy.Cordon, state.Cordoned: policy.Cordon,
	state.Draining: policy.Drain, state.Drained: policy.Drain, state.Incomplete: policy.Drain,
	state.Undoing: policy.Uncordon,
}

// emitStep emits a transition of a step for an event: its beginning, something on the way, or its end. The step began when the phase changed to
// that of during, an entry of the event.
func (a *Agent) emitStep(during, e state.Entry, t state.Transition) {
	action := actions[during.Phase]
	t.Action, t.Entry, t.Reason, t.Total, t.Left = string(action), e, e.Event.Summary(), a.total, a.left
	if action == policy.Drain {
		t.Deadline, t.Hard = a.cfg.Policy.Deadline(e)
	}
	t.Took = a.now().Sub(during.Changed)
	a.emit(t)
}

// emitBegun emits that the step of an entry's phase begins, or continues in this process.
func (a *Agent) emitBegun(e state.Entry) {
	a.emitStep(e, e, state.Transition{Kind: state.Begun})
}

// emitChange emits what has changed from before to e, an entry in the record. met is false if the event had no entry before.
func (a *Agent) emitChange(before state.Entry, met bool, e state.Entry) {
	if before.Phase == state.Closed && e.Phase != state.Closed { // A closed event that is announced again is a new one.
		met, before = false, state.Entry{}
	}
	a.emitCordoned(before, e)
	if e.LeftAlone && !before.LeftAlone {
		a.emitStep(e, e, state.Transition{Kind: state.LeftAlone})
	}
	if !met || !policy.SameNews(before, e) {
		a.emitNews(before, met, e)
	}
	if e.UnderWay() && !e.LeftAlone && (before.LeftAlone || before.Phase != e.Phase) {
		a.emitBegun(e)
	}
}

// emitCordoned emits that the node is cordoned for an event, if that is new in its entry.
func (a *Agent) emitCordoned(before, e state.Entry) {
	if a.work == nil || !before.CordonedAt.IsZero() || e.CordonedAt.IsZero() {
		return
	}
	kind := state.CordonFound
	if a.work.state.Ours {
		kind = state.NodeCordoned
	}
	a.emitStep(before, e, state.Transition{Kind: kind})
}

// emitNews emits what operators get to see of a change: the end of a step, and what has become of the event.
func (a *Agent) emitNews(before state.Entry, met bool, e state.Entry) {
	released := e.Phase == state.Cordoned && e.Released() // Operators have lifted the cordon.
	if before.UnderWay() && !before.LeftAlone && (actions[before.Phase] != actions[e.Phase] || released) {
		a.emitStep(before, e, state.Transition{Kind: state.CalledBack})
	}
	if kind := eventChange(before, met, e); kind != "" {
		a.emit(state.Transition{Kind: kind, Entry: e})
	}
	switch {
	case !met || before.Phase == e.Phase:
	case e.Phase == state.Seen: // Another event keeps the node closed.
		a.emit(state.Transition{Kind: state.PutOff, Entry: e})
	case e.Phase == state.Cordoned && !released:
		a.emitStep(before, e, state.Transition{Kind: state.Done})
	case e.Phase == state.Drained:
		t := state.Transition{Kind: state.Done}
		if a.result.NodeGone {
			t.Outcome = state.NodeGone
		}
		a.emitStep(before, e, t)
	case e.Phase == state.Incomplete: // The drain may still end.
		a.emitStep(before, e, state.Transition{Kind: state.RanOut})
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

// handleProgress handles a report of the guard: it keeps what the policy decides by, and emits what happened.
func (a *Agent) handleProgress(p drain.Progress) {
	w := a.work
	if w == nil || w.task == nil || w.stopping { // A late report of a guard that has ended, or has to.
		return
	}
	if p.Kind == state.NodeReopened {
		a.decide() // Record first for which events the node was closed.
	}
	a.total, a.left = p.Total, p.Left
	// Somebody has uncordoned the node. It is decided now for which events: the others also want the pods gone that came since, so the
	// node does not count as drained until then.
	if p.State.Open && w.guardGoal.Close {
		p.State.Drained = false
	}
	w.state, w.reported = p.State, p.Generation
	switch p.Kind { // The others change nothing else that is kept.
	case state.NodeClosed, state.NodeFoundClosed:
		a.decide() // Report that for each event before what happens to pods.
	case state.TargetsLeft:
		w.targets = p.Detail
	case state.TargetsOut:
		w.targets = ""
	}
	a.emitProgress(p)
	if p.State.Trouble == "" {
		a.clearCordonFailed()
	}
}

// emitProgress emits or logs a report of the guard. What concerns a pod is emitted for the most urgent event.
func (a *Agent) emitProgress(p drain.Progress) {
	first := a.first()
	t := state.Transition{
		Kind: p.Kind, Entry: first, Pod: p.Pod, PodUID: p.PodUID, Total: p.Total, Left: p.Left, Detail: p.Detail, Took: time.Since(a.work.began),
	}
	switch p.Kind {
	case state.NodeEmpty, state.GoalChanged: // These are only about p.State.
		return
	case state.NodeUnclosable:
		a.recordCordonFailed(t)
		return
	case state.PodEvicted, state.PodDeleted, state.PodHeld, state.PodGone:
		a.emitStep(first, first, t)
		return
	case state.PodRefused:
		if p.Pod != "" { // It is reported like a pod that a budget holds. Without a pod it concerns the node.
			t.Kind, t.Outcome = state.PodHeld, state.Refused
			a.emitStep(first, first, t)
			return
		}
	case state.NodeClosed: // A cordon that an earlier guard or process has set was logged then.
		if p.Detail == string(drain.CordonOurs) {
			return
		}
	case state.NodeReopened:
		if !a.recordReopened(p) {
			return
		}
		if slices.ContainsFunc(a.unfinished(), func(e state.Entry) bool { return e.Phase == state.Draining }) {
			t.Action = string(policy.Drain) // It continues with the pods from before the uncordon.
		}
	case state.PodsFound:
		if len(a.unfinished()) == 0 && p.Total == 0 { // A node that stays empty is not worth a message.
			return
		}
	}
	a.log(t)
}

// recordCordonFailed records that the node could not be cordoned, and reports the first of several failures in a row. Before a hard deadline that
// is only logged, as pods are evicted nevertheless.
func (a *Agent) recordCordonFailed(t state.Transition) {
	if !a.work.goal.Hard.IsZero() {
		a.log(t)
		return
	}
	for _, e := range a.unfinished() {
		first := e.Error == ""
		e.Error = t.Detail
		a.put(e)
		if first {
			a.emitStep(e, e, state.Transition{Kind: state.Failed, Err: errors.New(e.Error)})
		}
	}
}

// clearCordonFailed clears the error of recordCordonFailed.
func (a *Agent) clearCordonFailed() {
	for _, e := range a.unfinished() {
		if e.Error != "" {
			e.Error = ""
			a.put(e)
		}
	}
}

// recordReopened records that somebody has uncordoned the node, for all events that it was closed for. For events that come later, the node is
// cordoned again. It returns false if the record has that already.
func (a *Agent) recordReopened(p drain.Progress) (changes bool) {
	changed := policy.Release(a.situation(), p.Claim.Names, p.Claim.Since)
	if len(changed) > 0 {
		a.put(changed...)
	}
	return len(changed) > 0
}
