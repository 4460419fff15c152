package faults_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/faultproxy"
	"github.com/nth-project/nth/test/internal/lab"
)

// webhook is what an admission webhook that refuses evictions makes the API server say.
const webhook = `admission webhook "guard.example.com" denied the request: not today`

// apiFaults are the ways in which the API server, or the way to it, can break, and how often nth is to meet each.
var apiFaults = map[string]struct {
	fault faultproxy.Fault
	times int
}{
	"black hole":              {faultproxy.Fault{Kind: faultproxy.BlackHole}, 2}, // the second time on a new connection
	"reset":                   {faultproxy.Fault{Kind: faultproxy.Reset}, 4},
	"reset within the answer": {faultproxy.Fault{Kind: faultproxy.Reset, After: 40}, 4},
	"latency":                 {faultproxy.Fault{Kind: faultproxy.Latency, Delay: 400 * time.Millisecond}, 2},
	"throttled":               {faultproxy.Fault{Kind: faultproxy.Status, Status: 429, RetryAfter: time.Second}, 3},
	"evictions throttled":     {faultproxy.Fault{Kind: faultproxy.Status, Status: 429, RetryAfter: time.Second, Call: faultproxy.EvictPod}, 3},
	"evictions denied":        {faultproxy.Fault{Kind: faultproxy.Status, Status: 403, Message: webhook, Call: faultproxy.EvictPod}, 3},
	"500":                     {faultproxy.Fault{Kind: faultproxy.Status, Status: 500}, 4},
	"503":                     {faultproxy.Fault{Kind: faultproxy.Status, Status: 503}, 4},
	"401":                     {faultproxy.Fault{Kind: faultproxy.Status, Status: 401}, 4},
	"garbage":                 {faultproxy.Fault{Kind: faultproxy.Garbage}, 4},
	"watch refused":           {faultproxy.Fault{Kind: faultproxy.Status, Status: 500, Call: faultproxy.WatchPods}, 3},
	"watch closed":            {faultproxy.Fault{Kind: faultproxy.WatchClose}, 3},
	"watch gone":              {faultproxy.Fault{Kind: faultproxy.WatchGone}, 3},
}

// populate puts ten pods on the node: some that go at once, some that take two seconds, and one that a budget called
// "guarded" holds back, so that a drain goes on until it is released.
func (s *scene) populate(t *testing.T) {
	t.Helper()
	s.node.AddPods(t, "quick", 6)
	s.node.AddPods(t, "slow", 3, lab.Grace(2*time.Second), lab.GoesAtGrace())
	s.node.AddDeployment(t, "guarded", 1, lab.MinAvailable(1))
}

// newPopulated sets a scene on which nth watches over a populated node, and the API server can fail.
func newPopulated(t *testing.T) *scene {
	t.Helper()
	s := newProxied(t, "")
	s.populate(t)
	s.watch(t)
	return s
}

func TestADrainSurvivesAFaultOfTheAPIServerInItsMidst(t *testing.T) {
	t.Parallel()
	for name, c := range apiFaults {
		t.Run(name, func(t *testing.T) {
			s := newPopulated(t)
			s.imds.SetSpot("terminate", twoMinutes())
			s.nth.WaitLog(t, systemd.PodHeld)
			s.proxy.Fault(c.fault)
			s.proxy.AwaitMet(t, c.times)
			s.recover(t)
		})
	}
}

func TestADrainSurvivesThatConnectionsToTheAPIServerAreRefused(t *testing.T) {
	t.Parallel()
	t.Run("before", func(t *testing.T) {
		s := newPopulated(t)
		// Who is refused cannot be counted, so this fault ends by the clock.
		s.proxy.Fault(faultproxy.Fault{Kind: faultproxy.Refuse, For: 3 * time.Second})
		s.imds.SetSpot("terminate", twoMinutes())
		s.nth.WaitLog(t, systemd.PodHeld)
		s.recover(t)
	})
	t.Run("in its midst", func(t *testing.T) {
		s := newPopulated(t)
		s.imds.SetSpot("terminate", twoMinutes())
		s.nth.WaitLog(t, systemd.PodHeld)
		s.proxy.Fault(faultproxy.Fault{Kind: faultproxy.Refuse})
		s.nth.WaitSays(t, "the API server cannot be reached")
		s.recover(t)
	})
}

// recover lifts the fault and sees the drain to its end.
func (s *scene) recover(t *testing.T) {
	t.Helper()
	s.nth.MustRun(t)
	s.proxy.Lift()
	s.release(t, "guarded")
	s.waitDrained(t)
	s.nth.Stop(t)
	for _, e := range s.nth.Logged(systemd.DrainIncomplete) {
		t.Errorf("nth said %q", e.Message)
	}
	s.mustRemember(t, state.Drained, unknown)
}
