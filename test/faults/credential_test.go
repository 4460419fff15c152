package faults_test

import (
	"os"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/faultproxy"
	"github.com/nth-project/nth/test/internal/lab"
)

func TestCredential_RotatesInTheMidstOfADrain(t *testing.T) {
	s := newScene(t, "")
	s.node.AddPods(t, "quick", 3)
	s.node.AddDeployment(t, "guarded", 1, lab.MinAvailable(1))
	s.node.LimitCertificate(t, 5*time.Second)
	s.watch(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitLog(t, systemd.PodHeld)
	s.nth.WaitSays(t, "401 Unauthorized")
	s.release(t, "guarded")
	s.node.RotateCertificate(t)
	s.waitDrained(t)
	s.nth.Stop(t)
	if e := s.remembered(t); e.Phase != state.Drained {
		t.Errorf("nth remembers %s %+v, want it drained", e.Phase, e.Result)
	}
}

func TestAKubeconfigThatIsReplacedInTheMidstOfADrainIsFollowed(t *testing.T) {
	s := newProxied(t, "")
	s.node.AddPods(t, "quick", 3)
	s.node.AddDeployment(t, "guarded", 1, lab.MinAvailable(1))
	s.watch(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitLog(t, systemd.PodHeld)
	s.proxy.Fault(away)
	s.nth.WaitSays(t, "the API server cannot be reached")
	s.release(t, "guarded")
	elsewhere := faultproxy.New(t, s.node)
	if err := os.Rename(elsewhere.Kubeconfig, s.proxy.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	s.waitDrained(t)
	s.nth.Stop(t)
	if e := s.remembered(t); e.Phase != state.Drained {
		t.Errorf("nth remembers %s %+v, want it drained", e.Phase, e.Result)
	}
	if len(elsewhere.Requests()) == 0 {
		t.Error("nth did not use the new kubeconfig")
	}
}

// become makes the machine another node, as when its host name has changed and its kubelet has joined anew.
func (s *scene) become(t *testing.T, other *lab.Node) {
	t.Helper()
	if err := os.Rename(other.Kubeconfig, s.node.Kubeconfig); err != nil {
		t.Fatal(err)
	}
}

func TestANodeThatIsRenamedIsFollowedWhileNothingIsAnnounced(t *testing.T) {
	s := newScene(t, "")
	s.watch(t)
	renamed := s.cp.AddNode(t)
	s.become(t, renamed)
	s.nth.WaitWatching(t, renamed.Name)
	s.nth.WaitSays(t, "acting for node "+renamed.Name)
	renamed.AddPods(t, "quick", 3)
	s.imds.SetSpot("terminate", twoMinutes())
	renamed.WaitCordoned(t)
	renamed.WaitEmpty(t)
	s.nth.WaitLog(t, systemd.Drained)
	s.nth.Stop(t)
	s.mustBeUntouched(t)
}

func TestNode_RenamedInTheMidstOfADrain(t *testing.T) {
	s := newScene(t, "")
	s.node.AddDeployment(t, "guarded", 1, lab.MinAvailable(1))
	s.watch(t)
	renamed := s.cp.AddNode(t)
	renamed.AddPods(t, "quick", 3)
	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitLog(t, systemd.PodHeld)
	s.become(t, renamed)
	renamed.WaitCordoned(t)
	renamed.WaitEmpty(t)
	s.nth.WaitLog(t, systemd.Drained)
	s.nth.WaitSays(t, "acting for node "+renamed.Name)
	s.nth.Stop(t)
	if e := s.remembered(t); e.Phase != state.Drained || e.Result.Evicted != 3 {
		t.Errorf("nth remembers %s %+v, want it drained of three pods", e.Phase, e.Result)
	}
	if pods := s.node.Pods(t); len(pods) != 1 || pods[0].DeletionTimestamp != nil {
		t.Errorf("what was held on the node of the old name has been touched: %+v", pods)
	}
}
