package faults_test

import (
	"os"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/faultproxy"
	"github.com/nth-project/nth/test/lab"
)

func TestACertificateThatExpiresInTheMidstOfADrainIsReplacedByTheRotatedOne(t *testing.T) {
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
	if e := s.remembered(t); e.Phase != record.Drained {
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
	if e := s.remembered(t); e.Phase != record.Drained {
		t.Errorf("nth remembers %s %+v, want it drained", e.Phase, e.Result)
	}
	if len(elsewhere.Requests()) == 0 {
		t.Error("nth did not use the new kubeconfig")
	}
}
