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
