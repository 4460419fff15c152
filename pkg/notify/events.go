package notify

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// podBudget is how many pods of one drain get an Event of their own. The others share one about the Node, so that the
// number of objects in etcd does not grow with the number of pods.
const podBudget = 50

// outage is how long a kind of event cannot be told before that is worth an Event.
const outage = 30 * time.Second

// The reasons of Events. Those that the container-based handler has, too, are called as there.
const (
	reasonOver     = "InterruptionOver"
	reasonDraining = "Draining"
	reasonEviction = "PodEviction"
	reasonAlone    = "NodeLeftAlone"
	reasonMonitor  = "MonitorError"
	errorSuffix    = "Error"
)

// eventReasons are the reasons of Events that announce an interruption.
var eventReasons = map[event.Kind]string{
	event.SpotInterruption:        "SpotInterruption",
	event.RebalanceRecommendation: "RebalanceRecommendation",
	event.ScheduledMaintenance:    "ScheduledEvent",
	event.ASGTermination:          "ASGLifecycle",
	event.Shutdown:                "Shutdown",
	event.Hibernation:             "Hibernation",
	event.ReservationEnd:          "ReservationEnd",
	event.StateChange:             "StateChange",
	event.StatusCheck:             "StatusCheckFailed",
}

// actionReasons are the reasons of Events about a step that has ended; with errorSuffix if it has not ended well.
var actionReasons = map[string]string{
	string(policy.Cordon):   "Cordon",
	string(policy.Drain):    "CordonAndDrain",
	string(policy.Uncordon): "Uncordon",
}

// notice is an Event to be, about the Node or, if pod is set, about a pod.
type notice struct {
	at                     time.Time
	warning                bool
	reason, message        string
	annotations            map[string]string
	namespace, pod, podUID string
}

// teller turns what happens into notices. It remembers what it needs of the work under way and of outages.
type teller struct {
	under    map[string]bool // the events that the work is for
	cordoned bool            // the node takes no more pods, as has been told meanwhile
	foreign  bool            // somebody else had seen to it
	pods     map[string]bool
	more     []string // evicted, but not told by themselves
	outages  map[event.Kind]time.Time
}

// tell returns what there is to say of a happening.
func (t *teller) tell(h record.Happening, rules policy.Settings) []notice {
	switch h.What {
	case record.Announced, record.Changed:
		return t.announced(h, rules)
	case record.ClosedWith:
		if rules.Ignores(h.Entry) {
			return nil
		}
		return []notice{about(h, false, reasonOver, fmt.Sprintf("%s: %s; nothing to undo", h.Entry.Event.Kind, h.Entry.Ending))}
	case record.Begun:
		if len(t.under) == 0 {
			t.under, t.cordoned, t.foreign, t.pods, t.more = map[string]bool{}, false, false, map[string]bool{}, nil
		}
		t.under[h.Entry.Event.ID] = true
	case record.NodeCordoned, record.CordonFound:
		t.cordoned, t.foreign = true, h.What == record.CordonFound
		if h.Action == string(policy.Drain) {
			return []notice{about(h, false, reasonDraining, fmt.Sprintf("%s; draining it: %s", t.cordonWords(), h.Plan))}
		}
	case record.PodEvicted, record.PodDeleted:
		return t.evicted(h)
	case record.Done, record.Failed, record.RanOut, record.CalledBack, record.LeftAlone:
		if h.What != record.Failed || h.Action == string(policy.Uncordon) { // A guard goes on.
			delete(t.under, h.Entry.Event.ID)
		}
		return append(t.rest(h), t.ended(h)...)
	case record.SourceLost, record.SourceBack:
		return t.monitored(h)
	case record.Missed, record.PutOff, record.PodHeld, record.PodGone: // Of the first two it is told that they have changed, or at the end.
	}
	return nil
}

// about is a notice about the Node.
func about(h record.Happening, warning bool, reason, message string) notice {
	n := notice{at: h.At, warning: warning, reason: reason, message: cut(message)}
	if id := h.Entry.Event.ID; id != "" {
		n.annotations = map[string]string{drain.KeyPrefix + "event": id, drain.KeyPrefix + "kind": string(h.Entry.Event.Kind)}
	}
	return n
}

func (t *teller) announced(h record.Happening, rules policy.Settings) []notice {
	reason := eventReasons[h.Entry.Event.Kind]
	if rules.Ignores(h.Entry) || reason == "" {
		return nil
	}
	if h.What == record.Changed {
		return []notice{about(h, false, reason, "changed: "+h.Plan)}
	}
	return []notice{about(h, false, reason, h.Plan)}
}

func (t *teller) cordonWords() string {
	if t.foreign {
		return "the node was already cordoned by someone else"
	}
	return "cordoned the node"
}

// evicted tells of a pod, or counts it.
func (t *teller) evicted(h record.Happening) []notice {
	if t.pods == nil || t.pods[h.Pod] || h.Pod == "" {
		return nil
	}
	t.pods[h.Pod] = true
	if len(t.pods) > podBudget {
		t.more = append(t.more, h.Pod)
		return nil
	}
	n := about(h, false, reasonEviction, "evicted from node "+h.Node+": "+h.Reason)
	if h.What == record.PodDeleted {
		n.warning, n.message = true, cut("deleted from node "+h.Node+", as it could not be evicted in time: "+h.Reason)
	}
	n.namespace, n.pod, _ = strings.Cut(h.Pod, "/")
	n.podUID = h.PodUID
	maps.Copy(n.annotations, h.PodLabels)
	n.annotations["node"] = h.Node
	return []notice{n}
}

// rest tells, at the end of a step, of the pods that were only counted.
func (t *teller) rest(h record.Happening) []notice {
	more := t.more
	t.more = nil
	if len(more) == 0 {
		return nil
	}
	slices.Sort(more)
	return []notice{about(h, false, reasonEviction, fmt.Sprintf("and %d more pods: %s", len(more), strings.Join(more, ", ")))}
}

// ended tells how a step ended. One that was called back is followed by another, or by the end of nth.
func (t *teller) ended(h record.Happening) []notice {
	reason := actionReasons[h.Action]
	took := h.Took.Round(time.Millisecond)
	switch {
	case reason == "" || h.What == record.CalledBack:
		return nil
	case h.What == record.Failed:
		return []notice{about(h, true, reason+errorSuffix, fmt.Sprintf("%s after %s: %v; retrying", h.Action, took, h.Err))}
	case h.What == record.LeftAlone:
		return []notice{about(h, false, reasonAlone, "the node is left alone, as its annotation "+drain.KeyPrefix+"action asks; its pods are not evicted: "+h.Reason)}
	case h.What == record.RanOut:
		return []notice{about(h, true, reason+errorSuffix, fmt.Sprintf("the %s ran out of time after %s: %s", h.Action, took, remainder(h.Entry.Result)))}
	case h.Action == string(policy.Uncordon) && h.Detail != "":
		return []notice{about(h, false, reason, "the cordon is left to "+h.Detail+", who still needs it: "+h.Reason)}
	case h.Action == string(policy.Uncordon):
		return []notice{about(h, false, reason, "our cordon is already gone: "+h.Reason)}
	case !t.cordoned:
		return []notice{about(h, false, reasonAlone, "nothing was done to the node, as its annotation asks or it is gone: "+h.Reason)}
	case h.Action == string(policy.Cordon):
		return []notice{about(h, false, reason, t.cordonWords()+": "+h.Reason)}
	}
	return []notice{about(h, false, reason, fmt.Sprintf("cordoned and drained after %s: %s", took, counts(h.Entry.Result)))}
}

func counts(r *record.Result) string {
	if r == nil {
		return "what became of the pods is not known"
	}
	return fmt.Sprintf("%d pods evicted, %d deleted, %d left in place", r.Evicted, r.Deleted, r.Skipped)
}

// remainder says what a drain left, and what held it.
func remainder(r *record.Result) string {
	if r == nil || len(r.Left) == 0 {
		return counts(r)
	}
	left := slices.Clone(r.Left)
	for i, pod := range left {
		if by := r.HeldBy[pod]; by != "" {
			left[i] += " (held by " + by + ")"
		}
	}
	return fmt.Sprintf("%s; %d left: %s", counts(r), len(left), strings.Join(left, ", "))
}

// monitored tells once of an outage that lasts. It is told of each look that fails, so that no clock is needed.
func (t *teller) monitored(h record.Happening) []notice {
	kind := h.Entry.Event.Kind
	if h.What == record.SourceBack {
		delete(t.outages, kind)
		return nil
	}
	if t.outages == nil {
		t.outages = map[event.Kind]time.Time{}
	}
	since, known := t.outages[kind]
	switch {
	case !known:
		t.outages[kind] = h.At
	case !since.IsZero() && h.At.Sub(since) >= outage:
		t.outages[kind] = time.Time{} // told
		return []notice{about(h, true, reasonMonitor, fmt.Sprintf("cannot read %s since %s: %v; keeping last known state",
			kind, since.UTC().Format(time.RFC3339), h.Err))}
	}
	return nil
}

// longest is how many bytes a message may have: as many as events.k8s.io allows.
const longest = 1024

// cut shortens a message to what is allowed.
func cut(message string) string {
	if len(message) <= longest {
		return message
	}
	const end = "…"
	return strings.ToValidUTF8(message[:longest-len(end)], "") + end
}

func kindOf(warning bool) string {
	if warning {
		return corev1.EventTypeWarning
	}
	return corev1.EventTypeNormal
}
