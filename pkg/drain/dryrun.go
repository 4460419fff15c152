package drain

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DryRun is a Node that is only looked at: its methods tell what would be done and write nothing.
type DryRun struct{ node *Node }

// NewDryRun returns the looked-at twin of a node.
func NewDryRun(n *Node) *DryRun { return &DryRun{node: n} }

// Cordon tells how the node would be cordoned.
func (d *DryRun) Cordon(ctx context.Context, claim Claim) (CordonResult, error) {
	found, err := d.look(ctx, claim)
	return found.result, err
}

// look reads how the node would be cordoned.
func (d *DryRun) look(ctx context.Context, claim Claim) (cordoning, error) {
	var found cordoning
	err := retry(ctx, func(ctx context.Context) error {
		node, err := d.node.get(ctx)
		if err != nil {
			return err
		}
		if found = standingCordon(node, claim); found.result == CordonNone {
			found.result = CordonSet
		}
		return nil
	})
	if err != nil {
		return cordoning{}, fmt.Errorf("reading node %q: %w", d.node.name, err)
	}
	return found, nil
}

// Drain tells which pods would be evicted. Left stays empty, as if all had gone.
func (d *DryRun) Drain(ctx context.Context, plan Plan) (Result, error) {
	tell := plan.Tell
	if tell == nil {
		tell = func(Progress) {}
	}
	cordon, err := d.look(ctx, plan.Claim)
	if apierrors.IsNotFound(err) {
		return Result{NodeGone: true}, nil
	}
	if err != nil {
		return Result{}, err
	}
	result := Result{Cordon: cordon.result}
	found := Progress{What: NodeCordoned, Detail: string(cordon.result)}
	switch cordon.result {
	case CordonForeign:
		found = Progress{What: NodeCordonFound}
	case CordonLeft:
		found = Progress{What: NodeLeft}
	case CordonLifted:
		found = Progress{What: NodeReopened}
	case CordonSet, CordonOurs, CordonNone:
	}
	tell(found)
	if result.Limited = cordon.only; cordon.only {
		return result, nil
	}
	pods, err := d.pods(ctx)
	if err != nil {
		return result, fmt.Errorf("listing the pods of node %q: %w", d.node.name, err)
	}
	_, deadline := ctx.Deadline()
	result.Skipped = len(pods)
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !d.node.opts.concerns(&p) || stays(&p, deadline) })
	result.Evicted, result.Skipped = len(pods), result.Skipped-len(pods)
	for i := range pods {
		evicted := aboutPod(Evicted, &pods[i])
		evicted.Total = len(pods)
		tell(evicted)
	}
	return result, nil
}

func (d *DryRun) pods(ctx context.Context) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	err := retry(ctx, func(ctx context.Context) error {
		list, err := d.node.listPods(ctx, metav1.ListOptions{})
		pods = list.Items
		return err
	})
	return pods, err
}

// Uncordon tells whether there is a cordon of ours to lift.
func (d *DryRun) Uncordon(ctx context.Context, _ bool) (UncordonResult, error) {
	var result UncordonResult
	err := retry(ctx, func(ctx context.Context) error {
		node, err := d.node.get(ctx)
		result = standingClaim(node)
		return err
	})
	switch {
	case apierrors.IsNotFound(err):
		return UncordonNodeGone, nil
	case err != nil:
		return "", fmt.Errorf("reading node %q: %w", d.node.name, err)
	}
	return result, nil
}

// Claim reads who holds the node's cordon.
func (d *DryRun) Claim(ctx context.Context) (Claim, bool, error) { return d.node.Claim(ctx) }
