package drain_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// uncordonedOnce fails unless one uncordon was reported: of a node that was closed in that generation, and stays open until the next one, which
// it begins.
func (r *trial) uncordonedOnce(s *apitest.Server, closed int) {
	r.t.Helper()
	reported := r.of(state.NodeReopened)
	if len(reported) != 1 || reported[0].Closed != closed || s.CurrentNode().Spec.Unschedulable {
		r.t.Errorf("reported %+v; the node is closed: %t", reported, s.CurrentNode().Spec.Unschedulable)
	}
	r.adjust(joining)
	await(r.t, "the cordon of the next generation", func() bool { return s.CurrentNode().Spec.Unschedulable })
	if reported := r.of(state.NodeReopened); len(reported) != 1 {
		r.t.Errorf("reported again: %+v", reported)
	}
}

func TestUncordon_ConcernsTheGenerationsBeforeIt(t *testing.T) {
	t.Parallel()
	for name, uncordons := range map[string]func(*apitest.Server, *trial){
		"seen in the same generation": func(s *apitest.Server, _ *trial) { s.UncordonAs("kubectl") },
		"a generation begins before the next look": func(s *apitest.Server, r *trial) {
			s.UncordonAs("kubectl")
			r.adjust(joining)
		},
		"with its claim": func(s *apitest.Server, _ *trial) { s.ChangeNode(unclaimed, "kubectl") },
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			r := drained(t, s, drain.Options{})
			time.Sleep(10 * time.Second)
			uncordons(s, r)
			time.Sleep(time.Minute)
			r.uncordonedOnce(s, 1)
		})
	}
}

// The look that sees it began before the generation did, which has the node closed again.
func TestUncordon_SeenByALookOfTheGenerationBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		s.Answer("get node", func(w http.ResponseWriter, _ *http.Request) bool {
			s.UncordonAs("kubectl")
			seen := s.CurrentNode()
			time.Sleep(500 * time.Millisecond)
			r.adjust(joining)
			time.Sleep(500 * time.Millisecond)
			w.Header().Set("Content-Type", "application/json")
			return json.NewEncoder(w).Encode(seen) == nil
		})
		time.Sleep(time.Minute)
		if reported := r.of(state.NodeReopened); len(reported) != 1 || reported[0].Closed != 1 || reported[0].State.Open || !s.CurrentNode().Spec.Unschedulable {
			t.Errorf("reported %+v; the node is closed: %t", reported, s.CurrentNode().Spec.Unschedulable)
		}
	})
}

// No matter who has set it: the claim on an open Node says for which events it was closed.
func TestUncordon_BeforeTheGuardIsSeenByTheClaim(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"ours": ours, "nth-queue's": strings.Replace(ours, `{`, `{"writer":"nth-queue",`, 1)} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.ChangeNode(func(n *corev1.Node) { n.Annotations[drain.CordonAnnotation] = text })
			r := start(t, s, drain.Options{}, toCordon())
			time.Sleep(time.Minute)
			if reported := r.of(state.NodeReopened); len(reported) != 1 || !reported[0].Claim.Names("event-0") || reported[0].Claim.Names(claim.Event) {
				t.Errorf("reported %+v", reported)
			}
			r.uncordonedOnce(s, 0)
		})
	}
}

func TestUncordon_BeforeTheGuardIsSeenThoughTheNodeIsOptedOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(func(n *corev1.Node) {
			n.Annotations[drain.CordonAnnotation] = strings.Replace(ours, "event-0", claim.Event, 1)
		})
		s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
		r := begin(t, s, drain.Options{})
		r.await(state.NodeOptedOut)
		time.Sleep(10 * time.Second)
		s.ChangeNode(func(n *corev1.Node) { delete(n.Annotations, drain.ActionAnnotation) })
		time.Sleep(time.Minute)
		if told := r.of(state.NodeReopened); len(told) != 1 || s.CurrentNode().Spec.Unschedulable {
			t.Errorf("told %+v; the node takes pods: %t", told, !s.CurrentNode().Spec.Unschedulable)
		}
	})
}

// The cordon was set, and nobody heard so. Then somebody lifts it.
func TestUncordon_OfACordonWhoseAnswerWasLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Answer("patch", apitest.Lost())
		r := begin(t, s, drain.Options{})
		await(t, "the cordon", func() bool { return s.CurrentNode().Spec.Unschedulable })
		s.UncordonAs("kubectl")
		time.Sleep(time.Minute)
		r.uncordonedOnce(s, 0)
	})
}

// That is about the Node before. It is reported, since the agent still has the node stay open.
func TestUncordon_EndsWithTheNode(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]bool{"at once": false, "the first attempts to cordon the new one fail": true} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			r := beginWithin(t, s, drain.Options{}, true, 30*time.Minute)
			r.await(state.NodeEmpty)
			closedAt := time.Now()
			s.UncordonAs("kubectl")
			r.await(state.NodeReopened)
			r.adjust(func(g *drain.Goal) { g.Close, g.Before = false, closedAt }) // as the agent does
			time.Sleep(time.Minute)
			s.AddPod(pod("stays"), 0)
			time.Sleep(time.Minute)
			if !s.HasPod("default/stays") || s.CurrentNode().Spec.Unschedulable {
				t.Fatal("the uncordon does not stand")
			}
			if fails {
				s.Answer("patch", apitest.Unavailable(), apitest.Unavailable())
			}
			s.RegisterNode()
			r.await(state.NodeRegistered)
			r.adjust(func(g *drain.Goal) { joining(g); g.Close, g.Before = true, time.Time{} })
			await(t, "the cordon", func() bool { return s.CurrentNode().Spec.Unschedulable })
			await(t, "the end of the pod", func() bool { return !s.HasPod("default/stays") })
			s.UncordonAs("kubectl")
			await(t, "the next uncordon", func() bool { return len(r.of(state.NodeReopened)) == 2 })
		})
	}
}

// A Node that was registered just now changes often: the first attempt to cordon it fails, and the next is one all the same.
func TestCordon_OfANewNodeIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]apitest.Answer{"changed in the meantime": apitest.Conflict(), "unavailable": apitest.Unavailable(), "refused": apitest.Forbidden("no")} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			r := drained(t, s, drain.Options{})
			s.Answer("patch", answer)
			s.RegisterNode()
			time.Sleep(time.Minute)
			if told := r.of(state.NodeReopened); len(told) != 0 || !s.CurrentNode().Spec.Unschedulable {
				t.Errorf("told %+v; the node takes pods: %t", told, !s.CurrentNode().Spec.Unschedulable)
			}
		})
	}
}
