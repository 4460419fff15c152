package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// The node is closed for a, which b joins. a is withdrawn, so that b alone holds the cordon, whose claim names a still. Then people
// lift it, which is an order for b; and a comes back, as an event that nobody has given an order about.
func TestAnOrderIsNoneForAnEventThatComesBackAfterIt(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		maintenance := r.cfg.Policy[event.ScheduledMaintenance]
		maintenance.WithdrawnAfter = time.Minute
		r.cfg.Policy[event.ScheduledMaintenance] = maintenance
		r.run()
		a, b := r.stopping("a", 14*24*time.Hour), r.stopping("b", 7*24*time.Hour)
		r.announce(a)
		r.pass(10 * time.Second)
		r.announce(a, b)
		r.pass(10 * time.Second)
		r.announce(b)
		r.pass(2 * time.Minute)
		if e := r.entry("a"); e.Phase != state.Closed || e.Ending != state.Withdrawn {
			t.Fatalf("a is %+v", e)
		}
		s.UncordonAs("kubectl")
		r.pass(10 * time.Second)
		if e := r.entry("b"); !e.Reopened {
			t.Fatalf("b is %+v", e)
		}
		s.AddPod(web("web", 5), 0)
		r.announce(a, b)
		r.pass(time.Minute)
		if e := r.entry("a"); !s.CurrentNode().Spec.Unschedulable || s.HasPod("default/web") {
			t.Errorf("a came back a minute ago, and the node is not drained for it: unschedulable %t, reopened %t, %s",
				s.CurrentNode().Spec.Unschedulable, e.Reopened, e.Phase)
		}
	})
}

// People have lifted the cordon for an event, another one has had it set again, and the first is put off, and due again, while that stands.
func TestAnOrderIsNoneForAnEventThatHasBegunAnewSinceAlsoAfterARestart(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		r.run()
		a, b := r.rebooting("a", 10*time.Minute), r.stopping("b", 7*24*time.Hour)
		r.announce(a)
		r.pass(10 * time.Second)
		s.UncordonAs("kubectl")
		r.pass(10 * time.Second)
		r.announce(a, b)
		r.pass(10 * time.Second)
		if e := r.entry("a"); !e.Reopened || !s.CurrentNode().Spec.Unschedulable {
			t.Fatalf("a is %+v", e)
		}
		r.announce(r.rebooting("a", 5*time.Hour), b)
		r.pass(10 * time.Second)
		r.announce(a, b)
		r.pass(10 * time.Second)
		r.end(nil)
		r.run()
		r.announce(a, b)
		r.pass(10 * time.Second)
		b.State = event.Canceled
		r.announce(a, b)
		r.pass(time.Minute)
		if e := r.entry("a"); !s.CurrentNode().Spec.Unschedulable || e.Reopened {
			t.Errorf("nobody has opened the node since a is due again: unschedulable %t, reopened %t, %s", s.CurrentNode().Spec.Unschedulable, e.Reopened, e.Phase)
		}
	})
}

// The same with an event that is moved to later while another holds the cordon.
func TestAnOrderIsNoneForAnEventThatIsMovedToAfterIt(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		r.run()
		a, b := r.rebooting("a", 10*time.Minute), r.stopping("b", 7*24*time.Hour)
		r.announce(a)
		r.pass(10 * time.Second)
		r.announce(a, b)
		r.pass(10 * time.Second)
		a = r.rebooting("a", 5*time.Hour)
		r.announce(a, b)
		r.pass(10 * time.Second)
		if e := r.entry("a"); e.Phase != state.Seen {
			t.Fatalf("a is %+v", e)
		}
		s.UncordonAs("kubectl")
		r.pass(10 * time.Second)
		if e := r.entry("b"); !e.Reopened {
			t.Fatalf("b is %+v", e)
		}
		s.AddPod(web("web", 5), 0)
		r.pass(4*time.Hour + 55*time.Minute)
		if e := r.entry("a"); !s.CurrentNode().Spec.Unschedulable || s.HasPod("default/web") {
			t.Errorf("a is due, and the node is not drained for it: unschedulable %t, reopened %t, %s",
				s.CurrentNode().Spec.Unschedulable, e.Reopened, e.Phase)
		}
	})
}

// What was recorded last never reached the disk, and the node was opened while nth was stopped. The claim names both events, and of the
// second nth hears only when it knows already that the node is open.
func TestAnOrderIsForAllEventsThatTheClaimNamesWheneverTheyAreHeardOf(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		s.AddPod(web("web", 30), apitest.Never)
		s.Always("evict", apitest.HeldBy("web", 0))
		r.run()
		a, b := r.stopping("a", 14*24*time.Hour), r.stopping("b", 7*24*time.Hour)
		r.announce(a, b)
		r.pass(10 * time.Second)
		if claim := s.CurrentNode().Annotations[drain.CordonAnnotation]; !strings.Contains(claim, `"events":["b","a"]`) {
			t.Fatalf("the claim is %s", claim)
		}
		r.end(nil)
		r.record.entries = slices.DeleteFunc(r.record.entries, func(e state.Entry) bool { return e.Event.ID == "a" })
		s.UncordonAs("kubectl")
		r.run()
		r.announce(b)
		r.pass(10 * time.Second)
		if s.CurrentNode().Spec.Unschedulable {
			t.Fatal("cordoned for b")
		}
		r.announce(a, b)
		r.pass(10 * time.Second)
		if s.CurrentNode().Spec.Unschedulable {
			t.Errorf("people have opened the node that was closed for both events, and it was cordoned again for one of them: %s", s.CurrentNode().Annotations[drain.CordonAnnotation])
		}
	})
}

// People have the node left alone, and open it, while nth is stopped. Then they have it looked after again.
func TestANodeThatPeopleOpenWhileItIsLeftAloneStaysOpenAfterAStart(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		r.run()
		a := r.stopping("a", 14*24*time.Hour)
		r.announce(a)
		r.pass(10 * time.Second)
		r.end(nil)
		s.ChangeNode(func(n *corev1.Node) { n.Annotations[drain.ActionAnnotation] = drain.LeaveNode }, "kubectl")
		s.UncordonAs("kubectl")
		r.run()
		r.announce(a)
		r.pass(time.Minute)
		s.ChangeNode(func(n *corev1.Node) { delete(n.Annotations, drain.ActionAnnotation) }, "kubectl")
		r.pass(time.Minute)
		if s.CurrentNode().Spec.Unschedulable {
			t.Error("the node that people have opened was cordoned again")
		}
	})
}

// The node is opened while nth is stopped, and another event is announced meanwhile. Nth hears of that before it has seen the node.
func TestAnOrderThatIsFoundAtAStartIsKnownAlsoIfTheNodeIsClosedForAnother(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		r.run()
		a, b := r.stopping("a", 14*24*time.Hour), r.stopping("b", 7*24*time.Hour)
		r.announce(a)
		r.pass(10 * time.Second)
		r.end(nil)
		s.UncordonAs("kubectl")
		s.GoAway()
		r.run()
		r.announce(a, b)
		s.ComeBack()
		r.pass(10 * time.Second)
		if a, b := r.entry("a"), r.entry("b"); !a.Reopened || b.Reopened || !s.CurrentNode().Spec.Unschedulable {
			t.Errorf("unschedulable %t, for a people have opened it: %t, for b: %t", s.CurrentNode().Spec.Unschedulable, a.Reopened, b.Reopened)
		}
		b.State = event.Canceled
		r.announce(a, b)
		r.pass(10 * time.Second)
		if s.CurrentNode().Spec.Unschedulable {
			t.Error("the other event is canceled, and the node is cordoned though people have opened it")
		}
	})
}
