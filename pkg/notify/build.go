package notify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

// maxPodEvents is how many Events about pods one drain has, so that large nodes do not fill etcd with objects.
const maxPodEvents = 50

// The reasons of Events: those of aws-node-termination-handler, if it has such an Event.
const (
	reasonOver     = "InterruptionOver"
	reasonDraining = "Draining"
	reasonEviction = "PodEviction"
	reasonAlone    = "NodeLeftAlone"
	errorSuffix    = "Error"
)

// actionReasons are the reasons of Events about the end of a step, by its action. If the step failed or ran out of time, errorSuffix follows.
var actionReasons = map[string]string{
	string(policy.Cordon):   "Cordon",
	string(policy.Drain):    "CordonAndDrain",
	string(policy.Uncordon): "Uncordon",
}

// notice is a report about a transition. The webhook posts a notice that has an outcome. A notice that has an eventReason becomes an Event.
type notice struct {
	state.Transition
	outcome     string // one of the constants in notify.go, or a state.Ending; "" for no notice at the webhook
	eventReason string // the reason of the Event; "" for no Event. Transition.Reason says why nth takes the step.
	text        string
	// pods are the pods that the drain has evicted or deleted, or waits for, as "namespace/name". deleted has the pods that were deleted, each
	// with the disruption budget that had held it; "" if none had.
	pods    []string
	deleted map[string]string
}

// phase returns the phase of a notice that has an outcome.
func (n notice) phase() Phase { return cmp.Or(classes[n.outcome].phase, Over) }

// severity returns how grave it is what a notice reports.
func (n notice) severity() string {
	r := n.Entry.Result
	drainDeleted := n.outcome == Drained && r != nil && r.Deleted > 0 // nil: the counts of the drain are not known.
	if drainDeleted || n.Kind == state.PodDeleted {
		return Warning
	}
	return cmp.Or(classes[n.outcome].severity, Info)
}

// builder makes notices of the transitions of one node. It remembers the work under way: from the first Begun to the end of the last step.
type builder struct {
	events        map[string]bool    // the IDs of the events that the work is for
	foreignCordon bool               // somebody else had cordoned the node
	pods          map[string]podNote // the pods that were evicted, deleted or held, by "namespace/name"
	podEvents     int                // the number of notices about pods
}

// podNote is what a builder remembers of a pod.
type podNote struct {
	budget  string // the disruption budget that held the pod; "" if none did
	deleted bool
}

// build returns the notice about a transition, and remembers what later notices need. A notice with neither an outcome nor an eventReason is not
// for users: the callers drop it.
func (b *builder) build(t state.Transition) notice {
	b.observe(t)
	n := notice{Transition: t}
	switch t.Kind {
	case state.Announced:
		n.outcome, n.eventReason, n.text = string(Announced), t.Entry.Event.Kind.Info().EventReason, "announced: "+t.Plan
	case state.Changed:
		n.eventReason, n.text = t.Entry.Event.Kind.Info().EventReason, "changed: "+t.Plan
	case state.ClosedWith:
		n.outcome, n.eventReason, n.text = string(t.Entry.Ending), reasonOver, overText(t)
	case state.PutOff:
		n.outcome, n.text = Moved, overText(t)
	case state.NodeCordoned, state.CordonFound:
		if t.Action == string(policy.Drain) { // A step that only cordons ends at once: the notice of its end says the same.
			n.eventReason, n.text = reasonDraining, b.cordonText()+"; draining it: "+t.Plan
		}
	case state.PodEvicted, state.PodDeleted:
		b.reportPod(&n)
	case state.Done, state.Failed, state.RanOut, state.LeftAlone:
		b.reportStepEnd(&n)
	case state.Missed, state.Begun, state.PodHeld, state.PodGone, state.CalledBack: // These make no notice.
	}
	return n
}

// observe remembers what later notices need: the events that the work is for, who has cordoned the node, and the pods.
func (b *builder) observe(t state.Transition) {
	switch t.Kind {
	case state.Begun:
		if len(b.events) == 0 { // New work begins: forget the pods and the cordon of the last one.
			*b = builder{events: map[string]bool{}}
		}
		b.events[t.Entry.Event.ID] = true
	case state.NodeCordoned, state.CordonFound:
		b.foreignCordon = t.Kind == state.CordonFound
	case state.PodHeld, state.PodEvicted, state.PodDeleted:
		pod, known := b.pods[t.Pod]
		if !known && len(b.pods) >= maxElements {
			break // No notice has more.
		}
		if t.Kind == state.PodHeld && t.Outcome != state.Refused { // Detail is a budget, not another refusal.
			pod.budget = t.Detail
		}
		pod.deleted = pod.deleted || t.Kind == state.PodDeleted
		if b.pods == nil {
			b.pods = map[string]podNote{}
		}
		b.pods[t.Pod] = pod
	case state.Done, state.Failed, state.RanOut, state.CalledBack, state.LeftAlone:
		// A cordon or drain that has failed is not over. A failed uncordon is tried again, too, but what begins meanwhile is new work.
		continues := t.Kind == state.Failed && t.Action != string(policy.Uncordon)
		if !continues {
			delete(b.events, t.Entry.Event.ID)
		}
	}
}

// cordonText says in words who has cordoned the node.
func (b *builder) cordonText() string {
	if b.foreignCordon {
		return "the node was already cordoned by someone else"
	}
	return "cordoned the node"
}

// reportPod fills in the notice about a pod that was evicted or deleted. After maxPodEvents such notices, it leaves the notice empty.
func (b *builder) reportPod(n *notice) {
	if b.podEvents >= maxPodEvents {
		return
	}
	b.podEvents++
	n.eventReason, n.text = reasonEviction, "evicted from node "+n.Node+": "+n.Reason
	if n.Kind == state.PodDeleted {
		n.text = "deleted from node " + n.Node + ", as it would not have terminated before the deadline: " + n.Reason
	}
}

// reportStepEnd fills in the notice about a step that has ended, or that has failed and is tried again.
func (b *builder) reportStepEnd(n *notice) {
	n.pods, n.deleted = slices.Sorted(maps.Keys(b.pods)), map[string]string{}
	for name, pod := range b.pods {
		if pod.deleted {
			n.deleted[name] = pod.budget
		}
	}
	n.eventReason = actionReasons[n.Action]
	took := n.Took.Round(time.Millisecond)
	switch {
	case n.Kind == state.Failed:
		n.outcome, n.eventReason = Failed, n.eventReason+errorSuffix
		n.text = fmt.Sprintf("the %s failed after %s and will be tried again: %v", n.Action, took, n.Err)
	case n.Kind == state.LeftAlone:
		n.outcome, n.eventReason = LeftAlone, reasonAlone
		n.text = "the node is left alone because of its annotation " + kube.KeyPrefix + "action: its pods are not evicted"
	case n.Kind == state.RanOut:
		n.outcome, n.eventReason = Incomplete, n.eventReason+errorSuffix
		n.text = fmt.Sprintf("the %s ran out of time after %s: %s; left: %s%s", n.Action, took, counts(n.Entry.Result), left(n.Entry.Result), listDeleted(n.deleted))
	// All cases below are about steps that are done.
	case n.Action == string(policy.Cordon):
		n.outcome, n.text = Cordoned, b.cordonText()+": "+n.Reason
	case n.Action == string(policy.Drain):
		n.outcome = Drained
		n.text = fmt.Sprintf("drained after %s: %s%s", took, counts(n.Entry.Result), listDeleted(n.deleted))
	default: // an uncordon: the event is put off or over
		n.outcome, n.text = Moved, overText(n.Transition)
		if n.Entry.Phase == state.Closed { // The event is over.
			n.outcome = string(n.Entry.Ending)
		}
	}
}

// overText says in words what is left on the node after its event is over, or was put off.
func overText(t state.Transition) string {
	var text string
	switch {
	case t.Entry.Phase == state.Closed:
		text = string(t.Entry.Ending) + "; nothing of it is left on the node"
	case t.Action == string(policy.Uncordon) && t.Detail == "": // Nobody else needs the cordon, so nth has lifted it.
		text = "put off; the node takes pods again until then"
	default: // Another event, or somebody else, still needs the cordon.
		text = "put off; nothing is done for it until then, and the node stays as it is"
	}
	if t.Detail != "" {
		text += "; the node stays cordoned: " + t.Detail + " still needs the cordon"
	}
	return text
}

// counts says in words how many pods a drain evicted, deleted and exempted. r is nil if that is not known.
func counts(r *state.Result) string {
	if r == nil {
		return "what became of the pods is not known"
	}
	return fmt.Sprintf("%s evicted, %d deleted, %d exempt (such as DaemonSet pods)", text.Pods(r.Evicted), r.Deleted, r.Skipped)
}

// left lists the pods that were left when a drain ran out of time, each with what held it. There were some: if r has none, or is nil, it returns
// "not known".
func left(r *state.Result) string {
	if r == nil || len(r.Left) == 0 {
		return "not known"
	}
	return list(r.Left, r.HeldBy, "%s (held by %s)")
}

// listDeleted lists, at the end of a sentence, the pods that were deleted, each with the budget that had held it. If there are none, it returns "".
func listDeleted(deleted map[string]string) string {
	if len(deleted) == 0 {
		return ""
	}
	pods := slices.Sorted(maps.Keys(deleted))
	return "; deleted, as they would not have terminated before the deadline: " + list(pods, deleted, "%s (against the disruption budget %s)")
}

// list lists pods. format shows a pod for which by has a text.
func list(pods []string, by map[string]string, format string) string {
	shown := slices.Clone(pods)
	for i, pod := range pods {
		if by[pod] != "" {
			shown[i] = fmt.Sprintf(format, pod, by[pod])
		}
	}
	return strings.Join(shown, ", ")
}
