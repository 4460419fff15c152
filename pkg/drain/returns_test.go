package drain_test

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// replace puts a new pod on the node whenever the last one is gone, as the controller of a pod does that names its node
// or tolerates the cordon, until the test ends.
func replace(t *testing.T, s *apitest.Server, name string, changes ...func(*corev1.Pod)) {
	t.Helper()
	s.AddPod(pod(name+"-0", changes...), 0)
	stop, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-done })
	go func() {
		defer close(done)
		for i := 0; ; {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			if !s.HasPod(fmt.Sprintf("default/%s-%d", name, i)) {
				i++
				s.AddPod(pod(fmt.Sprintf("%s-%d", name, i), changes...), 0)
			}
		}
	}()
}

func TestPodsThatKeepComingBackAreLeftThereWithoutADeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		replace(t, s, "static")
		// The drain must be well under way when the first comes back.
		free := addHeld(s, pod("held", ownedBy("StatefulSet", "apps/v1")))
		r := beginWithin(t, s, drain.Options{LoadBalancerWait: 1500 * time.Millisecond}, false, 0)
		r.await(state.PodsLeftToReturn)
		free()
		result := r.succeed()
		if result.Skipped != 1 || result.Evicted != 6 {
			t.Errorf("the result is %+v; want the first, four that came back and the one that was held evicted, and one left", result)
		}
		for what, want := range map[state.TransitionKind]string{state.PodsReturning: "ReplicaSet default/owner", state.PodsLeftToReturn: "ReplicaSet default/owner"} {
			if told := r.of(what); len(told) != 1 || told[0].Detail != want {
				t.Errorf("%s is told as %+v, want %q once", what, told, want)
			}
		}
	})
}

// They are removed at once, as if they had finished.
func TestPodsThatKeepComingBackAreLeftThereThoughNobodySeesThemEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Always("evict", func(w http.ResponseWriter, r *http.Request) bool {
			s.RemovePod("default/" + path.Base(path.Dir(r.URL.Path)))
			return accepted(w, r)
		})
		replace(t, s, "static")
		r := beginWithin(t, s, drain.Options{}, false, 0)
		time.Sleep(5 * time.Minute)
		if n := count(s, "evict"); n != 5 || len(r.of(state.PodsLeftToReturn)) != 1 {
			t.Errorf("%d evictions; told is %+v", n, r.of(state.PodsLeftToReturn))
		}
	})
}

// A machine that is lost takes them with it. Until then, their controller would bring them back as often as they are evicted.
func TestPodsThatKeepComingBackAreEvictedEverMoreSlowlyBeforeADeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		replace(t, s, "static")
		r := beginWithin(t, s, drain.Options{LoadBalancerWait: 1500 * time.Millisecond, Margin: time.Second}, true, time.Minute)
		r.await(state.PodsLeftToReturn)
		if result, _ := r.wait(); result.Evicted != 5 || result.Deleted != 0 || result.Skipped != 1 {
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
func TestAControllerThatBringsPodsBackIsFollowedForFourRounds(t *testing.T) {
	t.Parallel()
	for kind, stateful := range map[string]bool{"ReplicaSet": false, "StatefulSet": true} {
		for deadline, limit := range map[string]time.Duration{"none": 0, "in two weeks": 14 * 24 * time.Hour, "in two minutes": 2 * time.Minute} {
			for _, pods := range []int{1, 3, 12} {
				run(t, fmt.Sprintf("%d pods of a %s, deadline %s", pods, kind, deadline), func(t *testing.T) {
					s := apitest.New(t)
					controller(t, s, pods, stateful)
					r := beginWithin(t, s, drain.Options{}, limit == 2*time.Minute, limit)
					r.await(state.PodsLeftToReturn)
					time.Sleep(time.Minute)
					if told := r.of(state.PodsLeftToReturn); len(told) != 1 || told[0].Detail != kind+" default/owner" {
						t.Errorf("told %+v", told)
					}
					if n := count(s, "evict"); n < 4*pods || n > 5*pods || count(s, "delete") > 0 {
						t.Errorf("%d evictions, %d deletions", n, count(s, "delete"))
					}
					if told := r.last(); !told.State.Drained || told.Left != 0 {
						t.Errorf("told %+v at last", told)
					}
					r.adjust(func(g *drain.Goal) { g.Generation++ })
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

// The scheduler brings back what tolerates the cordon; the others have gone elsewhere for good.
func TestOfManyPodsTheOnesThatComeBackAreFollowedForFourRounds(t *testing.T) {
	t.Parallel()
	for kind, stateful := range map[string]bool{"ReplicaSet": false, "StatefulSet": true} {
		for _, back := range []int{1, 3} {
			run(t, fmt.Sprintf("%d of 20 pods of a %s", back, kind), func(t *testing.T) {
				s := apitest.New(t)
				for i := range 20 - back {
					s.AddPod(pod(fmt.Sprintf("elsewhere-%d", i), ownedBy(kind, "apps/v1")), apitest.Ending(time.Second))
				}
				controller(t, s, back, stateful)
				r := beginWithin(t, s, drain.Options{}, false, 0)
				r.await(state.PodsLeftToReturn)
				time.Sleep(10 * time.Minute)
				if n := r.guard.Result().Evicted; n < 20+3*back || n > 20+5*back {
					t.Errorf("%d evictions; want the first of all 20, and about four of each of the %d that come back", n, back)
				}
				if told := r.last(); !told.State.Drained || told.Left != 0 {
					t.Errorf("told %+v at last", told)
				}
				for range 5 { // What is left in peace may end, and come back again.
					s.RemovePod("default/" + s.Pods()[0].Name)
					time.Sleep(time.Minute)
				}
				if n := r.guard.Result().Evicted; n > 20+5*back {
					t.Errorf("%d evictions after it was left in peace", n)
				}
			})
		}
	}
}

// Those that came back are evicted while the others have yet to go for the first time.
func TestEachPodThatComesBackIsFollowedThoughTheirBudgetLetsThemGoOneByOne(t *testing.T) {
	t.Parallel()
	for kind, stateful := range map[string]bool{"ReplicaSet": false, "StatefulSet": true} {
		for _, every := range []time.Duration{500 * time.Millisecond, 2 * time.Second, 10 * time.Second} {
			run(t, fmt.Sprintf("of a %s, every %s", kind, every), func(t *testing.T) {
				const pods = 6
				s := apitest.New(t)
				controller(t, s, pods, stateful)
				s.Always("evict", apitest.OneAtATime("budget", every))
				r := beginWithin(t, s, drain.Options{}, false, 0)
				r.await(state.PodsLeftToReturn)
				time.Sleep(30 * time.Minute)
				if n := r.guard.Result().Evicted; n < pods || n > 5*pods {
					t.Errorf("%d evictions of %d pods", n, pods)
				}
				if told := r.last(); !told.State.Drained || told.Left != 0 {
					t.Errorf("told %+v at last", told)
				}
			})
		}
	}
}

// Otherwise it would take the place of what has yet to go, for as long as its rounds last.
func TestAPodThatCameBackDoesNotTakeTheTurnOfOneThatHasYetToGo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("came"), 0)
		addHeld(s, pod("stays"))
		r := beginWithin(t, s, drain.Options{}, false, 0)
		r.await(state.PodGone, "default/came")
		addHeld(s, pod("back"))
		r.await(state.PodHeld, "default/back")
		asked := count(s, "evict default/stays")
		time.Sleep(time.Minute)
		if n := count(s, "evict default/stays") - asked; n == 0 || count(s, "evict default/back") != 1 {
			t.Errorf("asked %d times for the pod that has yet to go and %d times for the one that came back", n, count(s, "evict default/back"))
		}
		s.RemovePod("default/stays")
		s.Always("evict default/back", nil)
		r.await(state.PodGone, "default/back")
	})
}

// While the cordon fails, the scheduler puts pods on the open node as it pleases.
func TestWhatComesBackToAnOpenNodeIsNotLeftThereOnceItIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddReplicaSet(apitest.Workload{Name: "web", Pods: 2, Ending: apitest.Ending(time.Second), Delay: 300 * time.Millisecond})
		s.Always("patch node", apitest.Unavailable())
		r := beginWithin(t, s, drain.Options{Margin: time.Second}, true, 2*time.Minute)
		r.await(state.PodsLeftToReturn)
		s.Always("patch node", nil)
		r.await(state.NodeClosed)
		if result := r.succeed(); len(result.Left) != 0 || result.Skipped != 0 {
			t.Errorf("the result is %+v; want no pod left", result)
		}
		for _, p := range s.Pods() {
			if p.Spec.NodeName == apitest.Node {
				t.Errorf("%s is on the closed node", p.Name)
			}
		}
	})
}

// An event joins while a pod that has come back waits for its pause to be over.
func TestForAnEventThatJoinsTheRoundsOfAPodThatWaitsBeginAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		controller(t, s, 1, false)
		r := beginWithin(t, s, drain.Options{}, false, 0)
		r.await(state.PodsReturning)
		r.adjust(func(g *drain.Goal) { g.Generation++ })
		asked := count(s, "evict")
		time.Sleep(time.Minute)
		if n := count(s, "evict") - asked; n != 5 {
			t.Errorf("%d evictions for another event; want that of the pod that waited, and four", n)
		}
	})
}

func TestWhatWasThereIsNotToldAsIfItHadArrived(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.Answer("list", apitest.Unavailable(), apitest.Unavailable()) // The cordon comes first.
		r := drained(t, s, drain.Options{})
		if told := r.of(state.PodArrived); len(told) != 0 || r.result.Evicted != 1 {
			t.Errorf("told %+v", told)
		}
	})
}

// Two other pods of its controller are still ending, for one of which at least none has come back yet.
func TestAPodThatIsLeftInPeaceIsSoWhateverBecomesOfIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("slow-1", grace(60)), apitest.Ending(time.Minute))
		s.AddPod(pod("slow-2", grace(60)), apitest.Ending(time.Minute))
		replace(t, s, "back")
		r := beginWithin(t, s, drain.Options{}, false, 0)
		r.await(state.PodsLeftToReturn)
		asked := count(s, "evict")
		for _, p := range s.Pods() {
			if strings.HasPrefix(p.Name, "back") {
				s.ChangePod("default/"+p.Name, annotated("example.com/note", "changed"))
			}
		}
		time.Sleep(time.Minute)
		if n := count(s, "evict") - asked; n != 0 {
			t.Errorf("%d evictions after it was left in peace", n)
		}
	})
}

// Who makes them gives each another name.
func TestPodsThatKeepComingBackAreLeftThereThoughNobodySaysToControlThem(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*corev1.Pod){
		"they have an owner":                func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil },
		"their names begin in the same way": func(p *corev1.Pod) { p.OwnerReferences, p.GenerateName = nil, "runner-" },
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			r := beginWithin(t, s, drain.Options{}, false, 0)
			made := 0
			for range 300 {
				if last := fmt.Sprint("runner-", made); made == 0 || !s.HasPod("default/"+last) {
					made++
					s.AddPod(pod(fmt.Sprint("runner-", made), change), 0)
				}
				time.Sleep(time.Second)
			}
			if n := count(s, "evict"); n != 5 || len(r.of(state.PodsLeftToReturn)) != 1 {
				t.Errorf("%d evictions; told is %+v", n, r.of(state.PodsLeftToReturn))
			}
		})
	}
}

// Their pods take 20 minutes to end. Meanwhile others, such as those of Jobs, come and go.
func TestReturns_OfPodsThatEndSlowly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		of := func(name string) func(*corev1.Pod) {
			return func(p *corev1.Pod) { p.OwnerReferences[0].Name = name }
		}
		beginWithin(t, s, drain.Options{}, false, 0)
		for i := range 40 {
			for _, name := range []string{"a", "b"}[:min(i+1, 2)] {
				if !s.HasPod("default/" + name) {
					s.AddPod(pod(name, grace(20*60), of(name)), apitest.Ending(20*time.Minute))
				}
			}
			job := fmt.Sprint("job-", i)
			s.AddPod(pod(job, of(job)), 0)
			time.Sleep(10 * time.Minute)
		}
		for _, name := range []string{"a", "b"} {
			if n := count(s, "evict default/"+name); n != 5 {
				t.Errorf("%s was evicted %d times", name, n)
			}
		}
	})
}

// The list that shows the pod's end shows the one that has replaced it, too.
func TestEvict_CountsReturnsBehindASilentWatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Always("watch pods", apitest.Silence())
		replace(t, s, "static")
		r := beginWithin(t, s, drain.Options{}, false, 0)
		r.await(state.PodsLeftToReturn)
		if n := count(s, "evict"); n != 5 {
			t.Errorf("%d evictions", n)
		}
	})
}

// Until the watch shows the pod's end, what refused its eviction before does not hold it any more.
func TestEvict_AnAcceptedEvictionIsHeldByNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		free := addHeld(s, pod("a"))
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld)
		s.SetLag(0, 5*time.Second)
		free()
		await(t, "the end of the pod", func() bool { return !s.HasPod("default/a") })
		if result := r.guard.Result(); len(result.Left) != 1 || len(result.HeldBy) != 0 {
			t.Errorf("the result is %+v", result)
		}
	})
}
