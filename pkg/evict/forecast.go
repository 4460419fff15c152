package evict

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

// Forecast is how a drain of a node would go if it began now, each pod took all of its grace, and no disruption budget held any.
type Forecast struct {
	// Pods are the pods that would have to go, critical ones last, and Needs is how long that would take, counted from the notice.
	Pods  []Foreseen
	Needs time.Duration
}

// Foreseen is what would happen to a pod.
type Foreseen struct {
	// Pod is "namespace/name", and Owner the kind of the pod's controller; "" is none.
	Pod, Owner string
	// Grace is the pod's grace period, and Gets how much of it the deadline leaves.
	Grace, Gets time.Duration
	// EmptyDir is set if the pod has a volume that ends with it.
	EmptyDir bool

	object *corev1.Pod
}

// Cut returns the pods to which the deadline would leave less than their grace period.
func (f Forecast) Cut() []Foreseen {
	return slices.DeleteFunc(slices.Clone(f.Pods), func(pod Foreseen) bool { return pod.Gets >= pod.Grace })
}

// Forecast lists the node's pods once, from the API server's cache, and says how a drain would go, by the rules of Pods.plan. Both durations count
// from the moment of a notice: the machine would be gone after notice, and evictions would begin after from.
func (e *Evictor) Forecast(ctx context.Context, notice, from time.Duration) (Forecast, error) {
	pods, _, err := e.Going(ctx, Terms{Hard: time.Now().Add(notice)})
	if err != nil {
		return Forecast{}, err
	}
	rank := e.opts.rank
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return cmp.Or(rank(&a)-rank(&b), compareNames(&a, &b)) })
	var f Forecast
	for i := range pods {
		pod := &pods[i]
		if i > 0 && rank(pod) > rank(&pods[i-1]) { // This pod and those after it wait until the pods before it are gone.
			from = max(from, f.Needs)
		}
		seen := Foreseen{
			Pod: Name(pod), Grace: e.opts.grace(pod), object: pod,
			EmptyDir: slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil }),
		}
		if owner := metav1.GetControllerOf(pod); owner != nil {
			seen.Owner = owner.Kind
		}
		var gone time.Duration
		gone, seen.Gets = e.opts.foresee(pod, from, notice-e.opts.Margin)
		f.Pods, f.Needs = append(f.Pods, seen), max(f.Needs, gone)
	}
	return f, nil
}

// foresee returns when a pod would be gone, and how much of its grace it gets. Evictions begin at from, or sooner if the pod's grace
// needs that. The pod must be gone at end. All durations but gets are counted from the notice.
func (o Options) foresee(pod *corev1.Pod, from, end time.Duration) (gone, gets time.Duration) {
	grace := o.grace(pod)
	if finished(pod) { // It has no containers left to wait for.
		return 0, grace
	}
	if pod.DeletionTimestamp != nil { // How much of its grace is left is not known, so none counts as cut.
		return min(givenGrace(pod), max(end, 0)), grace
	}
	evictBy := max(end-grace, 0)
	removed := min(from, evictBy) // when the pod is evicted or deleted
	if o.waitsForDeadline(pod) {
		removed = evictBy
	}
	if left := max(end-removed, time.Second); left < grace {
		grace = left.Truncate(time.Second)
	}
	return removed + grace, grace
}

// HeldBy asks the API server to evict a pod as a dry run. It returns the name of the disruption budget that refuses that now; "" if none does.
// Nothing is changed, but admission webhooks are called. A kubelet may not list budgets, so this is how nth learns of them.
func (e *Evictor) HeldBy(ctx context.Context, pod Foreseen) (budget string, err error) {
	if pod.object.DeletionTimestamp != nil {
		return "", nil // The pod is terminating, and no budget can hold it any more.
	}
	err = e.remove(ctx, state.PodEvicted, pod.object, &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}, kube.Write)
	if budget, held := heldBy(err); held {
		return budget, nil
	}
	if err != nil {
		return "", fmt.Errorf("evicting %s as a dry run: %s", pod.Pod, kube.Plain(err))
	}
	return "", nil
}
