package drain_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
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
		"a finished DaemonSet pod":                           {pod("a", ownedBy("DaemonSet", "apps/v1"), phase(corev1.PodFailed)), drain.Options{}, true},
		"a pod of another DaemonSet":                         {pod("a", ownedBy("DaemonSet", "apps.kruise.io/v1alpha1")), drain.Options{}, true},
		"a StatefulSet's pod":                                {pod("a", ownedBy("StatefulSet", "apps/v1")), drain.Options{}, true},
		"a Job's pod":                                        {pod("a", ownedBy("Job", "batch/v1")), drain.Options{}, true},
		"a mirror pod":                                       {pod("a", mirror, unmanaged), drain.Options{}, false},
		"a finished mirror pod":                              {pod("a", mirror, unmanaged, phase(corev1.PodSucceeded)), drain.Options{}, false},
		"a mirror pod of its node":                           {pod("a", mirror, ownedBy("Node", "v1")), drain.Options{}, false},
		"a critical pod":                                     {pod("a", critical), drain.Options{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
	t.Parallel()
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
	for _, what := range []drain.What{drain.Evicted, drain.Gone} {
		if n := len(r.of(what)); n != pods {
			t.Errorf("%d times %q was told; want %d", n, what, pods)
		}
	}
	last := r.of(drain.Gone)[pods-1]
	if last.Left != 0 || last.Total != pods {
		t.Errorf("the last pod's going was told as %+v", last)
	}
}

func TestAnEvictionIsBoundToThePodThatWasSeen(t *testing.T) {
	t.Parallel()
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
}

// A StatefulSet's pod comes back under its name. Here the first one's end is told late, so that the eviction of the
// second under the first one's UID is refused with a conflict.
func TestAPodThatWasRebornUnderTheSameNameIsNotTakenForTheOldOne(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.AddPod(pod("db-0"), 0)
	s.Answer("watch", apitest.Silence(), apitest.Expired())
	s.Answer("evict", apitest.Unavailable())
	r := begin(t, s, drain.Options{})
	r.await(drain.Refused, "default/db-0")
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
}

func TestAPodThatAppearsDuringTheDrainIsEvictedToo(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	free := addHeld(s, pod("old"))
	r := begin(t, s, drain.Options{})
	r.await(drain.Held)
	s.AddPod(pod("new"), 0)
	await(t, "the new pod's end", func() bool { return !s.HasPod("default/new") })
	free()
	if result := r.succeed(); result.Evicted != 2 {
		t.Errorf("the result is %+v", result)
	}
}

func TestAPodThatFinishesDuringTheDrainIsProtectedNoLonger(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.AddPod(pod("job", unmanaged), 0)
	free := addHeld(s, pod("held"))
	r := begin(t, s, drain.Options{ProtectUnmanaged: true})
	r.await(drain.Held)
	s.ChangePod("default/job", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	await(t, "the finished pod's removal", func() bool { return !s.HasPod("default/job") })
	free()
	if result := r.succeed(); result.Skipped != 0 || result.Evicted != 2 {
		t.Errorf("the result is %+v", result)
	}
}

func TestPodsThatGoByThemselvesAreNotCountedAsEvicted(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	addHeld(s, pod("a"))
	r := begin(t, s, drain.Options{})
	r.await(drain.Held)
	s.RemovePod("default/a")
	if result := r.succeed(); result.Evicted != 0 && count(s, "evict") == 1 {
		t.Errorf("the result is %+v", result)
	}
}

func TestCriticalPodsGoAfterTheRest(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.AddPod(pod("dns", critical), 0)
	free := addHeld(s, pod("web-1"))
	s.AddPod(pod("web-2"), 0)
	r := begin(t, s, drain.Options{})
	r.await(drain.Held)
	r.await(drain.Gone, "default/web-2")
	if n := count(s, "evict default/dns"); n != 0 {
		t.Errorf("%d evictions of the critical pod before the rest was gone", n)
	}
	free()
	r.succeed()
	var order []string
	for _, p := range r.of(drain.Gone) {
		order = append(order, strings.TrimPrefix(p.Pod, "default/"))
	}
	if want := []string{"web-2", "web-1", "dns"}; !slices.Equal(order, want) {
		t.Errorf("gone in the order %v; want %v", order, want)
	}
}

func TestADryRunTellsAllAndWritesNothing(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	for _, p := range []*corev1.Pod{
		pod("web"), pod("agent", ownedBy("DaemonSet", "apps/v1")), pod("proxy", mirror, unmanaged), pod("done", phase(corev1.PodSucceeded)),
	} {
		s.AddPod(p, 0)
	}
	node := drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{ExcludeFromLoadBalancers: true}))
	if got, err := node.Cordon(within(t, plenty), claim); got != drain.CordonSet || err != nil {
		t.Errorf("cordon: %q, %v", got, err)
	}
	if _, found, err := node.Claim(within(t, plenty)); found || err != nil {
		t.Errorf("claim: %v, %v", found, err)
	}
	would := map[string]bool{}
	result, err := node.Drain(within(t, plenty), drain.Plan{Claim: claim, Hard: true, Tell: func(p drain.Progress) {
		if p.What == drain.Evicted {
			would[p.Pod] = true
		}
	}})
	if err != nil || result.Cordon != drain.CordonSet || result.Evicted != 2 || result.Skipped != 2 {
		t.Errorf("drain: %+v, %v", result, err)
	}
	if want := map[string]bool{"default/web": true, "default/done": true}; !maps.Equal(would, want) {
		t.Errorf("would evict %v; want %v", would, want)
	}
	s.ChangeNode(cordoned(""))
	var found int
	if result, err = node.Drain(within(t, plenty), drain.Plan{Claim: claim, Tell: func(p drain.Progress) {
		if p.What == drain.NodeCordonFound {
			found++
		}
	}}); err != nil || result.Cordon != drain.CordonForeign || found != 1 {
		t.Errorf("drain of a cordoned node: %+v, %v, found told %d times", result, err, found)
	}
	s.RemoveNode()
	if result, err := node.Drain(within(t, plenty), drain.Plan{Claim: claim}); err != nil || !result.NodeGone {
		t.Errorf("drain without a node: %+v, %v", result, err)
	}
	for _, r := range s.Requests() {
		if !slices.Contains([]string{"get node", "list pods"}, r.What) {
			t.Errorf("a dry run asked to %s", r.What)
		}
	}
}
