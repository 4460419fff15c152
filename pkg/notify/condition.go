package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// ConditionType is the type of the node's condition.
const ConditionType = "InterruptionPending"

// nothingPending is the reason of a condition that is False.
const nothingPending = "NothingPending"

// heartbeatInterval is how often a condition that does not change is written: as often as the kubelet writes its own.
const heartbeatInterval = 5 * time.Minute

// conditionReasons are the reasons of a condition that is True.
var conditionReasons = map[event.Kind]string{
	event.SpotInterruption:        "SpotInterruption",
	event.RebalanceRecommendation: "RebalanceRecommendation",
	event.ScheduledMaintenance:    "ScheduledMaintenance",
	event.ASGTermination:          "ASGTermination",
	event.Shutdown:                "Shutdown",
	event.Hibernation:             "Hibernation",
	event.ReservationEnd:          "ReservationEnd",
	event.StateChange:             "StateChange",
	event.StatusCheck:             "StatusCheckFailed",
}

// wantedCondition is what the record makes of the condition, without times: True while an event is open that is not
// ignored, with the reason of the one whose deadline is nearest.
func wantedCondition(entries []record.Entry, rules policy.Settings) corev1.NodeCondition {
	open := slices.DeleteFunc(slices.Clone(entries), func(e record.Entry) bool {
		return e.Phase == record.Closed || rules.Ignores(e)
	})
	if len(open) == 0 {
		return corev1.NodeCondition{
			Type: ConditionType, Status: corev1.ConditionFalse,
			Reason: nothingPending, Message: "nothing is announced for this machine",
		}
	}
	slices.SortStableFunc(open, nearest)
	sentences := make([]string, len(open))
	for i, e := range open {
		sentences[i] = sentence(e, rules)
	}
	return corev1.NodeCondition{
		Type: ConditionType, Status: corev1.ConditionTrue,
		Reason:  cmp.Or(conditionReasons[open[0].Event.Kind], "Other"),
		Message: cut(strings.Join(sentences, ". Also: ")),
	}
}

// nearest sorts by deadline, those without one last, and then as kinds are always named.
func nearest(a, b record.Entry) int {
	never := func(e record.Entry) int {
		if e.Event.Deadline.IsZero() {
			return 1
		}
		return 0
	}
	order := func(e record.Entry) int { return slices.Index(event.AllKinds(), e.Event.Kind) }
	return cmp.Or(cmp.Compare(never(a), never(b)), a.Event.Deadline.Compare(b.Event.Deadline), cmp.Compare(order(a), order(b)))
}

// progress says in words how far nth has come with an event.
var progress = map[record.Phase]string{
	record.Cordoning:  "the node is being cordoned",
	record.Cordoned:   "the node is cordoned",
	record.Draining:   "the node is being drained",
	record.Drained:    "the node is drained",
	record.Incomplete: "the drain ran out of time",
	record.Undoing:    "what was done is being undone",
}

// sentence says what is announced, what is done about it and how far that is. It holds no count and no time left, so
// that it changes only when something happens.
func sentence(e record.Entry, rules policy.Settings) string {
	var notes []string
	if words := progress[e.Phase]; words != "" && !e.LeftAlone { // That is said of it.
		notes = append(notes, words)
	}
	if !e.Missing.IsZero() {
		notes = append(notes, "it is no longer announced")
	}
	text := rules.Describe(e)
	if len(notes) > 0 {
		text += " (" + strings.Join(notes, "; ") + ")"
	}
	return text
}

// keepCondition makes the node's condition what it should be, and returns when it is to be looked at again; zero for never. It is
// read first, so that what stands there, by whomever, is written only if it has to change.
func (k *Kubernetes) keepCondition(ctx context.Context, id Identity) (again time.Time, err error) {
	condition, err := change(ctx, id, wantedCondition(k.opts.Entries(), k.opts.Rules()))
	return nextBeat(condition), err
}

// change makes the node's condition the wanted one, and returns it as it then is.
func change(ctx context.Context, id Identity, wanted corev1.NodeCondition) (corev1.NodeCondition, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	node, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, metav1.GetOptions{})
	if err != nil {
		return wanted, err
	}
	condition, necessary := renewed(node.Status.Conditions, wanted, time.Now())
	if !necessary {
		return condition, nil
	}
	patch, err := conditionPatch("", condition)
	if err == nil {
		_, err = id.Client.CoreV1().Nodes().PatchStatus(ctx, id.Node, patch)
	}
	return condition, err
}

// renewed returns the condition to write, and whether it has to be. One that is not there, or not True, is never made
// False: a node for which nothing was ever announced bears none.
func renewed(there []corev1.NodeCondition, wanted corev1.NodeCondition, now time.Time) (corev1.NodeCondition, bool) {
	i := slices.IndexFunc(there, func(c corev1.NodeCondition) bool { return c.Type == ConditionType })
	if wanted.Status == corev1.ConditionFalse && (i < 0 || there[i].Status != corev1.ConditionTrue) {
		return wanted, false
	}
	wanted.LastHeartbeatTime, wanted.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
	if i < 0 {
		return wanted, true
	}
	old := there[i]
	if old.Status == wanted.Status {
		wanted.LastTransitionTime = old.LastTransitionTime
	}
	age := now.Sub(old.LastHeartbeatTime.Time)
	if sameWords(old, wanted) && age >= 0 && age < heartbeatInterval {
		return old, false
	}
	return wanted, true
}

func nextBeat(c corev1.NodeCondition) time.Time {
	if c.Status != corev1.ConditionTrue {
		return time.Time{}
	}
	beat := c.LastHeartbeatTime.Time
	if beat.IsZero() {
		beat = time.Now()
	}
	return beat.Add(heartbeatInterval)
}

// conditionPatch is a strategic merge patch: the API server merges conditions by their type, so it holds ours alone, and
// what the kubelet writes at the same time stays. With a resourceVersion it is for the Node as it was then, and else a conflict.
func conditionPatch(resourceVersion string, conditions ...corev1.NodeCondition) ([]byte, error) {
	content := map[string]any{"status": map[string]any{"conditions": conditions}}
	if resourceVersion != "" {
		content["metadata"] = map[string]any{"resourceVersion": resourceVersion}
	}
	patch, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("encoding conditions: %w", err)
	}
	return patch, nil
}
