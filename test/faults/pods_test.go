package faults_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

// finalizer keeps a pod from going, as something does that wants to clear up after it and never comes to it.
const finalizer = "example.com/never"

func withFinalizer(template *corev1.PodTemplateSpec) { template.Finalizers = []string{finalizer} }

// letGo takes the finalizer off a pod. A pod that is gone has none.
func (s *scene) letGo(t *testing.T, pod string) {
	t.Helper()
	patch := []byte(`{"metadata":{"finalizers":null}}`)
	_, err := s.cp.Admin.CoreV1().Pods(s.node.Namespace).Patch(t.Context(), pod, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("taking the finalizer off %s: %v", pod, err)
	}
}

func TestEvict_WaitsForAPodBehindAFinalizer(t *testing.T) {
	s := newScene(t, "")
	s.node.AddPods(t, "quick", 2)
	s.node.AddPod(t, "stuck", lab.Grace(time.Second), lab.Edit(withFinalizer))
	s.watch(t)
	s.imds.SetSpot("terminate", time.Now().Add(10*time.Second))
	s.node.WaitGone(t, "quick-0", "quick-1")
	s.mustTellWhatIsLeft(t, []string{s.node.Namespace + "/stuck"})
	s.letGo(t, "stuck")
	s.waitDrained(t)
	s.nth.Stop(t)
}

func TestCriticalPodsDoNotWaitForAPodBehindAFinalizer(t *testing.T) {
	s := newScene(t, rebalanceDrains)
	s.node.AddPod(t, "dns", lab.Edit(func(template *corev1.PodTemplateSpec) {
		template.Spec.PriorityClassName = "system-node-critical"
	}))
	s.node.AddPod(t, "stuck", lab.Grace(time.Second), lab.Edit(withFinalizer))
	s.watch(t)
	s.imds.SetRebalance(time.Now())
	said := s.nth.WaitSays(t, "is still running after its grace period")
	s.node.WaitGone(t, "dns")
	if !strings.Contains(said.Message, "/stuck ") {
		t.Errorf("nth said %q, want it to name the pod that is stuck", said.Message)
	}
	s.letGo(t, "stuck")
	s.waitDrained(t)
	s.nth.Stop(t)
}

func TestAStatefulSetsPodMayComeBackUnderItsNameOnAnotherNode(t *testing.T) {
	s := newScene(t, "")
	s.node.AddStatefulSet(t, "db", 2, lab.Grace(2*time.Second), lab.GoesAtGrace())
	spare := s.node.AddSpare(t)
	before := s.node.Pods(t)
	s.watch(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	s.nth.Stop(t)
	s.mustRemember(t, state.Drained, 2)
	spare.WaitForPods(t, "the pods run again", func(pods []*corev1.Pod) bool {
		return len(pods) == 2 && pods[0].Status.Phase == corev1.PodRunning && pods[1].Status.Phase == corev1.PodRunning
	})
	for _, after := range spare.Pods(t) {
		for _, pod := range before {
			if after.DeletionTimestamp != nil || after.UID == pod.UID {
				t.Errorf("the new pod %s is about to go, or not new", after.Name)
			}
		}
	}
}

// addBudget makes a disruption budget for the pods of an app, whether there are any or not.
func (s *scene) addBudget(t *testing.T, name, app string) {
	t.Helper()
	_, err := s.cp.Admin.PolicyV1().PodDisruptionBudgets(s.node.Namespace).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &intstr.IntOrString{IntVal: 1},
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("making the budget %s: %v", name, err)
	}
}

func TestAPodThatTwoBudgetsSelectIsHeldUntilOneIsGone(t *testing.T) {
	s := newScene(t, rebalanceDrains)
	s.node.AddDeployment(t, "web", 1)
	s.addBudget(t, "one", "web")
	s.addBudget(t, "two", "web")
	s.watch(t)
	s.imds.SetRebalance(time.Now())
	said := s.nth.WaitLog(t, systemd.PodHeld).Message
	if want := "more than one PodDisruptionBudget"; !strings.Contains(said, want) {
		t.Errorf("nth said %q, want it to say %q", said, want)
	}
	s.nth.WaitStatus(t, "more than one PodDisruptionBudget")
	s.release(t, "one")
	s.nth.WaitSays(t, "disruption budget two blocks the eviction of ")
	s.release(t, "two")
	s.waitDrained(t)
	s.nth.Stop(t)
	s.mustHaveSaidOnce(t, "more than one")
}

// mustHaveSaidOnce fails the test unless nth has said that a pod is held, in these words, once.
func (s *scene) mustHaveSaidOnce(t *testing.T, words string) {
	t.Helper()
	count := 0
	for _, e := range s.nth.Logged(systemd.PodHeld) {
		if strings.Contains(e.Message, words) {
			count++
		}
	}
	if count != 1 {
		t.Errorf("nth said %d times %q, want once", count, words)
	}
}

func TestABudgetThatSelectsNothingHoldsNothing(t *testing.T) {
	s := newScene(t, "")
	s.node.AddPods(t, "quick", 3)
	s.addBudget(t, "void", "nobody")
	s.watch(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	s.nth.Stop(t)
	if held := s.nth.Logged(systemd.PodHeld); len(held) > 0 {
		t.Errorf("nth said %q", held[0].Message)
	}
}

// toleratesCordon has the scheduler put pods on a cordoned node.
func toleratesCordon(template *corev1.PodTemplateSpec) {
	template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

func TestPodsThatTolerateTheCordonAreNotEvictedWithoutEnd(t *testing.T) {
	s := newScene(t, rebalanceDrains)
	s.node.AddDeployment(t, "stubborn", 3, lab.Edit(toleratesCordon))
	s.node.AddDeployment(t, "guarded", 1, lab.MinAvailable(1)) // so that the drain goes on meanwhile
	s.watch(t)
	s.imds.SetRebalance(time.Now())
	s.nth.WaitSays(t, "stubborn-")
	said := s.nth.WaitSays(t, "keeps recreating pods on the cordoned node; leaving them there").Message
	if !strings.Contains(said, "ReplicaSet "+s.node.Namespace+"/stubborn-") {
		t.Errorf("nth said %q, want it to name the controller", said)
	}
	s.release(t, "guarded")
	s.nth.WaitLog(t, systemd.Drained)
	s.nth.Stop(t)
	// Three, and the three that may replace them before the end of the first is heard of, have four more rounds.
	entries := s.machine.Record(t)
	if most := 6*5 + 1; entries[0].Result.Evicted > most || entries[0].Result.Skipped < 1 {
		t.Errorf("nth remembers %+v, %+v, want at most %d pods evicted, and some left", entries, entries[0].Result, most)
	}
}
