package evict_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
)

func TestDelete(t *testing.T) {
	t.Parallel()
	// What is left of the grace is left to the last attempt, however often the ones before have failed.
	run(t, "repeated to the last moment", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a", grace(30)), 0)
		s.Always("evict", apitest.HeldBy("budget", 0))
		s.Always("delete", apitest.Unavailable())
		r := beginWithin(t, s, evict.Options{}, true, time.Minute)
		time.Sleep(time.Until(r.goal.Hard.Add(-200 * time.Millisecond)))
		before := count(s, "delete")
		time.Sleep(199 * time.Millisecond)
		if n := count(s, "delete") - before; n < 1 || n > 3 || before > 60 {
			t.Errorf("%d deletions until 0.2 s before the deadline, %d in these", before, n)
		}
	})
	// Each is answered as if it were accepted.
	run(t, "repeated ever sooner without effect", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a", grace(600)), 0)
		s.Always("evict", apitest.HeldBy("budget", 0))
		s.Always("delete", accepted)
		r := beginWithin(t, s, evict.Options{}, true, 20*time.Second)
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
	// The machine stays, and a webhook makes each deletion a dry run.
	run(t, "repeated seldom without effect, long after", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a", grace(30)), 0)
		s.Always("evict", accepted)
		s.Always("delete", accepted)
		beginWithin(t, s, evict.Options{}, true, time.Minute)
		time.Sleep(5 * time.Minute)
		asked := count(s, "evict", "delete")
		time.Sleep(10 * time.Minute)
		if n := count(s, "evict", "delete") - asked; n == 0 || n > 60 {
			t.Errorf("%d requests in ten minutes", n)
		}
	})
	// The API server was down at the deadline, and is slow when it is back. The machine is still there.
	run(t, "answered slowly, long after", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a", grace(30)), 0)
		s.Always("evict", apitest.Unavailable())
		s.Always("delete", apitest.Unavailable())
		r := beginWithin(t, s, evict.Options{}, true, time.Minute)
		time.Sleep(2 * time.Minute)
		s.Always("evict", slowly(2*time.Second))
		s.Always("delete", slowly(2*time.Second))
		r.succeed()
	})
	// The watch does not show that its grace was shortened.
	run(t, "accepted once for a terminating pod", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a", ending(3600)), apitest.Never)
		s.Always("delete", accepted)
		beginWithin(t, s, evict.Options{}, true, 10*time.Second)
		time.Sleep(time.Minute)
		s.Requested(t, 1, "delete")
	})
}

// A request that hangs is given up while there is time for others: half of what is left, and no more than twelve seconds.
func TestDelete_ThatHangsLeavesTimeForOthers(t *testing.T) {
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
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.Always("evict", apitest.HeldBy("budget", 0))
			s.Always(c.what, apitest.Hang())
			beginWithin(t, s, evict.Options{Margin: 6 * time.Second}, c.hard, c.limit) // The margin is there to be used.
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
