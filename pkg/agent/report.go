package agent

import (
	"errors"
	"slices"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// emit completes a transition, logs it and passes it to the listeners.
func (a *Agent) emit(t state.Transition) {
	t = a.log(t)
	for _, l := range a.cfg.Listeners {
		l.OnTransition(t)
	}
}

// log completes a transition, writes it to the journal and returns it. Unlike emit, log does not pass the transition to the listeners.
func (a *Agent) log(t state.Transition) state.Transition {
	t.At, t.Node = a.now(), a.node
	t.Plan = a.cfg.Policy.Describe(t.Entry)
	a.write(t)
	return t
}

// actions has the step that belongs to each phase of an entry. The other phases have none.
var actions = map[state.Phase]policy.Action{
	state.Cordoning: policy.Cordon, state.Cordoned: policy.Cordon,
	state.Draining: policy.Drain, state.Drained: policy.Drain, state.Incomplete: policy.Drain,
	state.Undoing: policy.Uncordon,
}

// emitStep emits a transition of a step for an event: its beginning, something on the way, or its end.
//
// e is the event's entry as it is now. during is the entry as it was in the phase of the step, and is e itself while the step is under way.
func (a *Agent) emitStep(during, e state.Entry, t state.Transition) {
	action := actions[during.Phase]
	t.Action, t.Entry, t.Reason, t.Total, t.Left = string(action), e, e.Event.Summary(), a.total, a.left
	if action == policy.Drain {
		t.Deadline, t.Hard = a.cfg.Policy.Deadline(e)
	}
	t.Took = a.now().Sub(during.Changed) // The step began when the entry entered that phase.
	a.emit(t)
}

// emitBegun emits that the step of an entry's phase begins, or that this process continues it.
func (a *Agent) emitBegun(e state.Entry) {
	a.emitStep(e, e, state.Transition{Kind: state.Begun})
}

// emitChange emits all transitions that follow from a change of an entry in the record, from before to e: first what became of the node, then what
// became of the event and its step, then the step that begins. recorded is false if the record had no entry of the event before.
func (a *Agent) emitChange(before state.Entry, recorded bool, e state.Entry) {
	announcedAgain := before.Phase == state.Closed && e.Phase != state.Closed
	if announcedAgain { // It is reported like an event without an entry.
		recorded, before = false, state.Entry{}
	}
	a.emitCordoned(before, e)
	if e.LeftAlone && !before.LeftAlone {
		a.emitStep(e, e, state.Transition{Kind: state.LeftAlone})
	}
	if !recorded || !policy.SameNews(before, e) {
		a.emitNews(before, recorded, e)
	}
	stepBegins := before.LeftAlone || before.Phase != e.Phase
	if e.UnderWay() && !e.LeftAlone && stepBegins {
		a.emitBegun(e)
	}
}

// emitCordoned emits that the node is cordoned for an event, by nth or by another, if its entry says so for the first time.
func (a *Agent) emitCordoned(before, e state.Entry) {
	isNew := before.CordonedAt.IsZero() && !e.CordonedAt.IsZero()
	if !isNew {
		return
	}
	kind := state.CordonFound
	if a.work.state.Ours { // There is a guard: only its report tells of a cordon.
		kind = state.NodeCordoned
	}
	a.emitStep(before, e, state.Transition{Kind: kind})
}

// emitNews emits the end of a step, and what has become of the event. The phases of a step are those in which it is under way or has ended
// (actions): if the new phase is of another step, this one was called back. Otherwise, the new phase says how it ended. An uncordon that is done is
// emitted by recordUncordoned, so one that comes here was called back. recorded is false if the record had no entry of the event before, or a closed
// one.
func (a *Agent) emitNews(before state.Entry, recorded bool, e state.Entry) {
	uncordoned := e.Phase == state.Cordoned && e.Released() // Operators have uncordoned the node, so no step for the event is done.
	stepStops := actions[before.Phase] != actions[e.Phase] || uncordoned
	hadStep := before.UnderWay() && !before.LeftAlone || before.Phase == state.Undoing
	if hadStep && stepStops {
		a.emitStep(before, e, state.Transition{Kind: state.CalledBack})
	}
	if kind := eventChange(before, recorded, e); kind != "" {
		a.emit(state.Transition{Kind: kind, Entry: e})
	}
	if !recorded || before.Phase == e.Phase { // No step has ended.
		return
	}
	switch {
	case e.Phase == state.Seen: // See state.PutOff.
		a.emit(state.Transition{Kind: state.PutOff, Entry: e})
	case e.Phase == state.Cordoned && !uncordoned: // It was Cordoning: what was Draining becomes Cordoned only by an uncordon.
		a.emitStep(before, e, state.Transition{Kind: state.Done})
	case e.Phase == state.Drained:
		t := state.Transition{Kind: state.Done}
		if a.result.NodeGone {
			t.Outcome = state.NodeGone
		}
		a.emitStep(before, e, t)
	case e.Phase == state.Incomplete: // The guard continues, so that the drain may still be done.
		a.emitStep(before, e, state.Transition{Kind: state.RanOut})
	}
}

// eventChange returns the transition of the event itself that follows from a change of its entry; "" if there is none. recorded is as for
// emitNews, which alone calls it, for a change that policy.SameNews does not leave out.
func eventChange(before state.Entry, recorded bool, e state.Entry) state.TransitionKind {
	switch {
	case e.Phase == state.Closed:
		return state.ClosedWith
	case !recorded:
		return state.Announced
	case before.Missing.IsZero() && !e.Missing.IsZero():
		return state.Missed
	case e.Phase == state.Seen, before.Phase == e.Phase: // No step begins, which would show the new plan.
		return state.Changed
	}
	return ""
}

// handleProgress handles a report of the guard: it keeps the state of the node for the next decision, and emits what happened. The loop decides
// after that. A report that must be recorded before or after others makes handleProgress decide at once.
func (a *Agent) handleProgress(p drain.Progress) {
	w := a.work
	if w == nil || !w.guards() { // This is a late report of a guard that has ended, or was stopped.
		return
	}
	if p.Kind == state.NodeUncordoned {
		a.decide() // This records what earlier reports said, so that recordNodeUncordoned finds the events that the node was cordoned for.
	}
	a.total, a.left = p.Total, p.Left
	// An operator has uncordoned the node, but the goal still has events that did not ask for that cordon. The next decision cordons the node again for
	// these. They also want the pods evicted that came meanwhile, so the node does not count as drained yet.
	if p.State.Uncordoned && w.guardGoal.Cordon {
		p.State.Drained = false
	}
	w.state, w.reported = p.State, p.Generation
	a.emitProgress(p)
	cordonTroubleIsOver := p.State.Cordoned || p.State.Trouble == "" // Trouble may also be about the list of pods.
	if cordonTroubleIsOver {
		a.clearCordonFailed()
	}
	switch p.Kind { // Reports of other kinds need no more.
	case state.NodeCordoned, state.CordonFound:
		a.decide() // This emits the cordon for each event, before anything about pods.
	case state.TargetsLeft:
		w.targets = p.Detail
	case state.TargetsOut:
		w.targets = ""
	}
}

// emitProgress emits or logs a report of the guard, and records what the report says about the cordon. Kinds of the first group in pkg/state that
// concern a pod are emitted, for the most urgent event. All others are only logged.
func (a *Agent) emitProgress(p drain.Progress) {
	first := a.first()
	t := state.Transition{
		Kind: p.Kind, Entry: first, Pod: p.Pod, PodUID: p.PodUID, Total: p.Total, Left: p.Left, Detail: p.Detail, Took: a.now().Sub(first.Changed),
	}
	switch p.Kind {
	case state.NodeEmpty, state.StateChanged: // These are only about p.State, which handleProgress has kept.
		return
	case state.NodeCordonFailed:
		a.recordCordonFailed(t)
		return
	case state.PodEvicted, state.PodDeleted, state.PodHeld, state.PodGone:
		a.emitStep(first, first, t)
		return
	case state.PodRefused:
		if p.Pod != "" { // It is reported like a pod that a budget holds. Without a pod, the refusal concerns the node.
			t.Kind, t.Outcome = state.PodHeld, state.Refused
			a.emitStep(first, first, t)
			return
		}
	case state.NodeCordoned:
		if p.Detail == string(drain.CordonKept) { // An earlier guard or process has set this cordon, and it was logged then.
			return
		}
	case state.NodeUncordoned:
		if recorded := a.recordNodeUncordoned(p); !recorded { // It was logged when it was recorded.
			return
		}
		if slices.ContainsFunc(a.unfinished(), func(e state.Entry) bool { return e.Phase == state.Draining }) {
			t.Action = string(policy.Drain) // The message says that the drain continues with the pods from before.
		}
	case state.PodsFound:
		if len(a.unfinished()) == 0 && p.Total == 0 { // A node that stays empty is not worth a message.
			return
		}
	}
	a.log(t)
}

// recordCordonFailed records that the node could not be cordoned, as t.Detail says. The first of several failures in a row is emitted for each event.
// Before a hard deadline the failure is only logged, as pods are evicted nevertheless.
func (a *Agent) recordCordonFailed(t state.Transition) {
	if !a.work.goal.Hard.IsZero() {
		a.log(t)
		return
	}
	for _, e := range a.unfinished() {
		firstFailure := e.Error == ""
		e.Error = t.Detail
		a.put(e)
		if firstFailure {
			a.emitStep(e, e, state.Transition{Kind: state.Failed, Err: errors.New(e.Error)})
		}
	}
}

// clearCordonFailed clears the error that recordCordonFailed has recorded, now that the node can be cordoned.
func (a *Agent) clearCordonFailed() {
	for _, e := range a.unfinished() {
		if e.Error != "" {
			e.Error = ""
			a.put(e)
		}
	}
}

// recordNodeUncordoned records that an operator has uncordoned the node, for all events that the node was cordoned for. For events that come later, the
// node is cordoned again. recorded is false if the record already says so, or has no event of that cordon.
func (a *Agent) recordNodeUncordoned(p drain.Progress) (recorded bool) {
	changed := policy.Release(a.situation(), p.Claim.Names, p.Claim.Since)
	if len(changed) > 0 {
		a.put(changed...)
	}
	return len(changed) > 0
}
