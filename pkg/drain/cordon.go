package drain

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Claim says whose cordon it is and why. It is the value of CordonAnnotation.
type Claim struct {
	Event  string    `json:"event"`
	Kind   string    `json:"kind"`
	BootID string    `json:"boot_id"`
	Since  time.Time `json:"since"`
	// Resumes is for a step that was begun before: when its event was met. A claim for that event which is not older was
	// written by the step itself. It is not part of the annotation.
	Resumes time.Time `json:"-"`
}

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
	// CordonLifted: somebody has lifted the cordon that we had set for this event. That is an order, and stands.
	CordonLifted CordonResult = "lifted"
	// CordonNone: the node is not cordoned, since there is none or since it was refused.
	CordonNone CordonResult = ""
)

// Ours tells whether the node bears something of ours to take off it when all is over: a cordon, or what is left of one.
func (r CordonResult) Ours() bool { return r == CordonSet || r == CordonOurs || r == CordonLifted }

// Cordon makes the node unschedulable and writes the claim on it, in one request. A cordon that is already there is
// left as it is. If the Node does not exist, the error satisfies apierrors.IsNotFound. Failures that may pass are
// retried until ctx ends.
func (n *Node) Cordon(ctx context.Context, claim Claim) (CordonResult, error) {
	found, err := n.cordon(ctx, claim)
	return found.result, err
}

// cordoning is what a cordon has come to.
type cordoning struct {
	result CordonResult
	only   bool      // people want nothing more than that
	since  time.Time // for CordonLifted: when we had set it
}

func (n *Node) cordon(ctx context.Context, claim Claim) (cordoning, error) {
	var found cordoning
	err := retry(ctx, func(ctx context.Context) error {
		node, err := n.get(ctx)
		if err != nil {
			return err
		}
		if found = standingCordon(node, claim); found.result != CordonNone {
			n.tidy(ctx, node, found.result)
			return nil
		}
		if err := n.patch(ctx, cordonPatch(claim)); err != nil {
			return err
		}
		found.result = CordonSet
		return nil
	})
	if err != nil {
		return cordoning{}, fmt.Errorf("cordoning node %q: %w", n.name, err)
	}
	return found, nil
}

// standingCordon says what a cordon with that claim comes to, or CordonNone if it is to be set.
func standingCordon(node *corev1.Node, claim Claim) cordoning {
	found := cordoning{only: onlyCordon(node)}
	before, ours := readClaim(node)
	switch {
	case leave(node):
		found.result = CordonLeft
	case !node.Spec.Unschedulable && ours && claim.resumes(before):
		found.result, found.since = CordonLifted, before.Since
	case !node.Spec.Unschedulable:
		// An annotation for another event is left over from a cordon that somebody lifted; a new one replaces it.
	case !setByOther(node) && claimed(node):
		found.result = CordonOurs
	default:
		found.result = CordonForeign
	}
	return found
}

// tidy takes our annotation off a node that others have cordoned: it is left over from a cordon of ours that they lifted
// before they set theirs. Nothing depends on it, so a failure has no consequence but that the annotation stays.
func (n *Node) tidy(ctx context.Context, node *corev1.Node, found CordonResult) {
	if found == CordonForeign && claimed(node) {
		_ = n.patch(ctx, map[string]any{"metadata": map[string]any{"annotations": map[string]any{CordonAnnotation: nil}}})
	}
}

// resumes tells whether a claim that is there was written by the step that now begins anew.
func (c Claim) resumes(before Claim) bool {
	return !c.Resumes.IsZero() && c.Event == before.Event && !before.Since.Before(c.Resumes)
}

func claimed(node *corev1.Node) bool {
	_, there := node.Annotations[CordonAnnotation]
	return there
}

// setByOther tells whether somebody else has made the node unschedulable, as the API server remembers it. Where our
// annotation is there all the same, it is left over from a cordon that they lifted before.
func setByOther(node *corev1.Node) bool {
	other := false
	for _, m := range node.ManagedFields {
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, set := fields.Spec["f:unschedulable"]; set {
			if m.Manager == fieldManager {
				return false
			}
			other = true
		}
	}
	return other
}

// reopened tells whether somebody has uncordoned the node in the midst of a drain. That is an order: what comes to the
// node since then was meant to, and evicting it would go on without end.
func (n *Node) reopened(ctx context.Context) bool {
	var node *corev1.Node
	err := retry(ctx, func(ctx context.Context) (err error) {
		node, err = n.get(ctx)
		return err
	})
	return err == nil && !node.Spec.Unschedulable
}

// Claim reads who holds the node's cordon. ok is false if it is not ours: no annotation, or one that cannot be read.
func (n *Node) Claim(ctx context.Context) (claim Claim, ok bool, err error) {
	node, err := n.get(ctx)
	if err != nil {
		return Claim{}, false, fmt.Errorf("reading node %q: %w", n.name, err)
	}
	claim, ok = readClaim(node)
	return claim, ok, nil
}

func readClaim(node *corev1.Node) (claim Claim, ok bool) {
	text, ours := node.Annotations[CordonAnnotation]
	if !ours || json.Unmarshal([]byte(text), &claim) != nil || claim.Event == "" {
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
	// UncordonNotOurs: there was nothing of ours to lift, or somebody had lifted it.
	UncordonNotOurs UncordonResult = "not-ours"
	// UncordonNodeGone: there is no such Node any more.
	UncordonNodeGone UncordonResult = "node-gone"
)

// Uncordon lifts the node's cordon if it is ours and nobody else needs it, and takes our keys off the node. With ready it
// first waits until the Node is Ready, before it lifts anything. Failures that may pass are retried until ctx ends.
func (n *Node) Uncordon(ctx context.Context, ready bool) (UncordonResult, error) {
	var result UncordonResult
	err := retry(ctx, func(ctx context.Context) error {
		node, err := n.get(ctx)
		if apierrors.IsNotFound(err) {
			result = UncordonNodeGone
			return nil
		}
		if err != nil {
			return err
		}
		if result = standingClaim(node); !claimed(node) {
			return nil
		}
		if ready && result.LeftTo() == "" && !isReady(node) {
			return errNotReady
		}
		return n.patch(ctx, uncordonPatch(node, result))
	})
	if err != nil {
		return "", fmt.Errorf("uncordoning node %q: %w", n.name, err)
	}
	return result, nil
}

// standingClaim says what an uncordon comes to.
func standingClaim(node *corev1.Node) UncordonResult {
	if !claimed(node) || !node.Spec.Unschedulable || setByOther(node) {
		return UncordonNotOurs
	}
	return cmp.Or(neededBy(node), UncordonLifted)
}

func isReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func cordonPatch(claim Claim) map[string]any {
	text, _ := json.Marshal(claim) //nolint:errchkjson // a struct of strings and a time always encodes
	return map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{CordonAnnotation: string(text)}},
		"spec":     map[string]any{"unschedulable": true},
	}
}

// uncordonPatch takes our keys off the node, and the cordon with them if that is ours to lift.
func uncordonPatch(node *corev1.Node, result UncordonResult) map[string]any {
	metadata := map[string]any{"annotations": map[string]any{CordonAnnotation: nil}}
	if node.Labels[ExcludeLabel] == ExcludeValue {
		metadata["labels"] = map[string]any{ExcludeLabel: nil}
	}
	patch := map[string]any{"metadata": metadata}
	if result == UncordonLifted {
		patch["spec"] = map[string]any{"unschedulable": nil}
	}
	return patch
}

// exclude takes the node out of load balancers' target sets. A label that is already there is somebody else's.
func (n *Node) exclude(ctx context.Context) (set bool, err error) {
	err = retry(ctx, func(ctx context.Context) error {
		node, err := n.get(ctx)
		if err != nil {
			return err
		}
		if _, there := node.Labels[ExcludeLabel]; there {
			return nil
		}
		set = true
		return n.patch(ctx, map[string]any{"metadata": map[string]any{"labels": map[string]any{ExcludeLabel: ExcludeValue}}})
	})
	if err != nil {
		return false, fmt.Errorf("excluding node %q from load balancers: %w", n.name, err)
	}
	return set, nil
}
