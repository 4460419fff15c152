package drain_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/state"
)

// Every shape of pod also goes through the client that answers kubectl's filters from memory; a question that it has no
// answer to would crash the test.
func TestADrainRemovesWhatItConcernsAndCountsTheRest(t *testing.T) {
	t.Parallel()
	protect := drain.Options{ProtectEmptyDir: true, ProtectUnmanaged: true}
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		opts    drain.Options
		removed bool
	}{
		"a ReplicaSet's pod":                                 {pod("a"), drain.Options{}, true},
		"a pod with emptyDir":                                {pod("a", withEmptyDir), drain.Options{}, true},
		"a pod with emptyDir, protected":                     {pod("a", withEmptyDir), protect, false},
		"a finished pod with emptyDir, protected":            {pod("a", withEmptyDir, phase(corev1.PodFailed)), protect, true},
		"a pod without controller":                           {pod("a", unmanaged), drain.Options{}, true},
		"a pod without controller, protected":                {pod("a", unmanaged), protect, false},
		"a finished bare pod, protected":                     {pod("a", unmanaged, phase(corev1.PodSucceeded)), protect, true},
		"a managed pod without emptyDir, protected settings": {pod("a"), protect, true},
		"a pending pod":                                      {pod("a", phase(corev1.PodPending)), drain.Options{}, true},
		"a finished pod":                                     {pod("a", phase(corev1.PodSucceeded)), drain.Options{}, true},
		"a DaemonSet pod":                                    {pod("a", ownedBy("DaemonSet", "apps/v1")), drain.Options{}, false},
		"a DaemonSet emptyDir pod":                           {pod("a", ownedBy("DaemonSet", "apps/v1"), withEmptyDir), protect, false},
		"a finished DaemonSet pod":                           {pod("a", ownedBy("DaemonSet", "apps/v1"), phase(corev1.PodFailed)), drain.Options{}, false},
		"a pod of another DaemonSet":                         {pod("a", ownedBy("DaemonSet", "apps.kruise.io/v1alpha1")), drain.Options{}, false},
		"a StatefulSet's pod":                                {pod("a", ownedBy("StatefulSet", "apps/v1")), drain.Options{}, true},
		"a Job's pod":                                        {pod("a", ownedBy("Job", "batch/v1")), drain.Options{}, true},
		"a mirror pod":                                       {pod("a", mirror, unmanaged), drain.Options{}, false},
		"a finished mirror pod":                              {pod("a", mirror, unmanaged, phase(corev1.PodSucceeded)), drain.Options{}, false},
		"a mirror pod of its node":                           {pod("a", mirror, ownedBy("Node", "v1")), drain.Options{}, false},
		"a critical pod":                                     {pod("a", critical), drain.Options{}, true},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(c.pod, 0)
			r := drained(t, s, c.opts)
			if s.HasPod("default/a") == c.removed {
				t.Errorf("removed: %v; want %v", !c.removed, c.removed)
			}
			want := drain.Result{Cordon: drain.CordonSet, Evicted: 1}
			if !c.removed {
				want = drain.Result{Cordon: drain.CordonSet, Skipped: 1}
			}
			if got := fmt.Sprintf("%+v", r.result); got != fmt.Sprintf("%+v", want) {
				t.Errorf("the result is %s; want %+v", got, want)
			}
		})
	}
}

func TestAllEvictionsAreAskedForBeforeTheFirstIsAnswered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const pods = 110
		s := apitest.New(t)
		for i := range pods {
			s.AddPod(pod(fmt.Sprintf("web-%03d", i)), 0)
		}
		s.Always("evict", apitest.Together(pods))
		r := drained(t, s, drain.Options{})
		if r.result.Evicted != pods || count(s, "evict") != pods {
			t.Errorf("%d evicted with %d requests; want %d", r.result.Evicted, count(s, "evict"), pods)
		}
		for _, what := range []state.TransitionKind{state.PodEvicted, state.PodGone} {
			if n := len(r.of(what)); n != pods {
				t.Errorf("%d times %q was told; want %d", n, what, pods)
			}
		}
		last := r.of(state.PodGone)[pods-1]
		if last.Left != 0 || last.Total != pods {
			t.Errorf("the last pod's going was told as %+v", last)
		}
	})
}

func TestAnEvictionIsBoundToThePodThatWasSeen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		seen := s.AddPod(pod("a"), 0)
		drained(t, s, drain.Options{})
		options := s.Requests("evict")[0].Options
		if options.Preconditions == nil || options.Preconditions.UID == nil || *options.Preconditions.UID != seen.UID {
			t.Errorf("evicted with %+v; want the UID %s", options.Preconditions, seen.UID)
		}
		if options.GracePeriodSeconds != nil {
			t.Errorf("the grace period was set to %d; want the pod's own", *options.GracePeriodSeconds)
		}
	})
}

// A StatefulSet's pod comes back under its name. Here the first one's end is told late, so that the eviction of the
// second under the first one's UID is refused with a conflict.
func TestAPodThatWasRebornUnderTheSameNameIsNotTakenForTheOldOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("db-0"), 0)
		s.Answer("watch", apitest.Silence(), apitest.Expired())
		s.Answer("evict", apitest.Unavailable())
		r := begin(t, s, drain.Options{})
		r.await(state.PodRefused, "default/db-0")
		s.ForgetPod("default/db-0")
		reborn := s.AddPod(pod("db-0", ownedBy("DaemonSet", "apps/v1")), 0)
		await(t, "an eviction of the new pod under the old UID", func() bool { return count(s, "evict") >= 2 })
		s.GoAway() // ends the silence; the next watch is told to list anew
		s.ComeBack()
		result := r.succeed()
		if !s.HasPod("default/db-0") {
			t.Errorf("the new pod %s was removed", reborn.UID)
		}
		if result.Skipped != 1 {
			t.Errorf("the result is %+v", result)
		}
	})
}

func TestAPodThatAppearsDuringTheDrainIsEvictedToo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		free := addHeld(s, pod("old"))
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld)
		s.AddPod(pod("new"), 0)
		await(t, "the new pod's end", func() bool { return !s.HasPod("default/new") })
		free()
		if result := r.succeed(); result.Evicted != 2 {
			t.Errorf("the result is %+v", result)
		}
	})
}

func TestAPodThatFinishesDuringTheDrainIsProtectedNoLonger(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("job", unmanaged), 0)
		free := addHeld(s, pod("held"))
		r := begin(t, s, drain.Options{ProtectUnmanaged: true})
		r.await(state.PodHeld)
		s.ChangePod("default/job", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		await(t, "the finished pod's removal", func() bool { return !s.HasPod("default/job") })
		free()
		if result := r.succeed(); result.Skipped != 0 || result.Evicted != 2 {
			t.Errorf("the result is %+v", result)
		}
	})
}

func TestPodsThatGoByThemselvesAreNotCountedAsEvicted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		addHeld(s, pod("a"))
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld)
		s.RemovePod("default/a")
		if result := r.succeed(); result.Evicted != 0 && count(s, "evict") == 1 {
			t.Errorf("the result is %+v", result)
		}
	})
}

func TestCriticalPodsGoAfterTheRest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("dns", critical), 0)
		free := addHeld(s, pod("web-1"))
		s.AddPod(pod("web-2"), 0)
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld)
		r.await(state.PodGone, "default/web-2")
		if n := count(s, "evict default/dns"); n != 0 {
			t.Errorf("%d evictions of the critical pod before the rest was gone", n)
		}
		free()
		freed := time.Now()
		r.succeed()
		if after := time.Since(freed); after > 10*time.Second {
			t.Errorf("drained %s after the rest could go", after)
		}
		var order []string
		for _, p := range r.of(state.PodGone) {
			order = append(order, strings.TrimPrefix(p.Pod, "default/"))
		}
		if want := []string{"web-2", "web-1", "dns"}; !slices.Equal(order, want) {
			t.Errorf("gone in the order %v; want %v", order, want)
		}
	})
}

// Before a deadline, too, by which all others are deleted if need be.
func TestThePodThatTheDrainRunsInGoesLast(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]time.Duration{"without a deadline": 0, "before a deadline": time.Minute} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("queue", critical, grace(40)), 0)
			s.AddPod(pod("dns", critical, grace(5)), apitest.Ending(2*time.Second))
			free := addHeld(s, pod("web", grace(1)))
			r := start(t, s, drain.Options{Last: "default/queue", Margin: 2 * time.Second}, goalWithin(true, hard))
			if hard == 0 {
				r.await(state.PodHeld)
				free()
			}
			r.succeed()
			var order []string
			for _, p := range r.of(state.PodGone) {
				order = append(order, strings.TrimPrefix(p.Pod, "default/"))
			}
			if len(order) != 3 || order[2] != "queue" {
				t.Errorf("gone in the order %v, want queue last", order)
			}
			if first := s.Requests("evict default/queue")[0].At; first.Before(s.Requests("evict default/dns")[0].At.Add(2 * time.Second)) {
				t.Error("it was evicted before another critical pod had ended")
			}
		})
	}
}

// No look at the Node comes in between.
func TestCriticalPodsGoAsSoonAsNoneOfTheRestIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ends  apitest.Ending
		after time.Duration
	}{
		"it is gone": {apitest.Ending(3 * time.Second), 3 * time.Second}, "it does not end": {apitest.Never, 15 * time.Second},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("dns", critical), 0)
			s.AddPod(pod("web", grace(5)), c.ends)
			s.Answer("get node", pass)
			s.Always("get node", apitest.Hang())
			r := begin(t, s, drain.Options{})
			r.await(state.PodEvicted, "default/dns")
			if after := s.Requests("evict default/dns")[0].At.Sub(r.began); after != c.after {
				t.Errorf("evicted after %s", after)
			}
		})
	}
}

func TestADryRunTellsAllAndWritesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		for _, p := range []*corev1.Pod{
			pod("web"), pod("agent", ownedBy("DaemonSet", "apps/v1")), pod("proxy", mirror, unmanaged), pod("done", phase(corev1.PodSucceeded)),
		} {
			s.AddPod(p, 0)
		}
		node := drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{ExcludeFromLoadBalancers: true}))
		if _, found, err := node.Claim(within(t, plenty)); found || err != nil {
			t.Errorf("claim: %v, %v", found, err)
		}
		r := watchOver(t, node, goalWithin(true, plenty))
		if result := r.succeed(); result.Cordon != drain.CordonNone || result.Evicted != 2 || result.Skipped != 2 {
			t.Errorf("the result is %+v", result)
		}
		if len(r.of(state.NodeClosed)) != 1 || len(r.of(state.PodEvicted)) != 2 || len(r.of(state.PodEvicted, "default/web")) != 1 || len(r.of(state.PodEvicted, "default/done")) != 1 {
			t.Errorf("told %+v", r.told)
		}
		r.adjust(func(goal *drain.Goal) { goal.Hard = goal.Hard.Add(-time.Minute) })
		await(t, "that it is drained under the new goal", func() bool { return len(r.now(state.NodeEmpty)) > 0 })
		s.ChangeNode(cordoned(""))
		r = watchOver(t, node, goalWithin(true, plenty))
		if result := r.succeed(); result.Cordon != drain.CordonForeign || len(r.of(state.NodeFoundClosed)) != 1 {
			t.Errorf("on a cordoned node: %+v", result)
		}
		s.RemoveNode()
		goal := goalWithin(true, plenty)
		goal.NodeSeen = true
		if result := watchOver(t, node, goal).succeed(); !result.NodeGone {
			t.Errorf("without a node: %+v", result)
		}
		for _, r := range s.Requests() {
			if !slices.Contains([]string{"get node", "list pods"}, r.What) {
				t.Errorf("a dry run asked to %s", r.What)
			}
		}
	})
}

// A pod behind a finalizer, or on a volume that hangs, must not keep the name service on a node that has to be empty.
func TestCriticalPodsDoNotWaitForAPodThatDoesNotEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("dns", critical), 0)
		s.AddPod(pod("web"), apitest.Never)
		s.AddPod(pod("going", ending(1)), apitest.Never)
		r := begin(t, s, drain.Options{})
		r.await(state.PodOverdue, "default/going")
		r.await(state.PodGone, "default/dns")
		for _, name := range []string{"default/web", "default/going"} {
			if told := r.of(state.PodOverdue, name); len(told) != 1 {
				t.Errorf("that %s is overdue is told as %+v", name, told)
			}
		}
		r.cancel()
		result, _ := r.wait()
		if result.HeldBy["default/web"] != "it does not end" || result.HeldBy["default/going"] != "it does not end" {
			t.Errorf("the result is %+v", result)
		}
	})
}

// What a disruption budget holds still runs, and may need them.
func TestCriticalPodsWaitForAPodThatIsHeld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("dns", critical), 0)
		free := addHeld(s, pod("web"))
		s.AddPod(pod("stuck"), apitest.Never)
		r := begin(t, s, drain.Options{})
		r.await(state.PodOverdue, "default/stuck")
		if n := count(s, "evict default/dns"); n != 0 {
			t.Errorf("%d evictions of the critical pod", n)
		}
		free()
		r.await(state.PodGone, "default/dns")
	})
}

func TestAHeldPodIsAskedForAgainAndItsBudgetToldOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.Answer("evict", apitest.HeldBy("web-budget", 0), apitest.HeldBy("web-budget", 0), apitest.HeldBy("web-budget", 0))
		r := drained(t, s, drain.Options{})
		if r.result.Evicted != 1 || count(s, "evict") != 4 {
			t.Errorf("%+v after %d evictions", r.result, count(s, "evict"))
		}
		if held := r.of(state.PodHeld); len(held) != 1 || held[0].Detail != "web-budget" || held[0].Pod != "default/a" {
			t.Errorf("told %+v", held)
		}
	})
}

// That a pod goes by another's hand does not say that its budget yields.
func TestABudgetIsAskedNoMoreOftenWhereOthersEndItsPods(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*apitest.Server, string){
		"they are deleted":      func(s *apitest.Server, name string) { s.DeletePod(name) },
		"they are gone at once": func(s *apitest.Server, name string) { s.RemovePod(name) },
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			const pods = 20
			for i := range pods {
				s.AddPod(pod(fmt.Sprintf("web-%02d", i)), apitest.Ending(time.Second))
			}
			s.Always("evict", apitest.HeldBy("budget", 0))
			r := begin(t, s, drain.Options{})
			await(t, "that all are held", func() bool { return len(r.of(state.PodHeld)) == pods })
			time.Sleep(time.Minute) // Now they are asked for every three seconds, one for all.
			asked := count(s, "evict")
			for i := range pods - 1 {
				end(s, fmt.Sprintf("default/web-%02d", i))
				time.Sleep(2 * time.Second)
			}
			for _, after := range gaps(s.Requests("evict")[asked:]) {
				if after < 1500*time.Millisecond {
					t.Errorf("asked again after %s", after)
				}
			}
		})
	}
}

// A webhook does not answer for that one.
func TestAPodForWhichThereIsNoAnswerHoldsUpNoneOfItsBudgetsOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		addHeld(s, pod("a"))
		addHeld(s, pod("b"))
		r := begin(t, s, drain.Options{})
		await(t, "that both are held", func() bool { return len(r.of(state.PodHeld)) == 2 })
		s.Always("evict default/a", apitest.Hang())
		r.await(state.PodRefused, "default/a")
		asked := count(s, "evict default/b")
		time.Sleep(time.Minute)
		if n := count(s, "evict default/b") - asked; n < 20 {
			t.Errorf("the other one was asked for %d times in a minute", n)
		}
		over := r.times(state.PodRefused)[0]
		if !slices.ContainsFunc(s.Requests("evict default/b"), func(q apitest.Request) bool { return q.At.Equal(over) }) {
			t.Error("the other one was not asked for as soon as the first had been given up")
		}
	})
}

// One pod asks for all, and is not answered before people want it to stay.
func TestABudgetIsAskedForOneOtherPodOnceTheOneThatAsksIsToStay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		for _, name := range []string{"a", "b", "c"} {
			addHeld(s, pod(name))
		}
		r := begin(t, s, drain.Options{})
		await(t, "that all are held", func() bool { return len(r.of(state.PodHeld)) == 3 })
		for _, name := range []string{"a", "b", "c"} {
			s.Always("evict default/"+name, apitest.Hang())
		}
		asked := count(s, "evict")
		await(t, "an eviction", func() bool { return count(s, "evict") > asked })
		s.ChangePod(strings.TrimPrefix(s.Requests("evict")[asked].What, "evict "), annotated(evict.Annotation, evict.Never))
		time.Sleep(time.Second)
		if n := count(s, "evict") - asked; n != 2 {
			t.Errorf("%d of three pods were asked for", n)
		}
	})
}

func TestAnEvictionIsRepeatedWhateverRefusesItAndTheReasonIsTold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer apitest.Answer
		detail string
	}{
		"throttled":             {apitest.Throttled(1), "429 Too Many Requests"},
		"two budgets":           {apitest.TwoBudgets(), "more than one PodDisruptionBudget"},
		"unavailable":           {apitest.Unavailable(), "503 Service Unavailable"},
		"a webhook says no":     {apitest.Forbidden("admission webhook denied the request"), "admission webhook denied"},
		"the connection breaks": {apitest.Reset(), "the API server cannot be reached"},
		"it hangs":              {apitest.Hang(), "no answer from the API server"},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			s.Answer("evict", c.answer, c.answer)
			r := drained(t, s, drain.Options{})
			if r.result.Evicted != 1 || count(s, "evict") != 3 {
				t.Errorf("%+v after %d evictions; want 3", r.result, count(s, "evict"))
			}
			if told := r.of(state.PodRefused); len(told) != 1 || !strings.Contains(told[0].Detail, c.detail) {
				t.Errorf("told %+v; want once %q", told, c.detail)
			}
		})
	}
}

// roadOf is how requests take one road or another.
type roadOf func(*http.Request) (*http.Response, error)

func (take roadOf) RoundTrip(r *http.Request) (*http.Response, error) { return take(r) }

// It prints other words each time. What it prints is told with the machine's other troubles.
func TestThatTheCredentialPluginFailsIsSaidOnceInFewWords(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		failures := 0
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://apiserver.test", QPS: -1, Transport: roadOf(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPost && failures < 3 {
				failures++
				return nil, fmt.Errorf("getting credentials: %s", strings.Repeat("no ", failures))
			}
			return s.RoundTripper().RoundTrip(r)
		})})
		if err != nil {
			t.Fatal(err)
		}
		r := watchOver(t, drain.New(client, apitest.Node, drain.Options{}), goalWithin(false, plenty))
		r.succeed()
		if told := r.of(state.PodRefused); len(told) != 1 || told[0].Detail != "the credential plugin fails" {
			t.Errorf("told %+v", told)
		}
	})
}

// The first answer of an API server that has not heard of a young pod, and the last of one whose pod has gone, are the
// same. Only the watch tells which it is.
func TestAnAnswerThatThePodIsUnknownIsNoSuccess(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]apitest.Answer{
		"404": apitest.NotFound(), "403, no relationship": apitest.NoRelationship(), "409": apitest.Reborn(),
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			s.Answer("evict", answer, answer)
			r := drained(t, s, drain.Options{})
			if s.HasPod("default/a") || r.result.Evicted != 1 || count(s, "evict") != 3 {
				t.Errorf("%+v after %d evictions", r.result, count(s, "evict"))
			}
			if told := r.of(state.PodRefused); len(told) != 0 {
				t.Errorf("told %+v", told)
			}
		})
	}
}

func TestADeletionIsInsistedOnLikeAnEviction(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]apitest.Answer{
		"a webhook says no":     apitest.Forbidden("admission webhook denied the request"),
		"403, no relationship":  apitest.NoRelationship(),
		"404":                   apitest.NotFound(),
		"the connection breaks": apitest.Reset(),
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", grace(600)), 0)
			s.Always("evict", apitest.HeldBy("budget", 0))
			s.Answer("delete", answer, answer)
			r := beginWithin(t, s, drain.Options{}, true, plenty)
			if result := r.succeed(); result.Deleted != 1 || count(s, "delete") != 3 {
				t.Errorf("%+v after %d deletions", result, count(s, "delete"))
			}
		})
	}
}

// One request per answer: client-go by itself would obey a Retry-After up to ten times within one call.
func TestRetryAfterIsObeyedWithinReason(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer apitest.Answer
		hard   bool
		limit  time.Duration
	}{
		"a budget that is being worked on": {apitest.HeldBy("budget", 600), false, plenty},
		"throttling":                       {apitest.Throttled(600), false, plenty},
		"throttling, before the turn":      {apitest.Throttled(600), true, 12 * time.Second},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			s.Answer("evict", c.answer)
			r := beginWithin(t, s, drain.Options{}, c.hard, c.limit)
			if result := r.succeed(); count(s, "evict") != 2 || result.Evicted != 1 {
				t.Errorf("%d evictions, %+v", count(s, "evict"), result)
			}
			if asked := s.Requests("evict"); asked[1].At.Sub(asked[0].At) != 5*time.Second {
				t.Errorf("the second came after %s", asked[1].At.Sub(asked[0].At))
			}
		})
	}
}

func TestRetryAfterDoesNotSleepThroughTheTurn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", grace(2)), 0)
		s.Always("evict", apitest.Throttled(600))
		r := beginWithin(t, s, drain.Options{}, true, 5*time.Second)
		if result := r.succeed(); result.Deleted != 1 {
			t.Errorf("%+v", result)
		}
	})
}

// numbering refuses each time in other words: they differ in a number.
func numbering(words string) apitest.Answer {
	var n atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) bool {
		return apitest.Forbidden(fmt.Sprintf(words, n.Add(1)))(w, r)
	}
}

func TestARefusalWhoseNumbersChangeIsToldOnce(t *testing.T) {
	t.Parallel()
	const words = "admission webhook denied request %d"
	for name, c := range map[string]struct {
		what string
		told state.TransitionKind
	}{
		"an eviction": {"evict", state.PodRefused}, "a list": {"list", state.PodRefused}, "a cordon": {"patch", state.NodeUnclosable},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			s.Always(c.what, numbering(words))
			r := beginWithin(t, s, drain.Options{}, true, plenty)
			time.Sleep(10 * time.Minute)
			if told := r.of(c.told); len(told) != 1 || count(s, c.what) < 10 {
				t.Errorf("%d refusals of %d are told: %+v", len(told), count(s, c.what), told)
			}
			if held := r.guard.Result().HeldBy["default/a"]; c.what == "evict" && held == r.of(c.told)[0].Detail {
				t.Errorf("held by %q, which was the first refusal", held)
			}
		})
	}
	run(t, "the load balancer label", func(t *testing.T) {
		s := apitest.New(t)
		s.Answer("patch", pass)
		s.Always("patch", numbering(words))
		r := begin(t, s, drain.Options{ExcludeFromLoadBalancers: true})
		time.Sleep(10 * time.Minute)
		if told := r.of(state.PodRefused); len(told) != 1 {
			t.Errorf("told %+v", told)
		}
	})
}

// Another version of the API server may put it in other words.
func TestReasonsThatTakeTurnsAreToldOnceEachAndNotWithoutEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reasons int64
		want    int
	}{"two": {2, 2}, "another each time": {1000, 16}} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			var refusals atomic.Int64
			s.Always("evict", func(w http.ResponseWriter, r *http.Request) bool {
				if n := refusals.Add(1); n%2 == 0 {
					return apitest.HeldBy(fmt.Sprint("budget-", n%c.reasons), 0)(w, r)
				}
				return apitest.Unavailable()(w, r)
			})
			r := begin(t, s, drain.Options{})
			time.Sleep(50 * time.Minute)
			if told := len(r.of(state.PodHeld)) + len(r.of(state.PodRefused)); told != c.want || refusals.Load() < 500 {
				t.Errorf("told %d times why a pod stays, in %d refusals; want %d", told, refusals.Load(), c.want)
			}
		})
	}
}

func TestABudgetThatIsNotNamedIsToldAsOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.Answer("evict", func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusTooManyRequests)
			_, err := io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429,
				"details":{"causes":[{"reason":"DisruptionBudget","message":"Not now."}]}}`)
			return err == nil
		})
		r := drained(t, s, drain.Options{})
		if told := r.of(state.PodHeld); len(told) != 1 || told[0].Detail != "a disruption budget" || len(r.of(state.PodRefused)) != 0 {
			t.Errorf("told %+v and %+v", told, r.of(state.PodRefused))
		}
	})
}

// Names of budgets may differ in a number.
func TestAnotherBudgetIsToldThoughOnlyItsNumberDiffers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.Answer("evict", apitest.HeldBy("web-1", 0), apitest.HeldBy("web-2", 0))
		r := drained(t, s, drain.Options{})
		if told := r.of(state.PodHeld); len(told) != 2 || told[1].Detail != "web-2" {
			t.Errorf("told %+v", told)
		}
	})
}

// The API server does not ask budgets for a pod that has finished.
func TestAPodThatHasFinishedDoesNotWaitForABudget(t *testing.T) {
	t.Parallel()
	for name, ended := range map[string]corev1.PodPhase{"succeeded": corev1.PodSucceeded, "failed": corev1.PodFailed} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			none := 0
			s.AddBudget(apitest.Budget{Namespace: "default", Name: "budget", MaxUnavailable: &none})
			const pods = 20
			for i := range pods {
				s.AddPod(pod(fmt.Sprintf("job-%02d", i), apitest.Ready), 0)
			}
			r := begin(t, s, drain.Options{})
			await(t, "that all are held", func() bool { return len(r.of(state.PodHeld)) == pods })
			time.Sleep(time.Minute) // Now they are asked for every three seconds, one for all.
			at := time.Now()
			for i := range pods - 1 {
				s.ChangePod(fmt.Sprintf("default/job-%02d", i+1), phase(ended))
			}
			await(t, "the finished pods' end", func() bool { return len(r.of(state.PodGone)) == pods-1 })
			if after := time.Since(at); after > 100*time.Millisecond {
				t.Errorf("the last is gone after %s", after)
			}
			asked := count(s, "evict")
			time.Sleep(time.Minute)
			if n := count(s, "evict") - asked; n > 45 || !s.HasPod("default/job-00") {
				t.Errorf("%d evictions of the pod that is held", n)
			}
		})
	}
}

// The answer comes after the news that somebody else has ended it.
func TestWhatRefusesAnEvictionIsNotToldOfAPodThatIsEndingByThen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", grace(60)), apitest.Ending(time.Minute))
		s.Always("evict", func(w http.ResponseWriter, r *http.Request) bool {
			s.DeletePod("default/a")
			time.Sleep(time.Second)
			return apitest.Forbidden("not now")(w, r)
		})
		r := begin(t, s, drain.Options{})
		time.Sleep(30 * time.Second)
		if result := r.guard.Result(); len(r.of(state.PodRefused)) > 0 || len(result.Left) != 1 || len(result.HeldBy) > 0 {
			t.Errorf("told %+v; the result is %+v", r.of(state.PodRefused), result)
		}
	})
}

// The API server writes that a pod without a grace is ending, and then removes it. Whoever sees the first must let it do the second.
func TestAnEvictionThatIsUnderWayIsNotTakenBackWhenThePodIsSeenEnding(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", grace(10)), apitest.Ending(10*time.Second))
		s.Always("evict", func(_ http.ResponseWriter, r *http.Request) bool {
			s.DeletePod("default/a")
			time.Sleep(time.Second)
			if err := r.Context().Err(); err != nil {
				t.Errorf("it was taken back: %v", err)
			}
			return false
		})
		r := begin(t, s, drain.Options{})
		if result := r.succeed(); result.Evicted != 1 {
			t.Errorf("the result is %+v", result)
		}
		if told := r.of(state.PodRefused); len(told) > 0 || count(s, "evict") != 1 {
			t.Errorf("after %d evictions was told %+v", count(s, "evict"), told)
		}
	})
}
