package evict_test

import (
	"fmt"
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
		if held := r.result().HeldBy["default/stuck"]; held != "it does not end" {
			t.Errorf("held by %q", held)
		}
		s.Requested(t, 0, "evict default/dns")
		free()
		r.await(state.PodGone, "default/dns")
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
			if result.Evicted != 0 || result.HeldBy["default/a"] != "accepted, but the pod is not terminating" || len(reported) != 1 {
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
