package drain_test

import (
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/state"
)

func TestOptOut_NodeAtAnyTime(t *testing.T) {
	t.Parallel()
	set := func(s *apitest.Server, action string) {
		s.ChangeNode(func(n *corev1.Node) { n.Annotations = map[string]string{drain.ActionAnnotation: action} })
	}
	run(t, "where the cordon fails", func(t *testing.T, _ *apitest.Server) {
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
	run(t, "in the midst", func(t *testing.T, s *apitest.Server) {
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

func TestOptOut_Pod(t *testing.T) {
	t.Parallel()
	run(t, "at any time", func(t *testing.T, s *apitest.Server) {
		r, free := holding(t, s, pod("a"))
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
	// The watch has been silent. The list before the end shows that operators do not want the pod left any more.
	run(t, "taken away, seen in the last list", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a", annotated(evict.Annotation, evict.Never)), apitest.Ending(time.Second))
		s.Answer("watch pods", apitest.Silence())
		r := drained(t, s, drain.Options{})
		s.ChangePod("default/a", func(p *corev1.Pod) { p.Annotations = nil })
		r.adjust(joining)
		await(t, "that it is drained for both", func() bool { return r.numbered(state.NodeEmpty).State.Drained })
		if s.HasPod("default/a") {
			t.Error("drained, and a pod is left that is to go")
		}
	})
	// The last list may come from another API server, which has not heard of the annotation yet.
	run(t, "against an older list", func(t *testing.T, s *apitest.Server) {
		r, free := holding(t, s, pod("a"))
		time.Sleep(10 * time.Second)
		free()
		// In between no eviction is asked for: the next is, at the latest, in three seconds.
		s.Always("list", func(http.ResponseWriter, *http.Request) bool { s.SetLag(0, 2*time.Second); return false })
		s.ChangePod("default/a", annotated(evict.Annotation, evict.Never))
		time.Sleep(time.Minute)
		if !s.HasPod("default/a") || count(s, "list") < 2 {
			t.Errorf("a pod that is never to be evicted is gone; reported: %+v", r.reports)
		}
	})
}

func TestOptOut_Node(t *testing.T) {
	t.Parallel()
	// Operators want nothing done to the node. The API server is away for a while.
	run(t, "an outage is no failure to cordon", func(t *testing.T, s *apitest.Server) {
		s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
		r := begin(t, s, drain.Options{})
		r.leave()
		s.Always("get node", apitest.Unavailable())
		time.Sleep(time.Minute)
		r.reported(0, state.NodeUnclosable)
	})
	// Its first look takes a while, and the machine is lost at any moment; yet that look may say whom the node belongs to.
	run(t, "after the deadline", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a"), 0)
		s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
		s.Always("get node", slowly(900*time.Millisecond))
		r := beginWithin(t, s, drain.Options{}, true, -time.Minute)
		r.await(state.NodeOptedOut)
		time.Sleep(time.Minute)
		if asked := count(s, "evict") + count(s, "delete"); asked != 0 {
			t.Errorf("%d pods were asked to go", asked)
		}
	})
	// The annotation is taken away, and the cordon is refused. The machine is lost all the same.
	run(t, "taken away, with a cordon that is refused", func(t *testing.T, s *apitest.Server) {
		s.AddPod(pod("a"), 0)
		s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
		s.Always("patch", apitest.Forbidden("no cordons here"))
		r := beginWithin(t, s, drain.Options{}, true, 2*time.Minute)
		r.leave()
		s.ChangeNode(func(n *corev1.Node) { delete(n.Annotations, drain.ActionAnnotation) })
		time.Sleep(time.Minute)
		if n := count(s, "evict", "delete"); n == 0 || r.guard.Result().Limited {
			t.Errorf("%d evictions, %+v; the last that was reported is %+v", n, r.guard.Result(), r.last())
		}
	})
	run(t, "a cordoned node is not reported as open", func(t *testing.T, s *apitest.Server) {
		r := drained(t, s, drain.Options{})
		s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
		r.await(state.NodeOptedOut)
		time.Sleep(time.Minute)
		if reported := r.of(state.NodeReopened); len(reported) > 0 || r.guard.Result().Cordon != drain.CordonLeft {
			t.Errorf("reported %+v, the result is %+v", reported, r.guard.Result())
		}
	})
	// For an event that has joined meanwhile, it does not count.
	run(t, "an uncordon is reported once", func(t *testing.T, s *apitest.Server) {
		r := drained(t, s, drain.Options{})
		s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
		r.await(state.NodeOptedOut)
		s.UncordonAs("kubectl")
		r.adjust(func(g *drain.Goal) { g.Generation++ })
		r.await(state.NodeReopened)
		time.Sleep(time.Minute)
		if reported := r.of(state.NodeReopened); len(reported) != 1 {
			t.Errorf("reported %+v", reported)
		}
	})
	run(t, "of a drained node", func(t *testing.T, s *apitest.Server) {
		r := begin(t, s, drain.Options{})
		r.succeed()
		s.ChangeNode(asking(drain.ActionAnnotation, drain.OnlyCordon))
		time.Sleep(10 * time.Second)
		if last := r.last(); !last.State.Limited || last.State.Drained {
			t.Errorf("reported last: %+v", last)
		}
		s.ChangeNode(asking(drain.ActionAnnotation, "drain"))
		time.Sleep(10 * time.Second)
		if last := r.last(); last.State.Limited || !last.State.Drained {
			t.Errorf("reported last, once that is over: %+v", last)
		}
	})
	// Pods may have been bound to it meanwhile, of which no watch tells for a while.
	run(t, "taken away, the node is listed again", func(t *testing.T, s *apitest.Server) {
		r := drained(t, s, drain.Options{})
		s.ChangeNode(asking(drain.ActionAnnotation, drain.OnlyCordon))
		r.leave()
		s.SetLag(0, 10*time.Second)
		s.AddPod(pod("new"), 0)
		s.ChangeNode(asking(drain.ActionAnnotation, ""))
		await(t, "that it is drained again", func() bool { return len(r.of(state.NodeEmpty)) > 1 })
		if s.HasPod("default/new") {
			t.Error("drained, and a pod is left")
		}
	})
	// Who waits for that has nothing else to wait for.
	run(t, "reported for an event that joins", func(t *testing.T, s *apitest.Server) {
		s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
		r := begin(t, s, drain.Options{})
		r.leave()
		r.adjust(joining)
		await(t, "that it was looked at", func() bool {
			last := r.last()
			return last.Generation == r.goal.Generation && last.State.Looked && last.State.Limited
		})
	})
}

func asking(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[key] = value
	}
}

func TestOptOut_NodeAnnotation(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]struct {
		cordon             drain.CordonResult
		patches, evictions int
	}{
		"ignore": {drain.CordonLeft, 0, 0},
		"notify": {drain.CordonLeft, 0, 0},
		"cordon": {drain.CordonSet, 1, 0},
		"drain":  {drain.CordonSet, 1, 1},
		"dance":  {drain.CordonSet, 1, 1},
	} {
		run(t, action, func(t *testing.T, s *apitest.Server) {
			s.ChangeNode(asking(drain.ActionAnnotation, action))
			s.AddPod(pod("a"), 0)
			r := begin(t, s, drain.Options{})
			if want.evictions == 0 {
				r.result = r.leave()
				time.Sleep(time.Minute)
				if len(r.of(state.NodeEmpty)) > 0 {
					t.Errorf("it is said to be drained: %+v", r.reports)
				}
			} else {
				r.succeed()
			}
			if left := r.last().State.Left; left != (want.cordon == drain.CordonLeft) {
				t.Errorf("reported is %+v", r.last().State)
			}
			if r.result.Cordon != want.cordon || r.result.Limited != (want.evictions == 0) {
				t.Errorf("the result is %+v", r.result)
			}
			if count(s, "patch") != want.patches || count(s, "evict") != want.evictions {
				t.Errorf("%d patches and %d evictions; want %d and %d", count(s, "patch"), count(s, "evict"), want.patches, want.evictions)
			}
		})
	}
}

// nth was restarted, and the API server does not answer when it asks for the Node. Operators's last word was to leave the pods alone.
func TestOptOut_NodeBeforeTheFirstLook(t *testing.T) {
	t.Parallel()
	limited := func(t *testing.T, s *apitest.Server, change func(*corev1.Node)) *trial {
		t.Helper()
		s.AddPod(pod("a"), 0)
		s.ChangeNode(change)
		s.Always("get node", apitest.Unavailable())
		goal := goalWithin(true, 2*time.Minute)
		goal.Limited = true
		r := start(t, s, drain.Options{}, goal)
		time.Sleep(time.Minute)
		requested(t, s, 0, "evict", "delete")
		return r
	}
	run(t, "and go if it is so no more", func(t *testing.T, s *apitest.Server) {
		r := limited(t, s, func(*corev1.Node) {})
		s.Always("get node", nil)
		r.succeed()
	})
	run(t, "and stay if it is so still", func(t *testing.T, s *apitest.Server) {
		r := limited(t, s, asking(drain.ActionAnnotation, drain.OnlyCordon))
		s.Always("get node", nil)
		r.leave()
		time.Sleep(2 * time.Minute)
		requested(t, s, 0, "evict", "delete")
	})
	run(t, "and go if the Node is gone", func(t *testing.T, s *apitest.Server) {
		r := limited(t, s, func(*corev1.Node) {})
		s.Always("get node", nil)
		s.RemoveNode()
		r.await(state.PodGone, "default/a")
	})
}
