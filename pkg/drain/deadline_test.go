package drain_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

func TestBeforeAHardDeadlineWhatResistsIsDeletedWithTheGraceThatIsLeft(t *testing.T) {
	t.Parallel()
	const near = 40 * time.Second
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		opts  drain.Options
		limit time.Duration
		after time.Duration // when it is deleted
		grace int64         // what is asked for; 0 for the pod's own
	}{
		"a grace that does not fit is clipped":       {pod("a", grace(600)), drain.Options{}, near, 0, 40},
		"the margin is kept free":                    {pod("a", grace(600)), drain.Options{Margin: near - 10*time.Second}, near, 0, 10},
		"never below one second":                     {pod("a", grace(600)), drain.Options{Margin: 2 * near}, near, 0, 1},
		"a grace that fits is given whole":           {pod("a", grace(3)), drain.Options{}, near, 37 * time.Second, 0},
		"a pod without grace gets the usual seconds": {pod("a", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = nil }), drain.Options{Margin: near - 10*time.Second}, near, 0, 10},
		"a setting replaces the grace":               {pod("a", grace(600)), drain.Options{GracePeriod: new(2 * time.Second)}, near, 38 * time.Second, 2},
		"a setting of nothing is one second":         {pod("a", grace(600)), drain.Options{GracePeriod: new(time.Duration(0)), Margin: time.Second}, near, 38 * time.Second, 1},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			began, seen := time.Now(), s.AddPod(c.pod, 0)
			s.Always("evict", apitest.HeldBy("budget", 0))
			r := beginWithin(t, s, c.opts, true, c.limit)
			if result := r.succeed(); result.Deleted != 1 || result.Evicted != 0 {
				t.Errorf("the result is %+v", result)
			}
			if count(s, "evict") == 0 {
				t.Error("deleted without asking the budget first")
			}
			deletion := s.Requests("delete")[0]
			if p := deletion.Options.Preconditions; p == nil || *p.UID != seen.UID {
				t.Errorf("deleted with %+v; want the UID %s", p, seen.UID)
			}
			if after := deletion.At.Sub(began); after != c.after {
				t.Errorf("deleted after %s; want %s", after, c.after)
			}
			var asked int64
			if g := deletion.Options.GracePeriodSeconds; g != nil {
				asked = *g
			}
			if asked != c.grace {
				t.Errorf("deleted with %d s; want %d", asked, c.grace)
			}
		})
	}
}

func TestALongGraceHasItsTurnBeforeAShortOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		for name, seconds := range map[string]int64{"short": 1, "middle": 3, "long": 600} {
			s.AddPod(pod(name, grace(seconds)), 0)
		}
		s.Always("evict", apitest.HeldBy("budget", 0))
		began := time.Now()
		r := beginWithin(t, s, drain.Options{}, true, 6*time.Second)
		r.succeed()
		var order []string
		for _, q := range s.Requests("delete") {
			order = append(order, fmt.Sprintf("%s after %s", q.What, q.At.Sub(began)))
		}
		if want := []string{"delete default/long after 0s", "delete default/middle after 3s", "delete default/short after 5s"}; !slices.Equal(order, want) {
			t.Errorf("deleted in the order %v; want %v", order, want)
		}
	})
}

func TestWithoutAHardDeadlineNothingIsEverDeleted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		addHeld(s, pod("held", grace(600)))
		s.AddPod(pod("stuck", ending(3600)), apitest.Never)
		s.AddPod(pod("free"), 0)
		r := beginWithin(t, s, drain.Options{}, false, 2*time.Second)
		result, err := r.wait()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v; want the deadline", err)
		}
		if n := count(s, "delete"); n != 0 || result.Deleted != 0 {
			t.Errorf("%d deletions, %+v", n, result)
		}
		if want := []string{"default/held", "default/stuck"}; !slices.Equal(result.Left, want) {
			t.Errorf("left are %v; want %v", result.Left, want)
		}
		if want := map[string]string{"default/held": "budget"}; !maps.Equal(result.HeldBy, want) {
			t.Errorf("held are %v; want %v", result.HeldBy, want)
		}
		if count(s, "evict default/held") < 2 || result.Evicted != 1 {
			t.Errorf("%d evictions of the held pod, %+v", count(s, "evict default/held"), result)
		}
	})
}

func TestAPodThatIsEndingIsNotEvictedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", ending(5)), 0)
		r := beginWithin(t, s, drain.Options{}, true, plenty)
		r.await(state.PodsFound)
		s.RemovePod("default/a")
		if result := r.succeed(); result.Evicted != 0 || result.Deleted != 0 {
			t.Errorf("the result is %+v", result)
		}
		if n := count(s, "evict", "delete"); n != 0 {
			t.Errorf("%d evictions and deletions of a pod that is ending in time", n)
		}
	})
}

// Another program evicts a pod that a budget holds, and one that has to wait for its time. From when that is seen, neither
// is asked for again, or told as ours.
func TestAPodThatSomebodyElseEvictsIsNotAskedForAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		addHeld(s, pod("held"))
		s.AddPod(pod("waits", critical), 0)
		s.AddPod(pod("mark", annotated("nth-project.github.io/evict", "at-deadline")), 0)
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld, "default/held")
		s.ChangePod("default/held", ending(60))
		s.ChangePod("default/waits", ending(60))
		s.RemovePod("default/mark")
		r.await(state.PodGone, "default/mark") // what came before it has been seen, too
		asked := count(s, "evict default/held")
		s.AddPod(pod("later", grace(30)), apitest.Ending(4*time.Second))
		r.await(state.PodGone, "default/later") // by now, a refused eviction would have been repeated
		if n := count(s, "evict default/held"); n > asked {
			t.Errorf("%d evictions of a pod that was ending", n-asked)
		}
		s.RemovePod("default/held")
		s.RemovePod("default/waits")
		if result := r.succeed(); result.Evicted != 1 || result.Deleted != 0 {
			t.Errorf("the result is %+v; want the last pod alone evicted", result)
		}
		if n := count(s, "evict default/waits"); n != 0 {
			t.Errorf("%d evictions of a critical pod that was ending", n)
		}
	})
}

func TestAPodThatSomebodyElseGivesTooMuchGraceIsShortenedAtTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		addHeld(s, pod("a"))
		r := beginWithin(t, s, drain.Options{Margin: time.Second}, true, 6*time.Second)
		r.await(state.PodHeld, "default/a")
		s.ChangePod("default/a", ending(3600))
		if result := r.succeed(); result.Deleted != 1 || result.Evicted != 0 {
			t.Errorf("the result is %+v", result)
		}
	})
}

// It has had its SIGTERM, and any shortening lets the kubelet count anew. So it may go on until the last second.
func TestAPodThatIsEndingTooLateIsShortenedToASecondAtTheEnd(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]int64{"with a long grace of its own": 3600, "with a short grace of its own": 1} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", ending(3600), grace(own)), 0)
			s.AddPod(pod("b", ending(3600)), apitest.Never)
			r := beginWithin(t, s, drain.Options{Margin: time.Second}, true, 4*time.Second)
			result, err := r.wait()
			if !errors.Is(err, context.DeadlineExceeded) || !slices.Equal(result.Left, []string{"default/b"}) || result.Deleted != 2 {
				t.Errorf("the result is %+v, %v", result, err)
			}
			if n := count(s, "evict"); n != 0 {
				t.Errorf("%d evictions of pods that are ending", n)
			}
			for _, q := range s.Requests("delete") {
				if g := q.Options.GracePeriodSeconds; g == nil || *g != 1 {
					t.Errorf("%s with the grace %v; want 1 s", q.What, g)
				}
			}
		})
	}
}

// Nobody can give it less.
func TestAPodThatHasItsLastSecondIsNotShortened(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := beginWithin(t, s, drain.Options{}, true, 10*time.Second)
		r.succeed()
		time.Sleep(time.Until(r.goal.Hard.Add(-500 * time.Millisecond)))
		s.AddPod(pod("a", ending(1)), apitest.Never)
		time.Sleep(5 * time.Second)
		if n := count(s, "evict", "delete"); n != 0 || len(r.guard.Result().Left) != 1 {
			t.Errorf("%d evictions and deletions, %+v", n, r.guard.Result())
		}
	})
}

func TestAnEvictionThatHangsGivesWayAtTheTurn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", grace(1)), 0)
		s.AddPod(pod("b", grace(600)), 0)
		s.Always("evict", apitest.Hang())
		r := beginWithin(t, s, drain.Options{}, true, 5*time.Second)
		if result := r.succeed(); result.Deleted != 2 {
			t.Errorf("the result is %+v", result)
		}
	})
}

func TestNothingHoldsAPodLongerThanToItsTurn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		opts drain.Options
		hard bool
		want time.Duration // when it is evicted
	}{
		"a hold":                        {pod("a", grace(2)), drain.Options{LoadBalancerWait: time.Hour}, true, 3 * time.Second},
		"a hold, with a soft deadline":  {pod("a", grace(2)), drain.Options{LoadBalancerWait: time.Hour}, false, 3 * time.Second},
		"load balancers":                {pod("a", grace(2)), drain.Options{ExcludeFromLoadBalancers: true, LoadBalancerWait: time.Hour}, true, 3 * time.Second},
		"the rest, for a critical pod":  {pod("a", grace(2), critical), drain.Options{}, true, 3 * time.Second},
		"the rest, softly":              {pod("a", grace(2), critical), drain.Options{}, false, 3 * time.Second},
		"a grace longer than all there": {pod("a", grace(600)), drain.Options{LoadBalancerWait: time.Hour}, true, 0},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(c.pod, 0)
			s.AddPod(pod("stuck", ending(1)), apitest.Never)
			began := time.Now()
			r := beginWithin(t, s, c.opts, c.hard, 5*time.Second)
			result, err := r.wait()
			if !errors.Is(err, context.DeadlineExceeded) || !slices.Equal(result.Left, []string{"default/stuck"}) || result.Evicted != 1 {
				t.Errorf("the result is %+v, %v", result, err)
			}
			if after := s.Requests("evict")[0].At.Sub(began); after != c.want {
				t.Errorf("evicted after %s; want %s", after, c.want)
			}
		})
	}
}

func TestEvictionsWaitAsLongAsTheyAreHeldBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		began := time.Now()
		r := beginWithin(t, s, drain.Options{LoadBalancerWait: time.Hour}, false, 2*time.Hour)
		r.await(state.PodsFound)
		if told := r.of(state.EvictionsDelayed); len(told) != 1 || told[0].Detail != "1h0m0s" {
			t.Errorf("told %+v", told)
		}
		if !s.CurrentNode().Spec.Unschedulable {
			t.Error("the node is not cordoned while evictions are held back")
		}
		r.succeed()
		if after := s.Requests("evict")[0].At.Sub(began); after != time.Hour {
			t.Errorf("evicted after %s", after)
		}
	})
}

// The news that it ends is not that its end was shortened, whichever comes first.
func TestAPodWhoseEndIsSeenBeforeItsAnswerIsShortenedAtTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", grace(600), func(p *corev1.Pod) { // An eviction before has come no further.
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"}}
		}), apitest.Ending(time.Hour))
		answered := make(chan struct{})
		s.Answer("evict", answeredLate(s, func() { time.AfterFunc(time.Millisecond, func() { close(answered) }) }, answered))
		goal := goalWithin(false, plenty)
		guard := drain.New(s.Client(), apitest.Node, drain.Options{}).Guard(goal, func(p drain.Progress) {
			if p.Kind == state.PodsFound { // The process gets no time for a moment, in which both the news of the pod and the answer come.
				time.Sleep(10 * time.Millisecond)
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go guard.Run(ctx)
		time.Sleep(10 * time.Second)
		goal.Hard = time.Now().Add(time.Minute)
		guard.Adjust(goal)
		time.Sleep(time.Minute)
		if n := count(s, "delete"); n != 1 {
			t.Errorf("a pod with a grace of ten minutes was not shortened before the deadline: %d deletions, %+v", n, guard.Result())
		}
	})
}

// The machine should be gone, and is there.
func TestAPodThatIsThereAfterTheDeadlineGetsHalfAMinute(t *testing.T) {
	t.Parallel()
	held, unavailable := apitest.HeldBy("budget", 0), apitest.Unavailable()
	for name, c := range map[string]struct {
		pod           *corev1.Pod
		evict, delete apitest.Answer
		mended        time.Duration // when deletions are answered again, after it came
		what          string        // what has ended it
		after         time.Duration
		grace         int64 // 0 for its own
	}{
		"it is evicted with its own grace, where that fits": {pod: pod("a", grace(5)), what: "evict"},
		"with half a minute, where it has more":             {pod: pod("a", grace(600)), what: "evict", grace: 30},
		"deleted in time, where a budget holds it":          {pod: pod("a", grace(5)), evict: held, what: "delete", after: 25 * time.Second},
		"deleted at once, where a budget holds it and its grace is longer": {
			pod: pod("a", grace(600)), evict: held, what: "delete", grace: 30,
		},
		"with what is left of another, where the first is over": {
			pod: pod("a", grace(600)), evict: held, delete: unavailable, mended: 45 * time.Second, what: "delete", after: 45 * time.Second, grace: 15,
		},
		"shortened in its last second, where somebody else has ended it": {
			pod: pod("a", ending(3600)), what: "delete", after: 29 * time.Second, grace: 1,
		},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			r := beginWithin(t, s, drain.Options{}, true, 10*time.Second)
			r.succeed()
			time.Sleep(time.Until(r.goal.Hard.Add(time.Minute)))
			s.Always("evict", c.evict)
			s.Always("delete", c.delete)
			came := time.Now()
			time.AfterFunc(c.mended, func() { s.Always("delete", nil) })
			s.AddPod(c.pod, apitest.Ending(time.Second))
			r.await(state.PodGone, "default/a")
			asked := s.Requests("evict", "delete")
			last := asked[len(asked)-1]
			// Kind failed before is asked for again after a pause.
			if after := last.At.Sub(came); last.What != c.what+" default/a" || after < c.after || after > c.after+3*time.Second || c.mended == 0 && after > c.after {
				t.Errorf("%s after %s", last.What, after)
			}
			got := int64(0)
			if g := last.Options.GracePeriodSeconds; g != nil {
				got = *g
			}
			if got > c.grace || got < c.grace && c.mended == 0 || got < c.grace-3 {
				t.Errorf("with %d s; want %d", got, c.grace)
			}
		})
	}
}
