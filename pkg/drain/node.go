package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

// Claim says whose the cordon is and why. It is the value of CordonAnnotation.
type Claim struct {
	// Writer is the program that has set the cordon.
	Writer string `json:"writer,omitempty"`
	// Event is the ID of the event that comes first, and Kind its kind. Events are the IDs of all events for which the node was closed. This
	// package only writes them down.
	Event  string    `json:"event"`
	Kind   string    `json:"kind"`
	Events []string  `json:"events,omitempty"`
	BootID string    `json:"boot_id"`
	Since  time.Time `json:"since"`
	// UID is that of the Node on which the claim was read; empty otherwise. Stamp is when the claim was written, by the API server's clock; zero
	// if the Node does not say.
	UID   types.UID `json:"-"`
	Stamp time.Time `json:"-"`
}

// Names reports whether the cordon was set for an event.
func (c Claim) Names(event string) bool { return c.Event == event || slices.Contains(c.Events, event) }

// OfWriter reports whether a program has written the claim. A claim without a writer is from an early version, and belongs to any program that
// knows its event.
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
	// CordonLifted: someone uncordoned the node, and it stays open.
	CordonLifted CordonResult = "lifted"
	// CordonNone: the node is not cordoned, since there is none or since it was refused.
	CordonNone CordonResult = ""
)

// progress returns the Progress that reports how the node came to be cordoned.
func (r CordonResult) progress() Progress {
	switch r {
	case CordonForeign:
		return Progress{Kind: state.NodeFoundClosed}
	case CordonLeft:
		return Progress{Kind: state.NodeOptedOut}
	case CordonLifted:
		return Progress{Kind: state.NodeReopened}
	case CordonSet, CordonOurs, CordonNone: // None only in a dry run, which reports that it would set the cordon.
	}
	return Progress{Kind: state.NodeClosed, Detail: string(r)}
}

// view is the result of one look at the Node (Node.close).
type view struct {
	// err is why the Node could not be read or cordoned, and missing that there is none. If it was read, but not cordoned, uid is set.
	err     error
	missing bool
	cordon  CordonResult
	uid     types.UID
	version string
	// unschedulable is the Node's, also if it is to be left alone. foreignClaim: the cordon is another program's, which may
	// lift it.
	unschedulable, foreignClaim bool
	// autoscaled: Cluster Autoscaler is removing the Node.
	autoscaled bool
	// ours: our claim or our label is on it. labeled: our label is. limited: operators want its pods left alone.
	ours, labeled, limited bool
	// reopened: somebody has uncordoned it since the look before. claim is what the annotation says. open: it stays open
	// because of this uncordon, or an earlier one.
	reopened, open bool
	claim          string
	// cordonStamp is when the cordon was set, or ours that somebody has lifted, by the API server's clock; zero if the Node does not say.
	cordonStamp time.Time
	// wrongLabel: ExcludeLabel is to be set or taken off yet. labelErr is why that has failed.
	wrongLabel bool
	labelErr   error
}

// closed reports whether the node takes no pods.
func (v view) closed() bool {
	return v.cordon == CordonSet || v.cordon == CordonOurs || v.cordon == CordonForeign
}

// memory is what a guard knows from earlier looks.
type memory struct {
	view view
	// lookedIn is the last generation in which a look has been answered, and uncordonedIn the last one in which somebody had uncordoned the
	// node.
	lookedIn, uncordonedIn int
}

// anotherThan reports whether a Node with another UID was seen before.
func (m memory) anotherThan(uid types.UID) bool { return m.view.uid != "" && m.view.uid != uid }

// staysOpen reports whether somebody has uncordoned the node for all reasons of a goal.
func (m memory) staysOpen(goal Goal) bool { return !goal.Close || m.uncordonedIn == goal.Generation }

// watched returns the Node as Options.Watched shows it; nil if it is to be read: what the watch shows may be older than the last look, or that
// failed to write.
func (n *Node) watched(last view) *corev1.Node {
	if n.opts.Watched == nil || last.err != nil || last.labelErr != nil {
		return nil
	}
	node := n.opts.Watched()
	if node == nil || last.version == "" {
		return node
	}
	if order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, last.version); err != nil || order < 0 {
		return nil
	}
	return node
}

// close makes one look: it reads the Node, and cordons it if the goal asks for that and the Node is not cordoned. If it need not be cordoned, its
// label is brought up to date. before is what the guard knows from earlier looks. If the cordon fails, the view has err and the Node's uid; if
// the read fails, err alone.
func (n *Node) close(ctx context.Context, goal Goal, before memory) view {
	precedence := kube.First
	if before.view.closed() {
		precedence = kube.InTurn
	}
	node := n.watched(before.view)
	if node == nil {
		var err error
		if node, err = n.get(ctx, precedence); err != nil {
			return view{err: err, missing: kube.NotFound(err)}
		}
	}
	if before.anotherThan(node.UID) {
		before.view, before.uncordonedIn = view{}, 0 // What operators wanted was about the Node before.
	}
	reopened := n.reopened(node, before.view)
	v := n.viewOf(node, n.cordonOf(node, goal, before, reopened))
	v.reopened, v.open = reopened, reopened || before.staysOpen(goal)
	if v.cordon == CordonNone {
		goal.Claim.Writer = n.opts.Writer
		var err error
		node, err = n.patch(ctx, cordonPatch(node, goal.Claim), n.opts.Writer, kube.First, goal.patchTimeout())
		if apierrors.IsInvalid(err) {
			err = errAnotherNode // The API server says that a UID cannot be changed. The next look reads the new Node.
		}
		if err != nil {
			v.err = err
			return v
		}
		v = n.viewOf(node, CordonSet)
	}
	patch := n.labelPatch(node, v)
	v.wrongLabel = patch != nil
	if patch == nil || v.closed() && !before.view.closed() { // In the latter case the next look sets it, so that it delays no eviction.
		return v
	}
	if node, v.labelErr = n.patch(ctx, patch, n.labelManager(), kube.InTurn, goal.patchTimeout()); v.labelErr == nil {
		v.version, v.wrongLabel, v.labeled = node.ResourceVersion, false, !v.labeled
		v.ours = v.ours || v.labeled
	}
	return v
}

// viewOf returns the view of a Node that was read and found cordoned like that.
func (n *Node) viewOf(node *corev1.Node, found CordonResult) view {
	v := view{
		cordon: found, uid: node.UID, version: node.ResourceVersion, limited: mayNotEvict(node), unschedulable: node.Spec.Unschedulable,
		autoscaled: autoscaled(node), claim: node.Annotations[CordonAnnotation],
	}
	mine := n.isMine(node)
	v.foreignClaim = v.unschedulable && hasClaim(node) && !mine
	if v.unschedulable || mine {
		v.cordonStamp = n.cordonStamp(node)
	}
	v.labeled = node.Labels[ExcludeLabel] == n.opts.Writer
	v.ours = mine || v.labeled
	return v
}

var errAnotherNode = errors.New("there is another Node of that name now")

// cordonOf says how the Node is cordoned; CordonNone means that the guard has to cordon it now. A node that somebody has uncordoned is cordoned
// again only when a further reason has joined the goal (Goal.Generation). reopened is the result of n.reopened for this Node.
func (n *Node) cordonOf(node *corev1.Node, goal Goal, before memory, reopened bool) CordonResult {
	switch {
	case MayNotCordon(node):
		return CordonLeft
	case node.Spec.Unschedulable && n.isMine(node) && !n.setByOther(node):
		return CordonOurs
	case node.Spec.Unschedulable:
		return CordonForeign
	case reopened || before.staysOpen(goal):
		return CordonLifted
	}
	return CordonNone
}

// reopened reports whether somebody has uncordoned the Node since the last look. That is so if it is schedulable, and was not then. It is also so
// if it has a claim that it had not then: it was cordoned and uncordoned in between. A program that lifts its own cordon removes its claim, too.
func (n *Node) reopened(node *corev1.Node, before view) bool {
	if node.Spec.Unschedulable || before.autoscaled && !autoscaled(node) {
		return false // In the latter case Cluster Autoscaler has given up, and lifted any cordon.
	}
	claim := node.Annotations[CordonAnnotation]
	liftedByWriter := before.foreignClaim && claim == ""
	return before.unschedulable && !liftedByWriter || claim != before.claim && claim != ""
}

// labelPatch returns the patch that sets ExcludeLabel on a cordoned Node, if it has none, or takes ours off one that an operator has uncordoned
// (view.open); nil if neither is called for.
func (n *Node) labelPatch(node *corev1.Node, v view) map[string]any {
	_, labeled := node.Labels[ExcludeLabel]
	metadata := asSeen(node)
	switch {
	case v.closed() && n.opts.ExcludeFromLoadBalancers && !labeled && !v.limited && !v.open:
		metadata["labels"] = map[string]any{ExcludeLabel: n.opts.Writer}
	case v.open && !v.unschedulable && v.labeled: // The node takes pods, so it should get traffic.
		metadata["labels"] = map[string]any{ExcludeLabel: nil}
		delete(metadata, "resourceVersion") // The guard may end before another look.
	default:
		return nil
	}
	return map[string]any{"metadata": metadata}
}

// hasClaim reports whether there is a claim on the Node, no matter who wrote it.
func hasClaim(node *corev1.Node) bool {
	_, claimed := node.Annotations[CordonAnnotation]
	return claimed
}

// isMine reports whether the claim on the Node is this writer's. A claim that cannot be parsed counts as one without a writer.
func (n *Node) isMine(node *corev1.Node) bool {
	claim, _ := readClaim(node)
	return hasClaim(node) && claim.OfWriter(n.opts.Writer)
}

// setByOther reports whether somebody else has made the node unschedulable, by its managed fields. Our annotation may be on the Node as well:
// then it is left over from a cordon of ours that they lifted before. Without managed fields, it is false.
func (n *Node) setByOther(node *corev1.Node) bool {
	by, found := n.closedBy(node)
	return found && !n.writes(by.Manager)
}

// writes reports whether a field manager is nth on this machine, or this writer.
func (n *Node) writes(manager string) bool { return manager == Host || manager == n.opts.Writer }

// closedBy returns the managed fields of the one who has made the node unschedulable; ours if we have set the same. found is false if nobody is
// known to have.
func (n *Node) closedBy(node *corev1.Node) (by metav1.ManagedFieldsEntry, found bool) {
	for _, m := range ClosedBy(node) {
		if !found || !n.writes(by.Manager) {
			by, found = m, true
		}
	}
	return by, found
}

// ClosedBy returns the managed fields of those who have made a Node unschedulable, reduced to that field.
func ClosedBy(node *corev1.Node) (all []metav1.ManagedFieldsEntry) {
	for _, m := range node.ManagedFields {
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if m.Manager == kube.Forgotten || m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
			continue // It says nothing.
		}
		if _, set := fields.Spec["f:unschedulable"]; set {
			m.FieldsV1 = metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)
			all = append(all, m)
		}
	}
	return all
}

// cordonStamp is when the node was cordoned, by the API server's clock. If it is schedulable, that is when our claim was last written that is
// left on it. The managed fields say that, with the last write of each manager; zero if they do not. Only Host has another manager for its
// other keys (labelManager), so on a schedulable node only its time counts.
func (n *Node) cordonStamp(node *corev1.Node) time.Time {
	by, found := n.closedBy(node)
	for _, m := range node.ManagedFields {
		if !found && m.Manager == Host && n.opts.Writer == Host && m.Subresource == "" {
			by = m
		}
	}
	if by.Time == nil {
		return time.Time{}
	}
	return by.Time.Time
}

// MayNotCordon reports whether operators want nothing done to the node, not even a cordon (ActionAnnotation).
func MayNotCordon(node *corev1.Node) bool {
	action := node.Annotations[ActionAnnotation]
	return action == LeaveNode || action == OnlyNotify
}

// mayNotEvict reports whether operators want the node's pods left alone (ActionAnnotation).
func mayNotEvict(node *corev1.Node) bool {
	action := node.Annotations[ActionAnnotation]
	return MayNotCordon(node) || action == OnlyCordon
}

// Claim reads the claim on the node's cordon. ok is false if it is not this writer's: there is no annotation, it cannot be parsed, or it is
// another program's. With another program's cordon, ExcludeLabel may still be this writer's. Then ok is true, and the claim returned is for
// the event "label", so that the label is taken back. A Node that does not exist is an error.
func (n *Node) Claim(ctx context.Context) (claim Claim, ok bool, err error) {
	node, err := n.get(ctx, kube.InTurn)
	if err != nil {
		return Claim{}, false, fmt.Errorf("reading node %q: %w", n.name, err)
	}
	claim, ok = readClaim(node)
	claim.UID, claim.Stamp = node.UID, n.cordonStamp(node)
	if mine := ok && claim.OfWriter(n.opts.Writer); mine || node.Labels[ExcludeLabel] != n.opts.Writer {
		return claim, mine, nil
	}
	const label = "label"
	return Claim{Writer: n.opts.Writer, Event: label, Kind: label, BootID: node.Status.NodeInfo.BootID, Since: time.Now().UTC(), UID: node.UID}, true, nil
}

// readClaim returns the claim on a Node, no matter who wrote it. ok is false if there is no valid one.
func readClaim(node *corev1.Node) (claim Claim, ok bool) {
	return parseClaim(node.Annotations[CordonAnnotation])
}

// parseClaim parses the value of CordonAnnotation.
func parseClaim(text string) (claim Claim, ok bool) {
	if json.Unmarshal([]byte(text), &claim) != nil || claim.Event == "" {
		return Claim{}, false
	}
	return claim, true
}

// UncordonResult says what an uncordon found and did.
type UncordonResult string

// The outcomes of an uncordon, apart from UncordonLeft.
const (
	// UncordonLifted: the node takes pods again.
	UncordonLifted UncordonResult = "lifted"
	// UncordonNotOurs: there was no cordon of ours to lift. UncordonOpened: there had been one, and somebody else has lifted it.
	UncordonNotOurs UncordonResult = "not-ours"
	UncordonOpened  UncordonResult = "opened"
	// UncordonNodeGone: there is no such Node any more.
	UncordonNodeGone UncordonResult = "node-gone"
)

// Booted reports whether a kubelet that has reported the Node Ready, with that boot ID, is the one of this boot.
type Booted func(bootID string) bool

// Uncordon removes what this writer has set on the node: the cordon, if nobody else needs it, the annotation and the label. If booted is not
// nil, it first waits until the Node is reported Ready by a kubelet for which booted returns true. Failures that may pass are retried until
// ctx ends.
func (n *Node) Uncordon(ctx context.Context, booted Booted) (UncordonResult, error) {
	const write = true
	return n.uncordon(ctx, booted, write)
}

// uncordon is Uncordon. Without write, it changes nothing.
func (n *Node) uncordon(ctx context.Context, booted Booted, write bool) (result UncordonResult, err error) {
	err = kube.Retry(ctx, func(ctx context.Context) error {
		node, err := n.get(ctx, kube.InTurn)
		if kube.NotFound(err) {
			result = UncordonNodeGone
			return nil
		}
		if err != nil {
			return err
		}
		result = n.uncordonOf(node)
		patch := n.uncordonPatch(node, result)
		if patch == nil || !write {
			return nil
		}
		if booted != nil && result.LeftTo() == "" && !isReady(node, booted) {
			return errNotReady
		}
		_, err = n.patch(ctx, patch, n.opts.Writer, kube.First, kube.Write)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("uncordoning node %q: %w", n.name, err)
	}
	return result, nil
}

var errNotReady = kube.NotYet{Text: "the node is not Ready yet", Pause: lookEvery}

// uncordonOf says what an uncordon of this Node does, without doing it.
func (n *Node) uncordonOf(node *corev1.Node) UncordonResult {
	switch mine := n.isMine(node); {
	case mine && !node.Spec.Unschedulable: // Our claim is still there, but the cordon is not.
		return UncordonOpened
	case !mine || n.setByOther(node):
		return UncordonNotOurs
	}
	if other := neededBy(node); other != "" {
		return UncordonLeft(other)
	}
	return UncordonLifted
}

// isReady reports whether the kubelet of the right boot has reported the Node Ready. After a quick reboot the Node still has the conditions
// that were reported before. A kubelet that reports no boot ID, as a simulated one may, is believed.
func isReady(node *corev1.Node, booted Booted) bool {
	id := node.Status.NodeInfo.BootID
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && (id == "" || booted(id))
	})
}

// asSeen is the metadata of a patch that applies only to the Node in the version that was read, as others may write the same keys.
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

// uncordonPatch removes those of our keys that are on the node, and the cordon if that is ours to lift; nil if there is nothing of ours.
func (n *Node) uncordonPatch(node *corev1.Node, result UncordonResult) map[string]any {
	mine := n.isMine(node)
	labeled := node.Labels[ExcludeLabel] == n.opts.Writer
	if !mine && !labeled {
		return nil
	}
	metadata := asSeen(node)
	if mine {
		metadata["annotations"] = map[string]any{CordonAnnotation: nil}
	}
	if labeled {
		metadata["labels"] = map[string]any{ExcludeLabel: nil}
	}
	spec := map[string]any{}
	if result == UncordonLifted {
		spec["unschedulable"] = nil
	}
	if own := n.opts.OwnTaint; mine && own != nil && slices.ContainsFunc(node.Spec.Taints, own) {
		spec["taints"] = slices.DeleteFunc(slices.Clone(node.Spec.Taints), own)
	}
	return map[string]any{"metadata": metadata, "spec": spec}
}

// patchTimeout bounds a patch of the Node.
func (g Goal) patchTimeout() time.Duration {
	if g.Hard.IsZero() {
		return kube.Write
	}
	return kube.WriteLimit(time.Until(g.Hard))
}

func (n *Node) rest() rest.Interface { return n.client.CoreV1().RESTClient() }

// enter waits for a place at Options.Requests, the gate for requests for Nodes. The caller has to call leave afterwards. The requests
// that close a node are First, so that a node is closed soon after it was first read.
func (n *Node) enter(ctx context.Context, precedence kube.Precedence) (leave func(), err error) {
	if urgent := n.opts.Urgent; urgent != nil && urgent() {
		precedence = kube.Urgent
	}
	return n.opts.Requests.Enter(ctx, precedence)
}

// get reads the Node once; precedence is as in enter. A Node with another UID than Options.UID counts as not found.
func (n *Node) get(ctx context.Context, precedence kube.Precedence) (*corev1.Node, error) {
	leave, err := n.enter(ctx, precedence)
	if err != nil {
		return nil, err
	}
	defer leave()
	node := &corev1.Node{}
	err = kube.Attempt(ctx, func(ctx context.Context) error {
		return n.rest().Get().Resource("nodes").Name(n.name).MaxRetries(0).Do(ctx).Into(node)
	})
	if err == nil && n.opts.UID != "" && node.UID != n.opts.UID {
		err = apierrors.NewNotFound(corev1.Resource("nodes"), n.name)
	}
	return node, err
}

// labelManager is the field manager of our other keys on a Node: to write them must not move the time that the API server has noted for the
// cordon (cordonStamp).
func (n *Node) labelManager() string { return n.opts.Writer + "-label" }

// patch changes the Node under the name of a field manager, and returns it after that. A request that was begun is not canceled with ctx: the API
// server might still carry it out, and a later uncordon, which has to see it, would be taken for an operator's.
func (n *Node) patch(ctx context.Context, patch map[string]any, manager string, precedence kube.Precedence, timeout time.Duration) (*corev1.Node, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encoding patch: %w", err)
	}
	leave, err := n.enter(ctx, precedence)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := ctx.Err(); err != nil { // It has not begun, so it need not be made.
		return nil, err
	}
	ctx, cancel := kube.Outlasting(ctx, timeout)
	defer cancel()
	node := &corev1.Node{}
	err = n.rest().Patch(types.MergePatchType).Resource("nodes").Name(n.name).
		VersionedParams(&metav1.PatchOptions{FieldManager: manager}, scheme.ParameterCodec).
		Body(body).MaxRetries(0).Do(ctx).Into(node)
	return node, err
}
