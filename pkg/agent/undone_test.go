package agent_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
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

// A pod that a budget holds has a grace period of a minute, and the machine is there for two.
func TestANewInterruptionGivesPodsTheirGraceThoughTheOneBeforeIsStillBeingTakenBack(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		rule := r.cfg.Policy[event.SpotInterruption]
		rule.Budget = 2 * time.Minute
		r.cfg.Policy[event.SpotInterruption] = rule
		s.AddPod(web("web", 60), apitest.Never)
		s.Always("evict", apitest.HeldBy("web", 0))
		r.run()
		r.announce(r.spot("old", 2*time.Minute))
		r.pass(10 * time.Second)
		r.announce()
		r.pass(25 * time.Second)
		s.GoAway()
		r.pass(265 * time.Second)
		if e := r.entry("old"); e.Phase != state.Undoing {
			t.Fatalf("the entry is %+v", e)
		}
		r.announce(r.spot("new", 7*time.Minute))
		s.ComeBack()
		for range 120 {
			r.pass(time.Second)
			if p := s.Pod("default/web"); p == nil || p.DeletionTimestamp != nil {
				break
			}
		}
		p := s.Pod("default/web")
		if p == nil || p.DeletionGracePeriodSeconds == nil {
			t.Fatalf("the pod is %+v", p)
		}
		if given := *p.DeletionGracePeriodSeconds; given < 55 {
			t.Errorf("it gets %d s of its 60, %s before the machine is lost", given, 7*time.Minute-time.Since(r.start))
		}
	})
}

// The node was closed by nth-queue, which opens it. nth closes it then, and in that moment the event is over: the answer to the patch
// comes when nobody waits for it any more.
func TestACordonThatTakesThePlaceOfAnothersInTheLastMomentIsTakenBack(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		s.AddPod(web("web", 30), apitest.Never)
		r.run()
		r.replaceQueuesCordon(s)
	})
}

// An uncordon of before says nothing of that cordon.
func TestACordonOfTheLastMomentIsTakenBackAlsoOnANodeThatWasOpenedBefore(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		r.run()
		r.announce(r.spot("first", time.Hour))
		r.pass(10 * time.Second)
		r.announce()
		r.pass(time.Minute)
		if s.CurrentNode().Spec.Unschedulable || r.entry("first").Phase != state.Closed {
			t.Fatalf("the entry is %+v", r.entry("first"))
		}
		s.AddPod(web("web", 30), apitest.Never)
		r.replaceQueuesCordon(s)
	})
}

// replaceQueuesCordon has nth close, in the last moment, a node that nth-queue has closed and opens, and wants it open in the end.
func (r *rig) replaceQueuesCordon(s *apitest.Server) {
	t := r.t
	t.Helper()
	s.Always("evict", apitest.HeldBy("web", 0))
	s.ChangeNode(func(n *corev1.Node) {
		n.Spec.Unschedulable = true
		n.Annotations[drain.CordonAnnotation] = `{"writer":"nth-queue","event":"q","kind":"asg-termination"}`
	}, drain.Queue)
	r.announce(r.stopping("a", 24*time.Hour))
	r.pass(10 * time.Second)
	if e := r.entry("a"); e.Phase != state.Draining || e.OnNode {
		t.Fatalf("the entry is %+v", e)
	}
	s.Answer("patch node", slowly)
	s.ChangeNode(func(n *corev1.Node) {
		n.Spec.Unschedulable = false
		delete(n.Annotations, drain.CordonAnnotation)
	}, drain.Queue)
	for len(s.Requests("patch node")) == 0 {
		r.pass(time.Second)
	}
	r.set(event.ScheduledMaintenance, func(rule *policy.Rule) { rule.Action = policy.Ignore })
	r.pass(time.Minute)
	if s.CurrentNode().Spec.Unschedulable {
		t.Errorf("nobody wants the node closed, and it is; the entry is %+v", r.entry("a"))
	}
}

// After a guard has ended that had found the node closed, the claim is read once more. A Node that registers later has none.
func TestAfterAGuardsEndANodeThatIsNotThereIsAskedOnceAndOneThatDoesNotAnswerAgain(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		err  error
		want int
	}{
		{apierrors.NewNotFound(corev1.Resource("nodes"), "node-a"), 1},
		{errors.New("connection refused"), 13},
	} {
		t.Run(row.err.Error(), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				r.node.toGuard(func(ctx context.Context, g *guard) {
					g.closeAs(state.NodeFoundClosed, drain.CordonForeign)
					<-ctx.Done()
				})
				r.runFor(r.stopping("a", time.Hour))
				asked := 0
				r.node.toClaim(func(context.Context) (drain.Claim, bool, error) { asked++; return drain.Claim{}, false, row.err })
				r.set(event.ScheduledMaintenance, func(rule *policy.Rule) { rule.Action = policy.Ignore })
				r.pass(time.Minute + time.Second)
				if asked != row.want {
					t.Errorf("the Node was asked %d times in a minute, want %d", asked, row.want)
				}
			})
		})
	}
}
