package soak_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A workload is some pods without a controller. They are bound to the node from the start, cordoned or not, and nobody
// waits for them: in the midst of a drain they may be gone before they run.
type workload struct {
	name    string
	count   int
	grace   int64
	slow    bool // a deleted pod stays for its grace
	guarded bool // by a disruption budget that never yields
}

// addPods puts pods on the node: some that go at once, some that take their time, and some that are guarded.
func (l *life) addPods(t *testing.T) {
	t.Helper()
	w := workload{count: 1 + l.random.IntN(3), grace: int64(grace.Seconds())}
	switch l.random.IntN(3) {
	case 0:
		w.name = l.name("quick")
	case 1:
		w.name, w.slow = l.name("slow"), true
	case 2:
		w.name, w.guarded = l.name("guarded"), true
		l.guard(t, w)
	}
	for number := range w.count {
		object := w.pod(number)
		object.Spec.NodeName = l.node.Name
		made, err := l.cp.Admin.CoreV1().Pods(l.node.Namespace).Create(t.Context(), object, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("making pod %s: %v", object.Name, err)
		}
		l.model.pods[made.UID] = &pod{name: made.Name, guarded: w.guarded, born: l.model.tick()}
	}
	l.did("workloads added", "%s with %d pods", w.name, w.count)
}

func (w workload) labels() map[string]string {
	labels := map[string]string{"app": w.name}
	if w.slow {
		labels["lab.nth/terminates"] = "at-grace"
	}
	return labels
}

func (w workload) pod(number int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", w.name, number), Labels: w.labels()},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &w.grace,
			Containers:                    []corev1.Container{{Name: "main", Image: "registry.invalid/sleep:1"}},
		},
	}
}

// guard makes the budget of a workload, which needs all of its pods.
func (l *life) guard(t *testing.T, w workload) {
	t.Helper()
	_, err := l.cp.Admin.PolicyV1().PodDisruptionBudgets(l.node.Namespace).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: w.name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &intstr.IntOrString{Type: intstr.Int, IntVal: int32(w.count)},
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": w.name}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("making the budget %s: %v", w.name, err)
	}
}
