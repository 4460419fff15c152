package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

// ConditionType is the type of nth's own condition.
const ConditionType = "InterruptionPending"

// The reasons of a condition that is False.
const (
	nothingPending = "NothingPending"
	dryRun         = "DryRun"
)

const (
	// refreshInterval is how often a condition that is True is written without a heartbeat: as often as the kubelet
	// writes its own.
	refreshInterval = 5 * time.Minute
	// silence is the pause before the next look while Alive is false, or there is no Node.
	silence = time.Minute
)

// dryRunCondition is the condition of a dry run, without times. It is False even while something is announced, so that nobody acts
// upon it.
var dryRunCondition = corev1.NodeCondition{
	Type: ConditionType, Status: corev1.ConditionFalse,
	Reason: dryRun, Message: "this is a dry run: what is announced for this machine is only logged on it",
}

// wantedCondition derives the condition, without times, from the entries of the record. The condition is True while there are open entries.
// Its reason is that of the first. brief is Options.Brief.
func wantedCondition(entries []state.Entry, rules policy.Settings, brief bool) corev1.NodeCondition {
	open := openEntries(entries, rules)
	if len(open) == 0 {
		return corev1.NodeCondition{
			Type: ConditionType, Status: corev1.ConditionFalse,
			Reason: nothingPending, Message: "nothing is announced for this machine",
		}
	}
	sentences := make([]string, len(open))
	for i, e := range open {
		sentences[i] = describeEntry(e, rules, brief)
	}
	return corev1.NodeCondition{
		Type: ConditionType, Status: corev1.ConditionTrue,
		Reason:  open[0].Event.Kind.Info().Reason,
		Message: text.Visible(strings.Join(sentences, ". Also: "), maxMessage),
	}
}

// openEntries returns the entries of interruptions that are neither closed nor ignored, by their deadlines, entries without a deadline
// last, and then by the precedence of their kinds.
func openEntries(entries []state.Entry, rules policy.Settings) []state.Entry {
	open := slices.DeleteFunc(slices.Clone(entries), func(e state.Entry) bool {
		return e.Phase == state.Closed || rules.Ignores(e) || e.Event.Kind == event.Manual
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

// underway are the phases that another follows soon.
var underway = map[state.Phase]bool{state.Cordoning: true, state.Draining: true, state.Undoing: true}

// describeEntry returns a sentence: what is announced, what nth does about it, and how far nth has come. A brief sentence leaves out phases
// that another follows soon. There are no counts and no remaining time, so that the sentence changes only when something happens.
func describeEntry(e state.Entry, rules policy.Settings, brief bool) string {
	var notes []string
	switch text := phaseTexts[e.Phase]; {
	case e.LeftAlone, e.LeftOpen(): // The text of rules.Describe says so already.
	case e.Released() && (e.Phase == state.Cordoned || e.Phase == state.Drained):
		notes = append(notes, "someone uncordoned the node")
	case text != "" && !(brief && underway[e.Phase]):
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

// touch queues a look at the Node's condition, unless others keep the condition or the API server has refused it.
func (k *Kubernetes) touch() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.opts.Condition && !k.ceded && !time.Now().Before(k.muted[conditionArea]) {
		k.conditions.add(k.condition)
	}
}

// touchIn calls touch after a duration, and cancels the call planned before; 0 plans none.
func (k *Kubernetes) touchIn(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refresh != nil {
		k.refresh.Stop()
	}
	if d > 0 {
		k.refresh = time.AfterFunc(d, k.touch)
	}
}

// keepCondition delivers the message of the queue conditions: it brings the Node's condition up to date, and plans the next look.
func (k *Kubernetes) keepCondition(ctx context.Context) error {
	k.mu.Lock()
	ceded := k.ceded
	k.mu.Unlock()
	if ceded { // Cede was called after the message was queued.
		return errNothing
	}
	var refresh time.Duration
	err := k.write(ctx, conditionArea, func(id Identity) (err error) {
		refresh, err = k.updateCondition(ctx, id)
		return err
	})
	_, refused := errors.AsType[refusedError](err)
	switch {
	case err == nil:
		k.touchIn(refresh)
	case refused:
		k.touchIn(refusedFor)
	case errors.Is(err, errNothing): // The kubelet has not registered the Node, or not yet again.
		k.touchIn(silence)
	}
	return err
}

// wanted is the condition as it should be now, without times.
func (k *Kubernetes) wanted() corev1.NodeCondition {
	if k.opts.DryRun {
		return dryRunCondition
	}
	return wantedCondition(k.opts.Entries(), k.opts.Rules(), k.opts.Brief)
}

// updateCondition brings the Node's condition up to date, and returns after what time to check it again; 0 for never. It reads the Node
// first, so that it writes only a condition that has to change. With Options.Brief, it does not read the Node either if what it wrote last
// still holds.
func (k *Kubernetes) updateCondition(ctx context.Context, id Identity) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	wanted, now := k.wanted(), time.Now()
	if again, fresh := k.isFresh(k.written, now); k.opts.Brief && fresh && sameContent(k.written, wanted) {
		return again, nil
	}
	node, err := id.read(ctx)
	if err != nil {
		return 0, err
	}
	existing := findCondition(node, ConditionType)
	version := ""
	if setByOthers(node, wanted, k.opts.Writer) {
		if k.opts.Heartbeat == 0 {
			return 0, nil // The other writer's condition stays as it is.
		}
		// nth-queue knows of an interruption that the machine does not: its condition stays, with our heartbeat.
		wanted, version = *existing, node.ResourceVersion
	}
	if existing != nil && sameContent(*existing, wanted) {
		if again, fresh := k.isFresh(*existing, now); fresh {
			return again, nil
		}
	}
	switch {
	case !k.isRenewed(wanted) && (existing == nil || existing.Status != corev1.ConditionTrue):
		return 0, nil // Where nothing was ever announced, there is no condition.
	case !isChange(existing, wanted) && k.opts.Heartbeat > 0 && !k.opts.Alive():
		return silence, nil // A heartbeat would claim that nth does its work.
	}
	wanted.LastHeartbeatTime, wanted.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
	if existing != nil && existing.Status == wanted.Status {
		wanted.LastTransitionTime = existing.LastTransitionTime
	}
	k.drawRenewal()
	k.written = corev1.NodeCondition{} // If the patch fails, it is unknown what the Node has.
	if err := patchCondition(ctx, id, version, wanted); err != nil {
		return 0, err
	}
	k.written = wanted
	if k.isRenewed(wanted) {
		again = k.renewal
	}
	return again, nil
}

// isRenewed reports whether a condition is written from time to time although nothing has changed, so that its lastHeartbeatTime shows that
// nth watches the node.
func (k *Kubernetes) isRenewed(c corev1.NodeCondition) bool {
	return k.opts.Heartbeat > 0 || c.Status == corev1.ConditionTrue
}

// isFresh reports whether a condition need not be written again unless its content changes. again is the time until it must be; 0 for never.
// A heartbeat in the future is not fresh: the clock was wrong.
func (k *Kubernetes) isFresh(c corev1.NodeCondition, now time.Time) (again time.Duration, fresh bool) {
	if !k.isRenewed(c) {
		return 0, true
	}
	age := now.Sub(c.LastHeartbeatTime.Time)
	return k.renewal - age, age >= 0 && age < k.renewal
}

// drawRenewal draws the time to the next renewal. A heartbeat varies by a tenth, so that the nodes of a fleet do not write in step.
func (k *Kubernetes) drawRenewal() {
	k.renewal = refreshInterval
	if k.opts.Heartbeat > 0 {
		k.renewal = wait.Jitter(k.opts.Heartbeat*9/10, 2.0/9)
	}
}

// read reads the Node. If the identity has a UID and the Node another, it returns errNothing: the name has passed to another machine.
func (id Identity) read(ctx context.Context) (*corev1.Node, error) {
	node, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, metav1.GetOptions{})
	if err == nil && id.UID != "" && string(node.UID) != id.UID {
		return nil, errNothing
	}
	return node, err
}

// sameContent reports whether two conditions are equal but for their times.
func sameContent(a, b corev1.NodeCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// patchCondition sends a strategic merge patch: the API server merges conditions by their type, so the patch contains only ours,
// and what the kubelet writes at the same time stays. With a resourceVersion, it is a conflict if the Node has changed since.
func patchCondition(ctx context.Context, id Identity, resourceVersion string, c corev1.NodeCondition) error {
	content := map[string]any{
		"metadata": metav1.ObjectMeta{UID: types.UID(id.UID), ResourceVersion: resourceVersion},
		"status":   map[string]any{"conditions": []corev1.NodeCondition{c}},
	}
	patch, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encoding a condition: %w", err)
	}
	_, err = id.Client.CoreV1().Nodes().PatchStatus(ctx, id.Node, patch)
	return err
}

// findCondition returns the Node's condition of a type; nil if it has none.
func findCondition(node *corev1.Node, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == t {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// setByOthers reports whether another writer, such as nth-queue, has set the Node's condition to True while this one wants it False. The API
// server remembers in metadata.managedFields who has set which field. This writer must have set neither the status nor its texts.
func setByOthers(node *corev1.Node, wanted corev1.NodeCondition, writer string) bool {
	c := findCondition(node, wanted.Type)
	if wanted.Status == corev1.ConditionTrue || c == nil || c.Status != corev1.ConditionTrue {
		return false
	}
	otherFound := false
	for _, m := range node.ManagedFields {
		var set struct {
			Status struct {
				Conditions map[string]map[string]json.RawMessage `json:"f:conditions"`
			} `json:"f:status"`
		}
		if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &set) != nil {
			continue // Without readable fields, it is not known what this manager has set.
		}
		fields := set.Status.Conditions[fmt.Sprintf(`k:{"type":%q}`, wanted.Type)]
		_, status := fields["f:status"]
		_, reason := fields["f:reason"]
		_, message := fields["f:message"]
		if m.Manager == writer && (status || reason || message) {
			return false
		}
		otherFound = otherFound || status
	}
	return otherFound
}

// isChange reports whether the wanted condition says something new. Such a condition is written even while Options.Alive is false. Every
// other write is only a heartbeat.
func isChange(existing *corev1.NodeCondition, wanted corev1.NodeCondition) bool {
	if existing == nil {
		return wanted.Status == corev1.ConditionTrue
	}
	return existing.Status != wanted.Status || wanted.Status == corev1.ConditionTrue && !sameContent(*existing, wanted)
}
