package drain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Forecast is how a drain of a node would come along if it began now, if each pod took all of the grace that it gets, and no disruption
// budget held any.
type Forecast struct {
	// Pods counts those that would have to go, and Needs is how long that would take, from the notice on.
	Pods  int
	Needs time.Duration
	// Cut are the pods that would get less than their own grace, in the order of their names.
	Cut []Cut
}

// Cut is a pod, as "namespace/name", that would get less than its own grace before the deadline.
type Cut struct {
	Pod         string
	Grace, Gets time.Duration
}

// Forecast looks at the node's pods, and says how a drain for a machine would come along that is gone so long after the notice. It asks once.
func (n *Node) Forecast(ctx context.Context, notice time.Duration) (Forecast, error) {
	list, err := n.listPods(ctx, metav1.ListOptions{})
	if err != nil {
		return Forecast{}, fmt.Errorf("listing the pods of node %q: %w", n.name, err)
	}
	return n.opts.forecast(list.Items, notice), nil
}

// forecast goes by the rules of plan, limits and gated, with an API server that answers at once.
func (o Options) forecast(pods []corev1.Pod, notice time.Duration) Forecast {
	opens, end := o.EvictAfter, notice-o.Margin
	if o.ExcludeFromLoadBalancers {
		opens = max(opens, o.LoadBalancerWait)
	}
	opens += min(o.ScriptsWait, notice/4)
	var f Forecast
	others := time.Duration(0) // when those are gone that critical pods wait for
	for _, last := range []bool{false, true} {
		for i := range pods {
			pod := &pods[i]
			if critical(pod) != last || !o.concerns(pod) || stays(pod, true) {
				continue
			}
			asked := opens
			if last {
				asked = max(opens, others)
			}
			gone, cut := o.foresee(pod, asked, end)
			f.Pods, f.Needs = f.Pods+1, max(f.Needs, gone)
			if cut != nil {
				f.Cut = append(f.Cut, *cut)
			}
		}
		others = f.Needs
	}
	slices.SortFunc(f.Cut, func(a, b Cut) int { return strings.Compare(a.Pod, b.Pod) })
	return f
}

// foresee says when a pod would be gone that may be asked for from a time on, and has to be gone by the end.
func (o Options) foresee(pod *corev1.Pod, asked, end time.Duration) (gone time.Duration, cut *Cut) {
	if finished(pod) {
		return 0, nil
	}
	if pod.DeletionTimestamp != nil {
		return min(given(pod), max(end, 0)), nil
	}
	grace := o.grace(pod)
	turn := max(end-grace, 0)
	if asked = min(asked, turn); waits(pod) {
		asked = turn
	}
	if left := max(end-asked, time.Second); left < grace {
		left = left.Truncate(time.Second)
		return asked + left, &Cut{Pod: podName(pod), Grace: grace, Gets: left}
	}
	return asked + grace, nil
}
