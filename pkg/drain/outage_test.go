package drain_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

// pass lets the server answer by itself.
var pass = apitest.Together(1)

func TestAPodsEndIsNoticedWhateverHappensToTheWatch(t *testing.T) {
	t.Parallel()
	for name, upset := range map[string]func(*apitest.Server){
		"dropped":           func(s *apitest.Server) { s.DropWatches() },
		"connection broken": func(s *apitest.Server) { s.GoAway(); s.ComeBack() },
		"expired":           func(s *apitest.Server) { s.Answer("watch", apitest.Expired()); s.DropWatches() },
		"expired, as event": func(s *apitest.Server) { s.Answer("watch", apitest.ExpiredEvent()); s.DropWatches() },
		"throttled":         func(s *apitest.Server) { s.Answer("watch", apitest.Throttled(600)); s.DropWatches() },
		"refused for a while": func(s *apitest.Server) {
			s.Answer("watch", slices.Repeat([]apitest.Answer{apitest.Unavailable()}, 3)...)
			s.DropWatches()
		},
		"reset, list too": func(s *apitest.Server) {
			s.Answer("watch", apitest.Reset(), apitest.Reset())
			s.Answer("list", apitest.Reset(), apitest.Unavailable(), apitest.Throttled(600))
			s.DropWatches()
		},
		"hanging": func(s *apitest.Server) { s.Answer("watch", apitest.Hang()); s.DropWatches() },
		"silent":  func(s *apitest.Server) { s.Answer("watch", apitest.Silence()); s.DropWatches() },
	} {
		for how, end := range map[string]func(*apitest.Server, string){
			"an event tells": (*apitest.Server).RemovePod,
			"a list tells":   (*apitest.Server).ForgetPod,
		} {
			for road, take := range map[string]func(*apitest.Server){
				"": func(*apitest.Server) {}, ", over HTTP": (*apitest.Server).OverHTTP,
			} {
				run(t, name+", "+how+road, func(t *testing.T) {
					s := apitest.New(t)
					take(s)
					s.AddPod(pod("a"), apitest.Never)
					r := begin(t, s, drain.Options{})
					r.await(state.PodEvicted)
					await(t, "the first watch", func() bool { return count(s, "watch pods") > 0 })
					if how == "a list tells" {
						// Without this a watch would go on where it ended, and the loss of an event is what is tested.
						s.Answer("watch", apitest.Expired())
					}
					upset(s)
					end(s, "default/a")
					if result := r.succeed(); result.Evicted != 1 {
						t.Errorf("the result is %+v", result)
					}
				})
			}
		}
	}
}

// A list is bounded and can be repeated; the stream that client-go 0.36 would open instead is neither.
func TestPodsAreListedAndThenWatched(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		drained(t, s, drain.Options{})
		if count(s, "list pods") == 0 || count(s, "watch pods") == 0 {
			t.Errorf("%d lists, %d watches", count(s, "list pods"), count(s, "watch pods"))
		}
		for _, q := range s.Requests("list", "watch") {
			if len(q.Query["sendInitialEvents"]) > 0 {
				t.Errorf("%s with %v", q.What, q.Query)
			}
		}
	})
}

// Pods end and come all the time, and only the watch tells of it.
func TestAWatchIsFollowedByAnotherAfterAWhileOfSilence(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer      apitest.Answer
		after, most time.Duration
	}{
		"one that the API server ends, after ten seconds":                     {nil, 10 * time.Second, 10 * time.Second},
		"one behind a connection that is dead, two seconds later":             {apitest.Silence(), 12 * time.Second, 12 * time.Second},
		"one that is not answered, when a request is over, and after a pause": {apitest.Hang(), 8100 * time.Millisecond, 8150 * time.Millisecond},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.Always("watch pods", c.answer)
			drained(t, s, drain.Options{})
			await(t, "two more watches", func() bool { return count(s, "watch pods") >= 3 })
			if after := gaps(s.Requests("watch pods"))[0]; after < c.after || after > c.most {
				t.Errorf("the next watch came after %s; want %s to %s", after, c.after, c.most)
			}
		})
	}
}

// As on every node of a cluster whose API server comes back.
func TestListsThatFailAreRepeatedWithPausesThatGrowToTwoSecondsAndUpToHalfOfThatMore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Always("list pods", apitest.Unavailable())
		r := begin(t, s, drain.Options{})
		time.Sleep(time.Minute)
		if told := r.of(state.PodRefused); len(told) != 1 || !strings.Contains(told[0].Detail, "listing the pods: 503") {
			t.Errorf("told %+v", told)
		}
		pause := 100 * time.Millisecond
		for i, after := range gaps(s.Requests("list pods")) {
			if after < pause || after > pause*3/2 {
				t.Errorf("list %d came after %s; want %s to %s", i+1, after, pause, pause*3/2)
			}
			pause = min(pause*2, 2*time.Second)
		}
	})
}

func TestWhatKeepsFailingIsToldOnceItHasLastedForTenSeconds(t *testing.T) {
	t.Parallel()
	for what, kind := range map[string]state.TransitionKind{
		"get node": state.NodeUnclosable, "patch node": state.NodeUnclosable, "list pods": state.PodRefused,
	} {
		for name, c := range map[string]struct {
			answer apitest.Answer
			words  string
		}{
			"a webhook fails":              {deadWebhook(0, false), "failed calling webhook"},
			"a webhook denies it with 409": {refusal(http.StatusConflict, metav1.StatusReasonConflict, "an upgrade is under way"), "an upgrade is under way"},
			"the API server is not ready":  {apitest.Unavailable(), "503"},
			"connections to it break":      {apitest.Reset(), "the API server cannot be reached"},
			"it does not answer":           {apitest.Hang(), "no answer from the API server"},
		} {
			for _, hard := range []bool{false, true} {
				run(t, fmt.Sprintf("%s: %s, with a hard deadline: %t", what, name, hard), func(t *testing.T) {
					s := apitest.New(t)
					s.AddPod(pod("a"), 0)
					s.Always(what, c.answer)
					r := beginWithin(t, s, drain.Options{}, hard, plenty)
					time.Sleep(9900 * time.Millisecond)
					if told := r.of(kind); len(told) > 0 {
						t.Errorf("told %+v already", told)
					}
					time.Sleep(10 * time.Minute)
					told := r.of(kind)
					if len(told) != 1 || !strings.Contains(told[0].Detail, c.words) {
						t.Fatalf("told %+v; want once %q", told, c.words)
					}
					if trouble := told[0].State.Trouble; what != "list pods" && !strings.Contains(trouble, c.words) {
						t.Errorf("the trouble is %q", trouble)
					}
					s.Always(what, nil)
					if r.succeed(); r.last().State.Trouble != "" {
						t.Errorf("the state is %+v after that", r.last().State)
					}
				})
			}
		}
	}
}

// A guard that stands has nothing to close.
func TestAnOutageOfTheAPIServerIsNoFailureOfACordonThatIsSet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		s.Always("get node", apitest.Unavailable())
		time.Sleep(time.Hour)
		if told := r.of(state.NodeUnclosable); len(told) > 0 {
			t.Errorf("told %+v", told)
		}
	})
}

// A guard stands for weeks. What is refused for good is asked for twice a minute at most, also when a deadline is over and the machine is there.
func TestWhatIsRefusedForGoodIsAskedForWithLongPauses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refused []string
		hard    bool
		limit   time.Duration
	}{
		"evictions":                               {[]string{"evict"}, false, 0},
		"evictions, with a deadline far away":     {[]string{"evict"}, true, 12 * time.Hour},
		"all requests, when the deadline is over": {[]string{"evict", "delete"}, true, time.Minute},
		"lists": {[]string{"list"}, false, 0},
	} {
		for _, ends := range []int64{1, 20, 600} {
			run(t, fmt.Sprint(name, ", pods with a grace of ", ends), func(t *testing.T) {
				s := apitest.New(t)
				s.AddPod(pod("a", grace(ends)), 0)
				for _, what := range c.refused {
					s.Always(what, apitest.Forbidden("not you"))
				}
				beginWithin(t, s, drain.Options{}, c.hard, c.limit)
				time.Sleep(time.Hour)
				before := count(s, c.refused...)
				time.Sleep(time.Hour)
				if n := count(s, c.refused...) - before; n < 30 || n > 120 {
					t.Errorf("%d requests in the second hour", n)
				}
			})
		}
	}
}

func TestAListThatHangsIsGivenUpAndAskedForAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.OverHTTP()
		s.AddPod(pod("a"), 0)
		s.Answer("list", apitest.Hang())
		s.Answer("watch", apitest.Hang())
		drained(t, s, drain.Options{})
	})
}

func TestAnAPIServerThatLeavesDuringTheDrainIsTriedUntilItComes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.OverHTTP()
		s.AddPod(pod("a"), 0)
		free := addHeld(s, pod("b"))
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld)
		r.await(state.PodGone, "default/a")
		s.GoAway()
		r.await(state.PodRefused, "default/b")
		free()
		s.ComeBack()
		if result := r.succeed(); result.Evicted != 2 {
			t.Errorf("the result is %+v", result)
		}
	})
}

func TestADeadlineThatComesWhileTheAPIServerIsAwayIsSaidToBeOne(t *testing.T) {
	t.Parallel()
	run(t, "from the start", func(t *testing.T) {
		for _, hard := range []bool{true, false} {
			s := apitest.New(t)
			s.OverHTTP()
			s.GoAway()
			r := beginWithin(t, s, drain.Options{}, hard, 500*time.Millisecond)
			if _, err := r.wait(); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("hard %v: the error is %v", hard, err)
			}
		}
	})
	run(t, "from the middle", func(t *testing.T) {
		s := apitest.New(t)
		s.OverHTTP()
		addHeld(s, pod("a"))
		r := beginWithin(t, s, drain.Options{}, true, 5*time.Second)
		r.await(state.PodHeld)
		s.GoAway()
		result, err := r.wait()
		if !errors.Is(err, context.DeadlineExceeded) || !slices.Equal(result.Left, []string{"default/a"}) {
			t.Errorf("the result is %+v, %v", result, err)
		}
		if why := result.HeldBy["default/a"]; why != "the API server cannot be reached" {
			t.Errorf("held by %q", why)
		}
	})
}

// Not parallel: it looks at all goroutines of the process. That none outlives the test, the bubble sees to.
func TestADrainLeavesNoGoroutineBehind(t *testing.T) {
	for name, meddle := range map[string]func(*apitest.Server, *trial){
		"called off during evictions": func(_ *apitest.Server, r *trial) { r.await(state.PodHeld) },
		"called off while all hangs": func(s *apitest.Server, r *trial) {
			r.await(state.PodHeld)
			for _, what := range []string{"list", "watch", "evict default/a"} {
				s.Always(what, apitest.Hang())
			}
			s.DropWatches()
			await(r.t, "hanging requests", func() bool { return count(s, "watch", "list") >= 3 && count(s, "evict default/a") >= 2 })
		},
		"called off while the API server is away": func(s *apitest.Server, r *trial) {
			r.await(state.PodHeld)
			s.GoAway()
			r.await(state.PodRefused)
		},
		"called off at once": func(*apitest.Server, *trial) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				before := runtime.NumGoroutine()
				s := apitest.New(t)
				s.OverHTTP()
				for _, p := range []string{"a", "b", "c"} {
					s.AddPod(pod(p), 0)
				}
				s.Answer("evict", apitest.HeldBy("budget", 0), apitest.HeldBy("budget", 0), apitest.HeldBy("budget", 0))
				s.Always("evict default/a", apitest.HeldBy("budget", 0))
				r := begin(t, s, drain.Options{ExcludeFromLoadBalancers: true})
				meddle(s, r)
				r.cancel()
				if _, err := r.wait(); !errors.Is(err, context.Canceled) {
					t.Errorf("the error is %v", err)
				}
				synctest.Wait() // The Reflector does not wait for the request that it has canceled.
				if left := goroutinesOf("drain.(*guard)", "cache.(*Reflector).Run"); left != "" {
					t.Errorf("goroutines outlive the drain:\n%s", left)
				}
				s.Close()
				await(t, "as many goroutines as before", func() bool { return runtime.NumGoroutine() <= before })
			})
		})
	}
}

// goroutinesOf returns the stacks in which one of the words occurs.
func goroutinesOf(words ...string) string {
	all := make([]byte, 1<<20)
	all = all[:runtime.Stack(all, true)]
	var found []string
	for stack := range strings.SplitSeq(string(all), "\n\n") {
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(stack, w) }) {
			found = append(found, stack)
		}
	}
	return strings.Join(found, "\n\n")
}

// The pauses between the looks at the Node are long by then.
func TestAPodThatComesWhereTheCordonIsRefusedIsEvictedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Always("patch", apitest.Forbidden("no cordons here"))
		r := beginWithin(t, s, drain.Options{}, true, plenty)
		r.succeed()
		time.Sleep(10 * time.Minute)
		looks := count(s, "get node")
		await(t, "a look", func() bool { return count(s, "get node") > looks })
		came := time.Now()
		s.AddPod(pod("late"), 0)
		r.await(state.PodEvicted, "default/late")
		if after := s.Requests("evict")[0].At.Sub(came); after > time.Second {
			t.Errorf("evicted after %s", after)
		}
	})
}

// That a pod has arrived is news where none was expected: on a node that takes none, or that was drained.
func TestThatAPodHasArrivedIsToldWhereNoneWasToCome(t *testing.T) {
	t.Parallel()
	run(t, "on a node that was drained, and is not closed since its Node is gone", func(t *testing.T) {
		s := apitest.New(t)
		s.RemoveNode()
		goal := goalWithin(false, plenty)
		goal.NodeSeen = true
		r := start(t, s, drain.Options{}, goal)
		r.succeed()
		s.AddPod(pod("late"), 0)
		r.await(state.PodGone, "default/late")
		if told := r.of(state.PodArrived); len(told) != 1 || told[0].Pod != "default/late" {
			t.Errorf("told %+v", told)
		}
	})
	run(t, "not while the cordon fails", func(t *testing.T) {
		s := apitest.New(t)
		s.Always("patch", apitest.Unavailable())
		r := begin(t, s, drain.Options{})
		await(t, "the first list", func() bool { return count(s, "watch pods") > 0 })
		s.AddPod(pod("late"), 0)
		time.Sleep(time.Minute)
		s.Always("patch", nil)
		if result := r.succeed(); result.Evicted != 1 || len(r.of(state.PodArrived)) != 0 {
			t.Errorf("the result is %+v, told %+v", result, r.of(state.PodArrived))
		}
	})
}

// A read is given up after eight seconds, and later ones after up to 30. A write has to be waited for longer: a webhook may take 30 seconds. What a busy
// API server asks for is heeded within reason, and one request is one: client-go by itself would repeat it, as late as the API server says.
func TestRequests_AreGivenUpAndRepeatedSoon(t *testing.T) {
	t.Parallel()
	const longestPause, looksAtVolumes = 2 * time.Second, time.Second
	for what, busy := range map[string]time.Duration{
		"get node": 5 * time.Second, "patch node": 5 * time.Second, "list pods": 5 * time.Second,
		"get claim default/cache": looksAtVolumes, "get volume": looksAtVolumes,
	} {
		limit, limitMost := kube.Read, kube.ReadMost
		if what == "patch node" {
			limit, limitMost = kube.Write, kube.Write
		}
		for name, c := range map[string]struct {
			answer      apitest.Answer
			least, most time.Duration // from one to the next
		}{
			"which hangs": {apitest.Hang(), limit, limitMost + longestPause},
			"for which the API server is too busy for a minute": {apitest.Throttled(60), busy, busy},
		} {
			run(t, what+", "+name, func(t *testing.T) {
				s := apitest.New(t)
				s.AddPod(pod("agent", ownedBy("DaemonSet", "apps/v1"), withClaim("cache")), 0)
				s.AddVolume("cache", "ebs.csi.aws.com", "vol-1")
				s.ChangeNode(inUse("kubernetes.io/csi/ebs.csi.aws.com^vol-1"))
				if what == "list pods" {
					s.Answer(what, pass) // the first, which is another's
				}
				s.Always(what, c.answer)
				opts := drain.Options{VolumeWait: time.Hour}
				if what == "list pods" {
					opts.VolumeWait = 0
				}
				begin(t, s, opts)
				time.Sleep(10 * time.Minute)
				asked := s.Requests(what)
				for _, after := range gaps(asked[1:]) {
					if after < c.least || after > c.most {
						t.Errorf("repeated after %s, want %s to %s", after, c.least, c.most)
					}
				}
				if len(asked) < 10 {
					t.Errorf("asked %d times", len(asked))
				}
			})
		}
	}
}

// An outage of the API server is mostly short, and what it refuses is not worth a hurry. A budget that yields is to cost seconds.
func TestThePausesBetweenAttemptsGrow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		what           string
		answer         apitest.Answer
		first, longest time.Duration // at most; half of that at least
	}{
		"while the API server is not ready":     {"get node", apitest.Unavailable(), 100 * time.Millisecond, 2 * time.Second},
		"while it is not ready before the end":  {"list pods", apitest.Unavailable(), 100 * time.Millisecond, 2 * time.Second},
		"while a webhook refuses the cordon":    {"patch node", apitest.Forbidden("no cordons here"), 2 * time.Second, time.Minute},
		"while a webhook refuses an eviction":   {"evict", apitest.Forbidden("no evictions here"), 2 * time.Second, time.Minute},
		"while a budget refuses it for one pod": {"evict", apitest.HeldBy("budget", 0), 200 * time.Millisecond, 3 * time.Second},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			if c.what == "evict" {
				s.AddPod(pod("a"), 0)
			}
			before := 0
			if c.what == "list pods" {
				before = 1 // It is another's.
				s.Answer(c.what, pass)
			}
			s.Always(c.what, c.answer)
			begin(t, s, drain.Options{})
			time.Sleep(10 * time.Minute)
			found := gaps(s.Requests(c.what)[before:])
			most := c.first
			for i, after := range found {
				if after < most/2 || after > most {
					t.Errorf("attempt %d came after %s, want %s to %s", i+2, after, most/2, most)
				}
				most = min(2*most, c.longest)
			}
			if len(found) < 10 {
				t.Errorf("%d attempts", len(found))
			}
		})
	}
}
