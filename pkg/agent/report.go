package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kube"
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
	a.journal.OnTransition(t)
	return t
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
	switch began, known := a.steps[e.Event.ID]; {
	case t.Kind == state.Begun: // It has taken no time yet.
	case known:
		t.Took = time.Since(began)
	case a.work != nil:
		t.Took = time.Since(a.work.began) // An earlier process has begun it.
	}
	a.emit(t)
}

// emitChange emits what has changed from before to e, an entry in the record. met is false if the event had no entry before.
func (a *Agent) emitChange(before state.Entry, met bool, e state.Entry) {
	if met && before.LeftAlone != e.LeftAlone {
		a.emitLeftAlone(e)
	}
	a.emitLeftOpenNoMore(before, e)
	if met && policy.SameNews(before, e) {
		return
	}
	met = met && (before.Phase != state.Closed || e.Phase == state.Closed) // A closed event that is announced again is a new one.
	if met && actions[before.Phase] != actions[e.Phase] {
		a.emitCalledBack(before, e)
	}
	if kind := eventChange(before, met, e); kind != "" {
		a.emit(state.Transition{Kind: kind, Entry: e})
	}
	if !met || before.Phase == e.Phase {
		return
	}
	switch e.Phase {
	case state.Cordoned:
		a.emitCordonEnd(before, e)
	case state.Drained, state.Incomplete:
		a.emitDrainEnd(e)
	case state.Seen, state.Cordoning, state.Draining, state.Undoing, state.Closed:
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
			a.emitBegun(actions[e.Phase], e, time.Now(), a.deadline(goal))
		}
	}
}

// emitBegun emits that a step for an event began at that time. The node may be cordoned already, for another event. For a drain that is emitted
// here; a cordon step emits it at its end. until is the deadline to show.
func (a *Agent) emitBegun(action policy.Action, e state.Entry, at, until time.Time) {
	a.steps[e.Event.ID] = at
	a.emitStep(action, e, state.Transition{Kind: state.Begun, Until: until})
	if action == policy.Drain {
		a.emitCordoned(action, e)
	}
}

// emitCordoned emits for an event that the node is cordoned, if it is.
func (a *Agent) emitCordoned(action policy.Action, e state.Entry) {
	if a.work == nil || !a.work.state.Closed {
		return
	}
	kind := state.CordonFound
	if a.work.state.Ours {
		kind = state.NodeCordoned
	}
	a.emitStep(action, e, state.Transition{Kind: kind})
}

// emitDrainEnd emits how the drain for an event ended.
func (a *Agent) emitDrainEnd(e state.Entry) {
	t := state.Transition{Kind: state.RanOut}
	if a.result.Cordon == drain.CordonNone {
		t.Outcome = state.NeverClosed
	}
	if e.Phase == state.Drained {
		t = state.Transition{Kind: state.Done}
		if a.result.NodeGone {
			t.Outcome = state.NodeGone
		}
		if _, known := a.steps[e.Event.ID]; !known && a.work != nil {
			a.emitBegun(policy.Drain, e, a.work.began, time.Time{}) // It began in an earlier process, and ran out of time there.
		}
		defer delete(a.steps, e.Event.ID)
	}
	a.emitStep(policy.Drain, e, t)
}

// emitLeftAlone emits that operators want the node left alone, so that it is not drained for an event, or logs that they no longer do.
// In any other phase than Draining, the transition to that phase is enough.
func (a *Agent) emitLeftAlone(e state.Entry) {
	if e.LeftAlone {
		a.emitStep(policy.Drain, e, state.Transition{Kind: state.LeftAlone})
		delete(a.steps, e.Event.ID)
	} else if e.Phase == state.Draining {
		a.log(state.Transition{Kind: state.LeftAloneNoMore, Entry: e})
	}
}

// emitLeftOpenNoMore emits a cordon step for an event if the node had been left open for it, and is cordoned now.
func (a *Agent) emitLeftOpenNoMore(before, e state.Entry) {
	if before.LeftOpen() && e.Phase == state.Cordoned && !e.CordonedAt.IsZero() {
		a.emitBegun(policy.Cordon, e, time.Now(), time.Time{})
		a.emitCordonEnd(before, e)
	}
}

// emitCordonEnd emits the end of the cordon step for an event: it was called back if operators have lifted the cordon, and is done
// otherwise, even if the node is not cordoned since operators want nothing done to it.
func (a *Agent) emitCordonEnd(before, e state.Entry) {
	if e.Released() {
		a.emitCalledBack(before, e)
		return
	}
	a.emitCordoned(policy.Cordon, e)
	a.emitStep(policy.Cordon, e, state.Transition{Kind: state.Done})
	delete(a.steps, e.Event.ID)
}

// uncordonEnd is the transition at the end of an uncordon.
func uncordonEnd(kind state.TransitionKind, w *work, result workResult, e state.Entry) state.Transition {
	return state.Transition{
		Kind: kind, Action: string(policy.Uncordon), Reason: w.goal.Reason, Entry: e,
		Detail: result.uncordon.LeftTo(), Outcome: string(result.uncordon), Err: result.err, Took: time.Since(w.began),
	}
}

// emitUncordonEnd emits how the uncordon ended. e is the entry of the most urgent event that it was for.
func (a *Agent) emitUncordonEnd(kind state.TransitionKind, w *work, result workResult, e state.Entry) {
	delete(a.steps, e.Event.ID)
	a.emit(uncordonEnd(kind, w, result, e))
}

// handleProgress handles a report of the guard: it keeps what the policy decides by, and emits what happened.
func (a *Agent) handleProgress(p drain.Progress) {
	w := a.work
	if w == nil || w.task == nil { // A late report of a guard that has ended.
		return
	}
	a.nodeUID = cmp.Or(string(p.State.UID), a.nodeUID)
	if p.Kind == state.NodeReopened {
		a.decide() // Record first for which events the node was closed.
	}
	a.total, a.left, a.nodeSeen, a.ready = p.Total, p.Left, a.nodeSeen || p.State.UID != "", a.ready || p.State.Ready
	if !w.stopping {
		// Somebody has uncordoned the node. Which events that concerns is decided now: the others want pods gone that came since.
		if p.State.Open && w.guardGoal.Close {
			p.State.Drained = false
		}
		w.state, w.reported = p.State, p.Generation
		if p.State.Looked {
			a.limited, w.looked = p.State.Limited, p.Generation
		}
		if p.State.Drained {
			w.drained = p.Generation
		}
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
		Kind: p.Kind, Pod: p.Pod, PodUID: p.PodUID, PodLabels: p.PodLabels, Total: p.Total, Left: p.Left, Detail: p.Detail, Took: took,
	}
	if p.Kind == state.PodRefused && p.Pod != "" {
		t.Kind, t.Outcome = state.PodHeld, state.Refused
	}
	return t
}

// emitNode logs what happened to the Node. If the node is cordoned, it emits that for each event whose drain is under way. For an event that wants
// no more than a cordon, that is emitted with the end of the cordon.
func (a *Agent) emitNode(p drain.Progress, t state.Transition) {
	left, leftOpen := a.unfinished(), slices.ContainsFunc(a.goalEntries(), state.Entry.LeftOpen)
	drains := slices.DeleteFunc(slices.Clone(left), func(e state.Entry) bool { return e.Phase != state.Draining })
	worthLogging := true
	kind := state.CordonFound
	switch p.Kind { // The others are always logged.
	case state.NodeClosed:
		// A cordon that an earlier guard or process has set was logged then. The cordon of a node that was left open is reported for each event.
		isNew := p.Detail != string(drain.CordonOurs)
		kind, worthLogging = state.NodeCordoned, isNew && (len(drains) > 0 || len(left) == 0 && !leftOpen)
	case state.NodeReopened:
		worthLogging = a.recordReopened(p)
		if len(drains) > 0 { // They continue with the pods from before the uncordon.
			t.Action = string(policy.Drain)
		}
	}
	if worthLogging {
		a.log(t)
	}
	if p.Kind == state.NodeClosed || p.Kind == state.NodeFoundClosed {
		for _, e := range drains {
			a.emitStep(policy.Drain, e, state.Transition{Kind: kind})
		}
	}
	a.clearCordonFailed()
}

// handleIdentity handles what the identity reports: it keeps the node's name, and logs when the credential comes, goes or changes.
func (a *Agent) handleIdentity(n identity) {
	switch {
	case n.err == nil && (a.waiting != nil || a.node != n.node):
		a.node = n.node
		if a.cfg.Service != nil { // Otherwise the caller has named the node.
			a.log(state.Transition{Kind: state.IdentityFound})
		}
	case n.err != nil && (a.waiting == nil || !kube.EqualIgnoringDigits(a.waiting.Error(), n.err.Error())):
		a.log(state.Transition{Kind: state.IdentityWaiting, Err: n.err})
	}
	a.waiting = n.err
}

// handleFailedLook records since when and why looks for a kind fail, and emits that. An error that differs from the last one only in digits counts
// as the same.
func (a *Agent) handleFailedLook(n lookFailed) {
	known := a.trouble[n.kind]
	if known.since.IsZero() {
		known.since = a.now()
	}
	known.over = time.Time{}
	text := n.err.Error()
	if !kube.EqualIgnoringDigits(text, known.err) {
		known.err = text
	}
	a.trouble[n.kind] = known
	a.emit(state.Transition{Kind: state.SourceLost, Entry: state.Entry{Event: event.Event{Kind: n.kind}}, Err: n.err})
}

// noteGoodLook records a good look for a kind in its outage, if there is one. emitRecovered ends the outage later: if a part of the document
// could not be read, a failed look follows at once.
func (a *Agent) noteGoodLook(kind event.Kind) {
	if t, was := a.trouble[kind]; was && t.over.IsZero() {
		t.over = a.now()
		a.trouble[kind] = t
	}
}

// recoveredAfter is for how long looks must succeed before an outage is over: a source that fails every few seconds has one long outage.
const recoveredAfter = 10 * time.Second

// emitRecovered ends the outages of the kinds for which looks have succeeded for recoveredAfter, and emits that.
func (a *Agent) emitRecovered() {
	for kind, t := range a.trouble {
		if t.over.IsZero() || a.now().Sub(t.over) < recoveredAfter {
			continue
		}
		delete(a.trouble, kind)
		a.emit(state.Transition{
			Kind: state.SourceBack, Entry: state.Entry{Event: event.Event{Kind: kind}}, Took: t.over.Sub(t.since).Round(time.Second),
		})
	}
}
