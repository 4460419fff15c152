package drain_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// byHand are the options of "nth drain".
var byHand = drain.Options{Writer: drain.ByHand}

// ordered is the goal of "nth drain": each time it is called is a new order.
func ordered() drain.Goal {
	goal := goalWithin(false, plenty)
	goal.Claim.Event, goal.Claim.Kind = drain.ByHand, drain.ByHand
	return goal
}

// drainByHand is "nth drain", to its end.
func drainByHand(t *testing.T, s *apitest.Server) drain.Result {
	t.Helper()
	r := start(t, s, byHand, ordered())
	await(t, "a first look", func() bool {
		return len(r.of(state.NodeReopened))+len(r.of(state.NodeClosed))+len(r.of(state.NodeFoundClosed)) > 0
	})
	if len(r.of(state.NodeReopened)) > 0 {
		r.adjust(func(g *drain.Goal) { g.Generation++ }) // as "nth drain" does
		r.await(state.NodeClosed)
		r.numbered(state.NodeEmpty)
	}
	r.succeed()
	r.cancel()
	<-r.done
	return r.guard.Result()
}

func uncordon(t *testing.T, s *apitest.Server, opts drain.Options) drain.UncordonResult {
	t.Helper()
	result, err := drain.New(s.Client(), apitest.Node, opts).Uncordon(within(t, plenty), nil)
	if err != nil {
		t.Error(err)
	}
	return result
}

func TestANodeThatIsDrainedByHandIsNotOpenedByTheDaemonAlsoIfItHadCordonedIt(t *testing.T) {
	t.Parallel()
	for name, standing := range map[string]bool{"before it": true, "after it": false} {
		run(t, "the daemon cordons "+name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			daemon := goalWithin(false, plenty)
			daemon.Evict = false
			var d *trial
			if standing {
				d = start(t, s, drain.Options{}, daemon)
				d.await(state.NodeClosed)
			}
			if result := drainByHand(t, s); result.Evicted != 1 || result.Cordon != drain.CordonSet {
				t.Errorf("the result is %+v", result)
			}
			if !standing {
				d = start(t, s, drain.Options{}, daemon)
			}
			d.await(state.NodeFoundClosed)
			d.cancel()
			<-d.done
			if result := uncordon(t, s, drain.Options{}); result != drain.UncordonNotOurs || !s.CurrentNode().Spec.Unschedulable {
				t.Errorf("the daemon's uncordon is %q, and the node %+v", result, s.CurrentNode().Spec)
			}
			if result := uncordon(t, s, byHand); result != drain.UncordonLifted || s.CurrentNode().Spec.Unschedulable {
				t.Errorf("the uncordon by hand is %q, and the node %+v", result, s.CurrentNode().Spec)
			}
		})
	}
}

func TestWhereTheDaemonStillWantsItClosedANodeThatIsOpenedByHandIsClosedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		d := start(t, s, drain.Options{}, goalWithin(false, plenty))
		d.await(state.NodeClosed)
		drainByHand(t, s)
		d.await(state.NodeFoundClosed)
		uncordon(t, s, byHand)
		await(t, "that the daemon cordons it", func() bool { return s.CurrentNode().Spec.Unschedulable })
		if told := d.of(state.NodeReopened); len(told) != 0 {
			t.Errorf("the daemon takes it for people's order: %+v", told)
		}
	})
}

func TestOnlyTheDaemonsCordonIsTakenOverByHand(t *testing.T) {
	t.Parallel()
	for name, node := range map[string]func(*corev1.Node){
		"people's": cordoned(""), "nth-queue's": cordoned(claimBy(drain.Queue)),
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.ChangeNode(node)
			s.AddPod(pod("a"), 0)
			before := s.CurrentNode().Annotations[drain.CordonAnnotation]
			if result := drainByHand(t, s); result.Evicted != 1 || result.Cordon != drain.CordonForeign {
				t.Errorf("the result is %+v", result)
			}
			if result := uncordon(t, s, byHand); result != drain.UncordonNotOurs || s.CurrentNode().Annotations[drain.CordonAnnotation] != before {
				t.Errorf("the uncordon is %q, and the node %+v", result, s.CurrentNode().ObjectMeta)
			}
		})
	}
}

func TestEachDrainByHandIsANewOrderWhateverPeopleHaveLiftedBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		drainByHand(t, s)
		s.ChangeNode(uncordoned)
		time.Sleep(time.Minute)
		s.AddPod(pod("new"), 0)
		if result := drainByHand(t, s); result.Evicted != 1 || !s.CurrentNode().Spec.Unschedulable {
			t.Errorf("the result is %+v, the node %+v", result, s.CurrentNode().Spec)
		}
	})
}
