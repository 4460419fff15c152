package agent

import (
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// tell tells everybody of a transition: the journal, the status, and those who listen.
func (a *Agent) tell(t state.Transition) {
	t = a.note(t)
	for _, l := range a.cfg.Listeners {
		l.OnTransition(t)
	}
}

// note tells the journal and the status of a transition that is of no concern to others, and returns it whole.
func (a *Agent) note(t state.Transition) state.Transition {
	t.At, t.Node = a.now(), a.node
	t.Plan = a.cfg.Policy.Describe(t.Entry)
	a.journal.OnTransition(t)
	a.pending.OnTransition(t)
	return t
}

// actions are what is done about an event in each phase.
var actions = map[state.Phase]policy.Action{
	state.Cordoning: policy.Cordon, state.Cordoned: policy.Cordon,
	state.Draining: policy.Drain, state.Drained: policy.Drain, state.Incomplete: policy.Drain,
	state.Undoing: policy.Uncordon,
}

// tellStep tells of what happened in the course of an action for an event, or at its end.
func (a *Agent) tellStep(action policy.Action, e state.Entry, t state.Transition) {
	t.Action, t.Entry, t.Reason, t.Total, t.Left = string(action), e, a.cfg.Policy.Reason(e), a.total, a.left
	if action == policy.Drain {
		t.Deadline, t.Hard = a.cfg.Policy.Deadline(e)
	}
	switch began, known := a.begun[e.Event.ID]; {
	case t.Kind == state.Begun:
	case known:
		t.Took = time.Since(began)
	case a.work != nil:
		t.Took = time.Since(a.work.began) // An earlier process has begun it.
	}
	a.tell(t)
}

// changed tells what has changed of an entry.
func (a *Agent) changed(before state.Entry, met bool, e state.Entry) {
	if met && before.LeftAlone != e.LeftAlone {
		a.leftAlone(e)
	}
	if met && policy.SameNews(before, e) {
		return
	}
	met = met && (before.Phase != state.Closed || e.Phase == state.Closed)
	if met && actions[before.Phase] != actions[e.Phase] {
		a.tellCanceled(before, e)
	}
	if what := news(before, met, e); what != "" {
		a.tell(state.Transition{Kind: what, Entry: e})
	}
	if !met || before.Phase == e.Phase {
		return
	}
	switch e.Phase {
	case state.Cordoned:
		a.endedCordon(before, e)
	case state.Drained, state.Incomplete:
		a.endedDrain(e)
	case state.Seen, state.Cordoning, state.Draining, state.Undoing, state.Closed:
	}
}

// news is what is to be told of an event as such; empty if there is nothing.
func news(before state.Entry, met bool, e state.Entry) state.TransitionKind {
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

// tellCanceled tells that what was being done for an event is not done for it any more.
func (a *Agent) tellCanceled(before, e state.Entry) {
	if _, begun := a.begun[e.Event.ID]; begun && before.Phase != state.Incomplete {
		a.tellStep(actions[before.Phase], e, state.Transition{Kind: state.CalledBack})
	}
	delete(a.begun, e.Event.ID)
}

// begin tells for which events of the goal something is being done from now on.
func (a *Agent) begin(goal policy.Goal) {
	for _, e := range a.unfinished() {
		if _, known := a.begun[e.Event.ID]; !known {
			a.tellBegun(actions[e.Phase], e, time.Now(), a.deadline(goal))
		}
	}
}

// tellBegun tells that an action for an event began then, and that the node is closed already, for another one. Of the end of a
// cordon that is told then.
func (a *Agent) tellBegun(action policy.Action, e state.Entry, at, until time.Time) {
	a.begun[e.Event.ID] = at
	a.tellStep(action, e, state.Transition{Kind: state.Begun, Until: until})
	if a.state.Closed && action == policy.Drain {
		a.tellStep(action, e, state.Transition{Kind: a.closedAs()})
	}
}

func (a *Agent) closedAs() state.TransitionKind {
	if a.state.Ours {
		return state.NodeCordoned
	}
	return state.CordonFound
}

func (a *Agent) beginUncordon(goal policy.Goal) {
	e := a.entry(goal.Event)
	a.begun[e.Event.ID] = time.Now()
	a.tell(state.Transition{Kind: state.Begun, Action: string(policy.Uncordon), Reason: goal.Reason, Entry: e})
}

// endedDrain tells how the drain for an event ended.
func (a *Agent) endedDrain(e state.Entry) {
	t := state.Transition{Kind: state.RanOut}
	if a.result.Cordon == drain.CordonNone {
		t.Outcome = state.NeverClosed
	}
	if e.Phase == state.Drained {
		t = state.Transition{Kind: state.Done}
		if a.result.NodeGone {
			t.Outcome = state.NodeGone
		}
		if _, known := a.begun[e.Event.ID]; !known && a.work != nil {
			a.tellBegun(policy.Drain, e, a.work.began, time.Time{}) // It ran out of time in an earlier process, and who listens to this one has not heard of it.
		}
		defer delete(a.begun, e.Event.ID)
	}
	a.tellStep(policy.Drain, e, t)
}

// leftAlone tells that people want the node left alone, so that it is not drained for an event, or that they do not any more. Of what
// it comes to then is told with that.
func (a *Agent) leftAlone(e state.Entry) {
	if e.LeftAlone {
		a.tellStep(policy.Drain, e, state.Transition{Kind: state.LeftAlone})
		delete(a.begun, e.Event.ID)
	} else if e.Phase == state.Draining {
		a.note(state.Transition{Kind: state.LeftAloneNoMore, Entry: e})
	}
}

// endedCordon tells that the node is cordoned for an event, unless somebody else has decided otherwise. Where people have opened
// it, there is no cordon to tell of.
func (a *Agent) endedCordon(before, e state.Entry) {
	if e.Reopened {
		a.tellCanceled(before, e)
		return
	}
	if a.state.Closed {
		a.tellStep(policy.Cordon, e, state.Transition{Kind: a.closedAs()})
	}
	a.tellStep(policy.Cordon, e, state.Transition{Kind: state.Done})
	delete(a.begun, e.Event.ID)
}

// uncordoned is how the taking back ended: of the node, or for an event.
func uncordoned(kind state.TransitionKind, w *work, l workResult, e state.Entry) state.Transition {
	return state.Transition{
		Kind: kind, Action: string(policy.Uncordon), Reason: w.goal.Reason, Entry: e,
		Detail: l.uncordon.LeftTo(), Outcome: string(l.uncordon), Err: l.err, Took: time.Since(w.began),
	}
}

// endedUncordon tells how the taking back ended for the event that came first.
func (a *Agent) endedUncordon(w *work, l workResult, e state.Entry) {
	kind := state.Done
	if l.err != nil {
		kind = state.Failed
	}
	delete(a.begun, e.Event.ID)
	a.tell(uncordoned(kind, w, l, e))
}

// handleProgress takes in one thing that the guard tells, and how things stand.
func (a *Agent) handleProgress(p drain.Progress) {
	if a.work == nil || a.work.guard == nil {
		return
	}
	a.total, a.left, a.nodeSeen, a.ready = p.Total, p.Left, a.nodeSeen || p.State.Seen, a.ready || p.State.Ready
	if p.Goal == a.number && !a.work.stopping {
		a.state, a.stale = p.State, false
		if p.State.Looked {
			a.lookedFor = slices.Clone(a.work.goal.Events)
		}
		if p.State.Drained {
			a.drainedFor = slices.Clone(a.work.goal.Events)
		}
	}
	a.tellProgress(p)
}

// tellProgress tells of one thing that the guard tells: what concerns a pod for the event that comes first.
func (a *Agent) tellProgress(p drain.Progress) {
	t := state.Transition{
		Kind: p.Kind, Entry: a.first(), Pod: p.Pod, PodUID: p.PodUID, PodLabels: p.PodLabels, Total: p.Total, Left: p.Left, Detail: p.Detail,
		Took: time.Since(a.work.began),
	}
	switch p.Kind { // Those that no guard tells are not told.
	case state.NodeEmpty, state.GoalChanged: // State says it.
	case state.NodeUnclosable:
		a.noteCordonFailed(t)
	case state.NodeClosed, state.NodeFoundClosed, state.NodeReopened, state.NodeOptedOut, state.NodeExcluded:
		a.noteNode(p, t)
	case state.PodRefused:
		if p.Pod == "" {
			a.note(t)
			break
		}
		t.Kind, t.Outcome = state.PodHeld, state.Refused
		a.tellStep(a.work.goal.Action, t.Entry, t)
	case state.PodEvicted, state.PodDeleted, state.PodHeld, state.PodGone:
		a.tellStep(a.work.goal.Action, t.Entry, t)
	case state.PodsFound:
		if len(a.unfinished()) > 0 || p.Total > 0 { // A guard that only goes on standing has nothing to tell.
			a.note(t)
		}
	default:
		a.note(t)
	}
}

// noteNode tells of one thing that happened to the node. That it is closed is told for each event, as each has been waiting for it; for
// one that is only cordoned for with the end of the cordon.
func (a *Agent) noteNode(p drain.Progress, t state.Transition) {
	left := a.unfinished()
	drains := slices.DeleteFunc(slices.Clone(left), func(e state.Entry) bool { return e.Phase != state.Draining })
	news := true
	kind := state.CordonFound
	switch p.Kind { // the others are news
	case state.NodeClosed:
		// What a guard before this one has done is no news.
		kind, news = state.NodeCordoned, len(drains) > 0 || len(left) == 0 && p.Detail != string(drain.CordonOurs)
	case state.NodeReopened:
		news = a.noteReopened(p)
	}
	if news {
		a.note(t)
	}
	if p.Kind == state.NodeClosed || p.Kind == state.NodeFoundClosed {
		for _, e := range drains {
			a.tellStep(policy.Drain, e, state.Transition{Kind: kind})
		}
	}
	a.noteCordonKnown()
}

// handleIdentity tells when the credential comes, goes or changes.
func (a *Agent) handleIdentity(n identity) {
	switch {
	case n.err == nil && (a.waiting != nil || a.node != n.node):
		a.node = n.node
		if a.cfg.Service == nil {
			break // Whose part it is knows.
		}
		a.note(state.Transition{Kind: state.IdentityFound})
	case n.err != nil && (a.waiting == nil || !drain.Alike(a.waiting.Error(), n.err.Error())):
		a.note(state.Transition{Kind: state.IdentityWaiting, Err: n.err})
	}
	a.waiting = n.err
}

func (a *Agent) handleTrouble(n lookFailed) {
	known := a.trouble[n.kind]
	if known.since.IsZero() {
		known.since = time.Now()
	}
	known.over = time.Time{}
	text := n.err.Error()
	if !drain.Alike(text, known.err) {
		known.err = text
	}
	a.trouble[n.kind] = known
	a.tell(state.Transition{Kind: state.SourceLost, Entry: state.Entry{Event: event.Event{Kind: n.kind}}, Err: n.err})
}

// noteHealthy notes a good look of a kind. It is no end of the trouble yet: if a part of the document could not be read, the
// word of that comes right behind.
func (a *Agent) noteHealthy(kind event.Kind) {
	if t, was := a.trouble[kind]; was && t.over.IsZero() {
		t.over = time.Now()
		a.trouble[kind] = t
	}
}

// reportRecovered tells of the kinds that have been well for a while.
func (a *Agent) reportRecovered() {
	for kind, t := range a.trouble {
		if t.over.IsZero() || time.Since(t.over) < tick {
			continue
		}
		delete(a.trouble, kind)
		a.tell(state.Transition{
			Kind: state.SourceBack, Entry: state.Entry{Event: event.Event{Kind: kind}}, Took: t.over.Sub(t.since).Round(time.Second),
		})
	}
}
