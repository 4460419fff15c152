package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

// The labels that the Node has with the condition, if KubernetesOptions.Labels is set.
const (
	// KindLabel has the kind of the event that gives the condition its reason.
	KindLabel = kube.KeyPrefix + "interruption"
	// MaintenanceLabel has the seconds since 1970 at which the earliest maintenance begins, for the operators Gt and Lt of a nodeAffinity.
	MaintenanceLabel = kube.KeyPrefix + "maintenance-not-before"
)

const (
	// startupDelay is how long after the start the first update of the condition waits: the metadata service is polled first.
	startupDelay = 5 * time.Second
	// updateDelay is how long another update waits: the transitions of that time cost one write together, which comes after the cordon.
	updateDelay = time.Second
	// retryHeartbeat is the pause before the next update if no heartbeat was written, as Alive was false or the Node could not be read.
	retryHeartbeat = time.Minute
)

// wantedCondition returns the condition that the Node should have for its open entries, without times. open is from openEntries. The condition
// is True unless open is empty. Its reason is that of the first entry.
func wantedCondition(open []state.Entry, opts *KubernetesOptions) corev1.NodeCondition {
	condition := corev1.NodeCondition{Type: kube.Condition, Status: corev1.ConditionFalse}
	switch {
	case opts.DryRun: // The status is False even while something is announced, so that no other program acts upon it.
		condition.Reason, condition.Message = "DryRun", "this is a dry run: what is announced for this machine is only logged on it"
		return condition
	case len(open) == 0:
		condition.Reason, condition.Message = "NothingPending", "nothing is announced for this machine"
		return condition
	}
	sentences := make([]string, len(open))
	for i, e := range open {
		sentences[i] = describeEntry(e, opts.Rules, opts.Brief)
	}
	condition.Status, condition.Reason = corev1.ConditionTrue, open[0].Event.Kind.Info().Reason
	condition.Message = text.Visible(writerPrefix(opts)+strings.Join(sentences, ". Also: "), maxMessage)
	return condition
}

// writerPrefix is how the messages of this program's True conditions begin. By the prefix, nth and nth-queue know who wrote a condition.
func writerPrefix(opts *KubernetesOptions) string { return opts.Source + ": " }

// openEntries returns the entries of interruptions that are neither closed nor ignored by the rules. They are sorted by their deadlines, and
// then by the precedence of their kinds. Entries without a deadline are last.
func openEntries(entries []state.Entry, rules policy.Settings) []state.Entry {
	open := slices.DeleteFunc(slices.Clone(entries), func(e state.Entry) bool {
		return e.Phase == state.Closed || rules.Ignores(e) || e.Event.Kind == event.Manual // "nth drain" is no interruption.
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

// describeEntry returns a sentence: what is announced, what nth does about it, and how far nth has come. If brief is set, it says only what is announced,
// and what operators do about it. It has no counts and no remaining time, so that it changes only when something happens.
func describeEntry(e state.Entry, rules policy.Settings, brief bool) string {
	var notes []string
	cordonIsLifted := e.Released() && (e.Phase == state.Cordoned || e.Phase == state.Drained) // The texts of these two phases would be wrong.
	switch text := phaseTexts[e.Phase]; {
	case e.LeftAlone: // rules.Describe below says so.
	case cordonIsLifted:
		notes = append(notes, "someone uncordoned the node")
	case text != "" && !brief:
		notes = append(notes, text)
	}
	if !e.Missing.IsZero() {
		notes = append(notes, "the event is no longer announced")
	}
	text := rules.Describe(e)
	if brief && !e.LeftAlone {
		text = e.Event.Summary()
	}
	if len(notes) > 0 {
		text += " (" + strings.Join(notes, "; ") + ")"
	}
	return text
}

// queueUpdate has update called after delay. If an update waits already, that one is made after delay at the latest.
func (n *KubernetesNode) queueUpdate(delay time.Duration) {
	if n.kubernetes.opts.Condition {
		n.kubernetes.conditions.add(n.condition, delay)
	}
}

// update brings the Node's condition and labels up to date. If there are heartbeats, it queues the next update. The queue of conditions calls
// it; the error says whether to try again, as in message.deliver.
func (n *KubernetesNode) update(ctx context.Context) error {
	opts := &n.kubernetes.opts
	again := retryHeartbeat
	err := n.write(ctx, func(ctx context.Context, id Identity) error {
		if opts.MayWrite != nil && opts.MayWrite() != nil { // Asked after the wait for the gate.
			return errNothing // Another process leads, and keeps the conditions.
		}
		written, err := n.updateNode(ctx, id)
		if written {
			again = wait.Jitter(opts.Heartbeat*9/10, 2.0/9) // 0.9 to 1.1 heartbeats, so that the nodes of a cluster do not write all at once
		}
		return err
	})
	if err != nil {
		n.version = "" // The request may have reached the API server, or not.
	}
	if opts.Heartbeat > 0 {
		n.queueUpdate(again)
	}
	return err
}

// updateNode writes the Node's condition and labels, unless the Node has them and no heartbeat is wanted.
func (n *KubernetesNode) updateNode(ctx context.Context, id Identity) (written bool, err error) {
	opts := &n.kubernetes.opts
	open := openEntries(n.entries(), opts.Rules)
	var change change
	node := n.watched(id)
	if node != nil {
		change = opts.changeOf(node, open)
	}
	// The watch may not show yet what an earlier listener of the same Node, or nth on it, has written. A wanted True is written all the same.
	mayLag := n.version == "" && (!change.needed || change.condition.Status == corev1.ConditionFalse)
	if node == nil || mayLag {
		if node, err = id.Client.CoreV1().Nodes().Get(ctx, id.Node, metav1.GetOptions{}); err != nil {
			return false, err
		}
		n.version, change = node.ResourceVersion, opts.changeOf(node, open)
	}
	if id.UID != "" && string(node.UID) != id.UID { // Another machine has that name now.
		return false, errNothing
	}
	alive := opts.Heartbeat > 0 && opts.Alive()
	if !change.needed && !alive {
		return false, nil // Without changes, a write would be a heartbeat, which says that nth does its work.
	}
	n.version, err = id.patch(ctx, change)
	return err == nil, err
}

// change is what is to be written to a Node.
type change struct {
	metadata  map[string]any
	condition corev1.NodeCondition
	needed    bool // the Node does not have all of it yet
}

// changeOf returns what is to be written to a Node for its open entries.
func (o *KubernetesOptions) changeOf(node *corev1.Node, open []state.Entry) change {
	c := change{metadata: map[string]any{}, condition: wantedCondition(open, o)}
	existing, wanted := findCondition(node), &c.condition
	fromAnother := existing.Status == corev1.ConditionTrue && !strings.HasPrefix(existing.Message, writerPrefix(o))
	if fromAnother && wanted.Status == corev1.ConditionFalse {
		// nth-queue knows of an interruption that nth does not, or the reverse. The other's condition and labels stay, with our heartbeat.
		wanted.Status, wanted.Reason, wanted.Message = existing.Status, existing.Reason, existing.Message
		c.metadata["resourceVersion"] = node.ResourceVersion // If the other changes the condition meanwhile, our write must fail.
	} else if o.Labels && !o.DryRun {
		c.metadata["labels"], c.needed = labelsFor(node, open)
	}
	if existing.Type != "" {
		c.needed = c.needed || existing.Status != wanted.Status || existing.Reason != wanted.Reason || existing.Message != wanted.Message
	} else if wanted.Status == corev1.ConditionTrue { // A Node without a condition gets none before something is announced, unless there are heartbeats.
		c.needed = true
	}
	now := metav1.Now()
	wanted.LastHeartbeatTime, wanted.LastTransitionTime = now, now
	if existing.Status == wanted.Status {
		wanted.LastTransitionTime = existing.LastTransitionTime
	}
	return c
}

// labelsFor returns the labels that a Node should have for its open entries, and whether any is to be changed. The value nil takes a label off.
// open is from openEntries.
func labelsFor(node *corev1.Node, open []state.Entry) (labels map[string]any, change bool) {
	labels = map[string]any{KindLabel: nil, MaintenanceLabel: nil}
	if len(open) > 0 {
		labels[KindLabel] = string(open[0].Event.Kind)
	}
	isDated := func(e state.Entry) bool {
		return e.Event.Kind == event.ScheduledMaintenance && !e.Event.Deadline.IsZero()
	}
	if i := slices.IndexFunc(open, isDated); i >= 0 { // open is sorted: this maintenance is the earliest.
		// max, as a label's value has no sign.
		labels[MaintenanceLabel] = strconv.FormatInt(max(open[i].Event.Deadline.Unix(), 0), 10)
	}
	for key, wanted := range labels {
		var existing any // nil without the label
		if value, found := node.Labels[key]; found {
			existing = value
		}
		change = change || existing != wanted
	}
	return labels, change
}

// watched returns the Node as the identity's watch shows it; nil if there is no watch, or if the watch does not show the last write yet.
func (n *KubernetesNode) watched(id Identity) *corev1.Node {
	if id.Watched == nil {
		return nil
	}
	node := id.Watched()
	if version := n.version; node != nil && version != "" {
		if age, err := resourceversion.CompareResourceVersion(node.ResourceVersion, version); err != nil || age < 0 {
			return nil
		}
	}
	return node
}

// patch sends a change as a strategic merge patch. The API server merges conditions by their types, so the kubelet's
// conditions stay. If the metadata has a resourceVersion, and the Node has changed since that, the error is a conflict. version is the Node's new
// resource version.
func (id Identity) patch(ctx context.Context, c change) (version string, err error) {
	if id.UID != "" {
		c.metadata["uid"] = id.UID // A Node with another UID is not written: the API server answers with a conflict.
	}
	patch, err := json.Marshal(map[string]any{"metadata": c.metadata, "status": map[string]any{"conditions": []corev1.NodeCondition{c.condition}}})
	if err != nil {
		return "", fmt.Errorf("encoding a patch of the Node: %w", err)
	}
	node, err := id.Client.CoreV1().Nodes().PatchStatus(ctx, id.Node, patch)
	if err != nil {
		return "", err
	}
	return node.ResourceVersion, nil
}

// findCondition returns the Node's condition of the type kube.Condition; the zero value if the Node has none.
func findCondition(node *corev1.Node) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == kube.Condition {
			return c
		}
	}
	return corev1.NodeCondition{}
}
