package drain_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// skews are by how much the API server's clock is before the machine's.
var skews = []time.Duration{-2 * time.Hour, 0, 2 * time.Hour}

// What a pod's own times say is by the API server's clock.
func TestAPodThatIsEndingIsShortenedWhateverTheClocksSay(t *testing.T) {
	t.Parallel()
	for _, skew := range skews {
		run(t, fmt.Sprintf("if it would take too long, %s", skew), func(t *testing.T) {
			s := apitest.New(t)
			s.SetSkew(skew)
			s.AddPod(pod("a", grace(12)), apitest.Ending(time.Hour)) // It is to be gone in nine seconds.
			goal := goalWithin(true, 10*time.Second)
			s.DeletePod("default/a")
			r := start(t, s, drain.Options{Margin: time.Second}, goal)
			if result := r.succeed(); result.Deleted != 1 {
				t.Errorf("the result is %+v", result)
			}
			if left := goal.Hard.Sub(s.Requests("delete")[0].At); left != 2*time.Second {
				t.Errorf("shortened %s before the deadline", left)
			}
		})
		run(t, fmt.Sprintf("not if it would end in time, %s", skew), func(t *testing.T) {
			s := apitest.New(t)
			s.SetSkew(skew)
			s.AddPod(pod("a", grace(7)), apitest.Never)
			s.DeletePod("default/a")
			beginWithin(t, s, drain.Options{}, true, 10*time.Second)
			time.Sleep(time.Minute)
			if n := count(s, "delete"); n != 0 {
				t.Errorf("%d deletions of a pod whose grace is over in time", n)
			}
		})
	}
}

// The cordon was lifted while nth was not there.
func TestWhatCameSinceTheCordonIsToldByTheAPIServersClock(t *testing.T) {
	t.Parallel()
	for _, skew := range skews {
		run(t, skew.String(), func(t *testing.T) {
			s := apitest.New(t)
			s.SetSkew(skew)
			opts := drain.Options{ExcludeFromLoadBalancers: true}
			addHeld(s, pod("old"))
			time.Sleep(time.Minute)
			goal := goalWithin(false, plenty)
			r := start(t, s, opts, goal)
			r.await(state.PodHeld)
			r.cancel()
			<-r.done
			time.Sleep(time.Minute)
			s.UncordonAs("kubectl")
			time.Sleep(time.Minute)
			s.AddPod(pod("new"), 0)
			s.Always("evict default/old", nil)
			again := start(t, s, opts, goal)
			result := again.succeed()
			if s.HasPod("default/old") || !s.HasPod("default/new") || result.Cordon != drain.CordonLifted {
				t.Errorf("the result is %+v; the old pod is there: %t, the new one: %t", result, s.HasPod("default/old"), s.HasPod("default/new"))
			}
		})
	}
}

// openedByPeople is a node that people have opened while a pod is held there that is called old, with a guard whose goal knows of it.
func openedByPeople(t *testing.T, skew time.Duration) (s *apitest.Server, r *trial, free func()) {
	t.Helper()
	s = apitest.New(t)
	s.SetSkew(skew)
	free = addHeld(s, pod("old"))
	time.Sleep(time.Minute)
	r = begin(t, s, drain.Options{})
	r.await(state.PodHeld)
	cordonedAt := time.Now()
	time.Sleep(time.Minute)
	s.UncordonAs("kubectl")
	r.await(state.NodeReopened)
	r.adjust(func(g *drain.Goal) { g.Before, g.Close = cordonedAt, false })
	return s, r, free
}

// Whoever has heard of the order says when the cordon was set by the machine's clock.
func TestWhatCameSinceIsToldByTheAPIServersClockAlsoOnceTheGoalKnowsOfTheOrder(t *testing.T) {
	t.Parallel()
	for _, skew := range skews {
		run(t, skew.String(), func(t *testing.T) {
			s, r, free := openedByPeople(t, skew)
			time.Sleep(time.Minute)
			free()
			time.Sleep(time.Minute)
			if s.HasPod("default/old") {
				t.Errorf("a pod from before the cordon is left: %+v", r.guard.Result())
			}
		})
	}
}
