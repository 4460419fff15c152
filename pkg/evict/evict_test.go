package evict_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/state"
)

func TestEvict_APod(t *testing.T) {
	t.Parallel()
	// Another program evicts a pod that a budget holds, and one that has to wait for its time. From when that is seen, neither
	// is asked for again, or reported as ours.
	run(t, "that others evict is not asked again", func(t *testing.T, s *apitest.Server) {
		s.AddHeld(pod("held"))
		s.AddPod(pod("waits", critical), 0)
		s.AddPod(pod("mark", annotated("nth-project.github.io/evict", "at-deadline")), 0)
		r := begin(t, s, evict.Options{})
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
		s.Requested(t, 0, "evict default/waits")
	})
	run(t, "all at once", func(t *testing.T, s *apitest.Server) {
		const pods = 110
		for i := range pods {
			s.AddPod(pod(fmt.Sprintf("web-%03d", i)), 0)
		}
		s.Always("evict", apitest.Together(pods))
		r := drained(t, s, evict.Options{})
		if r.result().Evicted != pods || count(s, "evict") != pods {
			t.Errorf("%d evicted with %d requests; want %d", r.result().Evicted, count(s, "evict"), pods)
		}
		for _, what := range []state.TransitionKind{state.PodEvicted, state.PodGone} {
			if n := len(r.of(what)); n != pods {
				t.Errorf("%d times %q was reported; want %d", n, what, pods)
			}
		}
		last := r.of(state.PodGone)[pods-1]
		if last.Left != 0 || last.Total != pods {
			t.Errorf("the last pod's going was reported as %+v", last)
		}
	})
	// A StatefulSet's pod comes back under its name. Here the first one's end is reported late, so that the eviction of the
	// second under the first one's UID is refused with a conflict.
	run(t, "not another one under its name", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("db-0"), 0)
		s.Answer("watch", apitest.Silence(), apitest.Expired())
		s.Answer("evict", apitest.Unavailable())
		r := begin(t, s, evict.Options{})
		r.await(state.PodRefused, "default/db-0")
		s.ForgetPod("default/db-0")
		reborn := s.AddPod(pod("db-0", ownedBy("DaemonSet", "apps/v1")), 0)
		await(t, "an eviction of the new pod under the old UID", func() bool { return count(s, "evict") >= 2 })
		s.GoAway() // ends the silence; the next watch is reported to list again
		s.ComeBack()
		result := r.succeed()
		if !s.HasPod("default/db-0") {
			t.Errorf("the new pod %s was removed", reborn.UID)
		}
		if result.Skipped != 1 {
			t.Errorf("the result is %+v", result)
		}
	})
	// What a disruption budget holds still runs, and may need them.
	run(t, "that is critical, after one that is held", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("dns", critical), 0)
		free := s.AddHeld(pod("web"))
		s.AddPod(pod("stuck"), apitest.Never)
		r := begin(t, s, evict.Options{})
		r.await(state.PodOverdue, "default/stuck")
		if held := r.result().HeldBy["default/stuck"]; held != "containers that have not ended" {
			t.Errorf("held by %q", held)
		}
		s.Requested(t, 0, "evict default/dns")
		free()
		r.await(state.PodGone, "default/dns")
	})
	run(t, "that is critical, after one whose end makes itself heard", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("dns", critical), 0)
		s.AddPod(pod("stuck", grace(5)), apitest.Never)
		begin(t, s, evict.Options{})
		time.Sleep(10 * time.Second)
		s.ChangePod("default/stuck", func(p *corev1.Pod) { p.Status.Message = "containers do not end" })
		time.Sleep(6 * time.Second)
		s.Requested(t, 1, "evict default/dns")
	})
}

// A webhook may make each eviction a dry run.
func TestEvict_AcceptedWithoutEffect(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"hard": true, "soft": false} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("a", grace(30)), 0)
			s.Always("evict", accepted)
			r := beginWithin(t, s, evict.Options{}, hard, 10*time.Minute)
			time.Sleep(9 * time.Minute)
			result, reported := r.result(), r.of(state.PodRefused)
			if result.Evicted != 0 || result.HeldBy["default/a"] != "the API server accepted an eviction, but the pod is not terminating" || len(reported) != 1 {
				t.Errorf("the result is %+v, reported %+v", result, reported)
			}
			if asked := count(s, "evict"); asked < 15 || asked > 60 || len(r.of(state.PodEvicted)) != 0 {
				t.Errorf("asked %d times, reported %+v", asked, r.of(state.PodEvicted))
			}
			time.Sleep(2 * time.Minute)
			if result := r.result(); hard && (result.Deleted != 1 || result.Evicted != 0 || s.HasPod("default/a")) {
				t.Errorf("the result after the deadline is %+v", result)
			}
			s.Always("evict", nil)
			if !hard {
				r.await(state.PodGone)
				if result := r.result(); result.Evicted != 1 || len(result.HeldBy) != 0 {
					t.Errorf("the result without the webhook is %+v", result)
				}
			}
		})
	}
}

// Every shape of pod also goes through the client that answers kubectl's filters from memory; a question that it has no
// answer to would crash the test.
func TestEvict_PodsThatMustGo(t *testing.T) {
	t.Parallel()
	protect := evict.Options{ProtectEmptyDir: true, ProtectUnmanaged: true}
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		opts    evict.Options
		removed bool
	}{
		"a ReplicaSet's pod":                  {pod("a"), evict.Options{}, true},
		"a pod with emptyDir, protected":      {pod("a", withEmptyDir), protect, false},
		"a pod without controller, protected": {pod("a", unmanaged), protect, false},
		"a finished bare pod, protected":      {pod("a", unmanaged, phase(corev1.PodSucceeded)), protect, true},
		"a finished pod":                      {pod("a", phase(corev1.PodSucceeded)), evict.Options{}, true},
		"a DaemonSet pod":                     {pod("a", ownedBy("DaemonSet", "apps/v1")), evict.Options{}, false},
		"a pod of another DaemonSet":          {pod("a", ownedBy("DaemonSet", "apps.kruise.io/v1alpha1")), evict.Options{}, false},
		"a mirror pod":                        {pod("a", mirror, unmanaged), evict.Options{}, false},
		"a mirror pod of its node":            {pod("a", mirror, ownedBy("Node", "v1")), evict.Options{}, false},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(c.pod, 0)
			r := drained(t, s, c.opts)
			if s.HasPod("default/a") == c.removed {
				t.Errorf("removed: %v; want %v", !c.removed, c.removed)
			}
			evicted, skipped := 0, 1
			if c.removed {
				evicted, skipped = 1, 0
			}
			if got := r.result(); got.Evicted != evicted || got.Skipped != skipped {
				t.Errorf("the result is %+v", got)
			}
		})
	}
}

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
		asked := s.Requests("delete")
		for i, after := range gaps(asked) {
			if most := max(r.goal.Hard.Sub(asked[i].At)/3, 100*time.Millisecond); after > most {
				t.Errorf("deletion %d came after %s; want %s at most", i+2, after, most)
			}
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

func TestReturns(t *testing.T) {
	t.Parallel()
	// A machine that is lost takes them with it. Until then, their controller would bring them back as often as they are evicted.
	run(t, "ever more slowly before a deadline", func(t *testing.T, s *apitest.Server) {
		controller(t, s, 1, false)
		r := start(t, s, evict.Options{Margin: time.Second}, delayed(1500*time.Millisecond, true, time.Minute))
		r.await(state.PodsLeftToReturn)
		time.Sleep(time.Until(r.goal.Hard))
		if result := r.result(); result.Evicted != 5 || result.Deleted != 0 || result.Skipped != 1 {
			t.Errorf("the result is %+v", result)
		}
		var after []time.Duration
		asked := s.Requests("evict")
		for i := range asked[1:] {
			after = append(after, asked[i+1].At.Sub(asked[i].At).Truncate(time.Second))
		}
		if want := []time.Duration{0, 2 * time.Second, 4 * time.Second, 8 * time.Second}; !slices.Equal(after, want) {
			t.Errorf("evicted with the pauses %v; want %v", after, want)
		}
		time.Sleep(time.Minute)
		if n := count(s, "evict", "delete"); n != len(asked) {
			t.Errorf("%d were evicted after they were left in peace", n-len(asked))
		}
	})
}

// A pod in PreBind waits for its volumes, and is bound to a node that was chosen before the cordon.
func TestReturns_NotOfPodsThatAreBoundLate(t *testing.T) {
	t.Parallel()
	for name, apart := range map[string]time.Duration{"created before the drain": 10 * time.Second, "created in its first second": 0} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("web"), 0)
			const late = 9
			var waiting []*corev1.Pod
			for i := range late {
				p := pod(fmt.Sprintf("late-%d", i))
				p.CreationTimestamp.Time = time.Now().Truncate(time.Second)
				waiting = append(waiting, p)
			}
			time.Sleep(apart)
			r := beginWithin(t, s, evict.Options{}, true, 2*time.Minute)
			r.succeed()
			for i, p := range waiting {
				s.AddPod(p, 0)
				if apart == 0 {
					continue
				}
				r.await(state.PodGone, "default/"+p.Name)
				await(t, "the proof that none is left", func() bool { reported := r.of(state.NodeEmpty); return reported[len(reported)-1].Total == i+2 })
			}
			await(t, "the last one's end", func() bool { return len(r.of(state.PodGone)) == late+1 })
			if reported := r.of(state.PodsLeftToReturn); len(reported) != 0 {
				t.Errorf("reported %+v", reported)
			}
			if n := len(r.of(state.PodArrived)); n != late || r.result().Evicted != late+1 {
				t.Errorf("%d have arrived; the result is %+v", n, r.result())
			}
		})
	}
}

// controller is one whose pods tolerate the cordon, or name the node: as soon as one of them is evicted, and for a StatefulSet as
// soon as it is gone, another one comes to the node, which takes a second to end.
func controller(t *testing.T, s *apitest.Server, pods int, stateful bool) {
	t.Helper()
	kind := ownedBy("ReplicaSet", "apps/v1")
	if stateful {
		kind = ownedBy("StatefulSet", "apps/v1")
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); wg.Wait() })
	for i := range pods {
		wg.Go(func() {
			name := fmt.Sprintf("web-%d", i)
			for j := 0; ; j++ {
				if !stateful {
					name = fmt.Sprintf("web-%d-%d", i, j)
				}
				added := s.AddPod(pod(name, kind), apitest.Ending(time.Second))
				for s.HasPod("default/"+name) && (stateful || !s.Ends("default/"+name, added.UID)) {
					select {
					case <-stop:
						return
					case <-time.After(100 * time.Millisecond):
					}
				}
			}
		})
	}
}

// A machine is to be retired in two weeks. That is no reason to evict a pod all that time.
func TestReturns_FourRounds(t *testing.T) {
	t.Parallel()
	for kind, stateful := range map[string]bool{"ReplicaSet": false, "StatefulSet": true} {
		for deadline, limit := range map[string]time.Duration{"none": 0, "in two weeks": 14 * 24 * time.Hour, "in two minutes": 2 * time.Minute} {
			for _, pods := range []int{1, 3, 12} {
				run(t, fmt.Sprintf("%d pods of a %s, deadline %s", pods, kind, deadline), func(t *testing.T, s *apitest.Server) {
					controller(t, s, pods, stateful)
					r := beginWithin(t, s, evict.Options{}, limit == 2*time.Minute, limit)
					r.await(state.PodsLeftToReturn)
					time.Sleep(time.Minute)
					if reported := r.of(state.PodsLeftToReturn); len(reported) != 1 || reported[0].Detail != kind+" default/owner" {
						t.Errorf("reported %+v", reported)
					}
					if n := count(s, "evict"); n < 4*pods || n > 5*pods || count(s, "delete") > 0 {
						t.Errorf("%d evictions, %d deletions", n, count(s, "delete"))
					}
					if len(r.of(state.NodeEmpty)) == 0 {
						t.Error("it is not said to be empty")
					}
					r.join()
					asked := count(s, "evict")
					time.Sleep(time.Minute)
					if n := count(s, "evict") - asked; n < 4*pods || n > 5*pods {
						t.Errorf("%d evictions for another event", n)
					}
				})
			}
		}
	}
}
