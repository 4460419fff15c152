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

	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

// ConditionType is the type of nth's own condition.
const ConditionType = "InterruptionPending"

// nothingPending is the reason of a condition that is False.
const nothingPending = "NothingPending"

// wantedCondition derives the condition from the record, without times. It is True while there are open entries, with the reason
// of the first.
func wantedCondition(entries []state.Entry, rules policy.Settings) corev1.NodeCondition {
	open := openEntries(entries, rules)
	if len(open) == 0 {
		return corev1.NodeCondition{
			Type: ConditionType, Status: corev1.ConditionFalse,
			Reason: nothingPending, Message: "nothing is announced for this machine",
		}
	}
	sentences := make([]string, len(open))
	for i, e := range open {
		sentences[i] = describeEntry(e, rules)
	}
	return corev1.NodeCondition{
		Type: ConditionType, Status: corev1.ConditionTrue,
		Reason:  open[0].Event.Kind.Info().Reason,
		Message: text.Visible(strings.Join(sentences, ". Also: "), maxMessage),
	}
}

// openEntries returns the entries that are neither closed nor ignored, by their deadlines, entries without a deadline
// last, and then by the precedence of their kinds.
func openEntries(entries []state.Entry, rules policy.Settings) []state.Entry {
	open := slices.DeleteFunc(slices.Clone(entries), func(e state.Entry) bool {
		return e.Phase == state.Closed || rules.Ignores(e)
	})
	never := time.Unix(1<<40, 0)
	deadline := func(e state.Entry) time.Time { return cmp.Or(e.Event.Deadline, never) }
	slices.SortStableFunc(open, func(a, b state.Entry) int {
		return cmp.Or(deadline(a).Compare(deadline(b)), cmp.Compare(a.Event.Kind.Precedence(), b.Event.Kind.Precedence()))
	})
	return open
}

// phaseTexts say how far nth has come with an event.
var phaseTexts = map[state.Phase]string{
	state.Cordoning:  "the node is being cordoned",
	state.Cordoned:   "the node is cordoned",
	state.Draining:   "the node is being drained",
	state.Drained:    "the node is drained",
	state.Incomplete: "the drain ran out of time",
	state.Undoing:    "what was done is being undone",
}

// describeEntry says what is announced, what is done about it and how far that is. It contains no counts and no remaining time,
// so that it changes only when something happens.
func describeEntry(e state.Entry, rules policy.Settings) string {
	var notes []string
	switch text := phaseTexts[e.Phase]; {
	case e.LeftAlone, e.LeftOpen(): // Describe says so.
	case e.Reopened && (e.Phase == state.Cordoned || e.Phase == state.Drained):
		notes = append(notes, "someone uncordoned the node")
	case text != "":
		notes = append(notes, text)
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

// updateCondition brings the node's condition up to date, and returns when to check it again; zero for never. It
// reads the Node first, so that the condition is written only if it has to change.
func (k *Kubernetes) updateCondition(ctx context.Context, id Identity) (refresh time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	wanted := dryRunCondition()
	if !k.opts.DryRun {
		wanted = wantedCondition(k.opts.Entries(), k.opts.Rules())
	}
	node, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, metav1.GetOptions{})
	if err != nil {
		return k.beat.next(wanted, time.Now()), err
	}
	now := time.Now()
	existing := findCondition(node, ConditionType)
	version := ""
	if setByOthers(node, wanted, k.opts.Writer) {
		if k.opts.Heartbeat == 0 {
			return time.Time{}, nil
		}
		// nth-queue knows of an interruption that the machine does not: its condition stays, with our heartbeat.
		wanted, version = *existing, node.ResourceVersion
	}
	switch {
	case !k.beat.has(wanted) && (existing == nil || existing.Status != corev1.ConditionTrue):
		return time.Time{}, nil // Where nothing was ever announced, there is no condition.
	case existing != nil && sameContent(*existing, wanted) && !k.beat.due(*existing, now):
		return k.beat.next(*existing, now), nil
	case !isChange(existing, wanted) && !k.alive():
		return now.Add(silence), nil
	}
	wanted.LastHeartbeatTime, wanted.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
	if existing != nil && existing.Status == wanted.Status {
		wanted.LastTransitionTime = existing.LastTransitionTime
	}
	k.beat.draw()
	return k.beat.next(wanted, now), patchCondition(ctx, id, version, wanted)
}

// sameContent reports whether two conditions are equal but for their times.
func sameContent(a, b corev1.NodeCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// patchCondition sends a strategic merge patch: the API server merges conditions by their type, so the patch contains only ours,
// and what the kubelet writes at the same time stays. With a resourceVersion, it is a conflict if the Node has changed since.
func patchCondition(ctx context.Context, id Identity, resourceVersion string, c corev1.NodeCondition) error {
	content := map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{c}}}
	if resourceVersion != "" {
		content["metadata"] = map[string]any{"resourceVersion": resourceVersion}
	}
	patch, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encoding a condition: %w", err)
	}
	_, err = id.Client.CoreV1().Nodes().PatchStatus(ctx, id.Node, patch)
	return err
}

func findCondition(node *corev1.Node, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == t {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// setByOthers reports whether a condition is True on the Node although a writer does not want that, and neither its status nor its
// texts are the writer's, as the API server remembers it (metadata.managedFields).
func setByOthers(node *corev1.Node, wanted corev1.NodeCondition, writer string) bool {
	c := findCondition(node, wanted.Type)
	if wanted.Status == corev1.ConditionTrue || c == nil || c.Status != corev1.ConditionTrue {
		return false
	}
	known := false
	for _, m := range node.ManagedFields {
		var set struct {
			Status struct {
				Conditions map[string]map[string]json.RawMessage `json:"f:conditions"`
			} `json:"f:status"`
		}
		if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &set) != nil {
			continue
		}
		fields := set.Status.Conditions[fmt.Sprintf(`k:{"type":%q}`, wanted.Type)]
		_, status := fields["f:status"]
		_, reason := fields["f:reason"]
		_, message := fields["f:message"]
		if m.Manager == writer && (status || reason || message) {
			return false
		}
		known = known || status
	}
	return known
}
