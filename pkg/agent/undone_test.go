package agent_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// An uncordon is called back halfway, since its event is back, and the API server carries it out all the same.
func TestAnUncordonThatIsCalledBackHalfwayIsNoOrder(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		r.run()
		a := r.spot("a", time.Hour)
		r.announce(a)
		r.pass(10 * time.Second)
		s.Answer("patch node", slowly)
		r.announce()
		r.pass(31 * time.Second)
		r.announce(a)
		r.pass(time.Minute)
		if e := r.entry("a"); e.Reopened || !s.CurrentNode().Spec.Unschedulable {
			t.Errorf("nobody but nth has touched the node; a is %s, reopened %t; unschedulable: %t", e.Phase, e.Reopened, s.CurrentNode().Spec.Unschedulable)
		}
	})
}

// Somebody else has cordoned the node, and only the label on it is ours. The event comes back while that is being taken off.
func TestWhatOthersHaveCordonedIsNoOrder(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		s := apitest.New(r.t)
		r.cfg.Node = drain.New(s.Client(), apitest.Node, drain.Options{ExcludeFromLoadBalancers: true})
		s.AddPod(web("web", 30), apitest.Never)
		s.Always("evict", apitest.HeldBy("web", 0))
		s.CordonAs("kubectl")
		r.run()
		a := r.spot("a", time.Hour)
		r.announce(a)
		r.pass(10 * time.Second)
		if s.CurrentNode().Labels[drain.ExcludeLabel] == "" || !r.entry("a").OnNode {
			t.Fatalf("no label: %+v", r.entry("a"))
		}
		s.Answer("patch node", slowly)
		r.announce()
		r.pass(31 * time.Second)
		r.announce(a)
		r.pass(time.Minute)
		if e := r.entry("a"); e.Reopened || e.Phase != state.Draining {
			t.Errorf("nobody has opened the node, which is unschedulable: %t; a is %s, reopened %t", s.CurrentNode().Spec.Unschedulable, e.Phase, e.Reopened)
		}
	})
}

// slowly has a request carried out after a while, also if nobody waits for it any more, as with an admission webhook.
func slowly(http.ResponseWriter, *http.Request) bool {
	time.Sleep(3 * time.Second)
	return false
}
