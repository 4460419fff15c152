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
	"github.com/nth-project/nth/pkg/text"
)

// message is what is logged for a transition: one short sentence.
type message struct {
	id    string // the message ID
	level logrus.Level
	// text may have placeholders in braces: see fill.
	text string
	// fits says for which transitions of its kind the message is; nil means for all.
	fits func(state.Transition) bool
}

func info(id, text string) message    { return message{id: id, level: logrus.InfoLevel, text: text} }
func warn(id, text string) message    { return message{id: id, level: logrus.WarnLevel, text: text} }
func failure(id, text string) message { return message{id: id, level: logrus.ErrorLevel, text: text} }

// when returns the message for those transitions only for which fits returns true.
func (m message) when(fits func(state.Transition) bool) message {
	m.fits = fits
	return m
}

// messages has the messages for each kind of transition. The first message that fits the transition is logged; nothing is logged if no message fits.
var messages = map[state.TransitionKind][]message{
	state.Announced: {
		warn(systemd.EventSeen, "{plan}").when(func(t state.Transition) bool { return t.Entry.Event.Kind == event.Manual }),
		warn(systemd.EventSeen, "event {kind} announced: {plan}"),
	},
	state.Changed:    {info(systemd.EventSeen, "event {kind} changed; now: {plan}")},
	state.Missed:     {info(systemd.EventWithdrawn, "event {kind} is no longer announced; if that lasts, the event counts as withdrawn")},
	state.ClosedWith: {info(systemd.EventWithdrawn, "nothing is left to do for event {kind}: {ending}")},
	state.Begun: {
		warn(systemd.DrainStarted, "{doing}draining the node: {reason}; {time}").when(actionIs(policy.Drain)),
		info(systemd.EventWithdrawn, "{doing}uncordoning the node: {reason}").when(actionIs(policy.Uncordon)),
	},
	state.CalledBack: {info(systemd.EventWithdrawn, "stopped the unfinished {action} for {kind}, as its plan has changed; event and new plan: {plan}")},
	state.Done:       {warn(systemd.Drained, "{drained}").when(actionIs(policy.Drain))},
	state.RanOut: {
		failure(systemd.DrainIncomplete, "the drain ran out of time: {incomplete}; nth evicts no more, because someone uncordoned the node").when(func(t state.Transition) bool { return t.Entry.Released() }),
		failure(systemd.DrainIncomplete, "the drain ran out of time: {incomplete}; nth keeps trying while the machine runs"),
	},
	state.Failed: {failure(systemd.CordonFailed, "{error}; retrying")}, // The error says that it was cordoning or uncordoning.
	state.LeftAlone: {
		warn(systemd.DrainLeft, "the Node's annotation "+drain.ActionAnnotation+" forbids evictions; no pods are evicted for {kind} until the annotation is removed"),
	},

	state.NodeCordoned: {warn(systemd.Cordoned, "{would}cordoned the node{took}").when(isOfNode)},
	state.CordonFound:  {info(systemd.CordonForeign, "the node was already cordoned by someone else; that cordon will not be lifted").when(isOfNode)},
	state.NodeUncordoned: {
		info(systemd.CordonLifted, "someone uncordoned the node during the drain; nth still evicts the pods that were on the node before that, but no newer ones").when(actionIs(policy.Drain)),
		info(systemd.CordonLifted, "someone uncordoned the node; the node will not be cordoned again for this event"),
	},
	state.NodeOptedOut: {
		warn(systemd.DrainLeft, "the Node's annotation "+drain.ActionAnnotation+" forbids cordoning; the node is neither cordoned nor drained until the annotation is removed"),
	},
	state.NodeMissing:      {info(systemd.DrainStarted, "the Node does not exist: {detail}; a Node that the kubelet registers later will be cordoned")},
	state.NodeExcluded:     {info(systemd.Cordoned, "added the label "+drain.ExcludeLabel+" to the node, so that load balancers deregister it")},
	state.NodeCordonFailed: {warn(systemd.CordonFailed, "{detail}; retrying")},
	state.EvictionsDelayed: {info(systemd.DrainStarted, "evictions begin in {detail}, so that load balancers can deregister the node first")},
	state.ScriptsFailed:    {warn(systemd.DrainStarted, "the drain continues without nth-before-drain.target: {detail}")},
	state.TargetsLeft:      {info(systemd.DrainStarted, "waiting for load balancers to deregister the node: {detail}")},
	state.TargetsOut: {
		warn(systemd.DrainStarted, "no longer waiting for load balancers, which may still send requests to the node: {detail}").when(hasDetail),
		info(systemd.DrainStarted, "load balancers have deregistered the node"),
	},

	state.PodsFound:  {info(systemd.DrainStarted, "the node has {pods} to evict")},
	state.PodArrived: {info(systemd.DrainStarted, "{pod} was scheduled to the cordoned node; evicting it too")},
	state.PodEvicted: {
		warn(systemd.PodEvicted, "evicted {pod}; {detail}").when(hasDetail),
		info(systemd.PodEvicted, "{would}evicted {pod}"),
	},
	state.PodDeleted: {
		warn(systemd.PodDeleted, "deleted {pod}, ignoring disruption budgets: it would not have terminated before the deadline; {detail}").when(hasDetail),
		warn(systemd.PodDeleted, "deleted {pod}, ignoring disruption budgets: it would not have terminated before the deadline"),
	},
	state.PodHeld: {
		warn(systemd.PodHeld, "cannot evict {pod}: {detail}; retrying").when(isRefused),
		info(systemd.PodHeld, "disruption budget {detail} blocks the eviction of {pod}; retrying"),
	},
	state.PodRefused:       {warn(systemd.PodHeld, "{detail}; retrying")},
	state.PodOverdue:       {warn(systemd.PodHeld, "{pod} is still terminating after its grace period; the eviction of system-critical pods no longer waits for this pod")},
	state.PodsLeftToReturn: {warn(systemd.PodHeld, "{detail} keeps recreating pods on the cordoned node; these are no longer evicted")},
	state.PodGone:          {info(systemd.PodGone, "{pod} is gone; pods still to go: {left} of {total}")},
	state.Rebooting:        {warn(systemd.Rebooting, "{doing}{rebooting} now, before the scheduled time: {reason}")},
	state.RebootFailed:     {warn(systemd.Rebooting, "cannot carry out the maintenance early: {error}; it is left to EC2")},
	state.VolumesInUse:     {info(systemd.PodGone, "waiting for volumes to be detached: {detail}")},
}

// isOfNode reports whether a transition is reported for the node. One that is reported for an event belongs to a step.
func isOfNode(t state.Transition) bool  { return t.Action == "" }
func hasDetail(t state.Transition) bool { return t.Detail != "" }
func isRefused(t state.Transition) bool { return t.Outcome == state.Refused }

// actionIs returns a condition: the transition belongs to a step with this action.
func actionIs(action policy.Action) func(state.Transition) bool {
	return func(t state.Transition) bool { return t.Action == string(action) }
}

// write logs a transition, if there is a message for it.
func (a *Agent) write(t state.Transition) {
	all := messages[t.Kind]
	i := slices.IndexFunc(all, func(m message) bool { return m.fits == nil || m.fits(t) })
	if i < 0 {
		return
	}
	log := a.logger(all[i].id, t.Entry)
	if t.Pod != "" {
		log = log.WithField(systemd.FieldPod, t.Pod)
	}
	log.Log(all[i].level, a.fill(all[i].text, t))
}

// logger returns a logger with the journal's fields: the message ID, the node, and the entry's event. An empty entry adds no fields.
func (a *Agent) logger(id string, e state.Entry) *logrus.Entry {
	fields := logrus.Fields{systemd.FieldMessageID: id}
	if a.node != "" {
		fields[systemd.FieldNode] = a.node
	}
	if e.Event.Kind != "" {
		fields[systemd.FieldEventKind] = string(e.Event.Kind)
	}
	if e.Event.ID != "" {
		fields[systemd.FieldEventID], fields[systemd.FieldPhase] = e.Event.ID, string(e.Phase)
	}
	return a.cfg.Log.WithFields(fields)
}

// would returns the words in done, such as "uncordoned the node". In a dry run, they say that this would have been done.
func (a *Agent) would(done string) string {
	if a.cfg.DryRun {
		return "dry run: would have " + done
	}
	return done
}

// fill replaces the placeholders in the format of a message.
func (a *Agent) fill(format string, t state.Transition) string {
	doing, took, rebooting := "", " in "+t.Took.Round(time.Millisecond).String(), "rebooting the machine"
	if a.cfg.Remote { // What EC2 is asked for depends on the maintenance.
		rebooting = "carrying out the maintenance"
	}
	if a.cfg.DryRun {
		doing, took = "dry run: would be ", ""
	}
	why := ""
	if t.Err != nil {
		why = t.Err.Error()
	}
	words := []string{
		"{error}", why,
		"{kind}", string(t.Entry.Event.Kind), "{plan}", t.Plan, "{ending}", t.Entry.Ending.Text(), "{action}", t.Action, "{reason}", t.Reason,
		"{pod}", t.Pod, "{detail}", t.Detail, "{total}", strconv.Itoa(t.Total), "{left}", strconv.Itoa(t.Left),
		"{pods}", text.Pods(t.Total), "{took}", took, "{doing}", doing, "{would}", a.would(""), "{rebooting}", rebooting,
	}
	switch t.Kind { // Messages for other kinds have no more placeholders.
	case state.Begun:
		words = append(words, "{time}", timeLeft(t))
	case state.Done:
		words = append(words, "{drained}", a.drained(t))
	case state.RanOut:
		words = append(words, "{incomplete}", incomplete(t))
	}
	return strings.NewReplacer(words...).Replace(format)
}

// timeLeft says in words how much time is left until a transition's deadline.
func timeLeft(t state.Transition) string {
	if t.Deadline.IsZero() {
		return "there is no deadline"
	}
	left := max(t.Deadline.Sub(t.At), 0).Seconds()
	if t.Entry.Event.Deadline.IsZero() { // EC2 has announced none.
		return fmt.Sprintf("the settings allow %.0f s", left)
	}
	return fmt.Sprintf("%.0f s until the deadline", left)
}

// drained says in words what a drain that is done did, and when it was done compared with its deadline.
func (a *Agent) drained(t state.Transition) string {
	r := t.Entry.Result
	if t.Outcome == state.NodeGone {
		return fmt.Sprintf("the drain is over, because the Node no longer exists: %s evicted, %d deleted", text.Pods(r.Evicted), r.Deleted)
	}
	if a.cfg.DryRun {
		return a.would(fmt.Sprintf("drained the node: %s evicted, %d exempt (such as DaemonSet pods)", text.Pods(r.Evicted), r.Skipped))
	}
	said := fmt.Sprintf("drained the node: %s evicted, %d deleted, %d exempt (such as DaemonSet pods)", text.Pods(r.Evicted), r.Deleted, r.Skipped)
	if !t.Deadline.IsZero() {
		left := t.Deadline.Sub(t.At).Seconds()
		if left < 0 {
			said += fmt.Sprintf("; %.0f s after the deadline", -left)
		} else {
			said += fmt.Sprintf("; %.0f s before the deadline", left)
		}
	}
	return said
}

// incomplete says in words how far a drain that ran out of time has come.
func incomplete(t state.Transition) string {
	r := t.Entry.Result
	if r == nil { // No guard has worked for the event.
		return "the deadline passed before nth could begin, so no pod was evicted"
	}
	left := slices.Clone(r.Left)
	for i, pod := range left {
		if by := r.HeldBy[pod]; by != "" {
			left[i] += " (held by " + by + ")"
		}
	}
	if len(left) == 0 { // The guard has not listed the pods yet, or not since its goal changed.
		left = []string{"not known"}
	}
	return fmt.Sprintf("%s evicted, %d deleted, pods left: %s", text.Pods(r.Evicted), r.Deleted, strings.Join(left, ", "))
}
