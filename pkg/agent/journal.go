package agent

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/pkg/text"
)

// journal logs transitions: one short sentence each, with fields to find it by.
type journal struct {
	log    *logrus.Entry
	dryRun bool
}

// message is what is logged for a transition.
type message struct {
	id    string
	level logrus.Level
	// text may have placeholders in braces: see fill.
	text string
	// fits is a condition on the transition; nil if there is none.
	fits func(state.Transition) bool
}

func info(id, text string) message    { return message{id: id, level: logrus.InfoLevel, text: text} }
func warn(id, text string) message    { return message{id: id, level: logrus.WarnLevel, text: text} }
func failure(id, text string) message { return message{id: id, level: logrus.ErrorLevel, text: text} }

// when returns the message with the condition that fits reports true.
func (m message) when(fits func(state.Transition) bool) message {
	m.fits = fits
	return m
}

// messages has all messages by the kind of the transition. The first one whose condition holds is logged; if there is none, nothing
// is. An error becomes a field unless the text has it.
var messages = map[state.TransitionKind][]message{
	state.Announced:  {warn(systemd.EventSeen, "{kind}: {plan}")},
	state.Changed:    {info(systemd.EventSeen, "{kind}: changed: {plan}")},
	state.Missed:     {info(systemd.EventWithdrawn, "{kind}: no longer announced; waiting to confirm before undoing anything")},
	state.ClosedWith: {info(systemd.EventWithdrawn, "{kind}: {ending}; nothing more to do for it")},
	state.Begun: {
		warn(systemd.DrainStarted, "{not}draining the node: {reason} ({time})").when(isDraining),
		info(systemd.EventWithdrawn, "{not}uncordoning the node: {reason}").when(actionIs(policy.Uncordon)),
	},
	state.CalledBack: {info(systemd.EventWithdrawn, "stopping the {action} for {kind}: it is over, or its action has changed")},
	state.Done:       {warn(systemd.Drained, "{drained}").when(actionIs(policy.Drain))},
	state.RanOut:     {failure(systemd.DrainIncomplete, "the drain ran out of time: {incomplete}")},
	state.Failed: {
		failure(systemd.DrainIncomplete, "the drain failed; retrying").when(actionIs(policy.Drain)),
		failure(systemd.DrainIncomplete, "the node could not be cordoned; retrying").when(actionIs(policy.Cordon)),
	},
	state.LeftAlone: {
		warn(systemd.DrainLeft, "the node is left alone because of its annotation "+drain.ActionAnnotation+": its pods are not evicted for {kind}"),
	},
	state.LeftAloneNoMore: {info(systemd.DrainLeft, "annotation "+drain.ActionAnnotation+" no longer asks to leave the node alone")},

	state.NodeClosed:      {warn(systemd.Cordoned, "{would}cordoned the node in {took}")},
	state.NodeFoundClosed: {info(systemd.CordonForeign, "the node was already cordoned by someone else; nth will not uncordon it")},
	state.NodeReopened: {
		info(systemd.CordonLifted, "someone uncordoned the node during this event; pods from before are still evicted, later ones stay").when(actionIs(policy.Drain)),
		info(systemd.CordonLifted, "someone uncordoned the node during this event; nth leaves it open"),
	},
	state.NodeOptedOut:   {info(systemd.DrainLeft, "annotation "+drain.ActionAnnotation+" asks to leave the node alone")},
	state.NodeMissing:    {info(systemd.DrainStarted, "there is no Node object: {detail}; it is cordoned once it is registered")},
	state.NodeExcluded:   {info(systemd.Cordoned, "excluded the node from external load balancers")},
	state.NodeUnclosable: {warn(systemd.PodHeld, "{detail}")},
	state.NodeUncordoned: {
		failure(systemd.DrainIncomplete, "the node could not be uncordoned; retrying").when(hasError),
		info(systemd.Uncordoned, "{would}uncordoned the node: {reason}").when(outcomeIs(drain.UncordonLifted)),
		info(systemd.CordonLeft, "{reason}: the cordon is left to {detail}, who still needs it").when(hasDetail),
		info(systemd.Uncordoned, "the Node no longer exists; nothing to uncordon").when(outcomeIs(drain.UncordonNodeGone)),
		info(systemd.Uncordoned, "no cordon of nth's is on the node; nothing to uncordon"),
	},
	state.CordonAdopted:    {warn(systemd.Cordoned, "nth had cordoned the node, which its record does not say; nth uncordons it when {kind} is over")},
	state.EvictionsDelayed: {info(systemd.DrainStarted, "evictions begin in {detail}: load balancers get time to follow the cordon")},
	state.ScriptsFailed:    {warn(systemd.DrainStarted, "evicting without waiting for units that run before a drain: {detail}")},
	state.TargetsLeft:      {info(systemd.DrainStarted, "waiting for load balancers: {detail}")},
	state.TargetsOut: {
		warn(systemd.DrainStarted, "no longer waiting for load balancers: {detail}").when(hasDetail),
		info(systemd.DrainStarted, "load balancers have deregistered the node"),
	},

	state.PodsFound:  {info(systemd.DrainStarted, "{pods} to evict")},
	state.PodArrived: {info(systemd.DrainStarted, "{pod} was scheduled to the cordoned node; evicting it too")},
	state.PodEvicted: {
		warn(systemd.PodEvicted, "evicted {pod}; {detail}").when(hasDetail),
		info(systemd.PodEvicted, "{would}evicted {pod}"),
	},
	state.PodDeleted: {
		warn(systemd.PodDeleted, "deleted {pod}, which could not be evicted in time; {detail}").when(hasDetail),
		warn(systemd.PodDeleted, "deleted {pod}, which could not be evicted in time"),
	},
	state.PodHeld: {
		warn(systemd.PodHeld, "{pod} is not evicted: {detail}; retrying").when(outcomeIs(state.Refused)),
		info(systemd.PodHeld, "disruption budget {detail} blocks the eviction of {pod}; retrying"),
	},
	state.PodRefused:       {warn(systemd.PodHeld, "{detail}")},
	state.PodOverdue:       {warn(systemd.PodHeld, "{pod} is still running after its grace period; the eviction of critical pods no longer waits for it")},
	state.PodsReturning:    {warn(systemd.PodHeld, "{detail} keeps recreating pods on the cordoned node; evicting them after growing pauses")},
	state.PodsLeftToReturn: {warn(systemd.PodHeld, "{detail} keeps recreating pods on the cordoned node; leaving them there")},
	state.PodGone:          {info(systemd.PodGone, "{pod} is gone, {left} of {total} left")},
	state.VolumesInUse:     {info(systemd.PodGone, "waiting for volumes: {detail} still in use")},

	state.Started:         {info(systemd.Started, "watching for interruptions{dry}")},
	state.Stopped:         {info(systemd.Stopping, "stopped; the node is left as it is")},
	state.SourceLost:      {warn(systemd.SourceTrouble, "cannot read {kind}: {error}; keeping last known state")},
	state.SourceBack:      {info(systemd.SourceRecovered, "{kind} is readable again after {took}")},
	state.SourceStalled:   {failure(systemd.SourceTrouble, "reading events from EC2 or logind has stalled; waiting for the service manager to restart nth")},
	state.RecordUnwritten: {failure(systemd.StateTrouble, "cannot write the state record; a restart now may forget what was done")},
	state.IdentityFound:   {info(systemd.IdentityFound, "acting for node {node}")},
	state.IdentityWaiting: {warn(systemd.IdentityWaiting, "waiting for the kubelet's credential: {error}")},
}

// isDraining reports whether a transition belongs to a drain that is under way. The beginning of one that is over already is not logged.
func isDraining(t state.Transition) bool {
	return actionIs(policy.Drain)(t) && t.Entry.Phase == state.Draining
}
func hasError(t state.Transition) bool  { return t.Err != nil }
func hasDetail(t state.Transition) bool { return t.Detail != "" }

// actionIs returns a condition: the transition belongs to a step with this action.
func actionIs(action policy.Action) func(state.Transition) bool {
	return func(t state.Transition) bool { return t.Action == string(action) }
}

// outcomeIs returns a condition: the transition has this outcome.
func outcomeIs[O ~string](outcome O) func(state.Transition) bool {
	return func(t state.Transition) bool { return t.Outcome == string(outcome) }
}

// OnTransition implements Listener.
func (j *journal) OnTransition(t state.Transition) {
	m, found := messageFor(t)
	if !found {
		return
	}
	j.log.WithFields(fields(m, t)).Log(m.level, j.fill(m.text, t))
}

// messageFor returns the message for a transition, if it has one.
func messageFor(t state.Transition) (m message, found bool) {
	all := messages[t.Kind]
	i := slices.IndexFunc(all, func(m message) bool { return m.fits == nil || m.fits(t) })
	if i < 0 {
		return message{}, false
	}
	return all[i], true
}

// fields returns the journal's fields for a transition: the message ID, the node, the event and the pod.
func fields(m message, t state.Transition) logrus.Fields {
	all := logrus.Fields{systemd.FieldMessageID: m.id}
	if t.Node != "" {
		all[systemd.FieldNode] = t.Node
	}
	ev := t.Entry.Event
	if ev.ID != "" || ev.Kind != "" {
		all[systemd.FieldEventKind] = string(ev.Kind)
	}
	if ev.ID != "" {
		all[systemd.FieldEventID], all[systemd.FieldPhase] = ev.ID, string(t.Entry.Phase)
	}
	if t.Pod != "" {
		all[systemd.FieldPod] = t.Pod
	}
	if t.Err != nil && !strings.Contains(m.text, "{error}") {
		all[logrus.ErrorKey] = t.Err
	}
	return all
}

// fill replaces the placeholders in the format of a message.
func (j *journal) fill(format string, t state.Transition) string {
	not, would, dry := "", "", ""
	if j.dryRun {
		not, would, dry = "dry run: not ", "dry run: would have ", ", as a dry run: nothing will be cordoned or evicted"
	}
	cause := ""
	if t.Err != nil {
		cause = t.Err.Error()
	}
	words := []string{
		"{kind}", string(t.Entry.Event.Kind), "{plan}", t.Plan, "{ending}", string(t.Entry.Ending), "{action}", t.Action, "{reason}", t.Reason,
		"{node}", t.Node, "{pod}", t.Pod, "{detail}", t.Detail, "{total}", strconv.Itoa(t.Total), "{left}", strconv.Itoa(t.Left),
		"{pods}", text.Pods(t.Total), "{took}", t.Took.Round(time.Millisecond).String(), "{error}", cause, "{not}", not, "{would}", would, "{dry}", dry,
	}
	switch t.Kind { // The others need no more.
	case state.Begun:
		words = append(words, "{time}", timeLeft(t))
	case state.Done:
		words = append(words, "{drained}", j.drained(t))
	case state.RanOut:
		words = append(words, "{incomplete}", incomplete(t))
	}
	return strings.NewReplacer(words...).Replace(format)
}

// timeLeft says how much time is left until the deadline to show.
func timeLeft(t state.Transition) string {
	if t.Until.IsZero() {
		return "no deadline"
	}
	return fmt.Sprintf("%.0f s left", max(t.Until.Sub(t.At), 0).Seconds())
}

// drained describes a drain that is done.
func (j *journal) drained(t state.Transition) string {
	r := t.Entry.Result
	if r == nil {
		r = &state.Result{}
	}
	gone := t.Outcome == state.NodeGone
	switch {
	case gone && r.Evicted+r.Deleted == 0:
		return "the Node no longer exists; nothing to drain"
	case j.dryRun:
		return fmt.Sprintf("dry run: the node would have been cordoned and drained of %s, %d left alone", text.Pods(r.Evicted), r.Skipped)
	}
	said := fmt.Sprintf("drained: %s evicted, %d deleted, %d left in place", text.Pods(r.Evicted), r.Deleted, r.Skipped)
	if !t.Deadline.IsZero() {
		left, side := t.Deadline.Sub(t.At).Seconds(), "before"
		if left < 0 {
			left, side = -left, "after"
		}
		said += fmt.Sprintf("; %.0f s %s the deadline", left, side)
	}
	if gone {
		said += "; the Node no longer exists"
	}
	return said
}

// incomplete describes how far a drain came that ran out of time.
func incomplete(t state.Transition) string {
	r := t.Entry.Result
	switch {
	case r == nil:
		return "the deadline passed before nth could continue; remaining pods unknown"
	case len(r.Left) == 0 && t.Outcome == state.NeverClosed:
		return "the node could not be cordoned; remaining pods unknown"
	}
	left := slices.Clone(r.Left)
	for i, pod := range left {
		if by := r.HeldBy[pod]; by != "" {
			left[i] += " (held by " + by + ")"
		}
	}
	if len(left) == 0 { // Pods have not been listed yet, or not since the last change.
		left = []string{"not known"}
	}
	return fmt.Sprintf("%s evicted, %d deleted, left: %s", text.Pods(r.Evicted), r.Deleted, strings.Join(left, ", "))
}
