package evict

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

// Forecast is how a drain of a node would go if it began now, each pod took all of its grace, and no disruption budget held any.
type Forecast struct {
	// Pods are the pods that would have to go, sorted by name, and Needs is how long that would take, counted from the notice.
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

// Forecast lists the node's pods once, from the API server's cache, and says how a drain would go. The machine would be gone the time notice
// after the notice, and evictions would begin the time from after it.
func (e *Evictor) Forecast(ctx context.Context, notice, from time.Duration) (Forecast, error) {
	list, err := e.listPods(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return Forecast{}, fmt.Errorf("listing the pods of node %q: %w", e.name, err)
	}
	return e.opts.forecast(list.Items, notice, from), nil
}

// forecast is Forecast for these pods. It follows the rules of Pods.plan, as if the API server answered at once.
func (o Options) forecast(pods []corev1.Pod, notice, from time.Duration) Forecast {
	end := notice - o.Margin
	var f Forecast
	for _, criticalOnes := range []bool{false, true} {
		for i := range pods {
			pod := &pods[i]
			if critical(pod) != criticalOnes || !o.concerns(pod) || o.leaves(pod, true) { // It is the other pass's, or it need not go.
				continue
			}
			seen := Foreseen{
				Pod: Name(pod), Grace: o.grace(pod), object: pod,
				EmptyDir: slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil }),
			}
			if owner := metav1.GetControllerOf(pod); owner != nil {
				seen.Owner = owner.Kind
			}
			var gone time.Duration
			gone, seen.Gets = o.foresee(pod, from, end)
			f.Pods, f.Needs = append(f.Pods, seen), max(f.Needs, gone)
		}
		from = max(from, f.Needs) // Critical pods wait for the others.
	}
	slices.SortFunc(f.Pods, func(a, b Foreseen) int { return strings.Compare(a.Pod, b.Pod) })
	return f
}

// foresee returns when one pod would be gone, and how much of its grace it gets. The pod may be evicted from the time from on, and must be gone
// at end. All times are counted from the notice.
func (o Options) foresee(pod *corev1.Pod, from, end time.Duration) (gone, gets time.Duration) {
	grace := o.grace(pod)
	if finished(pod) { // It has no containers left to wait for.
		return 0, grace
	}
	if pod.DeletionTimestamp != nil { // It is terminating, and has been for an unknown part of its grace.
		return min(givenGrace(pod), max(end, 0)), grace
	}
	turn := max(end-grace, 0)
	asked := min(from, turn)
	if o.waits(pod) {
		asked = turn
	}
	if left := max(end-asked, time.Second); left < grace {
		grace = left.Truncate(time.Second)
	}
	return asked + grace, grace
}

// Budget is the disruption budget of a pod.
type Budget struct {
	Name string
	// Allowed is how many of its pods may be evicted now.
	Allowed int
}

// Budgets returns the disruption budgets of the pods, by the pod's "namespace/name". If several cover a pod, the API server refuses its
// eviction: then the name has them all, and none is allowed. read is false if the credential may not list budgets; a kubelet's usually may
// not. Then each pod's eviction is tried as a dry run, and only the budgets that refuse one are known.
func (e *Evictor) Budgets(ctx context.Context, pods []Foreseen) (of map[string]Budget, read bool, err error) {
	of = map[string]Budget{}
	byNamespace := map[string][]policyv1.PodDisruptionBudget{}
	for _, pod := range pods {
		namespace := pod.object.Namespace
		if _, listed := byNamespace[namespace]; !listed {
			list := &policyv1.PodDisruptionBudgetList{}
			err := kube.Attempt(ctx, func(ctx context.Context) error {
				return e.client.Get().AbsPath("/apis/policy/v1/namespaces", namespace, "poddisruptionbudgets").MaxRetries(0).Do(ctx).Into(list)
			})
			if kube.Answer(err).Code == http.StatusForbidden {
				return of, false, e.tryEach(ctx, pods, of)
			}
			if err != nil {
				return nil, false, fmt.Errorf("listing the disruption budgets of namespace %q: %s", namespace, kube.Plain(err))
			}
			byNamespace[namespace] = list.Items
		}
		for i := range byNamespace[namespace] {
			budget := &byNamespace[namespace][i]
			selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
			if err != nil || !selector.Matches(labels.Set(pod.object.Labels)) {
				continue // It does not cover this pod. The API server accepts no budget with a bad selector.
			}
			one := Budget{budget.Name, int(budget.Status.DisruptionsAllowed)}
			if other, several := of[pod.Pod]; several {
				one = Budget{other.Name + "+" + one.Name, 0}
			}
			of[pod.Pod] = one
		}
	}
	return of, true, nil
}

// tryEach adds to of, by the pod's "namespace/name", the budgets that refuse a pod's eviction now. It tries each eviction as a dry run.
func (e *Evictor) tryEach(ctx context.Context, pods []Foreseen, of map[string]Budget) error {
	for _, pod := range pods {
		if pod.object.DeletionTimestamp != nil {
			continue // It goes already, so no budget holds it.
		}
		by, err := e.tryEviction(ctx, pod.object)
		if err != nil {
			return err
		}
		if by != "" {
			of[pod.Pod] = Budget{Name: by}
		}
	}
	return nil
}

// tryEviction asks the API server, once, to evict a pod as a dry run, and returns the disruption budget that refuses it; "" if none does.
// Admission is part of it; nothing is changed.
func (e *Evictor) tryEviction(ctx context.Context, pod *corev1.Pod) (by string, err error) {
	err = e.remove(ctx, state.PodEvicted, pod, &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}, kube.Write)
	if budget, held := heldBy(err); held {
		return budget, nil
	}
	if err != nil {
		return "", fmt.Errorf("rehearsing the eviction of %s: %s", Name(pod), kube.Plain(err))
	}
	return "", nil
}

// Rehearsal is the result of an eviction that was a dry run.
type Rehearsal struct {
	// Pod is "namespace/name" of the pod; empty if none on the node would have to go.
	Pod string
	// HeldBy is the disruption budget that would refuse the eviction now; empty if none would.
	HeldBy string
}

// Rehearse tries the eviction of one of the node's pods as a dry run. "nth check" reports the result.
func (e *Evictor) Rehearse(ctx context.Context) (Rehearsal, error) {
	list, err := e.listPods(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return Rehearsal{}, fmt.Errorf("listing the pods of node %q: %w", e.name, err)
	}
	for i := range list.Items {
		if pod := &list.Items[i]; pod.DeletionTimestamp == nil && e.opts.concerns(pod) {
			by, err := e.tryEviction(ctx, pod)
			return Rehearsal{Name(pod), by}, err
		}
	}
	return Rehearsal{}, nil
}
