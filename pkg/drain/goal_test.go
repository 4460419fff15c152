package drain_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/state"
)

func TestGoal(t *testing.T) {
	t.Parallel()
	run(t, "each is reported", func(t *testing.T, s *apitest.Server) {
		r, free := holding(t, s, pod("a"))
		r.adjust(func(g *drain.Goal) { g.Generation++ })
		await(t, "that the node was looked at", func() bool { return r.numbered(state.StateChanged).State.Cordoned })
		if reported := r.of(state.StateChanged)[0]; reported.State.Drained || reported.State.Cordoned || !reported.State.Ours || reported.Left != 1 || reported.Total != 1 {
			t.Errorf("reported %+v; nobody has looked yet for this event", reported)
		}
		free()
		r.succeed()
		if reported := r.of(state.NodeEmpty); len(reported) != 1 || reported[0].Generation != 2 {
			t.Errorf("reported %+v", reported)
		}
		// A drained node is drained for the next event, too, and for that one it is reported.
		r.adjust(func(g *drain.Goal) { g.Generation, g.Hard = g.Generation+1, time.Now().Add(time.Minute) })
		if reported := r.numbered(state.NodeEmpty); !reported.State.Drained || reported.Total != 1 || count(s, "delete") > 0 {
			t.Errorf("reported %+v", reported)
		}
		r.reported(4, state.StateChanged)
	})
	run(t, "from cordon to drain, and back", func(t *testing.T, s *apitest.Server) {
		free := addHeld(s, pod("a"))
		s.AddPod(pod("b"), 0)
		goal := toCordon()
		r := start(t, s, drain.Options{LoadBalancerWait: 30 * time.Second}, goal)
		r.await(state.NodeCordoned)
		time.Sleep(time.Minute)
		if count(s, "evict", "list", "watch") != 0 || len(r.of(state.NodeEmpty)) != 0 {
			t.Errorf("a cordon has made %d requests for pods", count(s, "evict", "list", "watch"))
		}
		r.adjust(func(g *drain.Goal) { g.Evict = true })
		began := time.Now()
		r.await(state.PodGone, "default/b")
		r.await(state.PodHeld)
		if after := time.Since(began).Truncate(time.Second); after != 30*time.Second {
			t.Errorf("evicted after %s", after)
		}
		r.adjust(func(g *drain.Goal) { g.Evict = false })
		if reported := r.numbered(state.StateChanged); reported.State.Drained || reported.Left != 0 {
			t.Errorf("reported %+v", reported)
		}
		asked := count(s, "evict")
		free()
		time.Sleep(time.Minute)
		if n := count(s, "evict"); n != asked || !s.HasPod("default/a") || len(r.of(state.NodeEmpty)) != 0 {
			t.Errorf("%d evictions under a goal that keeps pods", n-asked)
		}
		r.adjust(func(g *drain.Goal) { g.Evict = true })
		if result := r.succeed(); result.Evicted != 2 || r.last().Total != 2 {
			t.Errorf("the result is %+v, reported %+v", result, r.last())
		}
	})
	// A drain that continues is not begun again.
	run(t, "a change delays evictions no longer", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a"), 0)
		r := begin(t, s, drain.Options{LoadBalancerWait: time.Minute})
		time.Sleep(30 * time.Second)
		r.adjust(func(g *drain.Goal) { g.Soft = g.Soft.Add(time.Hour) })
		time.Sleep(15 * time.Second)
		r.adjust(func(g *drain.Goal) { g.Generation++ })
		r.succeed()
		if after := s.Requests("evict")[0].At.Sub(r.began); after != time.Minute || len(r.of(state.EvictionsDelayed)) != 1 {
			t.Errorf("evicted after %s, and reported %+v", after, r.of(state.EvictionsDelayed))
		}
	})
}

func TestDrained_ForAnEventThatJoins(t *testing.T) {
	t.Parallel()
	// A watch that has been silent tells nothing of the pods that came meanwhile, and the Node is as it was.
	for name, happen := range map[string]func(*apitest.Server){
		"by a newer list":    func(s *apitest.Server) { s.AddPod(pod("late"), 0) },
		"by what is in that": func(s *apitest.Server) { s.ChangePod("default/kept", func(p *corev1.Pod) { p.Annotations = nil }) },
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("kept", annotated(evict.Annotation, evict.Never)), 0)
			s.Answer("watch pods", apitest.Silence())
			r := drained(t, s, drain.Options{})
			happen(s)
			r.adjust(func(g *drain.Goal) { g.Generation++ })
			await(t, "that it is drained for both", func() bool { return r.numbered(state.NodeEmpty).State.Drained })
			if gone := count(s, "evict"); gone != 1 {
				t.Errorf("drained after %d evictions, want 1", gone)
			}
		})
	}
	// Operators have opened the node, of which nobody knows: it can be read no more.
	run(t, "not while looks fail", func(t *testing.T, s *apitest.Server) {
		r := drained(t, s, drain.Options{})
		s.UncordonAs("kubectl")
		s.Always("get node", apitest.Unavailable())
		r.adjust(func(g *drain.Goal) { joining(g); g.Hard = time.Now().Add(2 * time.Minute) })
		time.Sleep(time.Minute)
		if reported := r.now(state.NodeEmpty); len(reported) > 0 {
			t.Errorf("reported to be drained for another event, without a look since: %+v", reported)
		}
	})
}

// What the policy makes of it depends on what stands in the way.
func TestGoal_ReportsTrouble(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		upset   func(*apitest.Server)
		trouble string
		looked  bool // what is reported of the Node is what is on it
	}{
		"nothing is in the way":            {func(*apitest.Server) {}, "", true},
		"a failure that has lasted":        {func(s *apitest.Server) { s.Always("get node", apitest.Unavailable()) }, `cordoning node "node-1": 503 Service Unavailable: not ready`, false},
		"a refusal to read the Node":       {func(s *apitest.Server) { s.Always("get node", apitest.Forbidden("no looks here")) }, `cordoning node "node-1": no looks here`, false},
		"a refusal to close it":            {func(s *apitest.Server) { s.Always("patch", apitest.Forbidden("no cordons here")) }, `cordoning node "node-1": no cordons here`, true},
		"there is no Node, which it takes": {func(s *apitest.Server) { s.RemoveNode() }, "", true},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			c.upset(s)
			r := begin(t, s, drain.Options{})
			time.Sleep(30 * time.Second)
			r.adjust(func(g *drain.Goal) { g.Soft = g.Soft.Add(time.Hour) })
			if reported := r.numbered(state.StateChanged); reported.State.Trouble != c.trouble || reported.State.Looked != c.looked {
				t.Errorf("reported %+v", reported)
			}
		})
	}
}
