package drain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/state"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// Claim says whose cordon it is and why. It is the value of CordonAnnotation.
type Claim struct {
	// Writer is the program that has set the cordon; empty in claims of early versions.
	Writer string `json:"writer,omitempty"`
	// Event is the one that comes first, and Kind its kind. Events are all that the node was closed for then; early versions named
	// the first only.
	Event  string   `json:"event"`
	Kind   string   `json:"kind"`
	Events []string `json:"events,omitempty"`
	// Lifted are those of them for which people had lifted the cordon when it was set anew for others: a process that ends right then
	// may not have come to note it.
	Lifted []string  `json:"lifted,omitempty"`
	BootID string    `json:"boot_id"`
	Since  time.Time `json:"since"`
}

// names tells whether the cordon was set for an event.
func (c Claim) names(event string) bool { return c.Event == event || slices.Contains(c.Events, event) }

// OfWriter tells whether that program has written the claim. One that names none is from a version before there were names, and
// anybody's who knows its event.
func (c Claim) OfWriter(writer string) bool { return c.Writer == writer || c.Writer == "" }

// CordonResult says how a node came to be cordoned.
type CordonResult string

// The ways in which a node can be found or made unschedulable.
const (
	// CordonSet: we set it now. CordonOurs: we had set it before. CordonForeign: somebody else had; it is respected.
	CordonSet     CordonResult = "set"
	CordonOurs    CordonResult = "ours"
	CordonForeign CordonResult = "foreign"
	// CordonLeft: the node's ActionAnnotation asks for it to be left alone.
	CordonLeft CordonResult = "left"
	// CordonLifted: someone uncordoned the node. That is an order, and stands.
	CordonLifted CordonResult = "lifted"
	// CordonNone: the node is not cordoned, since there is none or since it was refused.
	CordonNone CordonResult = ""
)

// progress tells of a node that was found or made so.
func (r CordonResult) progress() Progress {
	switch r {
	case CordonForeign:
		return Progress{Kind: state.NodeFoundClosed}
	case CordonLeft:
		return Progress{Kind: state.NodeOptedOut}
	case CordonLifted:
		return Progress{Kind: state.NodeReopened}
	case CordonSet, CordonOurs, CordonNone:
	}
	return Progress{Kind: state.NodeClosed, Detail: string(r)}
}

// view is what a look at the Node has shown, after what it asked for was done.
type view struct {
	// err is why it could not be looked at, or not be cordoned. missing tells that there is no Node.
	err     error
	missing bool
	cordon  CordonResult
	uid     types.UID
	version string
	// since is when our cordon was set that somebody has lifted; zero if it was not ours.
	since time.Time
	// ours tells that something on it is ours, and others that its cordon is another program's, who may lift it, also where people
	// want it left alone.
	ours, others bool
	// reopened are the events for which the node was closed, if somebody has lifted that, and it is closed for others that have joined
	// them, for which that is no order.
	reopened []string
	// limited tells that people want its pods left alone, and ready that the kubelet of the claim's boot has reported it Ready.
	limited, ready bool
	// shut tells that it takes no pods, also where people want it left alone, and opened that someone uncordoned the node, which
	// may have been known before.
	shut, opened, known bool
	// tidy is a patch of our other keys; nil if they are as they should be. excludes tells that it sets the label.
	tidy     map[string]any
	excludes bool
}

// closed tells whether the node takes no pods.
func (v view) closed() bool {
	return v.cordon == CordonSet || v.cordon == CordonOurs || v.cordon == CordonForeign
}

// memory is what a guard knows of the Node from its looks before.
type memory struct {
	view   view
	events []string // for which it was closed
	// lifted tells that someone uncordoned the node for the present events, and since is when it was set, if that is known.
	lifted bool
	since  time.Time
}

// close looks at the Node and cordons it, if that is to be done.
func (n *Node) close(ctx context.Context, goal Goal, before memory) view {
	node, err := n.get(ctx, !before.view.closed())
	if err != nil {
		return view{err: err, missing: apierrors.IsNotFound(err)}
	}
	ordered := n.ordered(node, goal, before)
	found := n.cordonOf(node, goal, before, ordered)
	if found == CordonNone {
		goal.Claim.Writer, goal.Claim.Lifted = n.opts.Writer, ordered
		patched, err := n.patchToEnd(ctx, cordonPatch(node, goal.Claim))
		if apierrors.IsInvalid(err) {
			err = errAnotherNode // It says that a UID does not change; the next look sees which it is.
		}
		if err != nil {
			v := view{err: err, uid: node.UID, limited: onlyCordon(node)}
			if n.liftedSince(node, before) {
				v.reopened = ordered
			}
			return v
		}
		found, node = CordonSet, patched
	}
	if found == CordonOurs {
		if node, err = n.forgetLifted(ctx, node, goal.Anew); err != nil {
			return view{err: err}
		}
	}
	v := n.viewOf(node, found)
	v.ready = isReady(node, func(id string) bool { return id == goal.Claim.BootID })
	told := before.view.cordon == CordonLifted || found == CordonLeft && before.view.uid == v.uid && !n.liftedSince(node, before)
	v.hear(ordered, goal, told)
	if claim, _ := readClaim(node); found == CordonOurs && before.view.uid == "" {
		v.reopened = claim.Lifted
	}
	v.known = before.lifted || goal.Open
	v.tidy, v.excludes = n.tidyPatch(node, v)
	return v
}

// forgetLifted takes the events that have begun anew out of those for which people had lifted the cordon before ours was set, by its claim:
// a process that begins later could not tell that they have begun since. The node is closed for them when that is done.
func (n *Node) forgetLifted(ctx context.Context, node *corev1.Node, anew []string) (*corev1.Node, error) {
	claim, _ := readClaim(node)
	before := len(claim.Lifted)
	claim.Lifted = slices.DeleteFunc(claim.Lifted, func(id string) bool { return slices.Contains(anew, id) })
	if len(claim.Lifted) == before {
		return node, nil
	}
	return n.patchToEnd(ctx, cordonPatch(node, claim))
}

// hear takes in for which events people have lifted the cordon, unless that was told.
func (v *view) hear(ordered []string, goal Goal, told bool) {
	switch {
	case v.cordon == CordonLifted, v.cordon == CordonLeft && len(ordered) > 0 && !Joined(ordered, goal.Events):
		v.opened = true
	case (v.cordon == CordonSet || v.cordon == CordonLeft) && !told:
		v.reopened = ordered
	}
}

// viewOf is what a Node shows that was found, or made, so.
func (n *Node) viewOf(node *corev1.Node, found CordonResult) view {
	v := view{
		cordon: found, uid: node.UID, version: node.ResourceVersion, limited: onlyCordon(node), shut: node.Spec.Unschedulable,
	}
	claim, _ := readClaim(node)
	claimed, mine := n.claimed(node)
	v.others = v.shut && claimed && !mine
	if !v.shut && mine {
		v.since = n.writtenAt(node, claim)
	}
	v.ours = mine || node.Labels[ExcludeLabel] == n.opts.Writer
	return v
}

var errAnotherNode = errors.New("there is another Node of that name now")

// cordonOf says how the Node is cordoned, or CordonNone if that is to be done now. ordered are the events for which people have lifted the
// cordon.
func (n *Node) cordonOf(node *corev1.Node, goal Goal, before memory, ordered []string) CordonResult {
	_, mine := n.claimed(node)
	switch {
	case leave(node):
		return CordonLeft
	case node.Spec.Unschedulable && mine && !n.setByOther(node):
		return CordonOurs
	case node.Spec.Unschedulable && !n.takesOver(node):
		return CordonForeign
	case node.Spec.Unschedulable: // It is to bear this writer's claim.
	case before.lifted || goal.Open:
		return CordonLifted
	case !Joined(ordered, goal.Events):
		return CordonLifted // For an event that has joined since, it is no order.
	}
	return CordonNone
}

// takesOver tells whether the Node's cordon is one that this writer makes its own.
func (n *Node) takesOver(node *corev1.Node) bool {
	claim, ok := readClaim(node)
	return ok && n.opts.Writer == ByHand && claim.Writer == Host && !n.setByOther(node)
}

// ordered are the events for which people have lifted the cordon of a Node that is open: those for which it was closed when it was looked
// at before, and, as long as it bears a claim, those that the claim names or for which it is known that it was closed.
func (n *Node) ordered(node *corev1.Node, goal Goal, before memory) []string {
	if node.Spec.Unschedulable {
		return nil
	}
	var events []string
	if n.liftedSince(node, before) {
		events = slices.Clone(before.events)
	}
	claim, _ := readClaim(node)
	claimed, _ := n.claimed(node)
	for _, id := range goal.Events {
		named := claim.names(id) && !slices.Contains(goal.Anew, id) || !slices.Contains(goal.Unclosed, id)
		if claimed && named && !slices.Contains(events, id) {
			events = append(events, id)
		}
	}
	return events
}

// liftedSince tells whether people have lifted the cordon that was there. Another program that needs its cordon no longer takes
// its claim with it.
func (n *Node) liftedSince(node *corev1.Node, before memory) bool {
	claimed, _ := n.claimed(node)
	return !node.Spec.Unschedulable && before.view.shut && before.view.uid == node.UID && (!before.view.others || claimed)
}

// tidyPatch brings our other keys on the Node up to date. Nothing waits for them. The label is not set for events whose cordon
// people have lifted.
func (n *Node) tidyPatch(node *corev1.Node, v view) (patch map[string]any, excludes bool) {
	value, labeled := node.Labels[ExcludeLabel]
	_, mine := n.claimed(node)
	metadata := asSeen(node)
	switch {
	case v.closed() && n.opts.ExcludeFromLoadBalancers && !labeled && !v.limited && !v.known:
		excludes = true
		metadata["labels"] = map[string]any{ExcludeLabel: n.opts.Writer}
	case v.opened && value == n.opts.Writer:
		metadata["labels"] = map[string]any{ExcludeLabel: nil} // It takes pods, so it is to have traffic.
	case v.cordon == CordonForeign && mine:
		// Left over from a cordon of ours that they lifted before they set theirs.
		metadata["annotations"] = KeyPatch(node.Annotations, CordonAnnotation, nil)
	default:
		return nil, false
	}
	return map[string]any{"metadata": metadata}, excludes
}

// claimed tells whether the Node bears a claim, and whether that is this writer's. One that cannot be read names nobody.
func (n *Node) claimed(node *corev1.Node) (there, mine bool) {
	if _, there = KeyValue(node.Annotations, CordonAnnotation); !there {
		return false, false
	}
	claim, _ := readClaim(node)
	return true, claim.OfWriter(n.opts.Writer)
}

// setByOther tells whether somebody else has made the node unschedulable, as the API server remembers it. Where our
// annotation is there all the same, it is left over from a cordon that they lifted before.
func (n *Node) setByOther(node *corev1.Node) bool {
	other := false
	for _, m := range node.ManagedFields {
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, set := fields.Spec["f:unschedulable"]; set {
			if m.Manager == Host || m.Manager == n.opts.Writer {
				return false
			}
			other = true
		}
	}
	return other
}

// writtenAt is when our cordon was set, or was last written for an event that has begun anew. Of nth, which writes nothing else there but
// the label, right after that, the API server's clock tells, where it remembers: it is the one by which pods are created and bound.
func (n *Node) writtenAt(node *corev1.Node, claim Claim) time.Time {
	for _, m := range node.ManagedFields {
		if m.Manager == Host && n.opts.Writer == Host && m.Subresource == "" && m.Time != nil {
			return m.Time.Time
		}
	}
	return claim.Since
}

// leave tells whether people want nothing done to the node, not even a cordon.
func leave(node *corev1.Node) bool {
	action, _ := KeyValue(node.Annotations, ActionAnnotation)
	return action == LeaveNode || action == OnlyNotify
}

// onlyCordon tells whether people want the node's pods left alone.
func onlyCordon(node *corev1.Node) bool {
	action, _ := KeyValue(node.Annotations, ActionAnnotation)
	return leave(node) || action == OnlyCordon
}

// Claim reads who holds the node's cordon. ok is false if it is not this writer's: no annotation, one that cannot be read,
// or another program's. A label of this writer's without such a cordon, as beside somebody else's, is a claim, too, of the event
// "label". Without an error there is a Node.
func (n *Node) Claim(ctx context.Context) (claim Claim, ok bool, err error) {
	node, err := n.get(ctx, false)
	if err != nil {
		return Claim{}, false, fmt.Errorf("reading node %q: %w", n.name, err)
	}
	claim, ok = readClaim(node)
	if mine := ok && claim.OfWriter(n.opts.Writer); mine || node.Labels[ExcludeLabel] != n.opts.Writer {
		return claim, mine, nil
	}
	const label = "label"
	return Claim{Writer: n.opts.Writer, Event: label, Kind: label, BootID: node.Status.NodeInfo.BootID, Since: time.Now().UTC()}, true, nil
}

func readClaim(node *corev1.Node) (claim Claim, ok bool) {
	text, there := KeyValue(node.Annotations, CordonAnnotation)
	if !there || json.Unmarshal([]byte(text), &claim) != nil || claim.Event == "" {
		return Claim{}, false
	}
	return claim, true
}

// UncordonResult says what an uncordon found and did.
type UncordonResult string

// The outcomes of an uncordon.
const (
	// UncordonLifted: the node takes pods again.
	UncordonLifted UncordonResult = "lifted"
	// UncordonNotOurs: there was no cordon of ours to lift. UncordonOpened: there had been one, and somebody has lifted it.
	UncordonNotOurs UncordonResult = "not-ours"
	UncordonOpened  UncordonResult = "opened"
	// UncordonNodeGone: there is no such Node any more.
	UncordonNodeGone UncordonResult = "node-gone"
	// UncordonLeftGoing: the Node has been deleted, and a finalizer still holds it.
	UncordonLeftGoing UncordonResult = "left-going"
	// UncordonLeftKarpenter, UncordonLeftAutoscaler and UncordonLeftNodeGroup: a taint says that Karpenter, Cluster
	// Autoscaler or an update of an EKS managed node group is emptying the node.
	UncordonLeftKarpenter  UncordonResult = "left-karpenter"
	UncordonLeftAutoscaler UncordonResult = "left-cluster-autoscaler"
	UncordonLeftNodeGroup  UncordonResult = "left-node-group"
)

// LeftTo names, within a sentence, who still needs the cordon; empty if it was not left to anybody.
func (r UncordonResult) LeftTo() string {
	return map[UncordonResult]string{
		UncordonLeftGoing:      "whoever has deleted the Node",
		UncordonLeftKarpenter:  "Karpenter",
		UncordonLeftAutoscaler: "Cluster Autoscaler",
		UncordonLeftNodeGroup:  "the update of the managed node group",
	}[r]
}

// Another program may be emptying the node as well and need it closed until the Node is gone. It need not have cordoned
// it: a taint serves as well, and a cordon on a node that is unschedulable already leaves no trace. So before a cordon is
// lifted, the Node is looked at for signs of them.

// signs are the taints by which others say that they are emptying a node. An empty value is any. Cluster Autoscaler's
// DeletionCandidateOfClusterAutoscaler is none of them: it marks a node that may be chosen.
var signs = []struct {
	key, value string
	left       UncordonResult
}{
	{"karpenter.sh/disrupted", "", UncordonLeftKarpenter},
	{"karpenter.sh/disruption", "", UncordonLeftKarpenter}, // before Karpenter 1.0
	{"ToBeDeletedByClusterAutoscaler", "", UncordonLeftAutoscaler},
	{"eks.amazonaws.com/nodegroup", "unschedulable", UncordonLeftNodeGroup},
}

// neededBy tells who else needs the node to stay closed: a result with a LeftTo, or nothing.
func neededBy(node *corev1.Node) UncordonResult {
	for _, sign := range signs {
		if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == sign.key && (sign.value == "" || t.Value == sign.value) && t.Effect != corev1.TaintEffectPreferNoSchedule
		}) {
			return sign.left
		}
	}
	if node.DeletionTimestamp != nil {
		return UncordonLeftGoing
	}
	return ""
}

// Uncordon takes what is this writer's off the node: the cordon, if nobody else needs it, the annotation and the label. If
// booted is set, it first waits, before it lifts anything, until a kubelet of a boot of which it says yes has reported the Node
// Ready. Failures that may pass are retried until ctx ends.
func (n *Node) Uncordon(ctx context.Context, booted func(bootID string) bool) (UncordonResult, error) {
	var result UncordonResult
	err := retry(ctx, func(ctx context.Context) error {
		node, err := n.get(ctx, false)
		if apierrors.IsNotFound(err) {
			result = UncordonNodeGone
			return nil
		}
		if err != nil {
			return err
		}
		result = n.uncordonOf(node)
		patch := n.uncordonPatch(node, result)
		if patch == nil {
			return nil
		}
		if booted != nil && result.LeftTo() == "" && !isReady(node, booted) {
			return errNotReady
		}
		_, err = n.patchToEnd(ctx, patch) // If it was carried out later, the next guard would take it for somebody's order.
		return err
	})
	if err != nil {
		return "", fmt.Errorf("uncordoning node %q: %w", n.name, err)
	}
	return result, nil
}

var errNotReady = errors.New("the node is not Ready yet")

// uncordonOf says what an uncordon comes to.
func (n *Node) uncordonOf(node *corev1.Node) UncordonResult {
	switch _, mine := n.claimed(node); {
	case mine && !node.Spec.Unschedulable:
		return UncordonOpened
	case !mine || n.setByOther(node):
		return UncordonNotOurs
	}
	return cmp.Or(neededBy(node), UncordonLifted)
}

// isReady tells whether the kubelet of the right boot has reported the Node Ready. After a quick reboot the Node still bears
// what the kubelet before has said. A kubelet that reports no boot ID, as a simulated one may, is believed.
func isReady(node *corev1.Node, booted func(string) bool) bool {
	if id := node.Status.NodeInfo.BootID; id != "" && !booted(id) {
		return false
	}
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// asSeen is the metadata of a patch that is for the Node as it was seen, and no other of its name: others may be about to write the same
// keys.
func asSeen(node *corev1.Node) map[string]any {
	return map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion}
}

func cordonPatch(seen *corev1.Node, claim Claim) map[string]any {
	text, _ := json.Marshal(claim) // a struct of strings and a time always encodes
	metadata := asSeen(seen)
	metadata["annotations"] = KeyPatch(seen.Annotations, CordonAnnotation, string(text))
	return map[string]any{"metadata": metadata, "spec": map[string]any{"unschedulable": true}}
}

// uncordonPatch takes our keys off the node, each by itself, and the cordon with them if that is ours to lift; nil if there is
// nothing of ours.
func (n *Node) uncordonPatch(node *corev1.Node, result UncordonResult) map[string]any {
	_, mine := n.claimed(node)
	labeled := node.Labels[ExcludeLabel] == n.opts.Writer
	if !mine && !labeled {
		return nil
	}
	metadata := asSeen(node)
	if mine {
		metadata["annotations"] = KeyPatch(node.Annotations, CordonAnnotation, nil)
	}
	if labeled {
		metadata["labels"] = map[string]any{ExcludeLabel: nil}
	}
	patch := map[string]any{"metadata": metadata}
	if result == UncordonLifted {
		patch["spec"] = map[string]any{"unschedulable": nil}
	}
	return patch
}
