package soak_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A workload is some pods that no controller brings back. They are bound to the node from the start, cordoned or not, and
// nobody waits for them: in the midst of a drain they may be gone before they run.
type workload struct {
	name    string
	count   int
	grace   int64
	slow    bool                    // a deleted pod stays for its grace
	guarded bool                    // by a disruption budget that never yields
	evict   string                  // when people let its pods be evicted, if not at once
	owners  []metav1.OwnerReference // its controller, if it has one
}

// evictAnnotation is the key under which people say when a pod may be evicted (docs/node-contract.md).
const evictAnnotation = "nth-project.github.io/evict"

// addPods puts pods on the node: some that go at once, some that take their time, some that are guarded, some that belong
// to a controller, and some that people want left alone, for a while or for good.
func (l *life) addPods(t *testing.T) {
	t.Helper()
	w := workload{count: 1 + l.random.IntN(3), grace: int64(grace.Seconds())}
	switch n := l.random.IntN(12); {
	case n < 3:
		w.name = l.name("quick")
	case n < 5:
		w.name = l.name("owned")
		w.owners = l.controller(t, w.name)
	case n < 7:
		w.name, w.slow = l.name("slow"), true
	case n < 10:
		w.name, w.guarded = l.name("guarded"), true
		l.guard(t, w)
	case n < 11:
		w.name, w.evict = l.name("patient"), "at-deadline"
	default:
		w.name, w.evict, w.count = l.name("never"), "never", 1
	}
	l.put(t, w)
	l.did("workloads added", "%s with %d pods", w.name, w.count)
}

// put makes the pods of a workload.
func (l *life) put(t *testing.T, w workload) {
	t.Helper()
	for number := range w.count {
		object := w.pod(number)
		object.Spec.NodeName = l.node.Name
		made, err := l.cp.Admin.CoreV1().Pods(l.node.Namespace).Create(t.Context(), object, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("making pod %s: %v", object.Name, err)
		}
		now := l.model.tick()
		l.model.pods[made.UID] = &pod{
			name: made.Name, guarded: w.guarded, patient: w.evict == "at-deadline", never: w.evict == "never", came: now, born: now,
		}
	}
}

// controller makes a controller that never makes a pod: a real one would bring its pods back, or take them away.
func (l *life) controller(t *testing.T, name string) []metav1.OwnerReference {
	t.Helper()
	made, err := l.cp.Admin.CoreV1().ConfigMaps(l.node.Namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("making a controller: %v", err)
	}
	isSo := true
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: made.UID, Controller: &isSo}}
}

func (w workload) labels() map[string]string {
	labels := map[string]string{"app": w.name}
	if w.slow {
		labels["lab.nth/terminates"] = "at-grace"
	}
	return labels
}

func (w workload) pod(number int) *corev1.Pod {
	annotations := map[string]string{}
	if w.evict != "" {
		annotations[evictAnnotation] = w.evict
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%d", w.name, number), Labels: w.labels(), Annotations: annotations, OwnerReferences: w.owners,
		},
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
