package drain

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

// Claim says whose the cordon is and why. It is the value of CordonAnnotation.
type Claim struct {
	// Writer is the program that has set the cordon.
	Writer string `json:"writer,omitempty"`
	// Event is the ID of the event that comes first, and Kind its kind. Events are the IDs of all events for which the node was cordoned. They
	// have no meaning for this package.
	Event  string    `json:"event"`
	Kind   string    `json:"kind"`
	Events []string  `json:"events,omitempty"`
	BootID string    `json:"boot_id"`
	Since  time.Time `json:"since"`
	// UID is the UID of the Node from which the claim was read; empty for a claim that is still to be written. Stamp is when the claim was
	// written, by the API server's clock; zero if the Node does not say.
	UID   types.UID `json:"-"`
	Stamp time.Time `json:"-"`
}

// Names reports whether the cordon was set for an event.
func (c Claim) Names(event string) bool { return c.Event == event || slices.Contains(c.Events, event) }

// OfWriter reports whether a program may treat the claim as its own. It may if it has written the claim, or if the claim names no writer.
func (c Claim) OfWriter(writer string) bool { return c.Writer == writer || c.Writer == "" }

// CordonResult says how a node came to be cordoned.
type CordonResult string

// The ways in which a node can be found or made unschedulable.
const (
	// CordonSet: this guard has cordoned the node. CordonKept: the cordon is ours, and was there before this guard.
	CordonSet  CordonResult = "set"
	CordonKept CordonResult = "kept"
	// CordonForeign: somebody else has cordoned the node. That cordon is respected.
	CordonForeign CordonResult = "foreign"
	// CordonOptedOut: operators opted the node out with its ActionAnnotation.
	CordonOptedOut CordonResult = "opted-out"
	// Uncordoned: somebody uncordoned the node, and it is not cordoned again.
	Uncordoned CordonResult = "uncordoned"
	// CordonNone: the node is not cordoned yet, there is no Node, or the cordon was refused.
	CordonNone CordonResult = ""
)

// progress returns the Progress that reports how the node came to be cordoned.
func (r CordonResult) progress() Progress {
	switch r {
	case CordonForeign:
		return Progress{Kind: state.CordonFound}
	case CordonOptedOut:
		return Progress{Kind: state.NodeOptedOut}
	case Uncordoned:
		return Progress{Kind: state.NodeUncordoned}
	case CordonSet, CordonKept, CordonNone: // CordonNone comes only from a dry run, which would set the cordon.
	}
	return Progress{Kind: state.NodeCordoned, Detail: string(r)}
}

// view is the result of one look at the Node (Node.look).
type view struct {
	// err is why the Node could not be read or cordoned; uid is set if it was read. missing: there is no Node.
	err     error
	missing bool
	cordon  CordonResult
	uid     types.UID
	node    *corev1.Node // as the look has read or written it
	// claimIsOurs: our claim is on the Node. labeled: our label is. mayNotEvict: operators opted the node's pods out.
	claimIsOurs, labeled, mayNotEvict bool
	// uncordoned: somebody has uncordoned the Node since the look before. staysUncordoned: because of this uncordon, or an earlier one, the Node is
	// not cordoned again.
	uncordoned, staysUncordoned bool
	// cordonStamp is when the cordon was set, by the API server's clock. It is also known for a cordon of ours that somebody has taken off.
	// Zero if the Node does not say.
	cordonStamp time.Time
	// lacksLabel: ExcludeLabel is still to be set. labelErr is why the label could not be set or taken off.
	lacksLabel bool
	labelErr   error
}

// cordoned reports whether the node takes no pods, no matter who has cordoned it.
func (v view) cordoned() bool {
	return v.cordon == CordonSet || v.cordon == CordonKept || v.cordon == CordonForeign
}

// leavesLabel reports whether the look leaves it to the next one, which comes at once, to set the label or to take it off. So a cordon or an
// uncordon is reported first.
func (v view) leavesLabel() bool {
	return v.err == nil && v.labelErr == nil && (v.lacksLabel || v.uncordoned && v.labeled)
}

// memory is what a guard knows from earlier looks.
type memory struct {
	view view // the result of the last look
	// lookedIn is the last generation for which a look has read the Node. uncordonedIn is the last generation in which somebody has uncordoned
	// the Node.
	lookedIn, uncordonedIn int
}

// sawAnother reports whether a Node with another UID was seen before.
func (m memory) sawAnother(uid types.UID) bool { return m.view.uid != "" && m.view.uid != uid }

// staysUncordoned reports whether somebody has uncordoned the node, and no reason for the goal has joined since. Then it is not cordoned again.
func (m memory) staysUncordoned(goal Goal) bool {
	return !goal.Cordon || m.uncordonedIn == goal.Generation
}

// watched returns the Node as Options.Watched shows it, or as the last look left it if the watch is older than that. It returns nil if the Node
// is to be read: there is no such watch, or the last look failed.
func (n *Node) watched(last view) *corev1.Node {
	if n.opts.Watched == nil || last.err != nil || last.labelErr != nil {
		return nil
	}
	node := n.opts.Watched()
	if node == nil || last.node == nil { // The watch does not show the Node, or no look has read it yet.
		return node
	}
	order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, last.node.ResourceVersion)
	switch {
	case err != nil:
		return nil
	case order < 0: // The watch is older than the last look.
		return last.node
	}
	return node
}

// look makes one look: it reads the Node, cordons it if the goal asks for that and the Node is not cordoned, and sets ExcludeLabel or takes it off.
// before is what the guard knows from earlier looks. If the read fails, the view has only err; if the cordon fails, it also has what was read.
func (n *Node) look(ctx context.Context, goal Goal, before memory) view {
	node := n.watched(before.view)
	if node == nil {
		precedence := kube.First // The node may have to be cordoned.
		if before.view.cordoned() {
			precedence = kube.InTurn
		}
		var err error
		if node, err = n.get(ctx, precedence); err != nil {
			return view{err: err, missing: kube.NotFound(err)}
		}
	}
	if before.sawAnother(node.UID) {
		before = memory{} // It is about the Node before.
	}
	v := n.viewOf(node, goal, before)
	if v.cordon == CordonNone {
		goal.Claim.Writer = n.opts.Writer
		if node, v.err = n.patch(ctx, cordonPatch(node, goal.Claim), n.opts.Writer, kube.First, goal.patchTimeout()); v.err != nil {
			return v
		}
		v = n.viewOf(node, goal, before)
		v.cordon = CordonSet // by this look, whatever else is on the Node
		if !node.Spec.Unschedulable {
			v.cordon, v.err = CordonNone, errNoEffect
			return v
		}
	}
	newlyCordoned := v.cordoned() && !before.view.cordoned()
	if v.lacksLabel && !newlyCordoned { // Evictions do not wait for the label: see leavesLabel.
		if node, v.labelErr = n.setLabel(ctx, node, n.opts.Writer, goal.patchTimeout()); v.labelErr == nil {
			v.node, v.lacksLabel, v.labeled = node, false, true
		}
	}
	// If it takes pods, it should get traffic, even while a drain continues.
	if v.staysUncordoned && !v.uncordoned && v.labeled && !v.node.Spec.Unschedulable {
		if node, v.labelErr = n.setLabel(ctx, node, nil, goal.patchTimeout()); v.labelErr == nil {
			v.node, v.labeled = node, false
		}
	}
	return v
}

// viewOf returns the view of a Node that was read, compared with what the guard knows from earlier looks.
func (n *Node) viewOf(node *corev1.Node, goal Goal, before memory) view {
	v := view{
		uid: node.UID, node: node, mayNotEvict: MayNotEvict(node), claimIsOurs: n.claimIsOurs(node), labeled: n.hasLabel(node),
		uncordoned: n.wasUncordoned(node, cmp.Or(before.view.node, &corev1.Node{})),
	}
	v.staysUncordoned = v.uncordoned || before.staysUncordoned(goal)
	v.cordon = n.cordonOf(node, v, before.view)
	if node.Spec.Unschedulable || v.claimIsOurs { // There is a cordon, or our claim is left from a cordon that somebody has taken off.
		v.cordonStamp = n.cordonStamp(node)
	}
	_, anyLabel := node.Labels[ExcludeLabel]
	v.lacksLabel = n.opts.ExcludeFromLoadBalancers && v.cordoned() && !v.staysUncordoned && !v.mayNotEvict && !anyLabel
	return v
}

// errNoEffect counts as a refusal: a webhook or a proxy has made a patch one that does nothing.
var errNoEffect = &apierrors.StatusError{ErrStatus: metav1.Status{
	Code: http.StatusForbidden, Message: "the API server has accepted the patch, but the Node is not changed",
}}

// cordonOf says how the Node is cordoned. v is what else this look shows, and last is the last look. CordonNone means that the guard has to cordon the
// Node now.
func (n *Node) cordonOf(node *corev1.Node, v, last view) CordonResult {
	lastSawNoCordon := last.uid == node.UID && last.cordon == CordonNone && !last.missing
	switch {
	case MayNotCordon(node):
		return CordonOptedOut
	case node.Spec.Unschedulable && (!v.claimIsOurs || n.cordonedByOther(node)):
		return CordonForeign
	case node.Spec.Unschedulable && (last.cordon == CordonSet || lastSawNoCordon):
		return CordonSet // It was this guard, even if the answer to its patch was lost.
	case node.Spec.Unschedulable:
		return CordonKept
	case v.staysUncordoned:
		return Uncordoned
	}
	return CordonNone
}

// wasUncordoned reports whether somebody has uncordoned the Node since the last look. That is so if the Node is schedulable now, and was not then. It
// is also so if the Node has a new claim: it was cordoned and uncordoned in between. It is not so if a program has taken off its own cordon: that
// program has removed its claim, too. last is the Node of the last look; empty for the first one. Then any claim is new: its cordon was taken off
// while no guard looked.
func (n *Node) wasUncordoned(node, last *corev1.Node) bool {
	autoscalerGaveUp := autoscaled(last) && !autoscaled(node) // Then it has taken off any cordon.
	if node.Spec.Unschedulable || autoscalerGaveUp {
		return false
	}
	claim := node.Annotations[CordonAnnotation]
	newClaim := claim != "" && claim != last.Annotations[CordonAnnotation]
	byItsWriter := claim == "" && hasClaim(last) && !n.claimIsOurs(last)
	return newClaim || last.Spec.Unschedulable && !byItsWriter
}

// setLabel sets ExcludeLabel to the writer, or takes it off if value is nil, and returns the changed Node.
func (n *Node) setLabel(ctx context.Context, seen *corev1.Node, value any, timeout time.Duration) (*corev1.Node, error) {
	metadata := asSeen(seen)
	metadata["labels"] = map[string]any{ExcludeLabel: value}
	node, err := n.patch(ctx, map[string]any{"metadata": metadata}, n.labelManager(), kube.InTurn, timeout)
	if err == nil && n.hasLabel(node) != (value != nil) {
		err = errNoEffect
	}
	return node, err
}

// hasLabel reports whether our label is on the Node.
func (n *Node) hasLabel(node *corev1.Node) bool { return node.Labels[ExcludeLabel] == n.opts.Writer }

// hasClaim reports whether there is a claim on the Node, no matter who wrote it.
func hasClaim(node *corev1.Node) bool {
	_, claimed := node.Annotations[CordonAnnotation]
	return claimed
}

// claimIsOurs reports whether there is a claim on the Node, and it is ours. A claim that cannot be parsed names no writer, so it counts as ours.
func (n *Node) claimIsOurs(node *corev1.Node) bool {
	claim, _ := parseClaim(node.Annotations[CordonAnnotation])
	return hasClaim(node) && claim.OfWriter(n.opts.Writer)
}

// cordonedByOther reports whether somebody else has made the node unschedulable, by its managed fields. Our claim may still be on the Node: it is left
// over from a cordon of ours that was taken off. Without managed fields, cordonedByOther is false.
func (n *Node) cordonedByOther(node *corev1.Node) bool {
	by, found := n.cordonedBy(node)
	return found && by.Manager != n.opts.Writer
}

// cordonedBy returns the managed fields of the manager that has made the node unschedulable. If several have, this writer comes first. found is
// false if no manager is known to have.
func (n *Node) cordonedBy(node *corev1.Node) (by metav1.ManagedFieldsEntry, found bool) {
	for _, m := range CordonedBy(node) {
		if !found || by.Manager != n.opts.Writer {
			by, found = m, true
		}
	}
	return by, found
}

// CordonedBy returns the managed fields of those who have made a Node unschedulable, reduced to that field.
func CordonedBy(node *corev1.Node) (all []metav1.ManagedFieldsEntry) {
	for _, m := range node.ManagedFields {
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if m.Manager == kube.Forgotten || m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
			continue // The entry does not say who set the field.
		}
		if _, set := fields.Spec["f:unschedulable"]; set {
			m.FieldsV1 = metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)
			all = append(all, m)
		}
	}
	return all
}

// cordonStamp returns when the node was cordoned, by the API server's clock, from its managed fields. If our cordon was taken off, but our claim is
// still there, it returns when the claim was written. Only Host can know the latter: under its own name it writes nothing but the cordon and the
// claim, while nth-queue writes all its keys under the name of its claim. It is zero if the managed fields do not say.
func (n *Node) cordonStamp(node *corev1.Node) time.Time {
	by, found := n.cordonedBy(node)
	if !found && n.opts.Writer == Host {
		for _, m := range node.ManagedFields {
			if m.Manager == Host && m.Subresource == "" { // It has written the claim.
				by = m
			}
		}
	}
	if by.Time == nil {
		return time.Time{}
	}
	return by.Time.Time
}

// MayNotCordon reports whether operators opted the node out, even of a cordon (ActionAnnotation).
func MayNotCordon(node *corev1.Node) bool {
	action := node.Annotations[ActionAnnotation]
	return action == LeaveNode || action == OnlyNotify
}

// MayNotEvict reports whether operators opted the node's pods out (ActionAnnotation).
func MayNotEvict(node *corev1.Node) bool {
	action := node.Annotations[ActionAnnotation]
	return MayNotCordon(node) || action == OnlyCordon
}

// OnlyLabel is the event and the kind of a claim that Node.Claim has made up.
const OnlyLabel = "label"

// Claim reads the Node, and returns the claim on it. ok is true if something on the Node is to be taken back by this writer: the claim is its
// own, or only ExcludeLabel is. In the latter case, the claim returned is made up, for the event OnlyLabel. ok is false if neither is. A claim that
// cannot be parsed is not returned, as it names no event, but Uncordon removes it. A Node that does not exist is an error.
func (n *Node) Claim(ctx context.Context) (claim Claim, ok bool, err error) {
	node, err := n.get(ctx, kube.InTurn)
	if err != nil {
		return Claim{}, false, fmt.Errorf("reading node %q: %w", n.name, err)
	}
	claim, valid := parseClaim(node.Annotations[CordonAnnotation])
	switch {
	case valid && claim.OfWriter(n.opts.Writer):
		claim.Stamp = n.cordonStamp(node)
	case n.hasLabel(node):
		claim = Claim{Writer: n.opts.Writer, Event: OnlyLabel, Kind: OnlyLabel, BootID: node.Status.NodeInfo.BootID, Since: time.Now().UTC()}
	default:
		return Claim{}, false, nil
	}
	claim.UID = node.UID
	return claim, true, nil
}

// parseClaim parses the value of CordonAnnotation, no matter who wrote it. ok is false if the value is not a claim.
func parseClaim(text string) (claim Claim, ok bool) {
	if json.Unmarshal([]byte(text), &claim) != nil || claim.Event == "" {
		return Claim{}, false
	}
	return claim, true
}

// UncordonResult says what an uncordon found and did.
type UncordonResult string

// The outcomes of an uncordon. In another, LeftTo names a program.
const (
	// UncordonLifted: the node takes pods again.
	UncordonLifted UncordonResult = "lifted"
	// UncordonNotOurs: there was no cordon of ours to take off. UncordonedBefore: somebody else has uncordoned the node before.
	UncordonNotOurs  UncordonResult = "not-ours"
	UncordonedBefore UncordonResult = "opened"
	// UncordonNodeGone: there is no such Node any more.
	UncordonNodeGone UncordonResult = "node-gone"
)

// Booted reports whether a boot ID is that of the present boot. The kubelet reports the boot ID in the Node's status, together with Ready.
type Booted func(bootID string) bool

// Uncordon removes what this writer has set on the node: the cordon, if nobody else needs it, the annotation and the label. It first waits until
// the kubelet of a boot for which booted returns true has reported the Node Ready; if booted is nil, it does not wait. Failures that may pass
// are retried for uncordonTime, or until ctx ends.
func (n *Node) Uncordon(ctx context.Context, booted Booted) (UncordonResult, error) {
	const write = true
	return n.uncordon(ctx, booted, write)
}

// uncordonTime is how long an uncordon is tried before the caller gets the error, and can report it: longer than a kubelet needs after a boot.
const uncordonTime = 2 * time.Minute

// uncordon is Uncordon. Without write, it changes nothing.
func (n *Node) uncordon(ctx context.Context, booted Booted, write bool) (result UncordonResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, uncordonTime)
	defer cancel()
	err = kube.Retry(ctx, func(ctx context.Context) error {
		node, err := n.get(ctx, kube.InTurn)
		if kube.NotFound(err) {
			result = UncordonNodeGone
			return nil
		}
		if err != nil {
			return err
		}
		found := n.uncordonOf(node)
		patch := n.uncordonPatch(node, found)
		if patch == nil { // Nothing of ours is on the Node, perhaps since an attempt whose answer was lost.
			result = cmp.Or(result, found)
			return nil
		}
		if result = found; !write {
			return nil
		}
		// If the cordon is left to another program, no pod comes, and the node that it removes may never be Ready.
		if booted != nil && result.LeftTo() == "" && !isReady(node, booted) {
			return errNotReady
		}
		node, err = n.patch(ctx, patch, n.opts.Writer, kube.InTurn, kube.Write)
		if err == nil && result == UncordonLifted && node.Spec.Unschedulable {
			err = errNoEffect
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("cannot uncordon node %q: %w", n.name, err)
	}
	return result, nil
}

var errNotReady = kube.NotYet{Text: "the node must become Ready first", Pause: lookEvery}

// uncordonOf says what an uncordon of this Node does, without doing it.
func (n *Node) uncordonOf(node *corev1.Node) UncordonResult {
	switch ours := n.claimIsOurs(node); {
	case ours && !node.Spec.Unschedulable: // Our claim is left without its cordon.
		return UncordonedBefore
	case !ours || n.cordonedByOther(node):
		return UncordonNotOurs
	}
	if other := neededBy(node); other != "" {
		return UncordonResult(leftTo + other)
	}
	return UncordonLifted
}

// isReady reports whether the kubelet of the present boot has reported the Node Ready. After a quick reboot, the Node still has the conditions
// from before; only the boot ID shows that. If the kubelet reports no boot ID, as a simulated kubelet may, any boot counts.
func isReady(node *corev1.Node, booted Booted) bool {
	id := node.Status.NodeInfo.BootID
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && (id == "" || booted(id))
	})
}

// asSeen returns the metadata of a patch that applies only to the version of the Node that was read, as others may write the same keys. If the
// Node has changed since, the API server answers with a conflict.
func asSeen(node *corev1.Node) map[string]any {
	return map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion}
}

// cordonPatch returns the patch that cordons a Node, and says on it for which events.
func cordonPatch(seen *corev1.Node, claim Claim) map[string]any {
	text, _ := json.Marshal(claim) // a struct of strings and a time always encodes
	metadata := asSeen(seen)
	metadata["annotations"] = map[string]any{CordonAnnotation: string(text)}
	return map[string]any{"metadata": metadata, "spec": map[string]any{"unschedulable": true}}
}

// uncordonPatch returns the patch that removes our keys from the Node, and also the cordon if result is UncordonLifted. It returns nil if nothing
// on the Node is ours. In a merge patch, a key with nil is removed.
func (n *Node) uncordonPatch(node *corev1.Node, result UncordonResult) map[string]any {
	claimIsOurs, labeled := n.claimIsOurs(node), n.hasLabel(node)
	if !claimIsOurs && !labeled {
		return nil
	}
	metadata := asSeen(node)
	if claimIsOurs {
		metadata["annotations"] = map[string]any{CordonAnnotation: nil}
	}
	if labeled {
		metadata["labels"] = map[string]any{ExcludeLabel: nil}
	}
	spec := map[string]any{}
	if result == UncordonLifted {
		spec["unschedulable"] = nil
	}
	if own := n.opts.OwnTaint; claimIsOurs && own != nil && slices.ContainsFunc(node.Spec.Taints, own) {
		spec["taints"] = slices.DeleteFunc(slices.Clone(node.Spec.Taints), own)
	}
	return map[string]any{"metadata": metadata, "spec": spec}
}

// patchTimeout returns the time limit of a patch of the Node.
func (g Goal) patchTimeout() time.Duration {
	if g.Hard.IsZero() {
		return kube.Write
	}
	return kube.WriteLimit(time.Until(g.Hard))
}

// enter waits for a place at Options.Requests, the gate for requests for Nodes. The caller has to call leave afterwards. Reads and cordons of a
// node that is not cordoned yet have the precedence kube.First, so that nodes are cordoned soon.
func (n *Node) enter(ctx context.Context, precedence kube.Precedence) (leave func(), err error) {
	if urgent := n.opts.Urgent; urgent != nil && urgent() {
		precedence = kube.Urgent
	}
	return n.opts.Requests.Enter(ctx, precedence)
}

// get reads the Node once. A Node with another UID than Options.UID counts as not found.
func (n *Node) get(ctx context.Context, precedence kube.Precedence) (*corev1.Node, error) {
	leave, err := n.enter(ctx, precedence)
	if err != nil {
		return nil, err
	}
	defer leave()
	node := &corev1.Node{}
	err = kube.Attempt(ctx, func(ctx context.Context) error {
		return n.client.Get().Resource("nodes").Name(n.name).MaxRetries(0).Do(ctx).Into(node)
	})
	if err == nil && n.opts.UID != "" && node.UID != n.opts.UID {
		err = apierrors.NewNotFound(corev1.Resource("nodes"), n.name)
	}
	return node, err
}

// labelManager returns the name under which ExcludeLabel is written. The cordon is written under another: the API server keeps one time for each
// name, and the label must not change that of the cordon (cordonStamp).
func (n *Node) labelManager() string { return n.opts.Writer + "-label" }

// patch changes the Node under the name of a field manager, and returns the changed Node. Once the request is sent, the end of ctx does not
// cancel it: the API server might still carry it out, and nth would not know what is on the Node.
func (n *Node) patch(ctx context.Context, patch map[string]any, manager string, precedence kube.Precedence, timeout time.Duration) (*corev1.Node, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encoding the patch of node %q: %w", n.name, err)
	}
	leave, err := n.enter(ctx, precedence)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := ctx.Err(); err != nil { // The request is not sent yet, so it need not be.
		return nil, err
	}
	ctx, cancel := kube.Outlasting(ctx, timeout)
	defer cancel()
	node := &corev1.Node{}
	err = n.client.Patch(types.MergePatchType).Resource("nodes").Name(n.name).
		VersionedParams(&metav1.PatchOptions{FieldManager: manager}, scheme.ParameterCodec).
		Body(body).MaxRetries(0).Do(ctx).Into(node)
	return node, err
}
