package faults_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

func TestANodeObjectThatIsDeletedInTheMidstOfADrainIsASuccess(t *testing.T) {
	s := newScene(t, "")
	s.node.AddPods(t, "quick", 3)
	s.node.AddDeployment(t, "guarded", 1, lab.MinAvailable(1))
	s.watch(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitLog(t, systemd.PodHeld)
	s.deleteNode(t)
	// The pods of a node that is gone are removed, without asking anybody, by the cluster.
	core, now := s.cp.Admin.CoreV1(), *metav1.NewDeleteOptions(0)
	if err := core.Pods(s.node.Namespace).DeleteCollection(t.Context(), now, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	s.nth.WaitLog(t, systemd.Drained)
	s.nth.Stop(t)
	if e := s.remembered(t); e.Phase != state.Drained {
		t.Errorf("nth remembers %s %+v, want it drained", e.Phase, e.Result)
	}
}

// The pods of a node that is gone are removed by the cluster's garbage collector for pods, some forty seconds later.
func TestDrain_EndsWhenTheClusterRemovedThePods(t *testing.T) {
	s := newScene(t, rebalanceDrains)
	s.node.AddDeployment(t, "guarded", 2, lab.MinAvailable(2))
	s.watch(t)
	s.imds.SetRebalance(time.Now())
	s.nth.WaitLog(t, systemd.PodHeld)
	s.deleteNode(t)
	s.nth.WaitLog(t, systemd.Drained)
	s.nth.Stop(t)
	if left := s.node.Pods(t); len(left) > 0 {
		t.Errorf("%d pods are left", len(left))
	}
}

func TestANodeObjectThatIsDeletedBeforeADrainIsASuccess(t *testing.T) {
	s := newScene(t, "")
	s.watch(t)
	s.deleteNode(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitSays(t, "the Node no longer exists")
	s.nth.Stop(t)
	if e := s.remembered(t); e.Phase != state.Drained {
		t.Errorf("nth remembers %s %+v, want it drained", e.Phase, e.Result)
	}
}

func (s *scene) deleteNode(t *testing.T) {
	t.Helper()
	if err := s.cp.Admin.CoreV1().Nodes().Delete(t.Context(), s.node.Name, *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
}
