package agent_test

import (
	"context"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// The machine has been rebooted, and the API server is away at first. What stood before is canceled then. The kubelet of this boot
// has said nothing yet.
func TestANodeThatWasClosedBeforeARebootWaitsForItsKubeletAlsoIfItsClaimIsReadLate(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		r.run()
		a := r.stopping("a", 14*24*time.Hour)
		r.announce(a)
		r.pass(10 * time.Second)
		r.end(nil)
		r.cfg.BootID = "boot-2"
		s.GoAway()
		r.run()
		r.announce(a)
		r.pass(time.Second)
		a.State = event.Canceled
		r.announce(a)
		r.pass(time.Second)
		s.ComeBack()
		r.pass(time.Minute)
		if !s.CurrentNode().Spec.Unschedulable {
			t.Error("the node takes pods, and the kubelet of this boot has not said that it is Ready")
		}
		s.SetBootID("boot-2")
		r.pass(time.Minute)
		if s.CurrentNode().Spec.Unschedulable {
			t.Error("the node is Ready, and takes no pods")
		}
	})
}

// A drain that goes on after people have opened the node; another event has closed it again; the machine is rebooted; and that
// other event is canceled before the kubelet is there.
func TestADrainOnANodeThatPeopleHaveOpenedDoesNotWaitUntilItIsReady(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		s.AddPod(web("web", 30), apitest.Never)
		s.Always("evict", apitest.HeldBy("web", 0))
		r.run()
		a, b := r.stopping("a", 7*24*time.Hour), r.stopping("b", 14*24*time.Hour)
		r.announce(a)
		r.pass(10 * time.Second)
		s.UncordonAs("kubectl")
		r.pass(10 * time.Second)
		r.announce(a, b)
		r.pass(10 * time.Second)
		if !s.CurrentNode().Spec.Unschedulable {
			t.Fatal("not closed for b")
		}
		r.end(nil)
		r.cfg.BootID = "boot-2"
		r.run()
		r.announce(a, b)
		r.pass(10 * time.Second)
		b.State = event.Canceled
		r.announce(a, b)
		r.pass(10 * time.Second)
		before := len(s.Requests("evict"))
		r.pass(5 * time.Minute)
		if e := r.entry("a"); len(s.Requests("evict")) == before {
			t.Errorf("a is %s, and nobody has asked for an eviction for five minutes; b is %s", e.Phase, r.entry("b").Phase)
		}
		s.SetBootID("boot-2")
		r.pass(time.Minute)
		if e := r.entry("b"); s.CurrentNode().Spec.Unschedulable || e.Phase != state.Closed {
			t.Errorf("the node is Ready, b is canceled (%s), and the node that people have opened takes no pods", e.Phase)
		}
		before = len(s.Requests("evict"))
		r.pass(time.Minute)
		if len(s.Requests("evict")) == before {
			t.Error("the drain has ended with the other's uncordon")
		}
	})
}

// The claim says that there has been no reboot. A kubelet that is not Ready for other reasons is not waited for then.
func TestAnUncordonWaitsForNoKubeletOnceTheClaimSaysThatThereWasNoReboot(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.run()
		a := r.stopping("a", time.Hour)
		r.announce(a)
		r.end(nil)
		r.tape.take()
		r.node.toClaim(func(context.Context) (drain.Claim, bool, error) {
			time.Sleep(5 * time.Second)
			return drain.Claim{Event: "a", BootID: "boot-1", Since: r.start}, true, nil
		})
		r.node.toUncordon(func(ctx context.Context) (drain.UncordonResult, error) {
			if r.node.awaits() {
				return "", wait(ctx)
			}
			return drain.UncordonLifted, nil
		})
		a.State = event.Canceled
		r.run()
		r.announce(a)
		r.pass(10 * time.Second)
		r.wantTape("guard for a: drain, soft in 1h0m0s", "put a undoing", "guard ended", "uncordon when ready",
			"uncordon when ready ended", "uncordon", "uncordon ended", "put a closed canceled")
	})
}
