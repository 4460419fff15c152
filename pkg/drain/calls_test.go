package drain_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

// slowWrites are how long the API server may take for a write.
var slowWrites = []time.Duration{time.Second, 9 * time.Second}

// late has a request carried out after so long, although nobody may wait for it any more.
func late(by time.Duration) apitest.Answer {
	return func(http.ResponseWriter, *http.Request) bool { time.Sleep(by); return false }
}

// The event is withdrawn while the cordon is under way.
func TestACordonThatWasUnderWayIsTakenBack(t *testing.T) {
	t.Parallel()
	for _, takes := range slowWrites {
		run(t, fmt.Sprint(takes), func(t *testing.T) {
			s := apitest.New(t)
			s.Answer("patch", late(takes))
			r := begin(t, s, drain.Options{})
			time.Sleep(500 * time.Millisecond)
			r.cancel()
			<-r.done
			result, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(t.Context(), nil)
			time.Sleep(time.Minute)
			if s.CurrentNode().Spec.Unschedulable {
				t.Errorf("uncordoned with %s, %v, and the node is cordoned for good", result, err)
			}
		})
	}
}

// The event comes back while the end of its cordon is under way.
func TestAnUncordonThatWasUnderWayIsNobodysOrder(t *testing.T) {
	t.Parallel()
	for _, takes := range slowWrites {
		run(t, fmt.Sprint(takes), func(t *testing.T) {
			s := apitest.New(t)
			r := drained(t, s, drain.Options{})
			r.cancel()
			<-r.done
			s.Answer("patch", late(takes))
			_, _ = drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(within(t, 500*time.Millisecond), nil)
			goal := goalWithin(true, 2*time.Minute)
			goal.Claim.Event, goal.NodeSeen = "event-2", true
			r = start(t, s, drain.Options{}, goal)
			time.Sleep(time.Minute)
			if told := r.of(state.NodeReopened); !s.CurrentNode().Spec.Unschedulable || len(told) > 0 {
				t.Errorf("the node is closed: %t; told of an order: %+v", s.CurrentNode().Spec.Unschedulable, told)
			}
		})
	}
}

// A connection that hangs must not keep a process that is told to stop.
func TestACordonThatIsUnderWayKeepsAGuardThatEndsForTwelveSecondsAtMost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Always("patch", apitest.Hang())
		r := begin(t, s, drain.Options{})
		time.Sleep(time.Second)
		r.cancel()
		canceled := time.Now()
		<-r.done
		if took := time.Since(canceled); took != 12*time.Second {
			t.Errorf("it ended after %s", took)
		}
	})
}

// A dry run tells of pods also where the goal comes to be a drain later.
func TestADryRunTellsOfADrainThatComesAfterACordon(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		goal := goalWithin(false, plenty)
		goal.Evict = false
		r := watchOver(t, drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{})), goal)
		time.Sleep(time.Second)
		r.adjust(func(g *drain.Goal) { g.Evict = true })
		r.succeed()
		if told := r.of(state.PodEvicted); len(told) != 1 {
			t.Errorf("of what would be evicted is told %+v; the result is %+v", told, r.result)
		}
		if told := r.of(state.GoalChanged); len(told) != 0 {
			t.Errorf("told %+v of what was not looked at before", told)
		}
		r.adjust(func(g *drain.Goal) { g.Evict = false })
		time.Sleep(time.Second)
		if told := r.of(state.GoalChanged); len(told) != 1 || !told[0].State.Closed || !told[0].State.Ours || told[0].State.Drained || len(r.of(state.NodeClosed)) != 2 {
			t.Errorf("told %+v", r.told)
		}
	})
}

// Nothing is asked for after Run has ended, wherever it is canceled.
func TestNothingIsAskedForAfterTheEndWhereverItIsCanceled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for after := time.Duration(0); after < 20*time.Second; after += 370 * time.Millisecond {
			s := apitest.New(t)
			for i := range 5 {
				s.AddPod(pod(fmt.Sprintf("web-%d", i)), apitest.Ending(700*time.Millisecond))
			}
			s.ChangeNode(func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{"v"} })
			s.Always("get", slowly(300*time.Millisecond))
			s.Always("patch", slowly(300*time.Millisecond))
			s.Always("evict", slowly(300*time.Millisecond))
			s.Always("list", slowly(300*time.Millisecond))
			began, goal := time.Now(), goalWithin(true, 10*time.Second)
			guard := drain.New(s.Client(), apitest.Node, drain.Options{VolumeWait: time.Minute, Gate: kube.NewGate(2)}).Guard(goal, func(drain.Progress) {})
			guard.Adjust(goal)
			ctx, cancel := context.WithTimeout(t.Context(), after)
			guard.Run(ctx)
			ended := time.Now()
			cancel()
			guard.Adjust(goal)
			_ = guard.Result()
			n := count(s)
			time.Sleep(time.Minute)
			if ended.Sub(began) > after+300*time.Millisecond || // a cordon that is under way
				count(s) != n {
				t.Errorf("canceled after %s, ended after %s, %d requests since", after, ended.Sub(began), count(s)-n)
			}
		}
	})
}

// That the Node cannot be read takes nothing from the grace of a pod that comes before a hard deadline.
func TestAPodThatArrivesLateHasItsGraceThoughALookHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := beginWithin(t, s, drain.Options{}, true, 30*time.Second)
		r.succeed()
		s.Always("get node", apitest.Hang())
		time.Sleep(7 * time.Second) // a look hangs now
		s.AddPod(pod("late", grace(15)), apitest.Ending(15*time.Second))
		time.Sleep(20 * time.Second)
		asked := s.Requests("evict", "delete")
		if len(asked) == 0 {
			t.Fatal("nothing was asked for")
		}
		if left := r.goal.Hard.Sub(asked[0].At); left < 15*time.Second {
			t.Errorf("asked for with %s left, of a grace of 15 s that would have fit", left)
		}
	})
}

// What the policy makes of it depends on the events for which that is an order.
func TestADryRunTellsForWhichEventsTheCordonWasLifted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		goal := goalWithin(false, plenty)
		text, _ := json.Marshal(goal.Claim)
		s.ChangeNode(asking(drain.CordonAnnotation, string(text)))
		r := watchOver(t, drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{})), goal)
		r.await(state.NodeReopened)
		if told := r.of(state.NodeReopened); len(told) != 1 || !told[0].Claim.Names(claim.Event) || told[0].Generation != 1 {
			t.Errorf("told %+v", told)
		}
		s.ChangeNode(cordoned(string(text)))
		r = watchOver(t, drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{})), goal)
		r.succeed()
		if told := r.of(state.NodeClosed); len(told) != 1 {
			t.Errorf("told %+v", told)
		}
	})
}

// Everything that fails is tried again.
func TestADryRunThatIsRefusedIsTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.Answer("get node", apitest.Forbidden("not yet"))
		r := watchOver(t, drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{})), goalWithin(false, plenty))
		time.Sleep(30 * time.Minute)
		if len(r.of(state.NodeEmpty)) == 0 {
			t.Errorf("told %+v", r.told)
		}
	})
}

// Its Node has not been there in this boot.
func TestADryRunOfANodeThatIsNotRegisteredYetWaitsForIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.RemoveNode()
		r := watchOver(t, drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{})), goalWithin(false, plenty))
		time.Sleep(30 * time.Minute)
		if told := r.of(state.NodeEmpty); len(told) != 0 {
			t.Errorf("told %+v", told)
		}
	})
}
