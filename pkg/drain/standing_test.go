package drain_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

func TestWhatIsToldOfANodeSaysWhetherItIsToBeLeftAlone(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]bool{"it is": true, "it is not": false} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			if left {
				s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
			}
			r := begin(t, s, drain.Options{})
			await(t, "word of the Node", func() bool { return len(r.of(state.NodeOptedOut))+len(r.of(state.NodeClosed)) > 0 })
			if state := append(r.of(state.NodeOptedOut), r.of(state.NodeClosed)...)[0].State; state.Left != left || state.Closed == left {
				t.Errorf("told the state %+v", state)
			}
		})
	}
}

func TestWhatIsLeftIsNamedInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		const pods = 30
		for i := range pods {
			addHeld(s, pod(fmt.Sprintf("web-%02d", i)))
		}
		r := begin(t, s, drain.Options{})
		await(t, "that all are held", func() bool { return len(r.of(state.PodHeld)) == pods })
		left := r.guard.Result().Left
		if len(left) != pods || !slices.IsSorted(left) {
			t.Errorf("left are %q", left)
		}
	})
}

// The list is there before the cordon, or after it.
func TestHowManyPodsThereAreIsToldOnceAndWhenTheyMayBeEvicted(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]string{"the list is there first": "get node", "the Node is there first": "list pods"} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			addHeld(s, pod("a"))
			addHeld(s, pod("b"))
			s.Answer(slow, slowly(5*time.Second))
			r := begin(t, s, drain.Options{})
			r.await(state.PodsFound)
			if after := time.Since(r.began); after < 5*time.Second {
				t.Errorf("told after %s", after)
			}
			time.Sleep(time.Minute)
			if told := r.of(state.PodsFound); len(told) != 1 || told[0].Total != 2 {
				t.Errorf("told %+v", told)
			}
		})
	}
}

// Whose cordon that was, and when it was set, nobody knows.
func TestAPodThatComesAsSomebodyElsesCordonIsLiftedStays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.CordonAs("kubectl")
		addHeld(s, pod("old"))
		s.Answer("get node", slowly(time.Second)) // The pod is met before it, and waits for it.
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld, "default/old")
		s.Answer("get node", slowly(time.Second))
		s.UncordonAs("kubectl")
		s.AddPod(pod("new"), 0)
		r.await(state.NodeReopened)
		s.Answer("watch", apitest.Expired())
		s.DropWatches()
		time.Sleep(5 * time.Second) // All pods have been listed anew.
		s.ChangePod("default/new", annotated("example.com/note", "changed"))
		time.Sleep(time.Minute)
		if !s.HasPod("default/new") || len(s.Requests("evict default/new")) != 0 {
			t.Errorf("the pod was asked to go: %+v", r.guard.Result())
		}
		if result := r.guard.Result(); result.Skipped != 1 || !slices.Equal(result.Left, []string{"default/old"}) {
			t.Errorf("the result is %+v", result)
		}
	})
}

// Until it is closed, pods may come to it that nobody has told of.
func TestANodeThatRegistersAnewIsDrainedOnceMoreAndNotBeforeItIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		s.RemoveNode()
		r.await(state.NodeMissing)
		told := len(r.of(state.NodeEmpty))
		s.Answer("patch", apitest.Unavailable(), apitest.Unavailable())
		s.RegisterNode()
		await(t, "that it is drained again", func() bool { return len(r.of(state.NodeEmpty)) > told })
		if !s.CurrentNode().Spec.Unschedulable || !r.last().State.Closed {
			t.Errorf("told %+v", r.last())
		}
	})
}

// times are when things of a kind were told.
func (r *trial) times(what state.TransitionKind) []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []time.Time
	for i, p := range r.told {
		if p.Kind == what {
			found = append(found, r.at[i])
		}
	}
	return found
}

// A pod was bound to it before it was closed, and no watch tells of that for a while. One that is being bound comes within a second.
func TestANodeThatWasOpenForAWhileIsFoundEmptyAnew(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		closed func(*apitest.Server)
		opens  func(*apitest.Server, *trial)
		found  state.TransitionKind
		times  int
	}{
		"it has registered anew":                     {func(*apitest.Server) {}, func(s *apitest.Server, _ *trial) { s.RegisterNode() }, state.NodeClosed, 2},
		"it has registered anew, closed by somebody": {func(s *apitest.Server) { s.CordonAs("kubectl") }, func(s *apitest.Server, _ *trial) { s.RegisterNode(); s.CordonAs("kubectl") }, state.NodeFoundClosed, 2},
	} {
		run(t, name, func(t *testing.T) {
			for pods, lag := range []time.Duration{0, 10 * time.Second} {
				s := apitest.New(t)
				c.closed(s)
				r := drained(t, s, drain.Options{})
				time.Sleep(time.Minute)
				s.SetLag(0, lag)
				opened := time.Now()
				c.opens(s, r)
				if pods > 0 {
					s.AddPod(pod("new"), 0)
				}
				await(t, "that it is drained again", func() bool { return len(r.times(state.NodeEmpty)) > 1 })
				if s.HasPod("default/new") {
					t.Error("drained, and a pod is left")
				}
				found, drained := r.times(c.found), r.times(state.NodeEmpty)
				if last := found[len(found)-1]; last.After(opened) {
					opened = last
				}
				if after := drained[len(drained)-1].Sub(opened); len(found) != c.times || after < time.Second {
					t.Errorf("that it is closed was told %d times, and that it is drained %s later", len(found), after)
				}
			}
		})
	}
}

// They have it open for the events of then, and who comes meanwhile was meant to.
func TestPodsThatCameToANodeThatPeopleHadOpenedStayThoughOthersCloseIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		s.UncordonAs("kubectl")
		r.await(state.NodeReopened)
		s.AddPod(pod("theirs"), 0)
		time.Sleep(10 * time.Second)
		s.CordonAs("kubectl")
		r.await(state.NodeFoundClosed)
		closed := time.Now()
		time.Sleep(time.Minute)
		if result := r.guard.Result(); !s.HasPod("default/theirs") || result.Skipped != 1 {
			t.Errorf("the result is %+v", result)
		}
		if told := r.times(state.NodeEmpty); told[len(told)-1].Before(closed) || !r.last().State.Drained {
			t.Errorf("that it is drained was told at %v; it was closed at %v", told, closed)
		}
	})
}

// It tolerates the cordon, say. Only the budget has kept it from being evicted before.
func TestAPodThatCameToTheClosedNodeAndIsStillThereStaysOnceItIsOpened(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		time.Sleep(10 * time.Second)
		free := addHeld(s, pod("late"))
		r.await(state.PodHeld)
		time.Sleep(10 * time.Second)
		s.UncordonAs("kubectl")
		r.await(state.NodeReopened)
		free()
		time.Sleep(time.Minute)
		if result := r.guard.Result(); !s.HasPod("default/late") || result.Skipped != 1 || len(result.Left) != 0 {
			t.Errorf("the result is %+v", result)
		}
	})
}

// Its pods are evicted all the same: they go with the Node in any case. That it is empty cannot be known before it is closed.
func TestANodeThatRegistersAnewIsNotDrainedWhileItsCordonFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		s.RemoveNode()
		r.await(state.NodeMissing)
		s.Always("patch", apitest.Unavailable())
		s.RegisterNode()
		patches := count(s, "patch")
		await(t, "an attempt to close it", func() bool { return count(s, "patch") > patches })
		s.AddPod(pod("late"), 0)
		r.await(state.PodGone, "default/late")
		time.Sleep(time.Minute)
		if told := r.of(state.NodeEmpty); len(told) != 1 {
			t.Errorf("told %+v", told[1:])
		}
		s.Always("patch", nil)
		await(t, "that it is drained again", func() bool { return len(r.of(state.NodeEmpty)) > 1 })
	})
}

// The order is for the events of then, also while the label that goes with it is still there.
func TestAnOrderIsToldOfBeforeAnEventJoinsThatItIsNotFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		addHeld(s, pod("a"))
		r := begin(t, s, drain.Options{ExcludeFromLoadBalancers: true})
		r.await(state.NodeExcluded)
		patches := count(s, "patch")
		s.Always("patch", apitest.Hang())
		s.UncordonAs("kubectl")
		await(t, "that the label is being taken off", func() bool { return count(s, "patch") > patches })
		if told := r.of(state.NodeReopened); len(told) != 0 {
			t.Fatalf("told already: %+v", told)
		}
		r.adjust(joining)
		r.await(state.NodeReopened)
		if told := r.of(state.NodeReopened); told[0].Closed != 1 {
			t.Errorf("told %+v", told)
		}
	})
}

// The list that is to confirm it.
func TestADrainWhoseLastListIsRefusedSaysSoOnceAndIsDrainedWhenItIsNot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Answer("list pods", pass)
		s.Always("list pods", apitest.Forbidden("no lists any more"))
		r := begin(t, s, drain.Options{})
		r.await(state.PodRefused)
		time.Sleep(time.Minute)
		if told := r.of(state.PodRefused); len(told) != 1 || len(r.of(state.NodeEmpty)) != 0 {
			t.Errorf("told %+v, and %d times that it is drained", told, len(r.of(state.NodeEmpty)))
		}
		if lists := count(s, "list pods"); lists > 20 {
			t.Errorf("%d lists in a minute", lists)
		}
		s.Always("list pods", nil)
		r.succeed()
		s.Always("list pods", apitest.Forbidden("no lists any more"))
		r.adjust(joining)
		time.Sleep(time.Minute)
		if told := r.of(state.PodRefused); len(told) != 2 {
			t.Errorf("that lists are refused again is told as %+v", told[1:])
		}
	})
}

// Whoever waits for that may have nothing else to wait for.
func TestThatTheKubeletOfThisBootIsReadyIsTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.SetBootID("an earlier boot")
		addHeld(s, pod("a"))
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld)
		if r.last().State.Ready {
			t.Errorf("told %+v", r.last())
		}
		s.SetBootID(claim.BootID)
		await(t, "that it is Ready", func() bool { return r.last().State.Ready })
	})
}

// Who is told decides anew each time.
func TestWhileNothingChangesNothingIsTold(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*apitest.Server){
		"on a node that is drained":               func(*apitest.Server) {},
		"on a node that people have opened":       func(s *apitest.Server) { s.UncordonAs("kubectl") },
		"on a node that is to be left alone":      func(s *apitest.Server) { s.ChangeNode(asking(drain.ActionAnnotation, drain.OnlyCordon)) },
		"on a node whose kubelet is of next boot": func(s *apitest.Server) { s.SetBootID("boot-2") },
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.SetBootID(claim.BootID)
			r := begin(t, s, drain.Options{})
			time.Sleep(20 * time.Second)
			change(s)
			time.Sleep(20 * time.Second)
			before := len(r.of(state.GoalChanged))
			time.Sleep(time.Minute)
			if told := r.of(state.GoalChanged); len(told) > before {
				t.Errorf("in a quiet minute, it was told %d times: %+v", len(told)-before, told[len(told)-1])
			}
		})
	}
}

func TestThatADrainedNodeIsToBeLeftAloneIsTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := begin(t, s, drain.Options{})
		r.succeed()
		s.ChangeNode(asking(drain.ActionAnnotation, drain.OnlyCordon))
		time.Sleep(10 * time.Second)
		if last := r.last(); !last.State.Limited || last.State.Drained {
			t.Errorf("told last: %+v", last)
		}
		s.ChangeNode(asking(drain.ActionAnnotation, "drain"))
		time.Sleep(10 * time.Second)
		if last := r.last(); last.State.Limited || !last.State.Drained {
			t.Errorf("told last, once that is over: %+v", last)
		}
	})
}

// Pods may have been bound to it meanwhile, of which no watch tells for a while.
func TestANodeThatIsNoLongerToBeLeftAloneIsFoundEmptyAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		s.ChangeNode(asking(drain.ActionAnnotation, drain.OnlyCordon))
		r.leave()
		s.SetLag(0, 10*time.Second)
		s.AddPod(pod("new"), 0)
		s.ChangeNode(asking(drain.ActionAnnotation, ""))
		await(t, "that it is drained again", func() bool { return len(r.of(state.NodeEmpty)) > 1 })
		if s.HasPod("default/new") {
			t.Error("drained, and a pod is left")
		}
	})
}

// Whoever waits for that has nothing else to wait for.
func TestThatANodeIsToBeLeftAloneIsToldForAnEventThatJoins(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
		r := begin(t, s, drain.Options{})
		r.leave()
		r.adjust(joining)
		await(t, "that it was looked at", func() bool {
			last := r.last()
			return last.Generation == r.goal.Generation && last.State.Looked && last.State.Limited
		})
	})
}
