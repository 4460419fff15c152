package drain_test

import (
	"testing"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
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
