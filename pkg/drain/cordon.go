package drain

import (
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
	// CordonNone: the node is not cordoned, since there is none or since it was refused.
	CordonNone CordonResult = ""
)

// Ours tells whether the node bears a cordon that is ours to lift.
func (r CordonResult) Ours() bool { return r == CordonSet || r == CordonOurs }

// Cordon makes the node unschedulable and writes the claim on it, in one request. A cordon that is already there is
// left as it is. If the Node does not exist, the error satisfies apierrors.IsNotFound. Failures that may pass are
// retried until ctx ends.
func (n *Node) Cordon(ctx context.Context, claim Claim) (CordonResult, error) {
	result, _, err := n.cordon(ctx, claim)
	return result, err
}

// cordon is Cordon, and tells besides whether people want nothing more than that.
func (n *Node) cordon(ctx context.Context, claim Claim) (result CordonResult, only bool, err error) {
	err = retry(ctx, func(ctx context.Context) error {
		node, err := n.get(ctx)
		if err != nil {
			return err
		}
		only = onlyCordon(node)
		if result = standingCordon(node); result != CordonNone {
			return nil
		}
		if err := n.patch(ctx, cordonPatch(claim)); err != nil {
			return err
		}
		result = CordonSet
		return nil
	})
	if err != nil {
		return CordonNone, false, fmt.Errorf("cordoning node %q: %w", n.name, err)
	}
	return result, only, nil
}

func standingCordon(node *corev1.Node) CordonResult {
	_, ours := node.Annotations[CordonAnnotation]
	switch {
	case leave(node):
		return CordonLeft
	case !node.Spec.Unschedulable:
		// Our annotation alone is left over from a cordon that somebody lifted; a new one replaces it.
		return CordonNone
	case ours:
		return CordonOurs
	}
	return CordonForeign
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

// Uncordon lifts the node's cordon if it is ours, and takes our keys off the node. With ready it first waits until the
// Node is Ready. Failures that may pass are retried until ctx ends.
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
		var ours bool
		if result, ours = standingClaim(node); !ours {
			return nil
		}
		if ready && !isReady(node) {
			return errNotReady
		}
		return n.patch(ctx, uncordonPatch(node))
	})
	if err != nil {
		return "", fmt.Errorf("uncordoning node %q: %w", n.name, err)
	}
	return result, nil
}

// standingClaim says what an uncordon comes to, and whether there is anything of ours to take off the node.
func standingClaim(node *corev1.Node) (result UncordonResult, ours bool) {
	_, ours = node.Annotations[CordonAnnotation]
	if ours && node.Spec.Unschedulable {
		return UncordonLifted, true
	}
	return UncordonNotOurs, ours
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

func uncordonPatch(node *corev1.Node) map[string]any {
	metadata := map[string]any{"annotations": map[string]any{CordonAnnotation: nil}}
	if node.Labels[ExcludeLabel] == ExcludeValue {
		metadata["labels"] = map[string]any{ExcludeLabel: nil}
	}
	return map[string]any{"metadata": metadata, "spec": map[string]any{"unschedulable": nil}}
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
