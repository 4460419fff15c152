package faults_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/faultproxy"
	"github.com/nth-project/nth/test/internal/lab"
)

// away is an API server that cannot be reached.
var away = faultproxy.Fault{Kind: faultproxy.Refuse}

func TestDrain_IsMadeUpForAfterTheDeadline(t *testing.T) {
	t.Parallel()
	t.Run("before the cordon", func(t *testing.T) {
		s := newProxied(t, "")
		s.node.AddPods(t, "work", 2)
		s.watch(t)
		s.proxy.Fault(away)
		s.imds.SetSpot("terminate", time.Now().Add(6*time.Second))
		message := s.nth.WaitLog(t, systemd.DrainIncomplete).Message
		if !strings.Contains(message, "cordon") {
			t.Errorf("nth said %q, want it to say that the node could not be cordoned", message)
		}
		s.mustRemember(t, state.Incomplete, 0)
		s.mustBeUntouched(t)
		s.proxy.Lift()
		s.waitDrained(t)
		s.nth.Stop(t)
		s.mustRemember(t, state.Drained, 2)
	})
	t.Run("before a budget would have been overruled", func(t *testing.T) {
		s := newProxied(t, "")
		s.node.AddPods(t, "quick", 3)
		s.node.AddDeployment(t, "guarded", 2, lab.MinAvailable(2), lab.Grace(time.Second))
		s.watch(t)
		s.imds.SetSpot("terminate", time.Now().Add(12*time.Second))
		s.nth.WaitLog(t, systemd.PodHeld)
		s.node.WaitGone(t, "quick-0", "quick-1", "quick-2")
		s.nth.WaitSays(t, "2 of 5 left")
		s.proxy.Fault(away)
		left := s.names(t)
		s.mustTellWhatIsLeft(t, left)
		s.mustRemember(t, state.Incomplete, 3, left...)
		s.proxy.Lift()
		s.release(t, "guarded")
		s.waitDrained(t)
		s.nth.Stop(t)
		s.mustRemember(t, state.Drained, 5)
	})
	t.Run("at the end", func(t *testing.T) {
		s := newProxied(t, "")
		s.node.AddPods(t, "slow", 2, lab.Grace(2*time.Second), lab.GoesAtGrace())
		s.watch(t)
		s.imds.SetSpot("terminate", time.Now().Add(8*time.Second))
		s.nth.WaitSays(t, "evicted "+s.node.Namespace+"/slow-0")
		s.nth.WaitSays(t, "evicted "+s.node.Namespace+"/slow-1")
		s.proxy.Fault(away)
		s.node.WaitEmpty(t) // which nth cannot see
		left := []string{s.node.Namespace + "/slow-0", s.node.Namespace + "/slow-1"}
		s.mustTellWhatIsLeft(t, left)
		s.mustRemember(t, state.Incomplete, 2, left...)
		s.proxy.Lift()
		s.waitDrained(t)
		s.nth.Stop(t)
		s.mustRemember(t, state.Drained, 2)
	})
}

func TestAnAPIServerThatIsAwayAtTheEndOfADrainIsWaitedFor(t *testing.T) {
	s := newProxied(t, "")
	s.node.AddPods(t, "slow", 2, lab.Grace(2*time.Second), lab.GoesAtGrace())
	s.watch(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitSays(t, "evicted "+s.node.Namespace+"/slow-0")
	s.nth.WaitSays(t, "evicted "+s.node.Namespace+"/slow-1")
	s.proxy.Fault(away)
	s.node.WaitEmpty(t)
	if s.nth.MustRun(t); len(s.nth.Logged(systemd.Drained)) > 0 {
		t.Error("nth says that the node is drained, which it cannot know")
	}
	s.proxy.Lift()
	s.waitDrained(t)
	s.nth.Stop(t)
	s.mustRemember(t, state.Drained, 2)
}

func TestDrain_SurvivesAnAPIServerThatRestarts(t *testing.T) {
	t.Parallel()
	cp := lab.ForTest(t)
	s := sceneOn(t, cp, "", func(s *scene) string { return s.node.Kubeconfig })
	s.populate(t)
	s.watch(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitLog(t, systemd.PodHeld)
	cp.FreezeAPIServer(t)
	s.nth.WaitSays(t, "no answer from the API server")
	cp.ThawAPIServer(t)
	cp.StopAPIServer(t)
	s.nth.WaitSays(t, "the API server cannot be reached")
	cp.StartAPIServer(t)
	s.release(t, "guarded")
	s.waitDrained(t)
	s.nth.Stop(t)
	s.mustRemember(t, state.Drained, unknown)
}

// names lists the pods that are on the node.
func (s *scene) names(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, pod := range s.node.Pods(t) {
		names = append(names, pod.Namespace+"/"+pod.Name)
	}
	slices.Sort(names)
	return names
}

// mustTellWhatIsLeft waits until nth tells that its time is over, and fails the test unless it names the pods.
func (s *scene) mustTellWhatIsLeft(t *testing.T, pods []string) {
	t.Helper()
	message := s.nth.WaitLog(t, systemd.DrainIncomplete).Message
	for _, pod := range pods {
		if !strings.Contains(message, pod) {
			t.Errorf("nth said %q, want it to name %s", message, pod)
		}
	}
}

// unknown stands for the number of pods evicted where answers are lost: nth cannot know whose doing it was that a pod went.
const unknown = -1

// mustRemember fails the test unless nth has these results of the last drain on disk.
func (s *scene) mustRemember(t *testing.T, phase state.Phase, evicted int, left ...string) {
	t.Helper()
	e := s.remembered(t)
	for limit := time.Now().Add(time.Minute); e.Phase != phase && time.Now().Before(limit); e = s.remembered(t) {
		time.Sleep(10 * time.Millisecond) // The disk follows what was said.
	}
	if e.Phase != phase || e.Result == nil || evicted != unknown && e.Result.Evicted != evicted || !slices.Equal(e.Result.Left, left) {
		t.Errorf("nth remembers %s %+v, want %s with %d evicted and %q left", e.Phase, e.Result, phase, evicted, left)
	}
	if (e.Error != "") != (phase == state.Incomplete) {
		t.Errorf("nth remembers the error %q", e.Error)
	}
}
