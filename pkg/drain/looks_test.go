package drain_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// For the race detector: looks that succeed and looks that are refused follow one another at once.
func TestLooksThatAreRefusedShareNothingUnlocked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		n := 0
		s.Always("get", func(w http.ResponseWriter, r *http.Request) bool {
			time.Sleep(100 * time.Millisecond)
			if n++; n%2 == 0 {
				return apitest.Forbidden("not now")(w, r)
			}
			return false
		})
		begin(t, s, drain.Options{})
		for i := range 400 {
			s.AddPod(pod(fmt.Sprintf("web-%d", i)), 0)
			time.Sleep(50 * time.Millisecond)
		}
	})
}

// The kubelet may register it at any moment.
func TestANodeThatIsMissingIsLookedForEverySecond(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.RemoveNode()
		begin(t, s, drain.Options{})
		time.Sleep(time.Minute + time.Second/2)
		looks := s.Requests("get node")
		for i := range looks[1:] {
			if after := looks[i+1].At.Sub(looks[i].At); after != time.Second {
				t.Errorf("look %d came %s after the one before", i+1, after)
			}
		}
		if len(looks) != 61 {
			t.Errorf("%d looks in a minute", len(looks))
		}
	})
}

// A look hangs, the one before which a pod that comes late is not evicted: somebody may have opened the node. What a machine that is
// lost leaves of time is more than that, or not.
func TestAPodThatComesLateWaitsForALookThatHangsNoLongerThanThereIsTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		left  time.Duration // to the deadline, when it comes
		grace int64
		after time.Duration // when it is evicted
	}{
		"ten seconds at most":                        {10 * time.Minute, 1, 10 * time.Second},
		"a quarter of the time that is left":         {20 * time.Second, 1, 5 * time.Second},
		"three seconds where its turn has come":      {2 * time.Minute, 600, 3 * time.Second},
		"the quarter where that is less than these":  {8 * time.Second, 600, 2 * time.Second},
		"no longer than to its turn, with its grace": {40 * time.Second, 35, 5 * time.Second},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			r := beginWithin(t, s, drain.Options{}, true, plenty)
			r.succeed()
			s.Always("get node", apitest.Hang())
			looks := count(s, "get node")
			await(t, "a look that hangs", func() bool { return count(s, "get node") > looks })
			came := time.Now()
			r.adjust(func(g *drain.Goal) { g.Hard = came.Add(c.left) })
			s.AddPod(pod("late", grace(c.grace)), 0)
			r.await(state.PodEvicted, "default/late")
			if after := s.Requests("evict")[0].At.Sub(came); after != c.after {
				t.Errorf("evicted after %s; want %s", after, c.after)
			}
		})
	}
}

// Its first look takes a while, and the machine is lost at any moment; yet that look may say whom the node belongs to.
func TestANodeThatIsLeftAloneIsHeardOfThoughTheDeadlineIsOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
		s.Always("get node", slowly(900*time.Millisecond))
		r := beginWithin(t, s, drain.Options{}, true, -time.Minute)
		r.await(state.NodeOptedOut)
		time.Sleep(time.Minute)
		if asked := count(s, "evict") + count(s, "delete"); asked != 0 {
			t.Errorf("%d pods were asked to go", asked)
		}
	})
}

// Those that were met before the first look asked for no more than that, and those of the first list for none.
func TestPodsThatWereThereWaitForOneLookOnly(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]string{"the list comes before it": "get node", "the list comes after it": "list pods"} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			for i := range 3 {
				s.AddPod(pod(fmt.Sprintf("web-%d", i)), 0)
			}
			first := map[string]apitest.Answer{"get node": pass, "list pods": pass}
			first[slow] = slowly(time.Second)
			for what, answer := range first {
				s.Answer(what, answer)
			}
			s.Always("get node", apitest.Hang())
			r := begin(t, s, drain.Options{})
			await(t, "their end", func() bool { return len(r.of(state.PodGone)) == 3 })
			if asked := s.Requests("evict"); asked[0].At.Sub(r.began) != time.Second {
				t.Errorf("the first was evicted after %s", asked[0].At.Sub(r.began))
			}
		})
	}
}

// gaps are how long after the one before each request came.
func gaps(asked []apitest.Request) []time.Duration {
	var found []time.Duration
	for i := range asked[1:] {
		found = append(found, asked[i+1].At.Sub(asked[i].At))
	}
	return found
}

func TestANodeThatNothingHappensToIsLookedAtEveryFiveSeconds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := begin(t, s, drain.Options{})
		r.succeed()
		if after := r.drainedAt().Sub(r.began); after != time.Second {
			t.Errorf("without pods, drained %s after the cordon", after)
		}
		time.Sleep(time.Minute)
		for i, after := range gaps(s.Requests("get node")) {
			if after != 5*time.Second {
				t.Errorf("look %d came after %s", i+1, after)
			}
		}
	})
}

// Pods come all the time, and each asks for a look.
func TestLooksThatFailBecomeFewerWhoeverAsksForThem(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		drained(t, s, drain.Options{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 120 {
				s.AddPod(pod(fmt.Sprintf("web-%d", i), unmanaged), 0)
				time.Sleep(300 * time.Millisecond)
			}
		}()
		time.Sleep(2*time.Second + 10*time.Millisecond)
		for range 2 { // After a look that succeeds, they begin anew.
			before := count(s, "get node")
			s.Always("get node", apitest.Unavailable())
			time.Sleep(15 * time.Second)
			s.Always("get node", nil)
			failed := gaps(s.Requests("get node")[before:])
			if failed[0] > 100*time.Millisecond || len(failed) < 10 {
				t.Errorf("looks that fail came after %v", failed)
			}
			for _, after := range failed[8:] {
				if after != time.Second {
					t.Errorf("looks that fail came after %v; want a second at last", failed)
					break
				}
			}
			time.Sleep(2*time.Second + 10*time.Millisecond)
		}
		<-done
	})
}

// Looks succeed, and somebody asks: it comes at once.
func TestAPodThatComesLateIsEvictedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		time.Sleep(time.Minute + time.Second)
		came := time.Now()
		s.AddPod(pod("late"), 0)
		r.await(state.PodEvicted, "default/late")
		if after := s.Requests("evict")[0].At.Sub(came); after > 10*time.Millisecond {
			t.Errorf("evicted after %s", after)
		}
	})
}

// The machine is lost: a look that fails is as good as none.
func TestBeforeAHardDeadlineAPodThatComesLateIsEvictedThoughTheLookFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := beginWithin(t, s, drain.Options{}, true, plenty)
		r.succeed()
		s.Always("get node", apitest.Unavailable())
		came := time.Now()
		s.AddPod(pod("late"), 0)
		r.await(state.PodEvicted, "default/late")
		if after := s.Requests("evict")[0].At.Sub(came); after > 10*time.Millisecond {
			t.Errorf("evicted after %s", after)
		}
	})
}
