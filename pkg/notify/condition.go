package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	// startupDelay is how long nothing is written after the start: the first poll of the metadata service comes first, and a condition of an
	// earlier run can wait.
	startupDelay = 5 * time.Second
	// silence is the pause before the next look for a heartbeat while Alive is false, or there is no Node.
	silence = time.Minute
)

// dryRunCondition is the condition of a dry run, without times. It is False even while something is announced, so that nobody acts
// upon it.
var dryRunCondition = corev1.NodeCondition{
	Type: ConditionType, Status: corev1.ConditionFalse,
	Reason: dryRun, Message: "this is a dry run: what is announced for this machine is only logged on it",
}

// wantedCondition derives the condition, without times, from the open entries: see openEntries. The condition is True unless open is empty.
// Its reason is that of the first entry.
func wantedCondition(open []state.Entry, opts *KubernetesOptions) corev1.NodeCondition {
	if opts.DryRun {
		return dryRunCondition
	}
	if len(open) == 0 {
		return corev1.NodeCondition{
			Type: ConditionType, Status: corev1.ConditionFalse,
			Reason: nothingPending, Message: "nothing is announced for this machine",
		}
	}
	sentences := make([]string, len(open))
	for i, e := range open {
		sentences[i] = describeEntry(e, opts.Rules, opts.Brief)
	}
	return corev1.NodeCondition{
		Type: ConditionType, Status: corev1.ConditionTrue,
		Reason:  open[0].Event.Kind.Info().Reason,
		Message: text.Visible(mark(opts)+strings.Join(sentences, ". Also: "), maxMessage),
	}
}

// mark is how our conditions begin that are True, by which other writers know them.
func mark(opts *KubernetesOptions) string { return opts.Source + ": " }

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

// condition is what a KubernetesNode remembers of its Node's condition.
type condition struct {
	mu   sync.Mutex
	look *message // the next look at the condition, which waits in its queue; nil if none does

	// These belong to the worker that looks: the condition as it was written last, zero if that is unknown, and when to renew its heartbeat.
	written corev1.NodeCondition
	renewal time.Time
}

// touch has the Node's condition looked at after delay, or earlier.
func (n *KubernetesNode) touch(delay time.Duration) {
	k, c := n.kubernetes, &n.condition
	if !k.opts.Condition {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.look == nil {
		look := &message{line: n.name}
		look.deliver = func(ctx context.Context) error {
			c.mu.Lock()
			if c.look == look {
				c.look = nil // What happens from now on has another look.
			}
			c.mu.Unlock()
			return n.keepCondition(ctx)
		}
		c.look = look
	}
	k.conditions.add(c.look, delay)
}

// keepCondition brings the Node's condition and labels up to date. With a heartbeat, it plans the next look.
func (n *KubernetesNode) keepCondition(ctx context.Context) error {
	opts := &n.kubernetes.opts
	if opts.MayWrite != nil && opts.MayWrite() != nil {
		return errNothing // The process that leads now keeps the conditions.
	}
	again := silence
	err := n.write(ctx, func(ctx context.Context, id Identity) (err error) {
		again, err = n.updateNode(ctx, id)
		return err
	})
	if err != nil {
		n.condition.written = corev1.NodeCondition{}
	}
	if opts.Heartbeat > 0 {
		n.touch(again)
	}
	return err
}

// updateNode brings the Node's condition and labels up to date. It returns after what time to look again for a heartbeat. It reads and writes
// the Node only if the condition that it wrote last no longer holds: the labels follow from the same entries.
func (n *KubernetesNode) updateNode(ctx context.Context, id Identity) (again time.Duration, err error) {
	c, opts := &n.condition, &n.kubernetes.opts
	open := openEntries(n.entries(), opts.Rules)
	wanted := wantedCondition(open, opts)
	if left := time.Until(c.renewal); sameContent(c.written, wanted) && (opts.Heartbeat == 0 || left > 0) {
		return left, nil
	}
	node, err := id.read(ctx)
	if err != nil {
		return silence, err
	}
	metadata := map[string]any{}
	existing := findCondition(node)
	foreign := existing.Status == corev1.ConditionTrue && !strings.HasPrefix(existing.Message, mark(opts))
	if foreign && wanted.Status == corev1.ConditionFalse {
		// nth-queue knows of an interruption that the machine does not: its condition and labels stay, with our heartbeat.
		wanted.Status, wanted.Reason, wanted.Message = existing.Status, existing.Reason, existing.Message
		metadata["resourceVersion"] = node.ResourceVersion
	} else if labels := changedLabels(node, open); opts.Labels && !opts.DryRun && len(labels) > 0 {
		metadata["labels"] = labels
	}
	differs := !sameContent(existing, wanted)
	if existing.Type == "" { // Where nothing was ever announced, there is no condition.
		differs = wanted.Status == corev1.ConditionTrue
	}
	news := differs || metadata["labels"] != nil
	beats := opts.Heartbeat > 0 && opts.Alive()
	if !news && !beats {
		return silence, nil // A heartbeat would claim that nth does its work.
	}
	now := metav1.Now()
	wanted.LastHeartbeatTime, wanted.LastTransitionTime = now, now
	if existing.Status == wanted.Status {
		wanted.LastTransitionTime = existing.LastTransitionTime
	}
	if err := id.patch(ctx, metadata, wanted); err != nil {
		return silence, err
	}
	again = wait.Jitter(opts.Heartbeat*9/10, 2.0/9) // The nodes of a fleet do not write in step.
	c.written, c.renewal = wanted, now.Add(again)
	return again, nil
}

// changedLabels returns the labels to set on a Node, and to take off, for the open entries. The value nil takes a label off.
func changedLabels(node *corev1.Node, open []state.Entry) map[string]any {
	changes, wanted := map[string]any{}, wantedLabels(open)
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
	return changes
}

// read reads the Node. If the identity has a UID and the Node another, it returns errNothing: the name has passed to another machine.
func (id Identity) read(ctx context.Context) (*corev1.Node, error) {
	node, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, metav1.GetOptions{})
	if err == nil && id.UID != "" && string(node.UID) != id.UID {
		return nil, errNothing
	}
	return node, err
}

// patch sends a strategic merge patch of the Node's status and metadata. The API server merges conditions by their types, so what the kubelet
// writes at the same time stays. If metadata has a resourceVersion, and the Node has changed since that, the error is a conflict.
func (id Identity) patch(ctx context.Context, metadata map[string]any, condition corev1.NodeCondition) error {
	if id.UID != "" {
		metadata["uid"] = id.UID
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata, "status": map[string]any{"conditions": []corev1.NodeCondition{condition}}})
	if err != nil {
		return fmt.Errorf("encoding a patch of the Node: %w", err)
	}
	_, err = id.Client.CoreV1().Nodes().PatchStatus(ctx, id.Node, patch)
	return err
}

// sameContent reports whether two conditions are equal but for their times.
func sameContent(a, b corev1.NodeCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// findCondition returns the Node's condition of ConditionType; its zero value if it has none.
func findCondition(node *corev1.Node) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == ConditionType {
			return c
		}
	}
	return corev1.NodeCondition{}
}
