package drain_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

// A pod that goes after its eviction was sent went by that, whatever became of the answer.

// doneUnanswered has a pod's end begun as was asked for, after a while, and never answers.
func doneUnanswered(s *apitest.Server, name string, after time.Duration) apitest.Answer {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		time.Sleep(after)
		s.DeletePod(name)
		<-r.Context().Done()
		return true
	}
}

// The watch is later than the end of the connection.
func TestAnEvictionWhoseAnswerIsLostIsCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", grace(5)), apitest.Ending(5*time.Second))
		s.SetLag(0, 50*time.Millisecond)
		s.Answer("evict", apitest.Lost())
		if r := drained(t, s, drain.Options{}); r.result.Evicted != 1 || len(r.of(state.PodEvicted)) != 1 || count(s, "evict") != 1 {
			t.Errorf("the result is %+v after %d evictions", r.result, count(s, "evict"))
		}
	})
}

// The pod is gone before the watch tells, so that the next eviction finds none.
func TestCredit_LostAnswerOfAPodThatIsGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.SetLag(0, 3*time.Second)
		s.Answer("evict", apitest.Lost())
		if r := drained(t, s, drain.Options{}); r.result.Evicted != 1 || count(s, "evict") < 2 {
			t.Errorf("the result is %+v after %d evictions", r.result, count(s, "evict"))
		}
	})
}

// The pod is terminating, but the watch does not tell yet.
func TestCredit_CalledOffAfterTheEviction(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", grace(30)), apitest.Ending(20*time.Second))
		r := begin(t, s, drain.Options{ExcludeFromLoadBalancers: true, LoadBalancerWait: 5 * time.Second})
		r.await(state.PodsFound)
		s.SetLag(0, 3*time.Second)
		await(t, "the eviction", func() bool { return count(s, "evict") > 0 })
		time.Sleep(time.Second)
		r.adjust(func(g *drain.Goal) { g.Evict = false })
		r.await(state.PodSpared)
		if result := r.guard.Result(); result.Evicted != 1 || len(r.of(state.PodEvicted)) != 1 {
			t.Errorf("the result is %+v", result)
		}
	})
}

// The first eviction broke off, and might have been carried out. That the next is refused says that it was not.
func TestAnEvictionThatWasRefusedAfterAllIsNotCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.Answer("evict", apitest.Reset())
		s.Always("evict", apitest.HeldBy("budget", 0))
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld)
		s.RemovePod("default/a")
		if result := r.succeed(); result.Evicted != 0 {
			t.Errorf("the result is %+v", result)
		}
	})
}

// The eviction hangs, and is given up at the turn. That it was carried out is seen while the deletion waits for its place.
func TestAnEvictionThatWasGivenUpIsCountedIfItWasCarriedOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.SetLag(0, 500*time.Millisecond)
		s.AddPod(pod("a", grace(10)), apitest.Ending(5*time.Second))
		for _, first := range []string{"first", "second", "third"} { // Their turn has come, and they take the place of what is urgent.
			s.AddPod(pod(first, grace(600)), 0)
			s.Always("evict default/"+first, apitest.Hang())
		}
		s.Always("evict default/a", doneUnanswered(s, "default/a", 2900*time.Millisecond))
		r := beginWithin(t, s, drain.Options{Gate: kube.NewGate(1)}, true, 13*time.Second)
		r.await(state.PodGone, "default/a")
		if told := r.of(state.PodEvicted, "default/a"); len(told) != 1 || count(s, "delete default/a") != 0 {
			t.Errorf("told %+v, and it was deleted %d times", told, count(s, "delete default/a"))
		}
	})
}

// The watch shows that the pod is ending before a budget refuses its eviction.
func TestAnEvictionThatIsRefusedIsNotCountedThoughSomebodyElseDeletesThePodMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", grace(30)), apitest.Ending(20*time.Second))
		s.Always("evict", func(w http.ResponseWriter, r *http.Request) bool {
			return slowly(time.Second)(w, r) || apitest.HeldBy("budget", 0)(w, r)
		})
		r := begin(t, s, drain.Options{})
		time.Sleep(500 * time.Millisecond)
		s.DeletePod("default/a")
		r.succeed()
		if told := r.of(state.PodEvicted); len(told) > 0 || r.result.Evicted > 0 {
			t.Errorf("told %+v of evictions, %+v", told, r.result)
		}
	})
}

// The pod had finished. No watch has told that it was ending.
func TestAnEvictionIsCountedThoughThePodIsGoneBeforeTheAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.Always("evict", func(_ http.ResponseWriter, r *http.Request) bool {
			s.RemovePod("default/a")
			<-r.Context().Done()
			return true
		})
		if r := drained(t, s, drain.Options{}); r.result.Evicted != 1 || len(r.of(state.PodEvicted)) != 1 {
			t.Errorf("the result is %+v", r.result)
		}
	})
}

// What a budget has held and somebody else has ended is held no more.
func TestAPodThatIsEndingIsHeldByNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		addHeld(s, pod("a", grace(60)))
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld)
		s.ChangePod("default/a", ending(60))
		time.Sleep(30 * time.Second)
		if result := r.guard.Result(); len(result.Left) != 1 || len(result.HeldBy) != 0 {
			t.Errorf("the result is %+v", result)
		}
	})
}

// The eviction hangs until the pod's turn. The watch shows that the pod is terminating before the deletion is answered.
func TestADeletionAfterAnEvictionThatHangsIsADeletionHoweverLateItsAnswerIs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", grace(10)), apitest.Ending(3*time.Second))
		s.Always("evict", apitest.Hang())
		s.Always("delete", func(http.ResponseWriter, *http.Request) bool {
			s.DeletePod("default/a", 10)
			time.Sleep(time.Second)
			return false
		})
		r := beginWithin(t, s, drain.Options{}, true, 30*time.Second)
		result := r.succeed()
		if evicted := r.of(state.PodEvicted); result.Deleted != 1 || result.Evicted != 0 || len(evicted) > 0 {
			t.Errorf("the result is %+v; told as evicted is %+v", result, evicted)
		}
	})
}
