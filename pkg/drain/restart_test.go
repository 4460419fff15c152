package drain_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// rollouts are asked to restart workloads.
type rollouts struct {
	// answers is how long an answer takes. refused are the pods for which it is that nothing is restarted.
	answers time.Duration
	refused []string
	// restarted is called when a workload is.
	restarted func(pod string)

	mu    sync.Mutex
	asked []string
}

func (r *rollouts) restart(ctx context.Context, pod *corev1.Pod) string {
	r.mu.Lock()
	r.asked = append(r.asked, pod.Name)
	r.mu.Unlock()
	if !drain.Await(ctx, nil, r.answers) || slices.Contains(r.refused, pod.Name) {
		return ""
	}
	if r.restarted != nil {
		r.restarted(pod.Namespace + "/" + pod.Name)
	}
	return "Deployment default/" + pod.Name
}

func (r *rollouts) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(slices.Values(r.asked))
}

// replacing is the setting, for so long.
func (r *rollouts) replacing(wait time.Duration) drain.Options {
	return drain.Options{Restart: r.restart, RestartWait: wait, Margin: 2 * time.Second}
}

// afterRestart is a pod that is to be replaced first.
var afterRestart = annotated(drain.EvictAnnotation, drain.AfterRestart)

func TestAPodIsNotEvictedWhileItsWorkloadMakesAnotherInItsPlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("web", afterRestart), apitest.Ending(time.Second))
		s.AddPod(pod("api"), 0)
		s.AddPod(pod("dns", critical), 0)
		workloads := &rollouts{answers: 2 * time.Second, restarted: func(pod string) { time.AfterFunc(40*time.Second, func() { s.DeletePod(pod) }) }}
		r := begin(t, s, workloads.replacing(5*time.Minute))
		time.Sleep(39 * time.Second)
		result := r.guard.Result()
		if !slices.Equal(result.Left, []string{"default/web"}) || result.HeldBy["default/web"] != "the restart of Deployment default/web" {
			t.Errorf("meanwhile the result is %+v", result)
		}
		if told := r.of(state.PodRestarting); len(told) != 1 || told[0].Pod != "default/web" || told[0].Detail != "Deployment default/web" {
			t.Errorf("told %+v", told)
		}
		if result := r.succeed(); result.Evicted != 2 || result.Deleted != 0 || len(s.Requests("evict default/web")) > 0 {
			t.Errorf("the result is %+v, after %+v", result, s.Requests("evict"))
		}
		for _, q := range s.Requests("evict") {
			if after := q.At.Sub(r.began); after > 2100*time.Millisecond {
				t.Errorf("%s after %s, want it not to wait", q.What, after)
			}
		}
		if asked := workloads.all(); !slices.Equal(asked, []string{"web"}) {
			t.Errorf("asked for were %q", asked)
		}
	})
}

// The replacement never comes.
func TestAPodWaitsForAnotherInItsPlaceNoLongerThanItMay(t *testing.T) {
	t.Parallel()
	const wait = 90 * time.Second
	for name, c := range map[string]struct {
		change []func(*corev1.Pod)
		hard   bool
		limit  time.Duration // 0 for no deadline
		want   time.Duration // when it is evicted
	}{
		"without a deadline":                             {want: wait},
		"with a deadline that is far":                    {limit: time.Hour, want: wait},
		"for half of the time":                           {limit: 2 * time.Minute, want: 59 * time.Second},
		"for half of the time that the machine is there": {hard: true, limit: 2 * time.Minute, want: 59 * time.Second},
		"as long as its grace fits":                      {[]func(*corev1.Pod){grace(100)}, true, 2 * time.Minute, 18 * time.Second},
		"as long as its grace fits, softly":              {[]func(*corev1.Pod){grace(100)}, false, 2 * time.Minute, 18 * time.Second},
		"not, where its grace does not fit at all":       {[]func(*corev1.Pod){grace(600)}, true, 2 * time.Minute, 0},
		"also if it is critical":                         {[]func(*corev1.Pod){critical}, false, 0, wait},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", append(c.change, afterRestart)...), 0)
			r := beginWithin(t, s, (&rollouts{}).replacing(wait), c.hard, c.limit)
			if result := r.succeed(); result.Evicted != 1 || len(result.HeldBy) > 0 {
				t.Errorf("the result is %+v", result)
			}
			asked := s.Requests("evict")[0]
			if after := asked.At.Sub(r.began); after != c.want {
				t.Errorf("evicted after %s, want %s", after, c.want)
			}
			if g := asked.Options.GracePeriodSeconds; g != nil && c.want > 0 {
				t.Errorf("evicted with a grace of %d s, which is not its own", *g)
			}
		})
	}
}

func TestWhatIsNotRestartedIsEvictedAtOnce(t *testing.T) {
	t.Parallel()
	ask := func(asked int) func(*testing.T, *rollouts) {
		return func(t *testing.T, r *rollouts) {
			if all := r.all(); len(all) != asked {
				t.Errorf("asked for were %q, want %d", all, asked)
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		opts   func(*drain.Options)
		asked  func(*testing.T, *rollouts)
	}{
		"as nothing can be":        {afterRestart, func(*drain.Options) {}, ask(1)},
		"as it does not want that": {func(*corev1.Pod) {}, func(*drain.Options) {}, ask(0)},
		"as it has ended":          {func(p *corev1.Pod) { afterRestart(p); p.Status.Phase = corev1.PodFailed }, func(*drain.Options) {}, ask(0)},
		"as there is no time set":  {afterRestart, func(o *drain.Options) { o.RestartWait = 0 }, ask(0)},
		"as nobody can do so":      {afterRestart, func(o *drain.Options) { o.Restart = nil }, ask(0)},
		"as nothing can be, which is asked for under the old key": {
			annotated(drain.OldKey(drain.EvictAnnotation), drain.AfterRestart), func(*drain.Options) {}, ask(1),
		},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", c.change), 0)
			workloads := &rollouts{refused: []string{"a"}}
			opts := workloads.replacing(time.Minute)
			c.opts(&opts)
			r := drained(t, s, opts)
			if after := s.Requests("evict")[0].At.Sub(r.began); after > 0 || len(r.of(state.PodRestarting)) > 0 {
				t.Errorf("evicted after %s; told %+v", after, r.of(state.PodRestarting))
			}
			c.asked(t, workloads)
		})
	}
}

// The machine is found to be lost in half a minute.
func TestADeadlineThatComesUpEndsTheWaitForAnotherPod(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("web", afterRestart, grace(25)), 0)
		r := beginWithin(t, s, (&rollouts{}).replacing(time.Hour), false, 0)
		r.await(state.PodRestarting)
		time.Sleep(time.Minute)
		lost := time.Now()
		r.adjust(func(g *drain.Goal) { g.Hard = lost.Add(30 * time.Second) })
		r.succeed()
		asked := s.Requests("evict")[0]
		if after := asked.At.Sub(lost); after > 3*time.Second || asked.Options.GracePeriodSeconds != nil {
			t.Errorf("evicted after %s with %+v; it has a grace of 25 s", after, asked.Options)
		}
	})
}

// Its turn before the deadline comes, and its budget refuses. It is deleted with all of its grace.
func TestAPodThatWaitedForAnotherKeepsItsGraceBeforeAHardDeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		addHeld(s, pod("web", afterRestart, grace(100)))
		r := beginWithin(t, s, (&rollouts{}).replacing(time.Hour), true, 2*time.Minute)
		if result := r.succeed(); result.Deleted != 1 {
			t.Errorf("the result is %+v", result)
		}
		asked := s.Requests("delete")[0]
		if after := asked.At.Sub(r.began); after != 18*time.Second || asked.Options.GracePeriodSeconds != nil {
			t.Errorf("deleted after %s with %+v", after, asked.Options)
		}
	})
}

// What is asked answers never. Cluster DNS goes after the pod, if that turns out to be evicted as any other.
func TestNothingWaitsLongForWhoIsToRestartAWorkload(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("web", afterRestart), 0)
		s.AddPod(pod("api"), 0)
		s.AddPod(pod("dns", critical), 0)
		r := drained(t, s, (&rollouts{answers: time.Hour}).replacing(10*time.Minute))
		var order []string
		for _, q := range s.Requests("evict") {
			order = append(order, q.What+" after "+q.At.Sub(r.began).Truncate(time.Second).String())
		}
		if want := []string{"evict default/api after 0s", "evict default/web after 20s", "evict default/dns after 20s"}; !slices.Equal(order, want) {
			t.Errorf("the order is %q, want %q", order, want)
		}
	})
}

// A budget refuses its first eviction.
func TestAWorkloadIsAskedForOncePerPod(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		free := addHeld(s, pod("web", afterRestart))
		s.AddPod(pod("api", afterRestart), 0)
		workloads := &rollouts{}
		r := begin(t, s, workloads.replacing(10*time.Second))
		r.await(state.PodHeld, "default/web")
		s.ChangePod("default/web", func(p *corev1.Pod) { p.Labels = map[string]string{"changed": "yes"} })
		time.Sleep(time.Minute)
		free()
		r.succeed()
		if asked := workloads.all(); !slices.Equal(asked, []string{"api", "web"}) {
			t.Errorf("asked for were %q", asked)
		}
	})
}

// They tolerate the cordon: a restart would bring about others on the same node.
func TestPodsThatComeBackToTheClosedNodeAreNotReplacedFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		workloads := &rollouts{}
		replace(t, s, "static", afterRestart)
		r := begin(t, s, workloads.replacing(10*time.Second))
		r.await(state.PodsLeftToReturn)
		if asked := workloads.all(); !slices.Equal(asked, []string{"static-0"}) {
			t.Errorf("asked for were %q", asked)
		}
	})
}

func TestAPodThatGoesWhileItsWorkloadIsAskedForIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		goes     func(s *apitest.Server)
		replaced bool // another one is made all the same, as it may have been asked for already
	}{
		"it is gone":    {func(s *apitest.Server) { s.RemovePod("default/web") }, false},
		"it ends":       {func(s *apitest.Server) { s.DeletePod("default/web") }, false},
		"it is to stay": {func(s *apitest.Server) { s.ChangePod("default/web", annotated(drain.EvictAnnotation, drain.Never)) }, false},
		"it has failed": {func(s *apitest.Server) { s.ChangePod("default/web", phase(corev1.PodFailed)) }, true},
		"it wants less": {func(s *apitest.Server) { s.ChangePod("default/web", func(p *corev1.Pod) { p.Annotations = nil }) }, true},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("web", afterRestart), 0)
			made := 0
			workloads := &rollouts{answers: 10 * time.Second, restarted: func(string) { made++ }}
			r := begin(t, s, workloads.replacing(10*time.Minute))
			time.Sleep(2 * time.Second)
			c.goes(s)
			r.succeed()
			time.Sleep(time.Minute)
			if after := r.drainedAt().Sub(r.began); after > 4*time.Second || len(r.of(state.PodRestarting)) > 0 {
				t.Errorf("drained after %s; told %+v", after, r.of(state.PodRestarting))
			}
			if !c.replaced && made != 0 {
				t.Errorf("its workload was restarted %d times, for nothing", made)
			}
		})
	}
}

// What was to come of its restart is not heard any more, and holds it no longer.
func TestAPodThatWasToStayWhileItsWorkloadWasAskedForDoesNotWaitForTheAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("web", afterRestart), 0)
		workloads := &rollouts{answers: 10 * time.Second}
		r := begin(t, s, workloads.replacing(10*time.Minute))
		time.Sleep(2 * time.Second)
		s.ChangePod("default/web", annotated(drain.EvictAnnotation, drain.Never))
		time.Sleep(2 * time.Second)
		s.ChangePod("default/web", afterRestart)
		r.await(state.PodGone, "default/web")
		if after := time.Since(r.began); after > 5*time.Second || len(workloads.all()) != 1 {
			t.Errorf("gone after %s; asked for were %q", after, workloads.all())
		}
	})
}

// It was evicted once, and its budget has refused that. Then it is to stay, to run until the deadline, to stay, and to be replaced first.
func TestAWorkloadIsAskedForOnceHoweverOftenPeopleChangeTheirMind(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		free := addHeld(s, pod("web", afterRestart))
		workloads := &rollouts{}
		r := begin(t, s, workloads.replacing(5*time.Second))
		r.await(state.PodHeld)
		for _, when := range []string{drain.Never, drain.AtDeadline, drain.Never, drain.AfterRestart} {
			s.ChangePod("default/web", annotated(drain.EvictAnnotation, when))
			s.Answer("watch", apitest.Expired()) // All are listed anew.
			s.DropWatches()
			time.Sleep(10 * time.Second)
		}
		free()
		r.await(state.PodGone, "default/web")
		if asked := workloads.all(); len(asked) != 1 {
			t.Errorf("asked for were %q", asked)
		}
	})
}

// Its workload makes another one, and people have changed their mind, or its end has begun, while it was to stay.
func TestAPodThatIsToGoAgainIsSaidToWaitForAnotherOnlyIfItDoes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then  func(s *apitest.Server)
		again string
		want  string // what holds it
	}{
		"it does":                         {func(*apitest.Server) {}, drain.AfterRestart, "the restart of Deployment default/web"},
		"it is to run until the deadline": {func(*apitest.Server) {}, drain.AtDeadline, ""},
		"it is ending":                    {func(s *apitest.Server) { s.DeletePod("default/web", 60) }, drain.AfterRestart, ""},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("web", afterRestart, grace(60)), apitest.Ending(time.Minute))
			r := begin(t, s, (&rollouts{}).replacing(time.Hour))
			r.await(state.PodRestarting)
			s.ChangePod("default/web", annotated(drain.EvictAnnotation, drain.Never))
			time.Sleep(time.Second)
			c.then(s)
			time.Sleep(time.Second)
			s.ChangePod("default/web", annotated(drain.EvictAnnotation, c.again))
			time.Sleep(10 * time.Second)
			if result := r.guard.Result(); len(result.Left) != 1 || result.HeldBy["default/web"] != c.want {
				t.Errorf("the result is %+v, want it to be held by %q", result, c.want)
			}
		})
	}
}

// With it, who asks for the others would go.
func TestTheLastPodWaitsForThoseThatAreBeingReplaced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("web", afterRestart), 0)
		s.AddPod(pod("queue", critical), 0)
		workloads := &rollouts{restarted: func(pod string) { time.AfterFunc(40*time.Second, func() { s.DeletePod(pod) }) }}
		opts := workloads.replacing(5 * time.Minute)
		opts.Last = "default/queue"
		r := drained(t, s, opts)
		if after := s.Requests("evict default/queue")[0].At.Sub(r.began); after < 40*time.Second || after > 42*time.Second {
			t.Errorf("the last pod was evicted after %s", after)
		}
	})
}

func TestAnEventThatJoinsHasNoWorkloadAskedForAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("web", afterRestart), 0)
		workloads := &rollouts{}
		r := begin(t, s, workloads.replacing(time.Minute))
		r.await(state.PodRestarting)
		time.Sleep(30 * time.Second)
		r.adjust(joining)
		r.succeed()
		if after := s.Requests("evict")[0].At.Sub(r.began); after != time.Minute || len(workloads.all()) != 1 {
			t.Errorf("evicted after %s; asked for were %q", after, workloads.all())
		}
	})
}

// It has waited for half of the time that there was, and then there is more.
func TestAPodThatWasEvictedOnceDoesNotWaitAgainForAnotherInItsPlace(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]apitest.Answer{"a budget yields": apitest.HeldBy("budget", 0), "a webhook does": apitest.Forbidden("not now")} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("web", afterRestart), 0)
			s.Always("evict", answer)
			r := beginWithin(t, s, (&rollouts{}).replacing(2*time.Minute), false, time.Minute)
			time.Sleep(35 * time.Second)
			r.adjust(func(g *drain.Goal) { g.Soft, g.TimeEnds = time.Time{}, time.Time{} })
			s.Always("evict", nil)
			time.Sleep(10 * time.Second)
			if s.HasPod("default/web") {
				t.Errorf("it is there, and was evicted %d times", count(s, "evict"))
			}
		})
	}
}

// It takes a while to find out. No look at the Node comes in between.
func TestAPodWhoseWorkloadCannotBeRestartedGoesAsSoonAsThatIsKnown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("web", afterRestart), 0)
		r := drained(t, s, (&rollouts{answers: 2 * time.Second, refused: []string{"web"}}).replacing(time.Minute))
		if after := s.Requests("evict")[0].At.Sub(r.began); after != 2*time.Second {
			t.Errorf("evicted after %s", after)
		}
	})
}

func TestWhatIsHeardTooLateOfARestartHoldsNoPod(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wait time.Duration
		then func(s *apitest.Server)
		want string // what holds it
	}{
		"it does not want it any more": {time.Hour, func(s *apitest.Server) {
			s.Always("evict", apitest.HeldBy("budget", 0))
			s.ChangePod("default/web", func(p *corev1.Pod) { p.Annotations = nil })
		}, "budget"},
		"it is ending by then": {time.Hour, func(s *apitest.Server) { s.DeletePod("default/web", 60) }, ""},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("web", afterRestart, grace(60)), apitest.Ending(time.Minute))
			workloads := &rollouts{restarted: func(string) {
				c.then(s)
				time.Sleep(2 * time.Second)
			}}
			r := begin(t, s, workloads.replacing(c.wait))
			time.Sleep(5 * time.Second)
			if told, by := r.of(state.PodRestarting), r.guard.Result().HeldBy["default/web"]; len(told) > 0 || by != c.want {
				t.Errorf("told %+v; it is held by %q, want %q", told, by, c.want)
			}
		})
	}
}

// What other pods may need goes after a pod that is on its way out, as ever.
func TestACriticalPodWaitsForAPodWhoseWaitForAnotherIsOver(t *testing.T) {
	t.Parallel()
	for name, over := range map[string]func(s *apitest.Server){
		"as it is ending":             func(s *apitest.Server) { s.DeletePod("default/web", 60) },
		"as it is evicted, or is yet": func(s *apitest.Server) { s.Always("evict default/web", apitest.HeldBy("budget", 0)) },
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("web", afterRestart, grace(60)), apitest.Ending(time.Minute))
			r := begin(t, s, (&rollouts{}).replacing(time.Minute))
			time.Sleep(58 * time.Second)
			over(s)
			time.Sleep(5 * time.Second)
			s.AddPod(pod("dns", critical), 0)
			time.Sleep(20 * time.Second)
			if n := count(s, "evict default/dns"); n > 0 {
				t.Errorf("%d evictions of a critical pod, with %v left", n, r.guard.Result().Left)
			}
		})
	}
}

func TestOnceItIsEvictedAPodIsNotSaidToWaitForAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("web", afterRestart), 0)
		s.Always("evict", apitest.Hang())
		r := begin(t, s, (&rollouts{}).replacing(time.Minute))
		time.Sleep(61 * time.Second)
		if result := r.guard.Result(); len(result.HeldBy) > 0 || count(s, "evict") == 0 {
			t.Errorf("the result is %+v", result)
		}
	})
}

// Its pods tolerate the cordon. Each is made before the one that it replaces goes, and has a ReplicaSet of its own.
func TestAPodThatCameInPlaceOfAnotherToTheSameNodeIsNotReplacedAgain(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"without a deadline": false, "where the machine is lost, and the cordon is refused": true} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			limit := time.Duration(0)
			if hard {
				limit = time.Hour
				s.Always("patch", apitest.Forbidden("no cordons here"))
			}
			workloads, made := &rollouts{}, 0
			of := func(n int) func(*corev1.Pod) {
				return func(p *corev1.Pod) {
					p.OwnerReferences[0].Kind, p.OwnerReferences[0].Name = "ReplicaSet", fmt.Sprintf("web-%d", n)
				}
			}
			workloads.restarted = func(before string) {
				made++
				n := made
				time.AfterFunc(time.Second, func() { s.AddPod(pod(fmt.Sprintf("web-%d", n), afterRestart, of(n)), 0) })
				time.AfterFunc(10*time.Second, func() { s.DeletePod(before) })
			}
			s.AddPod(pod("web-0", afterRestart, of(0)), 0)
			r := beginWithin(t, s, workloads.replacing(5*time.Minute), hard, limit)
			time.Sleep(5 * time.Minute)
			if asked := workloads.all(); !slices.Equal(asked, []string{"web-0"}) {
				t.Errorf("asked for were %q", asked)
			}
			if left := r.guard.Result().Left; len(left) > 0 {
				t.Errorf("left are %q", left)
			}
		})
	}
}

// While the cordon fails, another pod of the workload comes back to the open node. That says nothing of who comes back once it is closed.
func TestAPodIsReplacedFirstOnTheClosedNodeThoughOthersHaveComeBackToItWhileItWasOpen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		workloads := &rollouts{}
		s.AddPod(pod("stays", annotated(drain.EvictAnnotation, drain.Never)), 0)
		s.AddPod(pod("web-0"), 0)
		s.Always("patch", apitest.Unavailable())
		r := beginWithin(t, s, workloads.replacing(time.Minute), true, plenty)
		r.await(state.PodGone, "default/web-0")
		s.AddPod(pod("web-1"), 0)
		r.await(state.PodGone, "default/web-1")
		s.Always("patch", nil)
		r.await(state.NodeClosed)
		s.ChangePod("default/stays", afterRestart) // People have thought better of it.
		r.await(state.PodGone, "default/stays")
		if asked := workloads.all(); !slices.Equal(asked, []string{"stays"}) {
			t.Errorf("asked for were %q", asked)
		}
	})
}

func TestAWorkloadIsAskedForOnceThoughItsPodIsToStayForAWhile(t *testing.T) {
	t.Parallel()
	never, again := annotated(drain.EvictAnnotation, drain.Never), afterRestart
	for name, c := range map[string]struct{ stays, goes func(*apitest.Server, *trial) }{
		"as the node is only to be cordoned": {
			func(_ *apitest.Server, r *trial) { r.adjust(func(g *drain.Goal) { g.Evict = false }) },
			func(_ *apitest.Server, r *trial) { r.adjust(func(g *drain.Goal) { g.Evict = true }) },
		},
		"as people want the node's pods left alone": {
			func(s *apitest.Server, _ *trial) {
				s.ChangeNode(func(n *corev1.Node) { n.Annotations[drain.ActionAnnotation] = drain.OnlyCordon })
			},
			func(s *apitest.Server, _ *trial) {
				s.ChangeNode(func(n *corev1.Node) { delete(n.Annotations, drain.ActionAnnotation) })
			},
		},
		"as people want the pod left alone": {
			func(s *apitest.Server, _ *trial) { s.ChangePod("default/web", never) },
			func(s *apitest.Server, _ *trial) { s.ChangePod("default/web", again) },
		},
	} {
		for when, wait := range map[string]time.Duration{"while it waits for another": time.Minute, "after its first eviction": 5 * time.Second} {
			run(t, name+", "+when, func(t *testing.T) {
				s := apitest.New(t)
				free := addHeld(s, pod("web", afterRestart))
				workloads := &rollouts{}
				r := begin(t, s, workloads.replacing(wait))
				time.Sleep(10 * time.Second)
				c.stays(s, r)
				time.Sleep(10 * time.Second)
				c.goes(s, r)
				time.Sleep(10 * time.Second)
				free()
				time.Sleep(time.Minute)
				asked := s.Requests("evict")
				if len(workloads.all()) != 1 || s.HasPod("default/web") || asked[0].At.Sub(r.began) < wait {
					t.Errorf("asked for were %q, and the first of %d evictions came after %s", workloads.all(), len(asked), asked[0].At.Sub(r.began))
				}
			})
		}
	}
}

// People change their mind while its workload makes another one.
func TestAPodThatIsNoLongerToBeReplacedIsNotSaidToWaitForThat(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("web", afterRestart), 0)
		r := begin(t, s, (&rollouts{}).replacing(time.Hour))
		r.await(state.PodRestarting)
		s.ChangePod("default/web", annotated(drain.EvictAnnotation, drain.AtDeadline))
		s.AddPod(pod("dns", critical), 0)
		time.Sleep(time.Minute)
		if by := r.guard.Result().HeldBy; len(by) > 0 || count(s, "evict") > 0 {
			t.Errorf("held are %v, after %d evictions", by, count(s, "evict"))
		}
	})
}

func TestForAnEventThatJoinsPodsThatComeBackAreNotReplacedEither(t *testing.T) {
	t.Parallel()
	for _, joins := range []time.Duration{1200 * time.Millisecond, 4 * time.Second, time.Minute} {
		run(t, "after "+joins.String(), func(t *testing.T) {
			s := apitest.New(t)
			workloads := &rollouts{}
			replace(t, s, "static", afterRestart)
			r := begin(t, s, workloads.replacing(time.Second))
			time.Sleep(joins)
			r.adjust(joining)
			time.Sleep(time.Minute)
			if asked := workloads.all(); !slices.Equal(asked, []string{"static-0"}) {
				t.Errorf("asked for were %q", asked)
			}
		})
	}
}
