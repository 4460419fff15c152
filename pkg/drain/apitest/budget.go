package apitest

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Budget is a PodDisruptionBudget. Evictions ask it as in checkAndDecrement in pkg/registry/core/pod/storage/eviction.go of Kubernetes. Its
// controller does what pkg/controller/disruption/disruption.go does.
type Budget struct {
	Namespace, Name string
	// Selector are the labels of its pods; without any it selects all of the namespace.
	Selector map[string]string
	// MinAvailable or MaxUnavailable is set. MaxUnavailable is subtracted from Expected, the number of pods that their controllers want; 0 stands
	// for the number that exists.
	MinAvailable, MaxUnavailable *int
	Expected                     int
	// AlwaysAllow is the policy for pods that are not Ready; without it, it is IfHealthyBudget.
	AlwaysAllow bool
	// Delay is how long the controller takes to see that pods have changed.
	Delay time.Duration
}

// budget is a budget and its status.
type budget struct {
	Budget
	observed         bool // the controller has counted its pods once
	due              bool // the controller will count its pods after Delay
	allowed          int
	healthy, desired int
	disrupted        map[string]time.Time // pods whose eviction was allowed, and whose end the controller has not seen
}

// deletionTimeout is how long an allowed eviction counts that had no effect (DeletionTimeout).
const deletionTimeout = 2 * time.Minute

// AddBudget adds a budget. The budget allows nothing until its controller has counted the pods.
func (s *Server) AddBudget(b Budget) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	state := &budget{Budget: b, disrupted: map[string]time.Time{}}
	s.budgets = append(s.budgets, state)
	s.lookLater(state)
}

// RemoveBudget deletes a budget.
func (s *Server) RemoveBudget(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.budgets = slices.DeleteFunc(s.budgets, func(b *budget) bool { return b.Namespace == namespace && b.Name == name })
}

// selects reports whether the budget applies to a pod.
func (b *budget) selects(o *object) bool {
	if o.pod.Namespace != b.Namespace {
		return false
	}
	for label, value := range b.Selector {
		if has, ok := o.pod.Labels[label]; !ok || has != value {
			return false
		}
	}
	return true
}

// lookLater has the controller count a budget's pods: now, or after Delay.
func (s *Server) lookLater(b *budget) {
	if b.Delay == 0 {
		s.count(b)
		return
	}
	if !b.due {
		b.due = true
		s.later(b.Delay, func() { s.count(b) })
	}
}

// count counts a budget's pods and sets its status, as the controller does: buildDisruptedPodMap, countHealthyPods and updatePdbStatus.
func (s *Server) count(b *budget) {
	b.due, b.observed = false, true
	pods, healthy, still := 0, 0, map[string]time.Time{}
	for _, o := range s.pods {
		if !b.selects(o) {
			continue
		}
		pods++
		if o.pod.DeletionTimestamp != nil {
			continue
		}
		if at, found := b.disrupted[o.pod.Name]; found && time.Since(at) <= deletionTimeout {
			still[o.pod.Name] = at
		} else if isReady(o.pod) {
			healthy++
		}
	}
	if b.Expected > 0 {
		pods = b.Expected
	}
	desired := 0
	switch {
	case b.MinAvailable != nil:
		desired = *b.MinAvailable
	case b.MaxUnavailable != nil:
		desired = max(pods-*b.MaxUnavailable, 0)
	}
	allowed := max(healthy-desired, 0)
	if pods == 0 {
		allowed = 0
	}
	if allowed != b.allowed || healthy != b.healthy || desired != b.desired || !maps.Equal(still, b.disrupted) {
		s.version++
	}
	b.allowed, b.healthy, b.desired, b.disrupted = allowed, healthy, desired, still
}

// askBudgets asks the budget of a pod whether the pod may be evicted, and counts the eviction. It returns nil if the pod may be evicted, otherwise
// the refusal.
func (s *Server) askBudgets(o *object, dryRun bool) Answer {
	var of []*budget
	for _, b := range s.budgets {
		if b.selects(o) {
			of = append(of, b)
		}
	}
	switch len(of) {
	case 0:
		return nil
	case 1:
	default:
		return TwoBudgets()
	}
	b := of[0]
	if !isReady(o.pod) && (b.AlwaysAllow || b.healthy >= b.desired && b.desired > 0) {
		return nil // A pod that is not Ready is not counted as available.
	}
	if !b.observed {
		return heldBy("The disruption budget "+b.Name+" is still being processed by the server.", 10)
	}
	if b.allowed == 0 {
		if b.healthy <= b.desired {
			return heldBy(fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, b.desired, b.healthy), 0)
		}
		return heldBy("The disruption budget "+b.Name+" does not allow evicting pods currently", 0)
	}
	if !dryRun {
		s.version++
		b.allowed--
		b.disrupted[o.pod.Name] = time.Now()
		s.later(deletionTimeout+time.Second, func() { s.count(b) })
	}
	return nil
}

// heldBy returns the refusal of a disruption budget, with its reason in message.
func heldBy(message string, retryAfter int32) Answer {
	return status(metav1.Status{
		Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: "Cannot evict pod as it would violate the pod's disruption budget.",
		Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfter, Causes: []metav1.StatusCause{{
			Type: policyv1.DisruptionBudgetCause, Message: message,
		}}},
	})
}
