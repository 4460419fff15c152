package drain_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// openedNode is a node that was drained and that people have opened since, with a pod that came after that.
func openedNode(t *testing.T) (s *apitest.Server, r *trial, closedAt time.Time) {
	t.Helper()
	s = apitest.New(t)
	r = beginWithin(t, s, drain.Options{}, true, 30*time.Minute)
	r.await(state.NodeEmpty)
	time.Sleep(time.Minute)
	closedAt = time.Now()
	s.UncordonAs("kubectl")
	r.await(state.NodeReopened)
	r.adjust(func(g *drain.Goal) { g.Open, g.Reopened, g.Unclosed = true, closedAt, nil }) // as the agent does
	time.Sleep(time.Minute)
	s.AddPod(pod("stays"), 0)
	time.Sleep(time.Minute)
	if !s.HasPod("default/stays") || s.CurrentNode().Spec.Unschedulable {
		t.Fatal("the order does not stand")
	}
	return s, r, closedAt
}

// The agent says for a while that the node is to stay open: it has not heard yet that there is another one.
func TestAnOrderToOpenTheNodeEndsWithThatNodeWhateverTheAgentStillSays(t *testing.T) {
	for name, still := range map[string]func(g *drain.Goal, at time.Time){
		"nothing":                           nil,
		"that it is open":                   func(g *drain.Goal, _ time.Time) { g.Open, g.Reopened = true, time.Time{} },
		"that it was opened":                func(g *drain.Goal, at time.Time) { g.Open, g.Reopened = false, at },
		"that it was opened and stays so":   func(g *drain.Goal, at time.Time) { g.Open, g.Reopened = true, at },
		"no more, and then that it is open": func(g *drain.Goal, _ time.Time) { g.Open, g.Reopened = false, time.Time{} },
	} {
		run(t, name, func(t *testing.T) {
			s, r, closedAt := openedNode(t)
			told := len(r.of(state.NodeClosed))
			s.RegisterNode()
			await(t, "the cordon", func() bool { return s.CurrentNode().Spec.Unschedulable })
			if still != nil {
				r.adjust(func(g *drain.Goal) { still(g, closedAt) })
			}
			s.AddPod(pod("later"), 0)
			time.Sleep(time.Minute)
			if s.HasPod("default/stays") || s.HasPod("default/later") || !s.CurrentNode().Spec.Unschedulable {
				t.Errorf("pods are left on the new Node; unschedulable: %t", s.CurrentNode().Spec.Unschedulable)
			}
			now := r.of(state.NodeClosed)[told:]
			if len(now) != 1 || !slices.Equal(now[0].Events, []string{claim.Event}) {
				t.Errorf("told of the new Node is %+v", now)
			}
		})
	}
}

// The cordon of the new Node is refused for a while, or its answer takes long.
func TestAnOrderToOpenTheNodeEndsThoughTheCordonOfTheNextOneFailsAtFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, _, _ := openedNode(t)
		s.Always("patch", apitest.Unavailable())
		s.RegisterNode()
		time.Sleep(3 * time.Second)
		s.Always("patch", nil)
		await(t, "the cordon", func() bool { return s.CurrentNode().Spec.Unschedulable })
		time.Sleep(time.Minute)
		if s.HasPod("default/stays") {
			t.Error("a pod is left on the new Node")
		}
	})
}

// People open the Node that has registered anew, too.
func TestAnOrderAboutTheNextNodeStandsAsTheOneBeforeDid(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, r, _ := openedNode(t)
		s.RegisterNode()
		await(t, "the cordon", func() bool { return s.CurrentNode().Spec.Unschedulable })
		time.Sleep(time.Minute)
		r.adjust(func(g *drain.Goal) { g.Open, g.Reopened = false, time.Time{} }) // The agent has heard of it.
		time.Sleep(time.Minute)
		told, again := len(r.of(state.NodeReopened)), time.Now()
		s.UncordonAs("kubectl")
		await(t, "the news", func() bool { return len(r.of(state.NodeReopened)) > told })
		r.adjust(func(g *drain.Goal) { g.Open, g.Reopened, g.Unclosed = true, again, nil })
		time.Sleep(time.Minute)
		s.AddPod(pod("new"), 0)
		time.Sleep(time.Minute)
		if !s.HasPod("default/new") || s.CurrentNode().Spec.Unschedulable {
			t.Error("the order about the new Node does not stand")
		}
	})
}
