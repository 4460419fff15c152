package drain_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/state"
)

// numbered waits until something has been told since the goal changed, and returns the last.
func (r *trial) numbered(what state.TransitionKind) drain.Progress {
	r.t.Helper()
	var told []drain.Progress
	await(r.t, string(what)+" under the last goal", func() bool { told = r.now(what); return len(told) > 0 })
	return told[len(told)-1]
}

func TestHowThingsStandIsToldUnderEachGoal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		free := addHeld(s, pod("a"))
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld)
		r.adjust(func(g *drain.Goal) { g.Generation++ })
		await(t, "that the node was looked at", func() bool { return r.numbered(state.GoalChanged).State.Closed })
		if told := r.of(state.GoalChanged)[0]; told.State.Drained || told.State.Closed || !told.State.Ours || told.Left != 1 || told.Total != 1 {
			t.Errorf("told %+v; nobody has looked yet for this event", told)
		}
		free()
		r.succeed()
		if told := r.of(state.NodeEmpty); len(told) != 1 || told[0].Generation != 2 {
			t.Errorf("told %+v", told)
		}
		// A drained node is drained for the next event, too, and for that one it is told.
		r.adjust(func(g *drain.Goal) { g.Generation, g.Hard = g.Generation+1, time.Now().Add(time.Minute) })
		if told := r.numbered(state.NodeEmpty); !told.State.Drained || told.Total != 1 || count(s, "delete") > 0 {
			t.Errorf("told %+v", told)
		}
		if told := r.of(state.GoalChanged); len(told) != 4 {
			t.Errorf("told %+v", told)
		}
	})
}

func TestADeadlineMayMoveWhileAPodWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	const grace40, first = 40 * time.Second, 5 * time.Minute
	for name, moved := range map[string]time.Duration{"nearer": 90 * time.Second, "later": 10 * time.Minute, "to where the grace does not fit": 30 * time.Second} {
		for how, setUp := range map[string]func(*apitest.Server){
			"held by a budget":       func(s *apitest.Server) { s.Always("evict", apitest.HeldBy("budget", 0)) },
			"asked for, in vain":     func(s *apitest.Server) { s.Always("evict", apitest.Hang()) },
			"refused by a webhook":   func(s *apitest.Server) { s.Always("evict", apitest.Forbidden("no")) },
			"throttled for a minute": func(s *apitest.Server) { s.Always("evict", apitest.Throttled(60)) },
			"as it asks for that":    func(s *apitest.Server) { s.ChangePod("default/a", annotated(evict.Annotation, evict.AtDeadline)) },
			"as others are left": func(s *apitest.Server) {
				s.ChangePod("default/a", critical)
				s.AddPod(pod("z", ending(3600)), apitest.Never)
			},
			"held back by a settings": func(*apitest.Server) {},
		} {
			run(t, name+", "+how, func(t *testing.T) {
				s := apitest.New(t)
				s.AddPod(pod("a", grace(40)), 0)
				setUp(s)
				opts := drain.Options{}
				if how == "held back by a settings" {
					opts.LoadBalancerWait = time.Hour
				}
				r := beginWithin(t, s, opts, true, first)
				time.Sleep(10 * time.Second)
				end := r.began.Add(moved)
				r.adjust(func(g *drain.Goal) { g.Hard = end })
				r.end = end
				r.await(state.PodGone, "default/a")
				ends := append(s.Requests("delete default/a"), s.Requests("evict default/a")...)[0]
				if n := count(s, "delete default/a"); n == 0 {
					ends = s.Requests("evict default/a")[0]
				}
				want, left := min(grace40, moved-10*time.Second), end.Sub(ends.At)
				if left != want {
					t.Errorf("%s %s before the end; want %s", ends.What, left, want)
				}
				if g := ends.Options.GracePeriodSeconds; g != nil && time.Duration(*g)*time.Second != want || g == nil && want < grace40 {
					t.Errorf("with the grace %v; want %s", g, want)
				}
			})
		}
	}
}

func TestAHardDeadlineThatGoesAwayDeletesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		addHeld(s, pod("a"))
		r := beginWithin(t, s, drain.Options{}, true, time.Minute)
		time.Sleep(50 * time.Second)
		r.adjust(func(g *drain.Goal) { g.Hard, g.Soft = time.Time{}, g.Hard })
		time.Sleep(time.Hour)
		if n := count(s, "delete"); n != 0 || !s.HasPod("default/a") {
			t.Errorf("%d deletions", n)
		}
	})
}

func TestACordonMayBecomeADrainAndADrainACordon(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		free := addHeld(s, pod("a"))
		s.AddPod(pod("b"), 0)
		goal := goalWithin(false, plenty)
		goal.Evict = false
		r := start(t, s, drain.Options{LoadBalancerWait: 30 * time.Second}, goal)
		r.await(state.NodeClosed)
		time.Sleep(time.Minute)
		if count(s, "evict", "list", "watch") != 0 || len(r.of(state.NodeEmpty)) != 0 {
			t.Errorf("a cordon has made %d requests for pods", count(s, "evict", "list", "watch"))
		}
		r.adjust(func(g *drain.Goal) { g.Evict = true })
		began := time.Now()
		r.await(state.PodGone, "default/b")
		r.await(state.PodHeld)
		if after := time.Since(began).Truncate(time.Second); after != 30*time.Second {
			t.Errorf("evicted after %s", after)
		}
		r.adjust(func(g *drain.Goal) { g.Evict = false })
		if told := r.numbered(state.GoalChanged); told.State.Drained || told.Left != 0 {
			t.Errorf("told %+v", told)
		}
		asked := count(s, "evict")
		free()
		time.Sleep(time.Minute)
		if n := count(s, "evict"); n != asked || !s.HasPod("default/a") || len(r.of(state.NodeEmpty)) != 0 {
			t.Errorf("%d evictions under a goal that keeps pods", n-asked)
		}
		r.adjust(func(g *drain.Goal) { g.Evict = true })
		if result := r.succeed(); result.Evicted != 2 || r.last().Total != 2 {
			t.Errorf("the result is %+v, told %+v", result, r.last())
		}
	})
}

// Somebody has lifted the cordon. The next event is another matter.
func TestAnEventThatJoinsClosesANodeAgainThatPeopleHaveOpened(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{ExcludeFromLoadBalancers: true, LoadBalancerWait: 10 * time.Second})
		s.ChangeNode(uncordoned)
		r.await(state.NodeReopened)
		s.AddPod(pod("theirs"), 0)
		time.Sleep(time.Minute)
		if !s.HasPod("default/theirs") || s.CurrentNode().Spec.Unschedulable {
			t.Error("what people have done is fought")
		}
		r.adjust(func(g *drain.Goal) { g.Close = false })
		time.Sleep(time.Minute)
		if !s.HasPod("default/theirs") || s.CurrentNode().Spec.Unschedulable {
			t.Error("what people have done is fought for the same event")
		}
		r.adjust(func(g *drain.Goal) { joining(g); g.Close = true })
		joined := time.Now()
		r.numbered(state.NodeClosed)
		r.await(state.PodGone, "default/theirs")
		r.numbered(state.NodeEmpty)
		if _, labeled := s.CurrentNode().Labels[drain.ExcludeLabel]; !labeled || !s.CurrentNode().Spec.Unschedulable {
			t.Errorf("the node is %+v", s.CurrentNode())
		}
		if after := s.Requests("evict")[0].At.Sub(joined); after < 10*time.Second || after > 12*time.Second {
			t.Errorf("evicted %s after the event", after)
		}
	})
}

// The policy has heard that the cordon was lifted, and when it had been set.
func TestAGoalThatKnowsOfALiftedCordonSparesWhatCameSince(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		addHeld(s, pod("old"))
		time.Sleep(10 * time.Second)
		goal := goalWithin(false, plenty)
		goal.Before, goal.Close = time.Now(), false
		time.Sleep(10 * time.Second)
		s.AddPod(pod("new"), 0)
		r := start(t, s, drain.Options{}, goal)
		r.await(state.PodHeld, "default/old")
		s.AddPod(pod("newer"), 0)
		time.Sleep(time.Minute)
		if result := r.guard.Result(); count(s, "patch") != 0 || !s.HasPod("default/new") || !s.HasPod("default/newer") || result.Skipped != 2 {
			t.Errorf("%d patches, %+v", count(s, "patch"), result)
		}
	})
}

// The node is closed again for an event that wants no pods to go.
func TestWhatCameToAnOpenedNodeStaysThoughItIsClosedAgainForAnEventThatOnlyCordons(t *testing.T) {
	t.Parallel()
	for _, skew := range skews {
		run(t, skew.String(), func(t *testing.T) {
			s, r, free := openedByPeople(t, skew)
			s.AddPod(pod("new"), 0)
			time.Sleep(10 * time.Second)
			r.adjust(func(g *drain.Goal) { joining(g); g.Close = true })
			await(t, "a cordon", func() bool { return s.CurrentNode().Spec.Unschedulable })
			s.AddPod(pod("late"), 0)
			free()
			r.succeed()
			if !s.HasPod("default/new") || !s.HasPod("default/late") || s.HasPod("default/old") {
				t.Errorf("left is new: %t, late: %t, old: %t", s.HasPod("default/new"), s.HasPod("default/late"), s.HasPod("default/old"))
			}
		})
	}
}

// A watch that has been silent tells nothing of the pods that came meanwhile, and the Node is as it was.
func TestANodeIsDrainedForAnotherEventOnlyByAListThatIsNewerThanIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Answer("watch pods", apitest.Silence())
		r := drained(t, s, drain.Options{})
		s.AddPod(pod("late"), 0)
		r.adjust(func(g *drain.Goal) { g.Generation++ })
		await(t, "that it is drained for both", func() bool { return r.numbered(state.NodeEmpty).State.Drained })
		if s.HasPod("default/late") {
			t.Error("drained, and a pod is left")
		}
	})
}

// The list that confirms it may come from a cache that is behind, as the watch is.
func TestANodeIsDrainedForAnotherEventOnlyByAListOfAllPodsThereAreByThen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		time.Sleep(time.Minute)
		s.SetLag(0, 10*time.Second)
		s.AddPod(pod("late"), 0)
		r.adjust(func(g *drain.Goal) { g.Generation++ })
		r.numbered(state.NodeEmpty)
		if s.HasPod("default/late") {
			t.Error("drained, and a pod is left")
		}
	})
}

// The machine is lost. Where it is not, the next look may have an answer.
func TestANodeThatMayNotBeClosedIsDrainedForAnEventThatJoinsOnlyBeforeAHardDeadline(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"hard": true, "soft": false} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			r := drained(t, s, drain.Options{})
			s.Always("get node", apitest.Forbidden("no looks here"))
			r.adjust(func(g *drain.Goal) {
				joining(g)
				if hard {
					g.Hard = time.Now().Add(plenty)
				}
			})
			if hard {
				r.numbered(state.NodeEmpty)
				return
			}
			time.Sleep(time.Minute)
			r.provenAnew()
		})
	}
}

// People have opened the node, and somebody has closed it since.
func TestForAnEventThatJoinsANodeIsDrainedThatSomebodyElseHasClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		s.UncordonAs("kubectl")
		r.await(state.NodeReopened)
		s.AddPod(pod("theirs"), 0)
		s.CordonAs("kubectl")
		r.await(state.NodeFoundClosed)
		r.adjust(joining)
		r.await(state.PodGone, "default/theirs")
		r.numbered(state.NodeEmpty)
	})
}

// provenAnew fails if it was told that the node is drained for an event that has joined, since nothing can be known for that.
func (r *trial) provenAnew() {
	r.t.Helper()
	for _, p := range r.now(state.NodeEmpty) {
		r.t.Errorf("told to be drained for another event with the state %+v, without a look since", p.State)
	}
}

// People have opened the node, of which nobody knows: it can be read no more.
func TestANodeThatCannotBeLookedAtIsNotDrainedForAnEventThatJoins(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		s.UncordonAs("kubectl")
		s.Always("get node", apitest.Unavailable())
		r.adjust(func(g *drain.Goal) { joining(g); g.Hard = time.Now().Add(2 * time.Minute) })
		time.Sleep(time.Minute)
		r.provenAnew()
	})
}

// The node is opened while the first look is on its way. Those that follow have no answer.
func TestTheFirstLookProvesNothingForAnEventThatJoinsMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.CordonAs("kubectl")
		asked := make(chan struct{})
		s.Answer("get node", func(w http.ResponseWriter, _ *http.Request) bool {
			seen := s.CurrentNode()
			close(asked)
			time.Sleep(time.Second)
			w.Header().Set("Content-Type", "application/json")
			return json.NewEncoder(w).Encode(seen) == nil
		})
		s.Always("get node", apitest.Hang())
		r := begin(t, s, drain.Options{})
		<-asked
		s.UncordonAs("kubectl")
		r.adjust(joining)
		time.Sleep(time.Minute)
		r.provenAnew()
	})
}

// People wanted the pods left alone, and do not any more.
func TestWhatPeopleWantedOfTheNodeBeforeAnEventJoinedIsNoProofForIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), apitest.Ending(time.Second))
		s.ChangeNode(asking(drain.ActionAnnotation, drain.OnlyCordon))
		r := begin(t, s, drain.Options{})
		r.leave()
		time.Sleep(500 * time.Millisecond)
		s.ChangeNode(func(n *corev1.Node) { delete(n.Annotations, drain.ActionAnnotation) })
		r.adjust(joining)
		time.Sleep(time.Minute)
		r.mu.Lock()
		defer r.mu.Unlock()
		for i, p := range r.told {
			if s := p.State; p.Generation == r.goal.Generation && s.Looked && s.Limited {
				t.Errorf("told that people limit it for the event that has joined, from a look before that: %+v", p)
			}
			if p.Kind == state.NodeEmpty && p.Generation == r.goal.Generation && r.at[i].Before(s.LastRemoval()) {
				t.Errorf("told to be drained for another event %s before the pod was gone", s.LastRemoval().Sub(r.at[i]))
			}
		}
	})
}

// A drain that goes on is not begun anew.
func TestAChangeOfTheGoalHoldsEvictionsBackNoLonger(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		r := begin(t, s, drain.Options{LoadBalancerWait: time.Minute})
		time.Sleep(30 * time.Second)
		r.adjust(func(g *drain.Goal) { g.Soft = g.Soft.Add(time.Hour) })
		time.Sleep(15 * time.Second)
		r.adjust(func(g *drain.Goal) { g.Generation++ })
		r.succeed()
		if after := s.Requests("evict")[0].At.Sub(r.began); after != time.Minute || len(r.of(state.EvictionsDelayed)) != 1 {
			t.Errorf("evicted after %s, and told %+v", after, r.of(state.EvictionsDelayed))
		}
	})
}

// Somebody may have opened it since the last look.
func TestANodeIsLookedAtOnceMoreWhenACordonBecomesADrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		goal := goalWithin(false, plenty)
		goal.Evict = false
		r := start(t, s, drain.Options{}, goal)
		r.await(state.NodeClosed)
		time.Sleep(11 * time.Second)
		s.Always("get node", slowly(3*time.Second))
		looks := count(s, "get node")
		r.adjust(func(g *drain.Goal) { g.Evict = true })
		adjusted := time.Now()
		r.succeed()
		if after := r.drainedAt().Sub(adjusted); after < 3*time.Second || count(s, "get node") == looks {
			t.Errorf("drained after %s, and a look takes three seconds", after)
		}
	})
}

// What the policy makes of it depends on what stands in the way.
func TestWhetherANodeCannotBeClosedIsToldWithHowThingsStand(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		upset   func(*apitest.Server)
		trouble string
		looked  bool // what is told of the Node is what is on it
	}{
		"nothing is in the way":            {func(*apitest.Server) {}, "", true},
		"a failure that has lasted":        {func(s *apitest.Server) { s.Always("get node", apitest.Unavailable()) }, "503 Service Unavailable: not ready", false},
		"a refusal to read the Node":       {func(s *apitest.Server) { s.Always("get node", apitest.Forbidden("no looks here")) }, "no looks here", false},
		"a refusal to close it":            {func(s *apitest.Server) { s.Always("patch", apitest.Forbidden("no cordons here")) }, "no cordons here", true},
		"there is no Node, which it takes": {func(s *apitest.Server) { s.RemoveNode() }, "", true},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			c.upset(s)
			r := begin(t, s, drain.Options{})
			time.Sleep(30 * time.Second)
			r.adjust(func(g *drain.Goal) { g.Soft = g.Soft.Add(time.Hour) })
			if told := r.numbered(state.GoalChanged); told.State.Trouble != c.trouble || told.State.Looked != c.looked {
				t.Errorf("told %+v", told)
			}
		})
	}
}
