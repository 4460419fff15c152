package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

// ConditionType is the type of nth's own condition.
const ConditionType = "InterruptionPending"

// The labels that the Node has with the condition, if Options.Labels is set.
const (
	// KindLabel has the kind of the event that gives the condition its reason.
	KindLabel = kube.KeyPrefix + "interruption"
	// MaintenanceLabel has the seconds since 1970 at which the earliest maintenance begins, for the operators Gt and Lt of a nodeAffinity.
	MaintenanceLabel = kube.KeyPrefix + "maintenance-not-before"
)

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

// wantedCondition derives the condition, without times, from the open entries: see openEntries. The condition is True unless open is empty.
// Its reason is that of the first entry. brief is Options.Brief.
func wantedCondition(open []state.Entry, rules policy.Settings, brief bool) corev1.NodeCondition {
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

// wantedLabels derives the labels from the open entries. A label that is not in the result is not wanted.
func wantedLabels(open []state.Entry) map[string]string {
	labels := map[string]string{}
	if len(open) > 0 {
		labels[KindLabel] = string(open[0].Event.Kind)
	}
	for _, e := range open { // the earliest first
		if _, found := labels[MaintenanceLabel]; !found && e.Event.Kind == event.ScheduledMaintenance && !e.Event.Deadline.IsZero() {
			labels[MaintenanceLabel] = strconv.FormatInt(max(e.Event.Deadline.Unix(), 0), 10) // A label's value has no sign.
		}
	}
	return labels
}

// openEntries returns the entries of interruptions that are neither closed nor ignored, by their deadlines, entries without a deadline
// last, and then by the precedence of their kinds.
func openEntries(entries []state.Entry, rules policy.Settings) []state.Entry {
	open := slices.DeleteFunc(slices.Clone(entries), func(e state.Entry) bool {
		return e.Phase == state.Closed || rules.Ignores(e) || e.Event.Kind == event.Manual
	})
	never := time.Unix(1<<40, 0) // after any deadline
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

// keepCondition is message.deliver of the only message of the queue conditions. It brings the Node's condition and labels up to date, and plans
// the next look.
func (k *Kubernetes) keepCondition(ctx context.Context) error {
	k.mu.Lock()
	ceded := k.ceded
	k.mu.Unlock()
	if ceded { // Cede was called after the message was queued.
		return errNothing
	}
	var refresh time.Duration
	err := k.write(ctx, conditionArea, func(id Identity) (err error) {
		refresh, err = k.updateNode(ctx, id)
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

// wanted returns the condition and the labels as they should be now, the condition without times. labels is nil if the settings ask for none.
func (k *Kubernetes) wanted() (condition corev1.NodeCondition, labels map[string]string) {
	rules := k.opts.Rules()
	open := openEntries(k.opts.Entries(), rules)
	condition = wantedCondition(open, rules, k.opts.Brief)
	if k.opts.DryRun {
		condition = dryRunCondition
	}
	if k.opts.Labels {
		labels = wantedLabels(open)
	}
	return condition, labels
}

// updateNode brings the Node's condition and labels up to date. It returns after what time to check them again; 0 for never. It reads the Node
// first, and writes only what has to change. With Options.Brief, it does not even read the Node if the condition that it wrote last still
// holds: the labels follow from the same entries.
func (k *Kubernetes) updateNode(ctx context.Context, id Identity) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	condition, labels := k.wanted()
	if again, fresh := k.isFresh(k.written, time.Now()); k.opts.Brief && fresh && sameContent(k.written, condition) {
		return again, nil
	}
	node, err := id.read(ctx)
	if err != nil {
		return 0, err
	}
	again, err = k.updateCondition(ctx, id, node, condition)
	if err == nil {
		err = k.updateLabels(ctx, id, node, labels)
	}
	return again, err
}

// updateCondition writes the wanted condition to a Node that was read just now, if that is needed. It returns after what time to check the
// condition again; 0 for never.
func (k *Kubernetes) updateCondition(ctx context.Context, id Identity, node *corev1.Node, wanted corev1.NodeCondition) (again time.Duration, err error) {
	now := time.Now()
	existing := findCondition(node, ConditionType)
	metadata := map[string]any{}
	if k.setByOthers(node, wanted) {
		if k.opts.Heartbeat == 0 {
			return 0, nil // The other writer's condition stays as it is.
		}
		// nth-queue knows of an interruption that the machine does not: its condition stays, with our heartbeat.
		wanted, metadata["resourceVersion"] = *existing, node.ResourceVersion
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
	if err := id.patch(ctx, metadata, wanted); err != nil {
		return 0, err
	}
	k.written = wanted
	if k.isRenewed(wanted) {
		again = k.renewal
	}
	return again, nil
}

// updateLabels sets the wanted labels on a Node that was read just now, and takes off those that this writer has set and that are not wanted.
// In a dry run the labels stay as they are. updateLabels reports a refusal itself and returns nil, as the condition does not depend on labels.
func (k *Kubernetes) updateLabels(ctx context.Context, id Identity, node *corev1.Node, wanted map[string]string) error {
	changes := map[string]any{} // nil takes a label off
	for _, key := range []string{KindLabel, MaintenanceLabel} {
		existing, found := node.Labels[key]
		value, keep := wanted[key]
		switch {
		case keep && value != existing:
			changes[key] = value
		case found && !keep && k.hasSetLabel(node, key):
			changes[key] = nil
		}
	}
	if len(changes) == 0 || k.opts.DryRun {
		return nil
	}
	written := k.written
	k.written = corev1.NodeCondition{} // Until the labels are written, the next look must read the Node again.
	if time.Now().Before(k.mutedUntil(labelArea)) {
		return nil // The API server has refused labels, and the refusal was reported.
	}
	err := k.judge(labelArea, id.patch(ctx, map[string]any{"labels": changes}))
	if err == nil {
		k.written = written
	}
	if _, refused := errors.AsType[refusedError](err); refused || err == nil {
		k.report(labelArea, DeliveryResult{Err: err, Lost: refused})
		return nil
	}
	return err
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

// patch sends a strategic merge patch of the Node's status, with labels or other metadata. The API server merges conditions by their types, so
// what the kubelet writes at the same time stays. If metadata has a resourceVersion, and the Node has changed since that, the error is a
// conflict.
func (id Identity) patch(ctx context.Context, metadata map[string]any, conditions ...corev1.NodeCondition) error {
	if id.UID != "" {
		metadata["uid"] = id.UID
	}
	content := map[string]any{"metadata": metadata}
	if len(conditions) > 0 { // An empty list would be encoded as null, which takes off all conditions.
		content["status"] = map[string]any{"conditions": conditions}
	}
	patch, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encoding a patch of the Node: %w", err)
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

// setByOthers reports whether another writer, such as nth-queue, has set the Node's condition to True while this one wants it False. The message
// says whose it is. A manager has a field only if it has changed that last: a status that was True before is still somebody else's.
func (k *Kubernetes) setByOthers(node *corev1.Node, wanted corev1.NodeCondition) bool {
	c := findCondition(node, wanted.Type)
	if wanted.Status == corev1.ConditionTrue || c == nil || c.Status != corev1.ConditionTrue {
		return false
	}
	for manager, set := range managedFields(node) {
		if _, found := set.Status.Conditions[fmt.Sprintf(`k:{"type":%q}`, wanted.Type)]["f:message"]; found {
			return !k.writes(manager)
		}
	}
	return false
}

// hasSetLabel reports whether this writer has set the value that a label of the Node has, by metadata.managedFields.
func (k *Kubernetes) hasSetLabel(node *corev1.Node, key string) bool {
	for manager, set := range managedFields(node) {
		if _, found := set.Metadata.Labels["f:"+key]; found && k.writes(manager) {
			return true
		}
	}
	return false
}

// writes reports whether a manager is this writer. With Options.Brief, the one whose name the API server has forgotten is: nth renews what it has
// written, and nth-queue does not after a drain.
func (k *Kubernetes) writes(manager string) bool {
	return manager == k.opts.Writer || k.opts.Brief && manager == kube.Forgotten
}

// fieldSet is which labels and conditions of a Node a manager has set.
type fieldSet struct {
	Metadata struct {
		Labels map[string]json.RawMessage `json:"f:labels"`
	} `json:"f:metadata"`
	Status struct {
		Conditions map[string]map[string]json.RawMessage `json:"f:conditions"`
	} `json:"f:status"`
}

// managedFields yields who has set which fields of the Node, as the API server remembers in metadata.managedFields. It leaves out managers whose
// fields cannot be read.
func managedFields(node *corev1.Node) iter.Seq2[string, fieldSet] {
	return func(yield func(string, fieldSet) bool) {
		for _, m := range node.ManagedFields {
			var set fieldSet
			if m.FieldsV1 != nil && json.Unmarshal(m.FieldsV1.GetRawBytes(), &set) == nil && !yield(m.Manager, set) {
				return
			}
		}
	}
}

// isChange reports whether the wanted condition says something new. Such a condition is written even while Options.Alive is false. Every
// other write is only a heartbeat.
func isChange(existing *corev1.NodeCondition, wanted corev1.NodeCondition) bool {
	if existing == nil {
		return wanted.Status == corev1.ConditionTrue
	}
	return existing.Status != wanted.Status || wanted.Status == corev1.ConditionTrue && !sameContent(*existing, wanted)
}
