package drain_test

import (
	"io"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// A shutdown can be held for 15 s. Only reads of the Node hang.
func TestPodsAreEvictedBeforeADeadlineThoughTheNodeCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]time.Duration{"15 s": 15 * time.Second, "two minutes": 2 * time.Minute} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", grace(8)), apitest.Ending(5*time.Second))
			s.Always("get node", apitest.Hang())
			r := beginWithin(t, s, drain.Options{}, true, limit)
			time.Sleep(min(limit, 20*time.Second))
			asked := s.Requests("evict", "delete")
			if len(asked) == 0 {
				t.Fatalf("nothing was asked for in %s", time.Since(r.began))
			}
			if after := asked[0].At.Sub(r.began); after > 11*time.Second {
				t.Errorf("evicted after %s; evictions begin without the cordon after ten", after)
			}
		})
	}
}

// A deletion at the turn meets a connection that breaks. The budget has refused evictions before, ever more slowly.
func TestADeletionThatFailsIsRepeatedWhileItsGraceIsLeft(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]apitest.Answer{"a connection breaks": apitest.Reset(), "the server is busy": apitest.Throttled(5)} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", grace(2)), apitest.Ending(time.Second))
			s.Always("evict", apitest.HeldBy("budget", 0))
			s.Answer("delete", answer)
			const limit = time.Minute
			r := beginWithin(t, s, drain.Options{}, true, limit)
			time.Sleep(limit + 10*time.Second)
			asked := s.Requests("delete")
			if len(asked) < 2 {
				t.Fatalf("%d deletions", len(asked))
			}
			if left := r.goal.Hard.Sub(asked[1].At); left < time.Second {
				t.Errorf("the first deletion failed 2 s before the deadline, the second was asked for with %s left", left)
			}
		})
	}
}

// Its budget has refused evictions for minutes, ever more slowly. That is no reason to be slow with what is urgent.
func TestADeletionThatFailsIsRepeatedAtOnceWhateverWentBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", grace(60)), apitest.Ending(time.Second))
		s.Always("evict", apitest.Unavailable())
		s.Answer("delete", apitest.Reset())
		beginWithin(t, s, drain.Options{}, true, 5*time.Minute).await(state.PodDeleted)
		asked := s.Requests("delete")
		if after := asked[1].At.Sub(asked[0].At); after > 200*time.Millisecond {
			t.Errorf("repeated after %s", after)
		}
	})
}

// What is left of the grace is left to the last attempt, however often the ones before have failed.
func TestADeletionThatKeepsFailingIsRepeatedToTheLastMoment(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", grace(30)), 0)
		s.Always("evict", apitest.HeldBy("budget", 0))
		s.Always("delete", apitest.Unavailable())
		r := beginWithin(t, s, drain.Options{}, true, time.Minute)
		time.Sleep(time.Until(r.goal.Hard.Add(-200 * time.Millisecond)))
		before := count(s, "delete")
		time.Sleep(199 * time.Millisecond)
		if n := count(s, "delete") - before; n < 1 || n > 3 || before > 60 {
			t.Errorf("%d deletions until 0.2 s before the deadline, %d in these", before, n)
		}
	})
}

// Each is answered as if it were accepted.
func TestADeletionOfWhichNothingBecomesIsRepeatedEverSooner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", grace(600)), 0)
		s.Always("evict", apitest.HeldBy("budget", 0))
		s.Always("delete", accepted)
		r := beginWithin(t, s, drain.Options{}, true, 20*time.Second)
		time.Sleep(19900 * time.Millisecond)
		asked := s.Requests("delete")
		if len(asked) != 8 {
			t.Errorf("%d deletions", len(asked))
		}
		for i, after := range gaps(asked) {
			if want := max(r.goal.Hard.Sub(asked[i].At)/3, time.Second); after != want {
				t.Errorf("deletion %d came after %s; want %s", i+2, after, want)
			}
		}
	})
}

// It is ending by another's hand, and would take an hour.
func TestAPodThatCannotBeShortenedIsAskedForAgainWithPauses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", ending(3600)), apitest.Never)
		s.Always("delete", apitest.Unavailable())
		beginWithin(t, s, drain.Options{}, true, 10*time.Second)
		time.Sleep(9950 * time.Millisecond)
		if n := count(s, "delete"); n < 2 || n > 12 {
			t.Errorf("%d deletions in the last second", n)
		}
	})
}

// An API server that takes 0.7 s for a deletion is slow, not dead.
func TestADeletionMayTakeTheMargin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.Always("evict", apitest.HeldBy("budget", 0))
		s.Always("delete", slowly(700*time.Millisecond))
		const limit = 20 * time.Second
		beginWithin(t, s, drain.Options{Margin: 5 * time.Second}, true, limit)
		time.Sleep(limit)
		if s.HasPod("default/a") {
			t.Errorf("a pod is there at the deadline after %d deletions, each of which would have been carried out after 0.7 s", count(s, "delete"))
		}
	})
}

// The API server takes any grace that is not negative.
func TestAnEndlessGraceIsClipped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", grace(math.MaxInt64)), apitest.Ending(time.Second))
		s.Always("evict", apitest.HeldBy("budget", 0))
		const limit = time.Minute
		beginWithin(t, s, drain.Options{}, true, limit)
		time.Sleep(limit - time.Second)
		if n := count(s, "delete"); n == 0 {
			t.Error("a pod that a budget holds was not deleted before the deadline")
		}
	})
}

// Somebody has lifted the cordon, and then the machine is announced to be lost. First it is closed again.
func TestANodeIsClosedAgainBeforePodsAreEvictedForAnotherEvent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		goal := goalWithin(false, plenty)
		r := start(t, s, drain.Options{}, goal)
		r.succeed()
		s.UncordonAs("kubectl")
		r.await(state.NodeReopened)
		s.AddPod(pod("new"), 0)
		time.Sleep(time.Minute)
		var closed time.Time
		s.Always("patch", func(w http.ResponseWriter, q *http.Request) bool {
			slowly(2*time.Second)(w, q)
			closed = time.Now()
			return false
		})
		r.adjust(func(g *drain.Goal) {
			joining(g)
			g.Hard, g.Claim.Since = time.Now().Add(2*time.Minute), time.Now()
		})
		r.await(state.PodEvicted)
		if asked := s.Requests("evict")[0].At; closed.IsZero() || asked.Before(closed) {
			t.Errorf("evicted at %s, closed at %s: what replaces the pod may come to this node", asked, closed)
		}
	})
}

// The look that shows a node that is open began before the event joined. It says nothing of what becomes of the cordon for that.
func TestALookFromBeforeAnEventJoinedDoesNotBeginItsEvictions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		s.UncordonAs("kubectl")
		r.await(state.NodeReopened)
		s.AddPod(pod("new"), 0)
		time.Sleep(time.Minute)
		s.Always("patch", apitest.Forbidden("no cordons here"))
		s.Answer("get node", func(http.ResponseWriter, *http.Request) bool {
			time.Sleep(500 * time.Millisecond)
			r.adjust(joining)
			time.Sleep(500 * time.Millisecond)
			return false
		})
		time.Sleep(time.Minute)
		if n := count(s, "evict"); n != 0 {
			t.Errorf("%d evictions from a node that takes pods, without a hard deadline", n)
		}
	})
}

// A request that hangs is given up while there is time for others: half of what is left, and no more than twelve seconds.
func TestARequestThatHangsLeavesTimeForOthers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		what    string
		hard    bool
		limit   time.Duration
		comes   time.Duration // when the pod comes to the node
		left    time.Duration // from then
		atLeast int
	}{
		"an eviction, with a soft deadline": {what: "evict", limit: plenty, left: plenty, atLeast: 2},
		"a deletion at the turn":            {what: "delete", hard: true, limit: 12 * time.Second, left: 12 * time.Second, atLeast: 5},
		"a deletion after the deadline":     {what: "delete", hard: true, limit: time.Minute, comes: 2 * time.Minute, left: 30 * time.Second, atLeast: 4},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.Always("evict", apitest.HeldBy("budget", 0))
			s.Always(c.what, apitest.Hang())
			beginWithin(t, s, drain.Options{Margin: 6 * time.Second}, c.hard, c.limit) // The margin is there to be used.
			time.Sleep(c.comes)
			came := time.Now()
			s.AddPod(pod("a", grace(600)), apitest.Never)
			time.Sleep(min(c.left-100*time.Millisecond, time.Minute))
			asked := s.Requests(c.what)
			if len(asked) < c.atLeast {
				t.Errorf("%d in %s", len(asked), time.Since(came))
			}
			for i := range asked[1:] {
				left := came.Add(c.left).Sub(asked[i].At)
				limit, pause := 35*time.Second, 3*time.Second // The pause is that at most.
				if c.hard {
					limit = min(max(left/2, time.Second/2), 12*time.Second)
					if c.comes == 0 { // The deadline is not over for long.
						pause = max((left-limit)/3, 100*time.Millisecond)
					}
				}
				if after := asked[i+1].At.Sub(asked[i].At); after <= limit || after > limit+pause {
					t.Errorf("with %s left, it was given up and asked for again after %s", left, after)
				}
			}
		})
	}
}

// Each eviction is answered as if it were accepted.
func TestAnEvictionOfWhichNothingBecomesGivesWayToADeletionInTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		grace       int64
		opens, want time.Duration
	}{
		"before the turn":         {30, 25 * time.Second, 30 * time.Second},
		"shortly before the turn": {30, 29500 * time.Millisecond, 30500 * time.Millisecond},
		"at the turn":             {30, time.Minute, 40 * time.Second},
		"of little grace":         {6, time.Minute, 56 * time.Second},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", grace(c.grace)), apitest.Ending(time.Second)) // which is after the answer to its deletion
			s.Always("evict", func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusCreated)
				_, err := io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success","code":201}`)
				return err == nil
			})
			r := beginWithin(t, s, drain.Options{LoadBalancerWait: c.opens}, true, time.Minute)
			result := r.succeed()
			asked := s.Requests("delete")[0]
			if after := asked.At.Sub(r.began); after != c.want || count(s, "evict") != 1 || result.Evicted != 0 || result.Deleted != 1 {
				t.Errorf("deleted after %s, and %d evictions; the result is %+v", after, count(s, "evict"), result)
			}
		})
	}
}
