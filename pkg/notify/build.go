package notify

import (
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

const (
	// maxPodEvents is how many Events about pods one drain has, so that the number of objects in etcd does not grow with the number of pods.
	maxPodEvents = 50
	// maxPods is how many pods of one drain are remembered: more than a node runs.
	maxPods = 1024
)

// The reasons of Events. They are those of aws-node-termination-handler where that has such an Event.
const (
	reasonOver     = "InterruptionOver"
	reasonDraining = "Draining"
	reasonEviction = "PodEviction"
	reasonAlone    = "NodeLeftAlone"
	errorSuffix    = "Error"
)

// actionReasons are the reasons of Events about the end of a step, by its action. A step that failed or ran out of time adds errorSuffix.
var actionReasons = map[string]string{
	string(policy.Cordon):   "Cordon",
	string(policy.Drain):    "CordonAndDrain",
	string(policy.Uncordon): "Uncordon",
}

// notice is a report about a transition. The webhook posts it if it has an outcome. It becomes an Event if it has a reason.
type notice struct {
	state.Transition
	outcome  string
	reason   string
	severity string
	text     string
	// pods are those that the drain has evicted, deleted or waits for, as "namespace/name". deleted has those that were deleted, each with
	// the disruption budget that had held it; "" if none had.
	pods    []string
	deleted map[string]string
}

// builder makes notices of the transitions of one node. It remembers the work under way: from the first Begun to the end of the last step.
type builder struct {
	events        map[string]bool    // the IDs of the events that the work is for
	foreignCordon bool               // somebody else had cordoned the node
	pods          map[string]podNote // those that were evicted, deleted or held, by "namespace/name"
	podEvents     int                // how many notices about pods there were
}

// podNote is what is remembered of a pod.
type podNote struct {
	budget  string // the disruption budget that held it; "" if none did
	deleted bool
}

// build returns the notice about a transition. The caller drops one that has neither an outcome nor a reason.
func (b *builder) build(t state.Transition) notice {
	b.observe(t)
	n := notice{Transition: t, severity: Info}
	switch t.Kind {
	case state.Announced:
		n.outcome, n.reason, n.text = string(Announced), t.Entry.Event.Kind.Info().EventReason, "announced; nth's plan: "+t.Plan
	case state.Changed:
		n.reason, n.text = t.Entry.Event.Kind.Info().EventReason, "changed; nth's plan: "+t.Plan
	case state.ClosedWith:
		n.outcome, n.reason, n.text = string(t.Entry.Ending), reasonOver, overText(t)
	case state.PutOff:
		n.outcome, n.text = Moved, overText(t)
	case state.NodeCordoned, state.CordonFound:
		if t.Action == string(policy.Drain) { // The end of a step that only cordons follows at once, and says the same.
			n.reason, n.text = reasonDraining, b.cordonText()+"; draining it: "+t.Plan
		}
	case state.PodEvicted, state.PodDeleted:
		b.gone(&n)
	case state.Done, state.Failed, state.RanOut, state.LeftAlone:
		b.end(&n)
	case state.Missed, state.Begun, state.PodHeld, state.PodGone, state.CalledBack: // These are not reported.
	}
	return n
}

// observe remembers what later notices need.
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
		if !known && len(b.pods) >= maxPods {
			break
		}
		if t.Kind == state.PodHeld && t.Outcome != state.Refused {
			pod.budget = t.Detail
		}
		pod.deleted = pod.deleted || t.Kind == state.PodDeleted
		if b.pods == nil {
			b.pods = map[string]podNote{}
		}
		b.pods[t.Pod] = pod
	case state.Done, state.Failed, state.RanOut, state.CalledBack, state.LeftAlone:
		if t.Kind != state.Failed || t.Action == string(policy.Uncordon) { // A failed drain continues.
			delete(b.events, t.Entry.Event.ID)
		}
	}
}

// cordonText says who has cordoned the node.
func (b *builder) cordonText() string {
	if b.foreignCordon {
		return "the node was already cordoned by someone else"
	}
	return "cordoned the node"
}

// gone fills in the notice about a pod that was evicted or deleted, unless there were maxPodEvents.
func (b *builder) gone(n *notice) {
	if b.podEvents >= maxPodEvents {
		return
	}
	b.podEvents++
	n.reason, n.text = reasonEviction, "evicted from node "+n.Node+": "+n.Reason
	if n.Kind == state.PodDeleted {
		n.severity, n.text = Warning, "deleted from node "+n.Node+", as it could not be evicted in time: "+n.Reason
	}
}

// end fills in the notice about the end of a step.
func (b *builder) end(n *notice) {
	n.pods, n.deleted = slices.Sorted(maps.Keys(b.pods)), map[string]string{}
	for name, pod := range b.pods {
		if pod.deleted {
			n.deleted[name] = pod.budget
		}
	}
	n.reason = actionReasons[n.Action]
	took := n.Took.Round(time.Millisecond)
	switch {
	case n.Kind == state.Failed:
		n.outcome, n.reason, n.severity = Failed, n.reason+errorSuffix, Critical
		n.text = fmt.Sprintf("the %s failed after %s and will be tried again: %v", n.Action, took, n.Err)
	case n.Kind == state.LeftAlone:
		n.outcome, n.reason = LeftAlone, reasonAlone
		n.text = "the node is left alone because of its annotation " + kube.KeyPrefix + "action: its pods are not evicted"
	case n.Kind == state.RanOut:
		n.outcome, n.reason, n.severity = Incomplete, n.reason+errorSuffix, Critical
		n.text = fmt.Sprintf("the %s ran out of time after %s: %s; left: %s%s", n.Action, took, counts(n.Entry.Result), left(n.Entry.Result), listDeleted(n.deleted))
	case n.Action == string(policy.Cordon):
		n.outcome, n.severity, n.text = Cordoned, OK, b.cordonText()+": "+n.Reason
	case n.Action == string(policy.Drain):
		n.outcome, n.severity = Drained, OK
		if r := n.Entry.Result; r != nil && r.Deleted > 0 {
			n.severity = Warning
		}
		n.text = fmt.Sprintf("drained after %s: %s%s", took, counts(n.Entry.Result), listDeleted(n.deleted))
	default: // an uncordon, since the event is put off or over
		n.outcome, n.text = Moved, overText(n.Transition)
		if n.Entry.Phase == state.Closed {
			n.outcome = string(n.Entry.Ending)
		}
	}
}

// overText says what stays on the node after its event is over or put off.
func overText(t state.Transition) string {
	var text string
	switch {
	case t.Entry.Phase == state.Closed:
		text = string(t.Entry.Ending) + "; nothing of it is left on the node"
	case t.Action == string(policy.Uncordon) && t.Detail == "": // Nobody else needs the cordon, so it was lifted.
		text = "put off; the node takes pods again until then"
	default:
		text = "put off; nothing is done for it until then, and the node stays as it is"
	}
	if t.Detail != "" {
		text += "; the cordon is left to " + t.Detail + ", who still needs it"
	}
	return text
}

// counts says what a drain did.
func counts(r *state.Result) string {
	if r == nil {
		return "what became of the pods is not known"
	}
	return fmt.Sprintf("%s evicted, %d deleted, %d left in place", text.Pods(r.Evicted), r.Deleted, r.Skipped)
}

// left lists the pods that a drain left, each with what held it.
func left(r *state.Result) string {
	if r == nil || len(r.Left) == 0 {
		return "not known"
	}
	pods := slices.Clone(r.Left)
	for i, pod := range pods {
		if by := r.HeldBy[pod]; by != "" {
			pods[i] += " (held by " + by + ")"
		}
	}
	return listPods(pods)
}

// listDeleted names the pods that were deleted, and the budget that held each; it is empty if none were.
func listDeleted(deleted map[string]string) string {
	if len(deleted) == 0 {
		return ""
	}
	pods := slices.Sorted(maps.Keys(deleted))
	for i, pod := range pods {
		if budget := deleted[pod]; budget != "" {
			pods[i] = fmt.Sprintf("%s (against the disruption budget %s)", pod, budget)
		}
	}
	return "; deleted, as they could not be evicted in time: " + listPods(pods)
}

// listPods lists some pods, and the number of the others.
func listPods(pods []string) string {
	const most = 20
	if len(pods) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(pods[:most], ", "), len(pods)-most)
	}
	return strings.Join(pods, ", ")
}
