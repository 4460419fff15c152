package evict_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

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

// What a pod's own times say is by the API server's clock.
func TestDelete_ShortensByAnyClock(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{-2 * time.Hour, 0, 2 * time.Hour} { // of the API server
		run(t, fmt.Sprintf("if it would take too long, %s", skew), func(t *testing.T, s *apitest.Server) {
			s.SetSkew(skew)
			s.AddPod(pod("a", grace(12)), apitest.Ending(time.Hour)) // It is to be gone in nine seconds.
			goal := terms(true, 10*time.Second)
			s.DeletePod("default/a")
			r := start(t, s, evict.Options{Margin: time.Second}, goal)
			if result := r.succeed(); result.Deleted != 1 {
				t.Errorf("the result is %+v", result)
			}
			if left := goal.Hard.Sub(s.Requests("delete")[0].At); left != 2*time.Second {
				t.Errorf("shortened %s before the deadline", left)
			}
		})
		run(t, fmt.Sprintf("not if it would end in time, %s", skew), func(t *testing.T, s *apitest.Server) {
			s.SetSkew(skew)
			s.AddPod(pod("a", grace(7)), apitest.Never)
			s.DeletePod("default/a")
			beginWithin(t, s, evict.Options{}, true, 10*time.Second)
			time.Sleep(time.Minute)
			requested(t, s, 0, "delete")
		})
	}
}

func TestDelete_WithTheGraceThatIsLeft(t *testing.T) {
	t.Parallel()
	const near = 40 * time.Second
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		opts  evict.Options
		limit time.Duration
		after time.Duration // when it is deleted
		grace int64         // what is asked for; 0 for the pod's own
	}{
		"a grace that does not fit is clipped":       {pod("a", grace(600)), evict.Options{}, near, 0, 40},
		"the margin is kept free":                    {pod("a", grace(600)), evict.Options{Margin: near - 10*time.Second}, near, 0, 10},
		"never below one second":                     {pod("a", grace(600)), evict.Options{Margin: 2 * near}, near, 0, 1},
		"a grace that fits is given whole":           {pod("a", grace(3)), evict.Options{}, near, 37 * time.Second, 0},
		"a pod without grace gets the usual seconds": {pod("a", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = nil }), evict.Options{Margin: near - 10*time.Second}, near, 0, 10},
		"a setting replaces the grace":               {pod("a", grace(600)), evict.Options{GracePeriod: new(2 * time.Second)}, near, 38 * time.Second, 2},
		"a setting of nothing is one second":         {pod("a", grace(600)), evict.Options{GracePeriod: new(time.Duration(0)), Margin: time.Second}, near, 38 * time.Second, 1},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
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

func TestDelete(t *testing.T) {
	t.Parallel()
	run(t, "a long grace before a short one", func(t *testing.T, s *apitest.Server) {
		for name, seconds := range map[string]int64{"short": 1, "middle": 3, "long": 600} {
			s.AddPod(pod(name, grace(seconds)), 0)
		}
		s.Always("evict", apitest.HeldBy("budget", 0))
		began := time.Now()
		r := beginWithin(t, s, evict.Options{}, true, 6*time.Second)
		r.succeed()
		var order []string
		for _, q := range s.Requests("delete") {
			order = append(order, fmt.Sprintf("%s after %s", q.What, q.At.Sub(began)))
		}
		if want := []string{"delete default/long after 0s", "delete default/middle after 3s", "delete default/short after 5s"}; !slices.Equal(order, want) {
			t.Errorf("deleted in the order %v; want %v", order, want)
		}
	})
	run(t, "nothing without a hard deadline", func(t *testing.T, s *apitest.Server) {
		s.AddHeld(pod("held", grace(600)))
		s.AddPod(pod("stuck", ending(3600)), apitest.Never)
		s.AddPod(pod("free"), 0)
		r := beginWithin(t, s, evict.Options{}, false, 2*time.Second)
		result := r.end()
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
	// Nobody can give it less.
	run(t, "not a pod in its last second", func(t *testing.T, s *apitest.Server) {
		r := beginWithin(t, s, evict.Options{}, true, 10*time.Second)
		r.succeed()
		time.Sleep(time.Until(r.goal.Hard.Add(-500 * time.Millisecond)))
		s.AddPod(pod("a", ending(1)), apitest.Never)
		time.Sleep(5 * time.Second)
		if n := count(s, "evict", "delete"); n != 0 || len(r.result().Left) != 1 {
			t.Errorf("%d evictions and deletions, %+v", n, r.result())
		}
	})
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

// It has had its SIGTERM, and any shortening lets the kubelet count anew. So it may go on until the last second.
func TestDelete_ShortensToASecond(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]int64{"with a long grace of its own": 3600, "with a short grace of its own": 1} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("a", ending(3600), grace(own)), 0)
			s.AddPod(pod("b", ending(3600)), apitest.Never)
			r := beginWithin(t, s, evict.Options{Margin: time.Second}, true, 4*time.Second)
			if result := r.end(); !slices.Equal(result.Left, []string{"default/b"}) || result.Deleted != 2 {
				t.Errorf("the result is %+v", result)
			}
			requested(t, s, 0, "evict")
			for _, q := range s.Requests("delete") {
				if g := q.Options.GracePeriodSeconds; g == nil || *g != 1 {
					t.Errorf("%s with the grace %v; want 1 s", q.What, g)
				}
			}
		})
	}
}

func TestEvict_NothingDelaysAPodBeyondItsTurn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		delay time.Duration
		hard  bool
		want  time.Duration // when it is evicted
	}{
		"a hold":                        {pod("a", grace(2)), time.Hour, true, 3 * time.Second},
		"a hold, with a soft deadline":  {pod("a", grace(2)), time.Hour, false, 3 * time.Second},
		"the rest, for a critical pod":  {pod("a", grace(2), critical), 0, true, 3 * time.Second},
		"the rest, softly":              {pod("a", grace(2), critical), 0, false, 3 * time.Second},
		"a grace longer than all there": {pod("a", grace(600)), time.Hour, true, 0},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(c.pod, 0)
			s.AddPod(pod("stuck", ending(1)), apitest.Never)
			began := time.Now()
			r := start(t, s, evict.Options{}, delayed(c.delay, c.hard, 5*time.Second))
			if result := r.end(); !slices.Equal(result.Left, []string{"default/stuck"}) || result.Evicted != 1 {
				t.Errorf("the result is %+v", result)
			}
			if after := s.Requests("evict")[0].At.Sub(began); after != c.want {
				t.Errorf("evicted after %s; want %s", after, c.want)
			}
		})
	}
}

// The machine should be gone, and is there.
func TestDelete_AfterTheDeadline(t *testing.T) {
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
		run(t, name, func(t *testing.T, s *apitest.Server) {
			r := beginWithin(t, s, evict.Options{}, true, 10*time.Second)
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

// The nearest hard deadline governs, whatever else was there first.
func TestDelete_SoftDeadlineTakesNoTime(t *testing.T) {
	t.Parallel()
	const hard, margin = time.Minute, 2 * time.Second
	for name, soft := range map[string]time.Duration{
		"no soft one": 0, "a nearer one": 50 * time.Second, "one that is overdue": -time.Hour, "a later one": time.Hour,
	} {
		for how, joins := range map[string]bool{"from the start": false, "joining it": true} {
			run(t, name+", "+how, func(t *testing.T, s *apitest.Server) {
				s.AddHeld(pod("a", grace(40)))
				goal := terms(true, hard)
				if soft != 0 {
					goal.Soft = time.Now().Add(soft)
				}
				end := goal.Hard
				if joins {
					goal.Hard = time.Time{}
				}
				r := start(t, s, evict.Options{Margin: margin}, goal)
				if joins {
					time.Sleep(5 * time.Second)
					r.adjust(func(g *evict.Terms) { g.Hard = end })
				}
				r.await(state.PodDeleted)
				deletion := s.Requests("delete")[0]
				if left := end.Sub(deletion.At); left != 40*time.Second+margin || deletion.Options.GracePeriodSeconds != nil {
					t.Errorf("deleted with %v s, %s before the end", deletion.Options.GracePeriodSeconds, left)
				}
				requested(t, s, 1, "delete")
			})
		}
	}
}

// A negative grace period is valid, and stands for a second. One that overflows is long.
func TestDelete_GraceAsTheAPIServerTakesIt(t *testing.T) {
	t.Parallel()
	for seconds, deletedAt := range map[int64]time.Duration{
		-30: 119 * time.Second, -9223372037: 119 * time.Second, 0: 119 * time.Second, 30: 90 * time.Second, 9223372037: time.Second,
	} {
		run(t, fmt.Sprint(seconds), func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("a", grace(seconds)), 0)
			s.Always("evict", apitest.HeldBy("budget", 0))
			r := beginWithin(t, s, evict.Options{}, true, 2*time.Minute)
			time.Sleep(3 * time.Minute)
			deleted := s.Requests("delete")
			if len(deleted) == 0 || r.result().Deleted != 1 {
				t.Fatalf("it is not deleted; the result is %+v", r.result())
			}
			if at := deleted[0].At.Sub(r.began); (at - deletedAt).Abs() > 2*time.Second {
				t.Errorf("it is deleted after %s, want %s", at, deletedAt)
			}
		})
	}
}

func TestDelete_IsRepeated(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]apitest.Answer{
		"a webhook says no":     apitest.Forbidden("admission webhook denied the request"),
		"403, no relationship":  apitest.NoRelationship(),
		"404":                   apitest.NotFound(),
		"the connection breaks": apitest.Reset(),
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("a", grace(600)), 0)
			s.Always("evict", apitest.HeldBy("budget", 0))
			s.Answer("delete", answer, answer)
			r := beginWithin(t, s, evict.Options{}, true, plenty)
			if result := r.succeed(); result.Deleted != 1 || count(s, "delete") != 3 {
				t.Errorf("%+v after %d deletions", result, count(s, "delete"))
			}
		})
	}
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

// Each eviction is answered as if it were accepted.
func TestDelete_AfterAnEvictionWithoutEffect(t *testing.T) {
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
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("a", grace(c.grace)), apitest.Ending(time.Second)) // which is after the answer to its deletion
			s.Always("evict", func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusCreated)
				_, err := io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success","code":201}`)
				return err == nil
			})
			r := start(t, s, evict.Options{}, delayed(c.opens, true, time.Minute))
			result := r.succeed()
			asked := s.Requests("delete")[0]
			if after := asked.At.Sub(r.began); after != c.want || count(s, "evict") != 1 || result.Evicted != 0 || result.Deleted != 1 {
				t.Errorf("deleted after %s, and %d evictions; the result is %+v", after, count(s, "evict"), result)
			}
		})
	}
}
