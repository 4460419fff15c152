package evict_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/state"
)

func TestDelete_DeadlineThatMoves(t *testing.T) {
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
			"before evictions begin": func(*apitest.Server) {},
		} {
			run(t, name+", "+how, func(t *testing.T, s *apitest.Server) {
				s.AddPod(pod("a", grace(40)), 0)
				setUp(s)
				delay := time.Duration(0)
				if how == "before evictions begin" {
					delay = time.Hour
				}
				r := start(t, s, evict.Options{}, delayed(delay, true, first))
				time.Sleep(10 * time.Second)
				end := r.began.Add(moved)
				r.adjust(func(g *evict.Terms) { g.Hard = end })
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

func TestDelete(t *testing.T) {
	t.Parallel()
	// Its budget has refused evictions for minutes, ever more slowly. That is no reason to be slow with what is urgent.
	run(t, "repeated at once after a failure", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a", grace(60)), apitest.Ending(time.Second))
		s.Always("evict", apitest.Unavailable())
		s.Answer("delete", apitest.Reset())
		beginWithin(t, s, evict.Options{}, true, 5*time.Minute).await(state.PodDeleted)
		asked := s.Requests("delete")
		if after := asked[1].At.Sub(asked[0].At); after > 200*time.Millisecond {
			t.Errorf("repeated after %s", after)
		}
	})
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
		if n := count(s, "evict", "delete") - asked; n == 0 || n > 30 {
			t.Errorf("%d requests in ten minutes", n)
		}
	})
	// It is ending by another's hand, and would take an hour.
	run(t, "repeated with pauses for a terminating pod", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a", ending(3600)), apitest.Never)
		s.Always("delete", apitest.Unavailable())
		beginWithin(t, s, evict.Options{}, true, 10*time.Second)
		time.Sleep(9950 * time.Millisecond)
		if n := count(s, "delete"); n < 2 || n > 12 {
			t.Errorf("%d deletions in the last second", n)
		}
	})
	// The watch does not show that its grace was shortened.
	run(t, "accepted once for a terminating pod", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a", ending(3600)), apitest.Never)
		s.Always("delete", accepted)
		beginWithin(t, s, evict.Options{}, true, 10*time.Second)
		time.Sleep(time.Minute)
		requested(t, s, 1, "delete")
	})
	// The machine should be gone. What the pod got then is over before a deletion is answered.
	run(t, "half a minute again", func(t *testing.T, s *apitest.Server) {
		r := beginWithin(t, s, evict.Options{}, true, 10*time.Second)
		time.Sleep(time.Until(r.goal.Hard.Add(time.Minute)))
		s.Always("evict", apitest.HeldBy("budget", 0))
		s.Always("delete", apitest.Unavailable())
		s.AddPod(pod("a", grace(600)), apitest.Ending(time.Second))
		time.Sleep(45 * time.Second)
		s.Always("delete", nil)
		r.await(state.PodGone)
		asked := s.Requests("delete")
		if got := *asked[len(asked)-1].Options.GracePeriodSeconds; got < 12 || got > 18 {
			t.Errorf("deleted with %d s", got)
		}
	})
	// An API server that takes 0.7 s for a deletion is slow, not dead.
	run(t, "may take the margin", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a"), 0)
		s.Always("evict", apitest.HeldBy("budget", 0))
		s.Always("delete", slowly(700*time.Millisecond))
		const limit = 20 * time.Second
		beginWithin(t, s, evict.Options{Margin: 5 * time.Second}, true, limit)
		time.Sleep(limit)
		if s.HasPod("default/a") {
			t.Errorf("a pod is there at the deadline after %d deletions, each of which would have been carried out after 0.7 s", count(s, "delete"))
		}
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
