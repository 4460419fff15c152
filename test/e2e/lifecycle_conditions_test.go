package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nth-project/nth/test/internal/lab"
)

// withLifecycle switches the lifecycle conditions on.
const withLifecycle = "[kubernetes]\nlifecycle_conditions = true\n" + withdrawnSoon

// A statusWriter writes a condition to the Node's status all the time, by the kubelet's credential and as the kubelet does.
type statusWriter struct {
	stop  context.CancelFunc
	ended chan struct{}
	last  int // the round that was written last
	err   error
}

func (s *stage) beginToWrite(t *testing.T) *statusWriter {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.node.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &statusWriter{stop: cancel, ended: make(chan struct{})}
	t.Cleanup(cancel)
	go func() {
		defer close(w.ended)
		for round := 1; ctx.Err() == nil && w.err == nil; round++ {
			if err := setCondition(ctx, client, s.node.Name, "kubelet", "KubeletLike=True", fmt.Sprintf("Round%d", round), time.Now()); err == nil {
				w.last = round
			} else if ctx.Err() == nil {
				w.err = err
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return w
}

// mustBeThere ends the writing, and fails the test unless what was written last is there.
func (w *statusWriter) mustBeThere(t *testing.T, s *stage) {
	t.Helper()
	w.stop()
	<-w.ended
	if w.err != nil || w.last == 0 {
		t.Errorf("what is written beside nth came to round %d: %v", w.last, w.err)
	}
	// The last request may have been given up when its write was on its way.
	reason := ""
	if c := conditionOf(s.node.Object(t), "KubeletLike"); c != nil {
		reason = c.Reason
	}
	if reason != fmt.Sprintf("Round%d", w.last) && reason != fmt.Sprintf("Round%d", w.last+1) {
		t.Errorf("what was written last beside nth is %q, want round %d", reason, w.last)
	}
	if c := conditionOf(s.node.Object(t), corev1.NodeReady); c == nil || c.Status != corev1.ConditionTrue {
		t.Errorf("the kubelet's condition Ready became %+v", c)
	}
}

// setCondition writes a condition, given as "Drained=True", that holds since then, as a manager.
func setCondition(ctx context.Context, client kubernetes.Interface, node, manager, said, reason string, since time.Time) error {
	of, status, _ := strings.Cut(said, "=")
	c := corev1.NodeCondition{
		Type: corev1.NodeConditionType(of), Status: corev1.ConditionStatus(status), Reason: reason,
		LastHeartbeatTime: metav1.NewTime(since), LastTransitionTime: metav1.NewTime(since),
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{c}}})
	if err == nil {
		_, err = client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: manager}, "status")
	}
	return err
}

// waitLifecycle waits until the Node has these lifecycle conditions and no other, each as "True Reason".
func (s *stage) waitLifecycle(t *testing.T, want map[corev1.NodeConditionType]string) {
	t.Helper()
	s.node.WaitFor(t, fmt.Sprintf("its lifecycle conditions are %v", want), func(node *corev1.Node) bool {
		got := map[corev1.NodeConditionType]string{}
		for _, of := range []corev1.NodeConditionType{"DrainInProgress", "Drained", "MaintenancePlanned", "MaintenanceInProgress"} {
			if c := conditionOf(node, of); c != nil {
				got[of] = fmt.Sprintf("%s %s", c.Status, c.Reason)
			}
		}
		return maps.Equal(got, want)
	})
}

func TestTheLifecycleConditionsFollowADrainWhileAKubeletWrites(t *testing.T) {
	s := prepare(t, withLifecycle)
	s.node.AddDeployment(t, "web", 1, lab.MinAvailable(1))
	kubelet := s.beginToWrite(t)
	s.drainDownTo(t, "web")
	s.waitLifecycle(t, map[corev1.NodeConditionType]string{
		"DrainInProgress": "True DrainStarted", "Drained": "False DrainStarted", "MaintenanceInProgress": "True SpotInterruption",
	})

	s.withdrawSpot(t)
	s.waitPodsBack(t)
	cleared := map[corev1.NodeConditionType]string{
		"DrainInProgress": "False NotDraining", "Drained": "False NotDraining", "MaintenanceInProgress": "False NothingInProgress",
	}
	s.waitLifecycle(t, cleared)
	s.waitCondition(t, corev1.ConditionFalse)
	s.nth.Stop(t)
	kubelet.mustBeThere(t, s)
	s.waitLifecycle(t, cleared)
}

func TestLifecycleConditionsOfOthersAreLeftToThem(t *testing.T) {
	s := prepare(t, withLifecycle)
	s.node.AddDeployment(t, "web", 1, lab.MinAvailable(1))
	admin := lab.Shared(t).Admin
	as := func(manager, said, reason string, ago time.Duration) {
		t.Helper()
		if err := setCondition(t.Context(), admin, s.node.Name, manager, said, reason, time.Now().Add(-ago)); err != nil {
			t.Fatalf("writing %s as %s: %v", said, manager, err)
		}
	}
	as("admin", "MaintenancePlanned=True", "MaintenanceWindow", 0)
	as("kubectl", "DrainInProgress=False", "KubectlUncordoned", time.Hour)
	as("kubectl", "Drained=False", "KubectlUncordoned", time.Hour)
	kubelet := s.beginToWrite(t)
	s.drainDownTo(t, "web")
	s.waitLifecycle(t, map[corev1.NodeConditionType]string{
		"DrainInProgress": "True DrainStarted", "Drained": "False KubectlUncordoned", "MaintenancePlanned": "True MaintenanceWindow",
		"MaintenanceInProgress": "True SpotInterruption",
	})
	budgets := admin.PolicyV1().PodDisruptionBudgets(s.node.Namespace)
	if err := budgets.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting the budget: %v", err)
	}
	s.waitDrained(t)
	drained := map[corev1.NodeConditionType]string{
		"DrainInProgress": "False DrainCompleted", "Drained": "True DrainCompleted", "MaintenancePlanned": "True MaintenanceWindow",
		"MaintenanceInProgress": "True SpotInterruption",
	}
	s.waitLifecycle(t, drained)

	as("admin", "MaintenanceInProgress=True", "AdminRequested", 0) // They go on with it.
	s.withdrawSpot(t)
	s.waitPodsBack(t)
	left := map[corev1.NodeConditionType]string{
		"DrainInProgress": "False NotDraining", "Drained": "False NotDraining", "MaintenancePlanned": "True MaintenanceWindow",
		"MaintenanceInProgress": "True AdminRequested",
	}
	s.waitLifecycle(t, left)
	s.nth.Stop(t)
	kubelet.mustBeThere(t, s)
	s.waitLifecycle(t, left)
}
