package agent

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// journal is the first who is told of a transition: it says what there is to say, in one short sentence with the fields that make it
// findable.
type journal struct {
	log    *logrus.Entry
	dryRun bool
	// said are the reasons of each kind's outage that were said last: they may take turns.
	said map[event.Kind][]string
}

// message is what the journal says of a transition.
type message struct {
	id    string
	level logrus.Level
	// text has what belongs to the transition in braces: see fill.
	text string
	// when tells of which transitions of its kind that is said; nil if of all.
	when func(state.Transition) bool
	// unphased messages do not have the field that says how far nth has come with the event.
	unphased bool
}

// messages are all that the journal says, by what happens. Of several the first that fits is said, and nothing if none does. An error
// is a field of its own where the text does not have it.
var messages = map[state.TransitionKind][]message{
	state.Announced: {{id: systemd.EventSeen, level: logrus.WarnLevel, text: "{kind}: {plan}"}},
	state.Changed:   {{id: systemd.EventSeen, level: logrus.InfoLevel, text: "{kind}: changed: {plan}"}},
	state.Missed: {{
		id: systemd.EventWithdrawn, level: logrus.InfoLevel, unphased: true,
		text: "{kind}: no longer announced; waiting to confirm before undoing anything",
	}},
	state.ClosedWith: {{id: systemd.EventWithdrawn, level: logrus.InfoLevel, unphased: true, text: "{kind}: {ending}; nothing to undo"}},
	state.Begun: {
		{id: systemd.DrainStarted, level: logrus.WarnLevel, text: "{not}draining the node: {reason} ({time})", when: isDraining},
		{id: systemd.EventWithdrawn, level: logrus.InfoLevel, text: "{not}uncordoning the node: {reason}", when: actionIs(policy.Uncordon)},
	},
	state.CalledBack: {{
		id: systemd.EventWithdrawn, level: logrus.InfoLevel, unphased: true, text: "stopping the {action} for {kind}: no longer needed",
	}},
	state.NodeCordoned: {{id: systemd.Cordoned, level: logrus.WarnLevel, text: "{would}cordoned the node: {reason}", when: actionIs(policy.Cordon)}},
	state.Done:         {{id: systemd.Drained, level: logrus.WarnLevel, text: "{drained}", when: actionIs(policy.Drain)}},
	state.RanOut:       {{id: systemd.DrainIncomplete, level: logrus.ErrorLevel, text: "the drain ran out of time: {incomplete}"}},
	state.Failed: {
		{id: systemd.DrainIncomplete, level: logrus.ErrorLevel, text: "the drain failed; retrying", when: actionIs(policy.Drain)},
		{id: systemd.DrainIncomplete, level: logrus.ErrorLevel, text: "the node could not be cordoned; retrying", when: actionIs(policy.Cordon)},
	},
	state.LeftAlone: {{
		id: systemd.DrainLeft, level: logrus.WarnLevel,
		text: "the node is left alone because of its annotation " + drain.ActionAnnotation + ": its pods are not evicted for {kind}",
	}},
	state.LeftAloneNoMore: {{
		id: systemd.DrainLeft, level: logrus.InfoLevel, text: "annotation " + drain.ActionAnnotation + " no longer asks to leave the node alone",
	}},

	state.NodeClosed: {{id: systemd.Cordoned, level: logrus.WarnLevel, text: "{would}cordoned the node after {took}"}},
	state.NodeFoundClosed: {{
		id: systemd.CordonForeign, level: logrus.InfoLevel, text: "the node was already cordoned by someone else; nth will not uncordon it",
	}},
	state.NodeReopened: {{
		id: systemd.CordonForeign, level: logrus.InfoLevel,
		text: "someone uncordoned the node during this event; pods scheduled since then are left alone",
	}},
	state.NodeOptedOut: {{
		id: systemd.CordonForeign, level: logrus.InfoLevel, text: "annotation " + drain.ActionAnnotation + " asks to leave the node alone",
	}},
	state.NodeMissing:    {{id: systemd.DrainStarted, level: logrus.InfoLevel, text: "no Node object: {detail}; waiting"}},
	state.NodeExcluded:   {{id: systemd.Cordoned, level: logrus.InfoLevel, text: "excluded the node from external load balancers"}},
	state.NodeUnclosable: {{id: systemd.PodHeld, level: logrus.WarnLevel, text: "{detail}"}},
	state.NodeUncordoned: {
		{id: systemd.DrainIncomplete, level: logrus.ErrorLevel, text: "the node could not be uncordoned; retrying", when: hasError},
		{id: systemd.Uncordoned, level: logrus.InfoLevel, text: "{would}uncordoned the node: {reason}", when: outcomeIs(drain.UncordonLifted)},
		{id: systemd.CordonLeft, level: logrus.InfoLevel, text: "{reason}: the cordon is left to {detail}, who still needs it", when: hasDetail},
		{
			id: systemd.Uncordoned, level: logrus.InfoLevel, text: "the Node no longer exists; nothing to uncordon",
			when: outcomeIs(drain.UncordonNodeGone),
		},
		{id: systemd.Uncordoned, level: logrus.InfoLevel, text: "our cordon is already gone"},
	},
	state.CordonAdopted: {{
		id: systemd.EventSeen, level: logrus.WarnLevel, unphased: true, text: "adopting our cordon, missing from the record",
	}},
	state.EvictionsDelayed: {{id: systemd.DrainStarted, level: logrus.InfoLevel, text: "delaying evictions for {detail}"}},
	state.ScriptsFailed: {{
		id: systemd.DrainStarted, level: logrus.WarnLevel, text: "the units that are to run before the drain: {detail}",
	}},
	state.TargetsLeft: {{id: systemd.DrainStarted, level: logrus.InfoLevel, text: "waiting for load balancers: {detail}"}},
	state.TargetsOut: {
		{id: systemd.DrainStarted, level: logrus.WarnLevel, text: "not waiting for load balancers: {detail}", when: hasDetail},
		{id: systemd.DrainStarted, level: logrus.InfoLevel, text: "load balancers have deregistered the node"},
	},

	state.PodsFound: {{id: systemd.DrainStarted, level: logrus.InfoLevel, text: "{total} pods to evict"}},
	state.PodArrived: {{
		id: systemd.DrainStarted, level: logrus.InfoLevel, text: "{pod} was scheduled to the cordoned node; evicting it too",
	}},
	state.PodEvicted: {{id: systemd.PodEvicted, level: logrus.InfoLevel, text: "{would}evicted {pod}"}},
	state.PodDeleted: {{id: systemd.PodDeleted, level: logrus.WarnLevel, text: "deleted {pod}, which could not be evicted in time"}},
	state.PodHeld: {
		{id: systemd.PodHeld, level: logrus.WarnLevel, text: "eviction of {pod} refused: {detail}; retrying", when: outcomeIs(state.Refused)},
		{id: systemd.PodHeld, level: logrus.InfoLevel, text: "disruption budget {detail} blocks the eviction of {pod}; retrying"},
	},
	state.PodRefused: {{id: systemd.PodHeld, level: logrus.WarnLevel, text: "{detail}"}},
	state.PodRestarting: {{
		id: systemd.PodHeld, level: logrus.InfoLevel, text: "{detail} is restarted; waiting for another pod in place of {pod}",
	}},
	state.PodOverdue: {{
		id: systemd.PodHeld, level: logrus.WarnLevel,
		text: "{pod} is still running after its grace period; critical pods no longer wait for it",
	}},
	state.PodsReturning: {{
		id: systemd.PodHeld, level: logrus.WarnLevel, text: "{detail} keeps recreating pods on the cordoned node; backing off",
	}},
	state.PodsLeftToReturn: {{
		id: systemd.PodHeld, level: logrus.WarnLevel, text: "{detail} keeps recreating pods on the cordoned node; leaving them there",
	}},
	state.PodGone:      {{id: systemd.PodGone, level: logrus.InfoLevel, text: "{pod} is gone, {left} of {total} left"}},
	state.VolumesInUse: {{id: systemd.PodGone, level: logrus.InfoLevel, text: "waiting for volumes: {detail} still in use"}},

	state.Started: {{id: systemd.Started, level: logrus.InfoLevel, text: "watching for interruptions{dry}"}},
	state.Stopped: {{id: systemd.Stopping, level: logrus.InfoLevel, text: "stopped; the node is left as it is"}},
	state.SourceLost: {{
		id: systemd.SourceTrouble, level: logrus.WarnLevel, text: "cannot read {kind}: {error}; keeping last known state",
	}},
	state.SourceBack: {{id: systemd.SourceRecovered, level: logrus.InfoLevel, text: "{kind} is readable again after {took}"}},
	state.SourceStalled: {{
		id: systemd.SourceTrouble, level: logrus.ErrorLevel, text: "event source stalled; waiting for the service manager to restart nth",
	}},
	state.RecordUnwritten: {{
		id: systemd.StateTrouble, level: logrus.ErrorLevel, text: "cannot write the state record; a restart now may forget what was done",
	}},
	state.IdentityFound:   {{id: systemd.IdentityFound, level: logrus.InfoLevel, text: "acting for node {node}"}},
	state.IdentityWaiting: {{id: systemd.IdentityWaiting, level: logrus.WarnLevel, text: "waiting for the kubelet's credential: {error}"}},
	state.ClockStepped: {{
		id: systemd.EventSeen, level: logrus.WarnLevel, text: "the system clock was stepped by {took}; recomputing deadlines",
	}},
}

// What the messages are told apart by.
func isDraining(t state.Transition) bool {
	return actionIs(policy.Drain)(t) && t.Entry.Phase == state.Draining
}
func hasError(t state.Transition) bool  { return t.Err != nil }
func hasDetail(t state.Transition) bool { return t.Detail != "" }

func actionIs(action policy.Action) func(state.Transition) bool {
	return func(t state.Transition) bool { return t.Action == string(action) }
}

func outcomeIs[O ~string](outcome O) func(state.Transition) bool {
	return func(t state.Transition) bool { return t.Outcome == string(outcome) }
}

// OnTransition implements Listener.
func (j *journal) OnTransition(t state.Transition) {
	if t.Kind == state.SourceBack {
		delete(j.said, t.Entry.Event.Kind)
	}
	all := messages[t.Kind]
	i := slices.IndexFunc(all, func(m message) bool { return m.when == nil || m.when(t) })
	if i < 0 || t.Kind == state.SourceLost && !j.isNews(t) {
		return
	}
	m := all[i]
	j.log.WithFields(fields(m, t)).Log(m.level, j.fill(m.text, t))
}

// reasonsSaid is how many reasons of an outage are remembered to have been said, as some have no end of forms.
const reasonsSaid = 16

// isNews tells whether the reason of a source's outage was not said yet.
func (j *journal) isNews(t state.Transition) bool {
	kind, text := t.Entry.Event.Kind, t.Err.Error()
	said := j.said[kind]
	if slices.ContainsFunc(said, func(before string) bool { return drain.Alike(text, before) }) {
		return false
	}
	j.said[kind] = append(said[max(0, len(said)+1-reasonsSaid):], text)
	return true
}

// fields are those of a message.
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
		all[systemd.FieldEventID] = ev.ID
		if !m.unphased {
			all[systemd.FieldPhase] = string(t.Entry.Phase)
		}
	}
	if t.Pod != "" {
		all[systemd.FieldPod] = t.Pod
	}
	if t.Err != nil && !strings.Contains(m.text, "{error}") {
		all[logrus.ErrorKey] = t.Err
	}
	return all
}

// fill puts what belongs to a transition into the text of a message.
func (j *journal) fill(text string, t state.Transition) string {
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
		"{took}", t.Took.Round(time.Millisecond).String(), "{error}", cause, "{not}", not, "{would}", would, "{dry}", dry,
	}
	switch t.Kind { // the others have no more
	case state.Begun:
		words = append(words, "{time}", timeLeft(t))
	case state.Done:
		words = append(words, "{drained}", j.drained(t))
	case state.RanOut:
		words = append(words, "{incomplete}", incomplete(t))
	}
	return strings.NewReplacer(words...).Replace(text)
}

func timeLeft(t state.Transition) string {
	if t.Until.IsZero() {
		return "no deadline"
	}
	return fmt.Sprintf("%.0f s left", max(t.Until.Sub(t.At), 0).Seconds())
}

// drained says how a drain ended well.
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
		return fmt.Sprintf("dry run: the node would have been cordoned and drained of %d pods, %d left alone", r.Evicted, r.Skipped)
	}
	text := fmt.Sprintf("drained: %d pods evicted, %d deleted, %d left in place", r.Evicted, r.Deleted, r.Skipped)
	if !t.Deadline.IsZero() {
		left, side := t.Deadline.Sub(t.At).Seconds(), "before"
		if left < 0 {
			left, side = -left, "after"
		}
		text += fmt.Sprintf("; %.0f s %s the deadline", left, side)
	}
	if gone {
		text += "; the Node no longer exists"
	}
	return text
}

// incomplete says how far a drain came that ran out of time.
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
	if len(left) == 0 { // Those that are there have not been listed, or it was not certain yet that there are none.
		left = []string{"not known"}
	}
	return fmt.Sprintf("%d pods evicted, %d deleted, left: %s", r.Evicted, r.Deleted, strings.Join(left, ", "))
}
