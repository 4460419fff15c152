package drain_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// other is the other one of the programs that write claims.
var other = map[string]string{drain.Host: drain.Queue, drain.Queue: drain.Host}

func TestClaim_OfAnotherWriter(t *testing.T) {
	t.Parallel()
	for writer, others := range other {
		run(t, writer, func(t *testing.T, s *apitest.Server) {
			s.ChangeNode(cordoned(claimBy(others)))
			s.AddPod(pod("a"), 0)
			r := drained(t, s, drain.Options{Writer: writer})
			if reported := r.last(); r.result.Cordon != drain.CordonForeign || reported.State.Ours || !reported.State.Cordoned {
				t.Errorf("the result is %+v, the state %+v", r.result, reported.State)
			}
			node := drain.New(s.Client(), apitest.Node, drain.Options{Writer: writer})
			if got, err := node.Uncordon(within(t, plenty), nil); got != drain.UncordonNotOurs || err != nil {
				t.Errorf("uncordon is %q, %v", got, err)
			}
			if theirs, found, err := node.Claim(within(t, plenty)); found || err != nil {
				t.Errorf("the claim is %+v, %v, %v", theirs, found, err)
			}
			if after := s.CurrentNode(); !after.Spec.Unschedulable || after.Annotations[drain.CordonAnnotation] != claimBy(others) || count(s, "patch") != 0 {
				t.Errorf("the node is left as %+v %+v", after.ObjectMeta, after.Spec)
			}
		})
	}
}

func TestClaim_TakenBackByItsWriter(t *testing.T) {
	t.Parallel()
	for writer, others := range other {
		run(t, writer, func(t *testing.T, s *apitest.Server) {
			s.ChangeNode(cordoned(claimBy(others)))
			r := drained(t, s, drain.Options{Writer: writer})
			s.ChangeNode(unclaimed)
			r.await(state.NodeCordoned)
			if reported := r.of(state.NodeUncordoned); len(reported) != 0 || !s.CurrentNode().Spec.Unschedulable || r.task.Result().Cordon != drain.CordonSet {
				t.Errorf("reported %+v; the result is %+v", reported, r.task.Result())
			}
			s.AddPod(pod("late"), 0)
			r.await(state.PodGone, "default/late")
		})
		run(t, writer+", where operators take it back", func(t *testing.T, s *apitest.Server) {
			s.ChangeNode(cordoned(claimBy(others)))
			r := drained(t, s, drain.Options{Writer: writer})
			s.ChangeNode(uncordoned)
			r.await(state.NodeUncordoned)
			time.Sleep(time.Minute)
			if n := count(s, "patch"); n != 0 || s.CurrentNode().Annotations[drain.CordonAnnotation] != claimBy(others) {
				t.Errorf("%d patches", n)
			}
		})
	}
}
