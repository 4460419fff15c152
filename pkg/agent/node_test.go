package agent_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// withNode runs f with the Node as it is, and an API server.
func withNode(t *testing.T, f func(r *rig, s *apitest.Server)) {
	t.Helper()
	t.Parallel()
	bubble(t, func(r *rig) {
		s := apitest.New(r.t)
		r.cfg.Node = drain.New(s.Client(), apitest.Node, drain.Options{Margin: 2 * time.Second})
		f(r, s)
	})
}

// web is a pod that ends by itself within its grace period.
func web(name string, grace int64) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{"app": "web"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace},
	}
	apitest.Ready(pod)
	return pod
}

// The kubelet's kubeconfig is there, its Node is not yet, and the machine is doomed already.
func TestANoticeThatComesBeforeTheNodeIsRegisteredIsActedUponWhenItIs(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		s.RemoveNode()
		r.run()
		r.announce(r.spot("s", 2*time.Minute))
		waitsForItsNode(r, s, "s", 20*time.Second)
	})
}

// waitsForItsNode looks that the node is drained for an event that was announced when there is one, within so long, and not before.
func waitsForItsNode(r *rig, s *apitest.Server, id string, within time.Duration) {
	r.t.Helper()
	r.pass(10 * time.Second)
	if e := r.entry(id); e.Phase != state.Draining {
		r.t.Errorf("without a Node in this boot, the entry is %+v", e)
	}
	s.RegisterNode()
	s.AddPod(web("web", 5), 0)
	r.pass(within)
	if e := r.entry(id); e.Phase != state.Drained || s.HasPod("default/web") || !s.CurrentNode().Spec.Unschedulable {
		r.t.Errorf("the entry is %+v", e)
	}
}

// A machine was stopped and started again before the time of its event, and its kubelet is late.
func TestANodeOfAnEarlierBootIsNoneOfThisOne(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		s.RemoveNode()
		r.record.entries = []state.Entry{{
			Event: r.stopping("b", time.Hour), Phase: state.Draining, BootID: "boot-0", ListedIn: "boot-0",
			FirstSeen: r.start, Changed: r.start, CordonedAt: r.start, ClosedIn: "boot-0", ActedFor: r.start, OnNode: true,
		}}
		r.run()
		r.announce(r.stopping("b", time.Hour))
		waitsForItsNode(r, s, "b", 30*time.Second)
	})
}

// A budget holds a pod that needs 40 s to end. Whatever else is due before, it gets them.
func TestAPodGetsItsGraceBeforeTheMachineIsLostWhateverElseIsDue(t *testing.T) {
	for name, others := range map[string][]time.Duration{
		"alone": nil, "beside a stop in 50 s": {50 * time.Second}, "beside a stop that is overdue": {-time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			withNode(t, func(r *rig, s *apitest.Server) {
				s.AddPod(web("web", 40), apitest.Never)
				s.Always("evict", apitest.HeldBy("web", 0))
				r.run()
				events := []event.Event{}
				for _, at := range others {
					events = append(events, r.stopping("m", at))
				}
				r.announce(events...)
				r.announce(append(events, r.spot("s", time.Minute))...)
				r.pass(time.Minute)
				deletions := s.Requests("delete")
				if len(deletions) == 0 {
					t.Fatal("the pod was never deleted")
				}
				if at := deletions[0].At.Sub(r.start); at != 18*time.Second {
					t.Errorf("it was deleted after %s, want 18s", at)
				}
				if grace := deletions[0].Options.GracePeriodSeconds; grace != nil && *grace < 40 {
					t.Errorf("its grace is %d s", *grace)
				}
			})
		})
	}
}

// Somebody lifts the cordon in the midst of a drain; nth is started again; another event comes.
func TestAnOrderByHandOutlastsARestartAndEndsWithAnotherEvent(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		s.AddPod(web("web", 30), apitest.Never)
		s.Always("evict", apitest.HeldBy("web", 0))
		stop := r.stopping("m", time.Hour)
		r.run()
		r.announce(stop)
		r.pass(10 * time.Second)
		s.UncordonAs("kubectl")
		r.pass(10 * time.Second)
		if !r.entry("m").Reopened {
			t.Error("the order is not in the record")
		}
		r.stop()
		if err := <-r.ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
		r.run()
		r.announce(stop)
		r.pass(time.Minute)
		if s.CurrentNode().Spec.Unschedulable {
			t.Error("the node was cordoned again")
		}
		r.announce(stop, r.spot("s", 4*time.Minute))
		r.pass(time.Second)
		if !s.CurrentNode().Spec.Unschedulable {
			t.Error("the node was not cordoned for the other event")
		}
		r.stop()
		if err := <-r.ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
		r.stop = nil
	})
}

// The machine is rebooted so quickly that its Node has been Ready all the time.
func TestAfterAQuickRebootTheKubeletOfThisBootHasToSpeak(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		r.run()
		reboot := r.rebooting("m", time.Minute)
		r.announce(reboot)
		r.pass(5 * time.Second)
		r.stop()
		if err := <-r.ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
		r.cfg.BootID = "boot-2"
		r.run()
		r.announce()
		r.pass(time.Minute)
		if !s.CurrentNode().Spec.Unschedulable {
			t.Error("it was uncordoned on the word of the boot before")
		}
		s.SetBootID("boot-2")
		r.pass(time.Minute)
		if s.CurrentNode().Spec.Unschedulable || r.entry("m").Ending != state.Rebooted {
			t.Errorf("the entry is %+v", r.entry("m"))
		}
	})
}

// A pod that was bound before the cordon, and that the scheduler needed its time for, comes after the drain.
func TestAPodThatIsBoundLateIsEvictedWithoutAWordAboutTheDrain(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		heard := &ear{}
		r.cfg.Listeners = append(r.cfg.Listeners, heard)
		r.run()
		r.announce(r.spot("s", 2*time.Minute))
		s.AddPodLate(web("late", 5), 10*time.Second, 0)
		r.pass(5 * time.Second)
		if e := r.entry("s"); e.Phase != state.Drained {
			t.Errorf("the entry is %+v", e)
		}
		heard.take()
		r.pass(30 * time.Second)
		if e := r.entry("s"); e.Phase != state.Drained || s.HasPod("default/late") {
			t.Errorf("the entry is %+v, the pod is there: %t", e, s.HasPod("default/late"))
		}
		for _, line := range heard.take() {
			if line[:4] != "pod-" {
				t.Errorf("heard %q", line)
			}
		}
	})
}

// What is due to an event that comes later is settled from the state of the node.
func TestEventsThatComeWhileANodeIsDrainedAreDrainedForAtOnce(t *testing.T) {
	withNode(t, func(r *rig, s *apitest.Server) {
		heard := &ear{}
		r.cfg.Listeners = append(r.cfg.Listeners, heard)
		s.AddPod(web("web", 5), 0)
		r.run()
		stop := r.stopping("m", time.Hour)
		r.announce(stop)
		r.pass(10 * time.Second)
		heard.take()
		r.announce(stop, r.spot("s", 4*time.Minute))
		r.pass(2 * time.Second)
		r.announce(stop, r.spot("s", 4*time.Minute), terminated("a"))
		r.pass(2 * time.Second)
		lines := heard.take()
		for i, line := range lines {
			lines[i], _, _ = strings.Cut(line, " after")
		}
		heard.heard = lines
		heard.want(t, "announced s", "begun s drain", "cordoned s drain", "done s drain",
			"announced a", "begun a drain", "cordoned a drain", "done a drain")
		if n := len(s.Requests("patch node")); n != 1 {
			t.Errorf("the Node was written to %d times", n)
		}
	})
}
