package drain_test

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/state"
)

// outages are the ways in which an API server can fail, until they are made good again.
var outages = map[string]func(*apitest.Server) (mend func()){
	"it is away": func(s *apitest.Server) func() { s.GoAway(); return s.ComeBack },
	"reads of the Node fail": func(s *apitest.Server) func() {
		s.Always("get", apitest.Unavailable())
		return func() { s.Always("get", nil) }
	},
	"reads of the Node hang": func(s *apitest.Server) func() {
		s.Always("get", apitest.Hang())
		return func() { s.Always("get", nil) }
	},
	"the cordon fails": func(s *apitest.Server) func() {
		s.Always("patch", apitest.Unavailable())
		return func() { s.Always("patch", nil) }
	},
	"the cordon hangs": func(s *apitest.Server) func() {
		s.Always("patch", apitest.Hang())
		return func() { s.Always("patch", nil) }
	},
	"lists fail": func(s *apitest.Server) func() {
		s.Always("list", apitest.Unavailable())
		return func() { s.Always("list", nil) }
	},
	"watches fail": func(s *apitest.Server) func() {
		s.Always("watch", apitest.Reset())
		return func() { s.Always("watch", nil) }
	},
}

// The pods of a machine that is lost are evicted, whenever the cordon comes and whenever the first list does.
func TestAnOutageAtTheStartOfAHardDrainSparesNoPod(t *testing.T) {
	t.Parallel()
	for name, outage := range outages {
		run(t, name, func(t *testing.T) {
			for after := time.Duration(0); after <= 20*time.Second; after += 950 * time.Millisecond {
				s := apitest.New(t)
				const pods = 5
				for i := range pods {
					s.AddPod(pod(fmt.Sprintf("web-%d", i)), 0)
				}
				mend := outage(s)
				r := beginWithin(t, s, drain.Options{}, true, 2*time.Minute)
				time.AfterFunc(after, mend)
				if result := r.succeed(); result.Evicted != pods || !s.CurrentNode().Spec.Unschedulable {
					t.Errorf("after %s: the result is %+v", after, result)
				}
				if late := s.Requests("evict")[0].At.Sub(r.began) - after; late > 10*time.Second { // Then evictions begin without a cordon that hangs.
					t.Errorf("after %s: the first was evicted %s later", after, late)
				}
				r.cancel()
				<-r.done
			}
		})
	}
}

func TestPodsAreEvictedWhereTheCordonIsRefusedHoweverLateTheyAreSeen(t *testing.T) {
	t.Parallel()
	run(t, "the first lists fail", func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.Always("patch", apitest.Forbidden("no cordons here"))
		s.Answer("list", apitest.Unavailable(), apitest.Unavailable(), apitest.Unavailable(), apitest.Unavailable(), apitest.Unavailable())
		if result := beginWithin(t, s, drain.Options{}, true, plenty).succeed(); result.Evicted != 1 {
			t.Errorf("the result is %+v", result)
		}
	})
	run(t, "they come later", func(t *testing.T) {
		s := apitest.New(t)
		free := addHeld(s, pod("held"))
		s.Always("patch", apitest.Forbidden("no cordons here"))
		r := beginWithin(t, s, drain.Options{}, true, plenty)
		r.await(state.PodHeld)
		time.Sleep(1500 * time.Millisecond)
		s.AddPod(pod("new"), 0)
		r.await(state.PodGone, "default/new")
		free()
		r.succeed()
		s.AddPod(pod("newer"), 0)
		r.await(state.PodGone, "default/newer")
	})
}

// The cordon was lifted while nth was not there. The pods that had been there before go, however slow the API server is.
func TestADrainThatIsBegunAnewEvictsWhatWasThereBeforeTheCordonWasLifted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(func(n *corev1.Node) {
			n.Annotations[drain.CordonAnnotation] = strings.Replace(ours, "event-0", claim.Event, 1)
		})
		s.AddPod(pod("old"), 0)
		s.Answer("list", apitest.Unavailable(), apitest.Unavailable(), apitest.Unavailable(), apitest.Unavailable(), apitest.Unavailable())
		r := begin(t, s, drain.Options{})
		if result := r.succeed(); result.Evicted != 1 || result.Cordon != drain.CordonLifted {
			t.Errorf("the result is %+v", result)
		}
	})
}

// nth and the kubelet start at the same time.
func TestANodeThatIsNotRegisteredYetIsWaitedForAndThenDrained(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"hard": true, "soft": false} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.RemoveNode()
			r := beginWithin(t, s, drain.Options{}, hard, plenty)
			time.Sleep(time.Minute)
			if told := r.of(state.NodeMissing); len(told) != 1 || told[0].State.Seen || !strings.Contains(told[0].Detail, "not registered") {
				t.Errorf("told %+v", told)
			}
			if told := r.of(state.NodeEmpty); len(told) != 0 || r.guard.Result().NodeGone {
				t.Errorf("drained is told as %+v before there is a Node", told)
			}
			s.RegisterNode()
			s.AddPod(pod("a"), 0)
			registered := time.Now()
			r.await(state.NodeClosed)
			if after := time.Since(registered); after > time.Second {
				t.Errorf("cordoned %s after it was registered", after)
			}
			if result := r.succeed(); result.Evicted != 1 || result.Cordon != drain.CordonSet || !r.of(state.NodeEmpty)[0].State.Seen {
				t.Errorf("the result is %+v", result)
			}
		})
	}
}

func TestThePodsOfANodeThatWasDeletedAreEvictedAndWaitedFor(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"before the drain": true, "in its midst": false} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			free := addHeld(s, pod("a"))
			goal := goalWithin(false, plenty)
			if before {
				s.RemoveNode()
				goal.NodeSeen = true
			}
			r := start(t, s, drain.Options{}, goal)
			r.await(state.PodHeld)
			s.RemoveNode()
			time.Sleep(time.Minute)
			if told := r.of(state.NodeEmpty); len(told) != 0 {
				t.Errorf("drained is told as %+v while a pod runs", told)
			}
			free()
			if result := r.succeed(); result.Evicted != 1 || !result.NodeGone {
				t.Errorf("the result is %+v", result)
			}
			if told := r.of(state.NodeMissing); len(told) != 1 || !strings.Contains(told[0].Detail, "deleted") {
				t.Errorf("told %+v", told)
			}
		})
	}
}

func TestANodeThatRegistersAnewIsCordonedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		s.RegisterNode()
		await(t, "another cordon", func() bool { return s.CurrentNode().Spec.Unschedulable })
		await(t, "the word of it", func() bool { return len(r.of(state.NodeClosed)) == 2 })
		if told := r.of(state.NodeReopened); len(told) != 0 {
			t.Errorf("told %+v", told)
		}
		s.AddPod(pod("late"), 0)
		r.await(state.PodGone, "default/late")
	})
}

// The nearest hard deadline governs, whatever else was there first.
func TestASoftDeadlineTakesNothingFromAHardOne(t *testing.T) {
	t.Parallel()
	const hard, margin = time.Minute, 2 * time.Second
	for name, soft := range map[string]time.Duration{
		"no soft one": 0, "a nearer one": 50 * time.Second, "one that is overdue": -time.Hour, "a later one": time.Hour,
	} {
		for how, joins := range map[string]bool{"from the start": false, "joining it": true} {
			run(t, name+", "+how, func(t *testing.T) {
				s := apitest.New(t)
				addHeld(s, pod("a", grace(40)))
				goal := goalWithin(true, hard)
				if soft != 0 {
					goal.Soft = time.Now().Add(soft)
				}
				end := goal.Hard
				if joins {
					goal.Hard = time.Time{}
				}
				r := start(t, s, drain.Options{Margin: margin}, goal)
				if joins {
					time.Sleep(5 * time.Second)
					r.adjust(func(g *drain.Goal) { g.Hard, g.Generation = end, g.Generation+1 })
				}
				r.await(state.PodDeleted)
				deletion := s.Requests("delete")[0]
				if left := end.Sub(deletion.At); left != 40*time.Second+margin || deletion.Options.GracePeriodSeconds != nil {
					t.Errorf("deleted with %v s, %s before the end", deletion.Options.GracePeriodSeconds, left)
				}
				if n := count(s, "delete"); n != 1 {
					t.Errorf("%d deletions", n)
				}
			})
		}
	}
}

// A kubelet that shuts down ends the DaemonSets' pods, their controllers make others, and the kubelet refuses them.
func TestFinishedPodsOfDaemonSetsHoldNothingUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("web"), apitest.Ending(2*time.Second))
		daemon := ownedBy("DaemonSet", "apps/v1")
		s.AddPod(pod("agent-0", daemon), 0)
		r := beginWithin(t, s, drain.Options{}, true, 145*time.Second)
		for i := range 20 {
			s.ChangePod(fmt.Sprintf("default/agent-%d", i), phase(corev1.PodFailed))
			time.Sleep(300 * time.Millisecond)
			s.AddPod(pod(fmt.Sprintf("agent-%d", i+1), daemon, phase(corev1.PodPending)), 0)
		}
		if result := r.succeed(); result.Evicted != 1 || count(s, "evict") != 1 || count(s, "delete") != 0 {
			t.Errorf("the result is %+v", result)
		}
		if after := r.drainedAt().Sub(r.began); after > 4*time.Second {
			t.Errorf("drained after %s", after)
		}
	})
}

// A pod in PreBind waits for its volumes, and is bound to a node that was chosen before the cordon.
func TestPodsThatAreBoundLateAreEvictedOneByOne(t *testing.T) {
	t.Parallel()
	for name, apart := range map[string]time.Duration{"created before the drain": 10 * time.Second, "created in its first second": 0} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("web"), 0)
			const late = 9
			var waiting []*corev1.Pod
			for i := range late {
				p := pod(fmt.Sprintf("late-%d", i))
				p.CreationTimestamp.Time = time.Now().Truncate(time.Second)
				waiting = append(waiting, p)
			}
			time.Sleep(apart)
			r := beginWithin(t, s, drain.Options{}, true, 2*time.Minute)
			r.succeed()
			for _, p := range waiting {
				s.AddPod(p, 0)
				if apart == 0 {
					continue
				}
				r.await(state.PodGone, "default/"+p.Name)
				await(t, "the news that it is drained again", func() bool { return r.last().Kind == state.NodeEmpty })
			}
			await(t, "the last one's end", func() bool { return len(r.of(state.PodGone)) == late+1 })
			if told := append(r.of(state.PodsLeftToReturn), r.of(state.PodsReturning)...); len(told) != 0 {
				t.Errorf("told %+v", told)
			}
			if n := len(r.of(state.PodArrived)); n != late || r.guard.Result().Evicted != late+1 {
				t.Errorf("%d have arrived; the result is %+v", n, r.guard.Result())
			}
		})
	}
}

func TestWhatPeopleWantOfTheNodeIsHeardAtAnyTime(t *testing.T) {
	t.Parallel()
	set := func(s *apitest.Server, action string) {
		s.ChangeNode(func(n *corev1.Node) { n.Annotations = map[string]string{drain.ActionAnnotation: action} })
	}
	run(t, "after an outage at the start", func(t *testing.T) {
		for after := time.Duration(0); after <= 20*time.Second; after += time.Second {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			s.AddPod(pod("long", grace(600)), 0)
			set(s, drain.LeaveNode)
			s.GoAway()
			time.AfterFunc(after, s.ComeBack)
			if result := beginWithin(t, s, drain.Options{}, true, 2*time.Minute).leave(); !result.Limited || count(s, "evict", "delete", "patch") != 0 {
				t.Errorf("after %s: %d requests, %+v", after, count(s, "evict", "delete", "patch"), result)
			}
		}
	})
	run(t, "where the cordon fails", func(t *testing.T) {
		for name, answer := range map[string]apitest.Answer{"for a while": apitest.Unavailable(), "for good": apitest.Forbidden("no")} {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			set(s, drain.OnlyCordon)
			s.Always("patch", answer)
			r := beginWithin(t, s, drain.Options{}, true, 2*time.Minute)
			time.Sleep(time.Minute)
			if count(s, "evict", "delete") != 0 || !r.guard.Result().Limited {
				t.Errorf("%s: %d requests, %+v", name, count(s, "evict", "delete"), r.guard.Result())
			}
		}
	})
	run(t, "in the midst", func(t *testing.T) {
		s := apitest.New(t)
		free := addHeld(s, pod("a"))
		r := beginWithin(t, s, drain.Options{}, true, plenty)
		r.await(state.PodHeld)
		set(s, drain.OnlyCordon)
		r.leave()
		free()
		asked := count(s, "evict")
		time.Sleep(time.Minute)
		if n := count(s, "evict"); n != asked || !s.HasPod("default/a") || !r.guard.Result().Limited {
			t.Errorf("%d evictions, %+v", n-asked, r.guard.Result())
		}
		set(s, "")
		r.await(state.PodGone, "default/a")
		await(t, "that it is drained again", func() bool { return r.last().Kind == state.NodeEmpty })
		if result := r.guard.Result(); result.Limited || result.Evicted != 1 {
			t.Errorf("the result is %+v", result)
		}
	})
}

func TestWhatPeopleWantOfAPodIsHeardAtAnyTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		free := addHeld(s, pod("a"))
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld)
		s.ChangePod("default/a", annotated(evict.Annotation, evict.Never))
		free()
		result := r.succeed()
		time.Sleep(time.Minute)
		if !s.HasPod("default/a") || result.Skipped != 1 || result.Evicted != 0 {
			t.Errorf("the result is %+v", result)
		}
		s.ChangePod("default/a", func(p *corev1.Pod) { p.Annotations = nil })
		r.await(state.PodGone, "default/a")
	})
}

// The first list may come from a cache that is behind. The one before the end is as new as the API server is then.
func TestDrained_FirstListFromTheCacheLastListNewest(t *testing.T) {
	t.Parallel()
	for name, pods := range map[string]int{"and was empty before that": 0, "and was not": 1} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			for i := range pods {
				s.AddPod(pod(fmt.Sprint("pod-", i)), 0)
			}
			drained(t, s, drain.Options{})
			var versions []string
			for _, list := range s.Requests("list pods") {
				if versions = append(versions, strings.Join(list.Query["resourceVersion"], " ")); len(list.Query["limit"]) > 0 {
					t.Errorf("it listed with %+v", list.Query)
				}
			}
			if !slices.Equal(versions, []string{"0", ""}) {
				t.Errorf("the lists asked for the versions %q", versions)
			}
		})
	}
}

// The watch has missed a pod, and the cache that answered the first list, too.
func TestAPodThatOnlyTheLastListShowsIsEvicted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Always("watch", apitest.Silence())
		r := begin(t, s, drain.Options{})
		r.await(state.PodsFound)
		s.AddPod(pod("missed"), 0)
		r.await(state.PodEvicted, "default/missed")
		s.Always("watch", nil)
		r.succeed()
	})
}

// A budget that lets one go every second is asked about as often as that, whichever pod asks.
func TestABudgetThatLetsOneGoAtATimeIsNotHammered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		const pods = 20
		for i := range pods {
			s.AddPod(pod(fmt.Sprintf("web-%d", i)), 0)
		}
		s.Always("evict", apitest.OneAtATime("budget", 5*time.Second))
		r := begin(t, s, drain.Options{})
		r.succeed()
		if after := r.drainedAt().Sub(r.began); after > pods*8*time.Second {
			t.Errorf("drained after %s", after)
		}
		if n := count(s, "evict"); n > 20*pods {
			t.Errorf("%d evictions for %d pods", n, pods)
		}
	})
}

// A yes doubles how many may ask at once, and a no makes it one again. That a pod is gone may be known before the answer.
func TestAsManyAskABudgetAtOnceAsItLetsGo(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]bool{"it says so": false, "it is seen": true} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			const pods = 40
			for i := range pods {
				s.AddPod(pod(fmt.Sprintf("web-%02d", i)), 0)
			}
			held := apitest.HeldBy("budget", 0)
			s.Always("evict", held)
			r := begin(t, s, drain.Options{})
			await(t, "that all are held", func() bool { return len(r.of(state.PodHeld)) == pods })
			before := count(s, "evict")
			s.Always("evict", func(w http.ResponseWriter, q *http.Request) bool {
				yields := count(s, "evict")-before <= 1+2+8
				slowly(time.Second)(w, q)
				if yields && silent {
					s.RemovePod("default/" + path.Base(path.Dir(q.URL.Path)))
					return apitest.Hang()(w, q)
				}
				return !yields && held(w, q)
			})
			time.Sleep(time.Minute)
			var waves []int
			for i, q := range s.Requests("evict")[before:] {
				if asked := s.Requests("evict")[before:]; i == 0 || q.At.Sub(asked[i-1].At) > time.Second/2 {
					waves = append(waves, 0)
				}
				waves[len(waves)-1]++
			}
			if want := []int{1, 2, 8, pods - 11, 1, 1, 1}; len(waves) < len(want) || !slices.Equal(waves[:len(want)], want) {
				t.Errorf("at once have asked %v; want %v", waves, want)
			}
		})
	}
}
