package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// The words of the journal. Each message is one short sentence with the fields that make it findable.

func (a *Agent) logMessage(id string) *logrus.Entry {
	l := a.cfg.Log.WithField(systemd.FieldMessageID, id)
	if a.node != "" {
		l = l.WithField(systemd.FieldNode, a.node)
	}
	return l
}

func (a *Agent) logEvent(id string, ev event.Event) *logrus.Entry {
	return a.logMessage(id).WithField(systemd.FieldEventID, ev.ID).WithField(systemd.FieldEventKind, string(ev.Kind))
}

// logEntry is for what is said of an event in its phase.
func (a *Agent) logEntry(id string, e state.Entry) *logrus.Entry {
	return a.logEvent(id, e.Event).WithField(systemd.FieldPhase, string(e.Phase))
}

// logWork is for what happens to the node or to a pod while a guard stands.
func (a *Agent) logWork(id, pod string) *logrus.Entry {
	l := a.logEntry(id, a.first())
	if pod != "" {
		l = l.WithField(systemd.FieldPod, pod)
	}
	return l
}

// logUnwritten says that the record could not be written. Work goes on: a drain matters more than its memory.
func (a *Agent) logUnwritten(err error) {
	a.logMessage(systemd.StateTrouble).WithError(err).Error("cannot write the state record; a restart now may forget what was done")
}

// notifyListeners tells the listeners.
func (a *Agent) notifyListeners(h state.Transition) {
	if len(a.cfg.Listeners) == 0 {
		return
	}
	h.At, h.Node = a.now(), a.node
	h.Plan = a.cfg.Policy.Describe(h.Entry)
	for _, l := range a.cfg.Listeners {
		l.OnTransition(h)
	}
}

// actions are what is done about an event in each phase.
var actions = map[state.Phase]policy.Action{
	state.Cordoning: policy.Cordon, state.Cordoned: policy.Cordon,
	state.Draining: policy.Drain, state.Drained: policy.Drain, state.Incomplete: policy.Drain,
	state.Undoing: policy.Uncordon,
}

// notifyAction tells the listeners what happened in the course of an action for an event, or at its end.
func (a *Agent) notifyAction(action policy.Action, e state.Entry, h state.Transition) {
	h.Action, h.Entry, h.Reason, h.Total, h.Left = string(action), e, a.cfg.Policy.Reason(e), a.total, a.left
	if action == policy.Drain {
		h.Deadline, h.Hard = a.cfg.Policy.Deadline(e)
	}
	switch began, known := a.begun[e.Event.ID]; {
	case h.Kind == state.Begun:
	case known:
		h.Took = time.Since(began)
	case a.work != nil:
		h.Took = time.Since(a.work.began) // An earlier process has begun it.
	}
	a.notifyListeners(h)
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
		a.logCanceled(before, e)
	}
	if what := news(before, met, e); what != "" {
		a.notifyEvent(what, e)
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

// notifyEvent tells of an event as such.
func (a *Agent) notifyEvent(what state.TransitionKind, e state.Entry) {
	switch what { //nolint:exhaustive // these are what is told of an event as such
	case state.ClosedWith:
		a.logEvent(systemd.EventWithdrawn, e.Event).Infof("%s: %s; nothing to undo", e.Event.Kind, e.Ending)
	case state.Missed:
		a.logEvent(systemd.EventWithdrawn, e.Event).Infof("%s: no longer announced; waiting to confirm before undoing anything", e.Event.Kind)
	case state.Announced:
		a.logEntry(systemd.EventSeen, e).Warnf("%s: %s", e.Event.Kind, a.cfg.Policy.Describe(e))
	default:
		a.logEntry(systemd.EventSeen, e).Infof("%s: changed: %s", e.Event.Kind, a.cfg.Policy.Describe(e))
	}
	a.notifyListeners(state.Transition{Kind: what, Entry: e})
}

// logCanceled tells that what was being done for an event is not done for it any more.
func (a *Agent) logCanceled(before, e state.Entry) {
	action, id := actions[before.Phase], e.Event.ID
	if _, begun := a.begun[id]; begun && before.Phase != state.Incomplete {
		a.logEvent(systemd.EventWithdrawn, e.Event).Infof("stopping the %s for %s: no longer needed", action, e.Event.Kind)
		a.notifyAction(action, e, state.Transition{Kind: state.CalledBack})
	}
	delete(a.begun, id)
}

// begin tells for which events of the goal something is being done from now on.
func (a *Agent) begin(goal policy.Goal) {
	for _, e := range a.unfinished() {
		if _, known := a.begun[e.Event.ID]; known {
			continue
		}
		if e.Phase == state.Draining {
			limit := "no deadline"
			if deadline := a.deadline(goal); !deadline.IsZero() {
				limit = fmt.Sprintf("%.0f s left", max(deadline.Sub(a.now()), 0).Seconds())
			}
			a.logEntry(systemd.DrainStarted, e).Warnf("%s the node: %s (%s)", a.doing("draining"), a.cfg.Policy.Reason(e), limit)
		}
		a.notifyBegun(actions[e.Phase], e, time.Now())
	}
}

// notifyBegun tells that an action for an event began then, and that the node is closed already, for another one. Of the end of a
// cordon that is told then.
func (a *Agent) notifyBegun(action policy.Action, e state.Entry, at time.Time) {
	a.begun[e.Event.ID] = at
	a.notifyAction(action, e, state.Transition{Kind: state.Begun})
	if a.state.Closed && action == policy.Drain {
		a.notifyAction(action, e, state.Transition{Kind: a.closedAs()})
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
	a.logEntry(systemd.EventWithdrawn, e).Infof("%s the node: %s", a.doing("uncordoning"), goal.Reason)
	a.notifyListeners(state.Transition{Kind: state.Begun, Action: string(policy.Uncordon), Reason: goal.Reason, Entry: e})
}

func (a *Agent) doing(what string) string {
	if a.cfg.DryRun {
		return "dry run: not " + what
	}
	return what
}

func (a *Agent) did(what string) string {
	if a.cfg.DryRun {
		return "dry run: would have " + what
	}
	return what
}

// endedDrain tells how the drain for an event ended.
func (a *Agent) endedDrain(e state.Entry) {
	h := state.Transition{Kind: state.Done}
	if _, known := a.begun[e.Event.ID]; !known && e.Phase == state.Drained && a.work != nil {
		a.notifyBegun(policy.Drain, e, a.work.began) // It ran out of time in an earlier process, and who listens to this one has not heard of it.
	}
	if e.Phase == state.Drained {
		a.logEntry(systemd.Drained, e).Warn(a.drained(e))
		defer delete(a.begun, e.Event.ID)
	} else {
		h.Kind = state.RanOut
		a.logEntry(systemd.DrainIncomplete, e).Errorf("the drain ran out of time: %s", a.incomplete(e))
	}
	a.notifyAction(policy.Drain, e, h)
}

// leftAlone tells that people want the node left alone, so that it is not drained for an event, or that they do not any more. Of what
// it comes to then is told with that.
func (a *Agent) leftAlone(e state.Entry) {
	if e.LeftAlone {
		a.logEntry(systemd.DrainLeft, e).Warnf("the node is left alone because of its annotation %s: its pods are not evicted for %s", drain.ActionAnnotation, e.Event.Kind)
		a.notifyAction(policy.Drain, e, state.Transition{Kind: state.LeftAlone})
		delete(a.begun, e.Event.ID)
	} else if e.Phase == state.Draining {
		a.logEntry(systemd.DrainLeft, e).Infof("annotation %s no longer asks to leave the node alone", drain.ActionAnnotation)
	}
}

// endedCordon tells that the node is cordoned for an event, unless somebody else has decided otherwise. Where people have opened
// it, there is no cordon to tell of.
func (a *Agent) endedCordon(before, e state.Entry) {
	if e.Reopened {
		a.logCanceled(before, e)
		return
	}
	if a.state.Closed {
		if a.state.Ours {
			a.logEntry(systemd.Cordoned, e).Warnf("%s: %s", a.did("cordoned the node"), a.cfg.Policy.Reason(e))
		}
		a.notifyAction(policy.Cordon, e, state.Transition{Kind: a.closedAs()})
	}
	a.notifyAction(policy.Cordon, e, state.Transition{Kind: state.Done})
	delete(a.begun, e.Event.ID)
}

// failed tells that the node cannot be closed for an event.
func (a *Agent) failed(e state.Entry) {
	words := "the drain failed; retrying"
	if e.Phase == state.Cordoning {
		words = "the node could not be cordoned; retrying"
	}
	err := errors.New(e.Error)
	a.logEntry(systemd.DrainIncomplete, e).WithError(err).Error(words)
	a.notifyAction(actions[e.Phase], e, state.Transition{Kind: state.Failed, Err: err})
}

// uncordoned says how the taking back ended.
func (a *Agent) uncordoned(w *work, l workResult) {
	e := a.entry(w.goal.Event)
	switch {
	case l.err != nil:
		a.logEntry(systemd.DrainIncomplete, e).WithError(l.err).Error("the node could not be uncordoned; retrying")
	case l.uncordon == drain.UncordonLifted:
		a.logEntry(systemd.Uncordoned, e).Infof("%s: %s", a.did("uncordoned the node"), w.goal.Reason)
	case l.uncordon.LeftTo() != "":
		a.logEntry(systemd.CordonLeft, e).Infof("%s: the cordon is left to %s, who still needs it", w.goal.Reason, l.uncordon.LeftTo())
	case l.uncordon == drain.UncordonNodeGone:
		a.logEntry(systemd.Uncordoned, e).Info("the Node no longer exists; nothing to uncordon")
	default:
		a.logEntry(systemd.Uncordoned, e).Info("our cordon is already gone")
	}
}

// endedUncordon tells the listeners how the taking back ended for the event that came first.
func (a *Agent) endedUncordon(w *work, l workResult, e state.Entry) {
	h := state.Transition{
		Kind: state.Done, Action: string(policy.Uncordon), Reason: w.goal.Reason, Entry: e,
		Detail: l.uncordon.LeftTo(), Err: l.err, Took: time.Since(w.began),
	}
	if l.err != nil {
		h.Kind = state.Failed
	}
	delete(a.begun, e.Event.ID)
	a.notifyListeners(h)
}

func (a *Agent) drained(e state.Entry) string {
	r := a.result
	switch {
	case r.NodeGone && r.Evicted+r.Deleted == 0:
		return "the Node no longer exists; nothing to drain"
	case a.cfg.DryRun:
		return fmt.Sprintf("dry run: the node would have been cordoned and drained of %d pods, %d left alone", r.Evicted, r.Skipped)
	}
	text := fmt.Sprintf("drained: %d pods evicted, %d deleted, %d left in place", r.Evicted, r.Deleted, r.Skipped)
	if deadline, _ := a.cfg.Policy.Deadline(e); !deadline.IsZero() {
		left, side := deadline.Sub(a.now()).Seconds(), "before"
		if left < 0 {
			left, side = -left, "after"
		}
		text += fmt.Sprintf("; %.0f s %s the deadline", left, side)
	}
	if r.NodeGone {
		text += "; the Node no longer exists"
	}
	return text
}

func (a *Agent) incomplete(e state.Entry) string {
	r := a.result
	switch {
	case e.Result == nil:
		return "the deadline passed before nth could continue; remaining pods unknown"
	case len(r.Left) == 0 && r.Cordon == drain.CordonNone:
		return "the node could not be cordoned; remaining pods unknown"
	}
	if len(r.Left) == 0 { // Those that are there have not been listed, or it was not certain yet that there are none.
		return fmt.Sprintf("%d pods evicted, %d deleted, left: not known", r.Evicted, r.Deleted)
	}
	var left []string
	for _, pod := range r.Left {
		if by := r.HeldBy[pod]; by != "" {
			pod += " (held by " + by + ")"
		}
		left = append(left, pod)
	}
	return fmt.Sprintf("%d pods evicted, %d deleted, left: %s", r.Evicted, r.Deleted, strings.Join(left, ", "))
}

// reported are the things in a drain that listeners are told.
var reported = map[drain.ProgressKind]state.TransitionKind{
	drain.NodeCordoned: state.NodeCordoned, drain.NodeCordonFound: state.CordonFound,
	drain.Evicted: state.PodEvicted, drain.Deleted: state.PodDeleted, drain.Gone: state.PodGone,
	drain.Held: state.PodHeld, drain.Refused: state.PodHeld,
}

// notifyProgress tells the listeners of one thing that the guard tells: what concerns the node for each event, as each has been waiting
// for it, and what concerns a pod for the event that comes first.
func (a *Agent) notifyProgress(p drain.Progress) {
	what, worth := reported[p.Kind]
	if !worth || what == state.PodHeld && p.Pod == "" {
		return
	}
	h := state.Transition{Kind: what}
	if p.Pod != "" {
		h.Pod, h.PodUID, h.PodLabels, h.Detail = p.Pod, p.PodUID, p.PodLabels, p.Detail
		a.notifyAction(a.work.goal.Action, a.first(), h)
		return
	}
	for _, e := range a.unfinished() {
		if e.Phase == state.Draining { // Of the end of a cordon it is told then.
			a.notifyAction(policy.Drain, e, h)
		}
	}
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
	a.notifyProgress(p)
	switch p.Kind {
	case drain.NodeCordoned, drain.NodeCordonFound, drain.NodeReopened, drain.NodeLeft, drain.NodeMissing, drain.NodeExcluded:
		a.logNodeProgress(p)
	case drain.Unclosable:
		a.noteCordonFailed(p)
	case drain.Holding, drain.Unscripted, drain.TargetsLeft, drain.TargetsOut:
		a.waited(p)
	case drain.Standing, drain.Drained:
	case drain.Found, drain.Arrived, drain.Evicted, drain.Deleted, drain.Held, drain.Refused, drain.Restarting, drain.Overdue,
		drain.Returning, drain.LeftToReturn, drain.Gone, drain.Volumes:
		a.logPodProgress(p)
	}
}

// logNodeProgress tells of one thing that happened to the node.
func (a *Agent) logNodeProgress(p drain.Progress) {
	say := func(id string) *logrus.Entry { return a.logWork(id, "") }
	switch p.Kind { //nolint:exhaustive // the others concern pods
	case drain.NodeCordoned:
		// What a guard before this one has done is no news, and of the end of a cordon it is told then.
		left := a.unfinished()
		drains := slices.ContainsFunc(left, func(e state.Entry) bool { return e.Phase == state.Draining })
		if drains || len(left) == 0 && p.Detail != string(drain.CordonOurs) {
			say(systemd.Cordoned).Warnf("%s after %s", a.did("cordoned the node"), time.Since(a.work.began).Round(time.Millisecond))
		}
	case drain.NodeCordonFound:
		say(systemd.CordonForeign).Info("the node was already cordoned by someone else; nth will not uncordon it")
	case drain.NodeReopened:
		if a.noteReopened(p) {
			say(systemd.CordonForeign).Info("someone uncordoned the node during this event; pods scheduled since then are left alone")
		}
	case drain.NodeLeft:
		say(systemd.CordonForeign).Infof("annotation %s asks to leave the node alone", drain.ActionAnnotation)
	case drain.NodeMissing:
		say(systemd.DrainStarted).Infof("no Node object: %s; waiting", p.Detail)
		return
	case drain.NodeExcluded:
		say(systemd.Cordoned).Info("excluded the node from external load balancers")
	}
	a.noteCordonKnown()
}

// waited tells what else than pods is waited for, or why it is no more.
func (a *Agent) waited(p drain.Progress) {
	say := a.logWork(systemd.DrainStarted, "")
	switch p.Kind { //nolint:exhaustive // the others concern the node and its pods
	case drain.Holding:
		say.Infof("delaying evictions for %s", p.Detail)
		return
	case drain.Unscripted:
		say.Warnf("the units that are to run before the drain: %s", p.Detail)
		return
	}
	a.targets = ""
	switch {
	case p.Kind == drain.TargetsLeft:
		a.targets = p.Detail
		say.Infof("waiting for load balancers: %s", p.Detail)
	case p.Detail != "":
		say.Warnf("not waiting for load balancers: %s", p.Detail)
	default:
		say.Info("load balancers have deregistered the node")
	}
}

// logPodProgress tells of one thing that happened to a pod.
func (a *Agent) logPodProgress(p drain.Progress) {
	say := func(id string) *logrus.Entry { return a.logWork(id, p.Pod) }
	switch p.Kind { //nolint:exhaustive // the others concern the node
	case drain.Found:
		if len(a.unfinished()) > 0 || p.Total > 0 { // A guard that only goes on standing has nothing to tell.
			say(systemd.DrainStarted).Infof("%d pods to evict", p.Total)
		}
	case drain.Arrived:
		say(systemd.DrainStarted).Infof("%s was scheduled to the cordoned node; evicting it too", p.Pod)
	case drain.Evicted:
		delete(a.held, p.Pod)
		say(systemd.PodEvicted).Infof("%s %s", a.did("evicted"), p.Pod)
	case drain.Deleted:
		delete(a.held, p.Pod)
		say(systemd.PodDeleted).Warnf("deleted %s, which could not be evicted in time", p.Pod)
	case drain.Held, drain.Refused, drain.Restarting, drain.Overdue:
		a.logPodHeld(p)
	case drain.Returning:
		say(systemd.PodHeld).Warnf("%s keeps recreating pods on the cordoned node; backing off", p.Detail)
	case drain.LeftToReturn:
		say(systemd.PodHeld).Warnf("%s keeps recreating pods on the cordoned node; leaving them there", p.Detail)
	case drain.Gone:
		delete(a.held, p.Pod)
		say(systemd.PodGone).Infof("%s is gone, %d of %d left", p.Pod, p.Left, p.Total)
	case drain.Volumes:
		say(systemd.PodGone).Infof("waiting for volumes: %s still in use", p.Detail)
	}
}

// logPodHeld tells what holds a pod.
func (a *Agent) logPodHeld(p drain.Progress) {
	say := a.logWork(systemd.PodHeld, p.Pod)
	switch {
	case p.Pod == "":
		say.Warn(p.Detail)
	case p.Kind == drain.Held:
		a.held[p.Pod] = "PDB " + p.Detail
		say.Infof("disruption budget %s blocks the eviction of %s; retrying", p.Detail, p.Pod)
	case p.Kind == drain.Refused:
		a.held[p.Pod] = p.Detail
		say.Warnf("eviction of %s refused: %s; retrying", p.Pod, p.Detail)
	case p.Kind == drain.Restarting:
		a.held[p.Pod] = "the restart of " + p.Detail
		say.Infof("%s is restarted; waiting for another pod in place of %s", p.Detail, p.Pod)
	default:
		a.held[p.Pod] = p.Detail
		say.Warnf("%s is still running after its grace period; critical pods no longer wait for it", p.Pod)
	}
}

// handleIdentity tells when the credential comes, goes or changes.
func (a *Agent) handleIdentity(n identity) {
	switch {
	case n.err == nil && (a.waiting != nil || a.node != n.node):
		a.node = n.node
		if a.cfg.Service == nil {
			break // Whose part it is knows.
		}
		a.logMessage(systemd.IdentityFound).Infof("acting for node %s", n.node)
	case n.err != nil && (a.waiting == nil || !drain.Alike(a.waiting.Error(), n.err.Error())):
		a.logMessage(systemd.IdentityWaiting).Warnf("waiting for the kubelet's credential: %s", n.err)
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
	if !slices.ContainsFunc(known.said, func(said string) bool { return drain.Alike(text, said) }) {
		known.said = append(known.said[max(0, len(known.said)+1-reasonsSaid):], text)
		a.logMessage(systemd.SourceTrouble).WithField(systemd.FieldEventKind, string(n.kind)).
			Warnf("cannot read %s: %s; keeping last known state", n.kind, text)
	}
	a.trouble[n.kind] = known
	a.notifyListeners(state.Transition{Kind: state.SourceLost, Entry: state.Entry{Event: event.Event{Kind: n.kind}}, Err: n.err})
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
		a.notifyListeners(state.Transition{Kind: state.SourceBack, Entry: state.Entry{Event: event.Event{Kind: kind}}})
		a.logMessage(systemd.SourceRecovered).WithField(systemd.FieldEventKind, string(kind)).
			Infof("%s is readable again after %s", kind, t.over.Sub(t.since).Round(time.Second))
	}
}
