package drain

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Rehearsal is what came of an eviction that was only rehearsed.
type Rehearsal struct {
	// Pod is "namespace/name" of the pod; empty if none on the node would have to go.
	Pod string
	// HeldBy is the disruption budget that would hold the pod back now; empty if none would.
	HeldBy string
}

// Rehearse asks the API server to evict one of the node's pods, as a dry run: it says what it would do, admission
// included, and does nothing. It asks once.
func (n *Node) Rehearse(ctx context.Context) (Rehearsal, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	list, err := n.listPods(ctx, metav1.ListOptions{})
	if err != nil {
		return Rehearsal{}, fmt.Errorf("listing the pods of node %q: %w", n.name, err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.DeletionTimestamp != nil || !n.opts.concerns(pod) {
			continue
		}
		rehearsed := Rehearsal{Pod: podName(pod)}
		err := n.end(ctx, Evicted, pod, &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}, attemptTimeout)
		if budget, held := heldBy(err); held {
			rehearsed.HeldBy, err = budget, nil
		}
		if err != nil {
			return rehearsed, fmt.Errorf("rehearsing the eviction of %s: %s", rehearsed.Pod, plain(err))
		}
		return rehearsed, nil
	}
	return Rehearsal{}, nil
}
