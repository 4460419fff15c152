package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// silence is the pause before the next look while Alive is false, or there is no Node.
const silence = time.Minute

// dryRunCondition is the condition of a dry run, without times. It is False even while something is announced, so that nobody acts
// upon it.
var dryRunCondition = corev1.NodeCondition{
	Type: ConditionType, Status: corev1.ConditionFalse,
	Reason: dryRun, Message: "this is a dry run: what is announced for this machine is only logged on it",
}

// wantedCondition derives the condition, without times, from the open entries: see openEntries. The condition is True unless open is empty.
// Its reason is that of the first entry.
func (k *Kubernetes) wantedCondition(open []state.Entry, rules policy.Settings) corev1.NodeCondition {
	if len(open) == 0 {
		return corev1.NodeCondition{
			Type: ConditionType, Status: corev1.ConditionFalse,
			Reason: nothingPending, Message: "nothing is announced for this machine",
		}
	}
	sentences := make([]string, len(open))
	for i, e := range open {
		sentences[i] = describeEntry(e, rules, k.opts.Brief)
	}
	return corev1.NodeCondition{
		Type: ConditionType, Status: corev1.ConditionTrue,
		Reason:  open[0].Event.Kind.Info().Reason,
		Message: text.Visible(k.mark()+strings.Join(sentences, ". Also: "), maxMessage),
	}
}

// mark is how our conditions begin that are True, by which other writers know them.
func (k *Kubernetes) mark() string { return k.opts.Source + ": " }

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
	case e.LeftAlone: // The text of rules.Describe says so already.
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

// touch queues a look at the Node's condition, unless one waits already or others keep the condition.
func (k *Kubernetes) touch() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.opts.Condition || k.ceded || k.look != nil {
		return
	}
	look := &message{gate: &k.gate}
	look.deliver = func(ctx context.Context) error {
		k.mu.Lock()
		if k.look == look {
			k.look = nil // What happens from now on has another look.
		}
		ceded := k.ceded
		k.mu.Unlock()
		if ceded { // Cede was called after the message was queued.
			return errNothing
		}
		return k.keepCondition(ctx)
	}
	k.look = look
	k.conditions.add(look)
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

// keepCondition brings the Node's condition and labels up to date, and plans the next look.
func (k *Kubernetes) keepCondition(ctx context.Context) error {
	again := silence // It stays if write fails before it calls updateNode: Options.Turn has failed, or there is no identity yet.
	const hurried = true
	err := k.write(ctx, hurried, func(id Identity) (err error) {
		again, err = k.updateNode(ctx, id)
		return err
	})
	k.touchIn(again)
	return err
}

// updateNode brings the Node's condition and labels up to date. It returns after what time to check them again; 0 for never. It reads and writes
// the Node only if the condition that it wrote last no longer holds: the labels follow from the same entries.
func (k *Kubernetes) updateNode(ctx context.Context, id Identity) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	rules := k.opts.Rules()
	open := openEntries(k.opts.Entries(), rules)
	wanted := k.wantedCondition(open, rules)
	if k.opts.DryRun {
		wanted = dryRunCondition
	}
	if again, fresh := k.isFresh(k.written, time.Now()); fresh && sameContent(k.written, wanted) {
		return again, nil
	}
	k.written = corev1.NodeCondition{}
	node, err := id.read(ctx)
	if err != nil {
		return silence, err
	}
	existing := findCondition(node)
	theirs := existing != nil && existing.Status == corev1.ConditionTrue && wanted.Status == corev1.ConditionFalse &&
		!strings.HasPrefix(existing.Message, k.mark())
	if theirs && k.opts.Heartbeat == 0 {
		return 0, nil // The other writer's condition stays as it is.
	}
	metadata := map[string]any{}
	if theirs {
		// nth-queue knows of an interruption that the machine does not: its condition stays, with our heartbeat.
		wanted, metadata["resourceVersion"] = *existing, node.ResourceVersion
	}
	again, err = k.updateCondition(ctx, id, metadata, existing, wanted)
	if err == nil && k.opts.Labels && !k.opts.DryRun && !theirs {
		err = k.updateLabels(ctx, id, node, wantedLabels(open))
	}
	if err != nil {
		k.written = corev1.NodeCondition{} // It is unknown what the Node has.
		return silence, err
	}
	return again, nil
}

// updateCondition writes the wanted condition to a Node that has existing, if that is needed. It returns after what time to check the condition
// again; 0 for never.
func (k *Kubernetes) updateCondition(
	ctx context.Context, id Identity, metadata map[string]any, existing *corev1.NodeCondition, wanted corev1.NodeCondition,
) (again time.Duration, err error) {
	now := time.Now()
	if existing != nil && sameContent(*existing, wanted) {
		if again, fresh := k.isFresh(*existing, now); fresh {
			k.written = *existing
			return again, nil
		}
	}
	switch {
	case k.opts.Heartbeat == 0 && !isChange(existing, wanted):
		return 0, nil // Where nothing was ever announced, there is no condition.
	case !isChange(existing, wanted) && k.opts.Heartbeat > 0 && !k.opts.Alive():
		return silence, nil // A heartbeat would claim that nth does its work.
	}
	wanted.LastHeartbeatTime, wanted.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
	if existing != nil && existing.Status == wanted.Status {
		wanted.LastTransitionTime = existing.LastTransitionTime
	}
	k.drawRenewal()
	if err := id.patch(ctx, metadata, wanted); err != nil {
		return 0, err
	}
	k.written = wanted
	return k.renewal, nil
}

// updateLabels sets the wanted labels on a Node that was read just now, and takes off those that are not wanted. It reports a refusal itself and
// returns nil, as the condition does not depend on labels.
func (k *Kubernetes) updateLabels(ctx context.Context, id Identity, node *corev1.Node, wanted map[string]string) error {
	changes := map[string]any{} // nil takes a label off
	for _, key := range []string{KindLabel, MaintenanceLabel} {
		existing, found := node.Labels[key]
		value, keep := wanted[key]
		switch {
		case keep && value != existing:
			changes[key] = value
		case found && !keep:
			changes[key] = nil
		}
	}
	if len(changes) == 0 {
		return nil
	}
	err := judge(id.patch(ctx, map[string]any{"labels": changes}))
	_, refused := errors.AsType[refusedError](err)
	if err != nil && !refused {
		return err
	}
	k.report("the node's labels", DeliveryResult{Err: err, Lost: refused})
	return nil
}

// isFresh reports whether a condition need not be written again unless its content changes. again is the time until it must be, as its
// lastHeartbeatTime shows that nth watches the node; 0 for never. A heartbeat in the future is not fresh: the clock was wrong.
func (k *Kubernetes) isFresh(c corev1.NodeCondition, now time.Time) (again time.Duration, fresh bool) {
	if k.opts.Heartbeat == 0 {
		return 0, true
	}
	age := now.Sub(c.LastHeartbeatTime.Time)
	return k.renewal - age, age >= 0 && age < k.renewal
}

// drawRenewal draws the time to the next renewal. It varies by a tenth, so that the nodes of a fleet do not write in step.
func (k *Kubernetes) drawRenewal() {
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

// findCondition returns the Node's condition of ConditionType; nil if it has none.
func findCondition(node *corev1.Node) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == ConditionType {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// isChange reports whether the wanted condition says something new. Such a condition is written even while Options.Alive is false. Every
// other write is only a heartbeat.
func isChange(existing *corev1.NodeCondition, wanted corev1.NodeCondition) bool {
	if existing == nil {
		return wanted.Status == corev1.ConditionTrue
	}
	return existing.Status != wanted.Status || wanted.Status == corev1.ConditionTrue && !sameContent(*existing, wanted)
}
