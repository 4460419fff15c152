package drain_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

func TestUncordoned_Pods(t *testing.T) {
	t.Parallel()
	// A drain that is begun again, after a restart say, finds the claim of its own event on a node that takes pods: somebody has
	// lifted that cordon.
	run(t, "before this process began", func(t *testing.T, s *apitest.Server) {
		created := s.Now()
		s.AddPod(pod("old"), 0)
		time.Sleep(time.Minute)
		s.ChangeNode(func(n *corev1.Node) {
			n.Annotations[drain.CordonAnnotation] = strings.Replace(ours, "event-0", claim.Event, 1)
		}, drain.Host)
		time.Sleep(time.Minute)
		s.AddPod(pod("new"), 0)
		s.AddPod(pod("waited", func(p *corev1.Pod) {
			p.CreationTimestamp = created
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: s.Now()}}
		}), 0)
		goal := goalWithin(false, plenty)
		r := start(t, s, drain.Options{}, goal)
		r.succeed()
		if s.HasPod("default/old") || !s.HasPod("default/new") || !s.HasPod("default/waited") || r.result.Cordon != drain.Uncordoned || count(s, "patch") != 0 {
			t.Errorf("the result is %+v after %d patches", r.result, count(s, "patch"))
		}
		r.reported(1, state.NodeUncordoned)
	})
	// The API server remembers one time for each writer. Here the process after this one knows of the uncordon by the Node alone.
	run(t, "stay after our label is taken off", func(t *testing.T, s *apitest.Server) {
		opts := drain.Options{ExcludeFromLoadBalancers: true}
		goal := goalWithin(false, plenty)
		r := start(t, s, opts, goal)
		r.await(state.NodeExcluded)
		time.Sleep(61 * time.Second)
		s.UncordonAs("kubectl")
		s.AddPod(pod("new", grace(1)), 0)
		await(t, "the label is off", func() bool { return s.CurrentNode().Labels[drain.ExcludeLabel] == "" })
		if !s.HasPod("default/new") {
			t.Fatal("the first guard has evicted it")
		}
		r.stop()
		time.Sleep(time.Minute)
		goal.NodeSeen = true
		start(t, s, opts, goal)
		time.Sleep(10 * time.Minute)
		if !s.HasPod("default/new") {
			t.Errorf("a pod that came to the node after operators had opened it was evicted by the next process; the node is closed: %t", s.CurrentNode().Spec.Unschedulable)
		}
	})
	// CleanToBeDeleted takes the taint off and makes the node schedulable in one update.
	run(t, "go where Cluster Autoscaler gave up", func(t *testing.T, s *apitest.Server) {
		taint := corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Value: "1", Effect: corev1.TaintEffectNoSchedule}
		s.ChangeNode(func(n *corev1.Node) { n.Spec.Taints, n.Spec.Unschedulable = []corev1.Taint{taint}, true }, "cluster-autoscaler")
		s.AddPod(pod("a", grace(60)), apitest.Ending(50*time.Second))
		r := beginWithin(t, s, drain.Options{}, true, 2*time.Minute)
		time.Sleep(10 * time.Second)
		s.ChangeNode(func(n *corev1.Node) { n.Spec.Taints, n.Spec.Unschedulable = nil, false }, "cluster-autoscaler")
		s.AddReplicaSet(apitest.Workload{Name: "web", Pods: 3, Ending: 0}) // before nth could close it again
		time.Sleep(90 * time.Second)
		left := 0
		for _, p := range s.Pods() {
			if p.Spec.NodeName == apitest.Node {
				left++
			}
		}
		if !s.CurrentNode().Spec.Unschedulable || left > 0 {
			t.Errorf("20 s before the machine is lost, the node is closed: %t, and has %d pods; reported %+v", s.CurrentNode().Spec.Unschedulable, left, r.of(state.NodeUncordoned))
		}
	})
	// Whose cordon that was, and when it was set, nobody knows.
	run(t, "that come as others uncordon stay", func(t *testing.T, s *apitest.Server) {
		s.CordonAs("kubectl")
		addHeld(s, pod("old"))
		s.Answer("get node", slowly(time.Second)) // The pod is met before it, and waits for it.
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld, "default/old")
		s.Answer("get node", slowly(time.Second))
		s.UncordonAs("kubectl")
		s.AddPod(pod("new"), 0)
		r.await(state.NodeUncordoned)
		s.Answer("watch", apitest.Expired())
		s.DropWatches()
		time.Sleep(5 * time.Second) // All pods have been listed again.
		s.ChangePod("default/new", annotated("example.com/note", "changed"))
		time.Sleep(time.Minute)
		if !s.HasPod("default/new") || len(s.Requests("evict default/new")) != 0 {
			t.Errorf("the pod was asked to go: %+v", r.task.Result())
		}
		if result := r.task.Result(); result.Skipped != 1 || !slices.Equal(result.Left, []string{"default/old"}) {
			t.Errorf("the result is %+v", result)
		}
	})
}

// By the API server's clock. It is bound once, and later made Ready and unready.
func TestUncordoned_PodsThatCameSinceStay(t *testing.T) {
	t.Parallel()
	opened := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	before, since := metav1.NewTime(opened.Add(-time.Hour)), metav1.NewTime(opened.Add(time.Hour))
	for name, c := range map[string]struct {
		created   metav1.Time
		condition corev1.PodCondition
		stays     bool
	}{
		"created before":                                 {created: before},
		"created at the same time":                       {created: metav1.NewTime(opened)},
		"created since":                                  {created: since, stays: true},
		"created before, bound before":                   {before, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: before}, false},
		"created before, bound since":                    {before, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: since}, true},
		"created since, bound by a clock that is behind": {since, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: before}, true},
		"created before, said since not to be bound yet": {before, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, LastTransitionTime: since}, false},
		"created before, Ready since":                    {before, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: since}, false},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.AddPod(pod("a", func(p *corev1.Pod) {
				p.CreationTimestamp = c.created
				if c.condition.Type != "" {
					p.Status.Conditions = []corev1.PodCondition{c.condition}
				}
			}), 0)
			goal := goalWithin(false, plenty)
			goal.Before, goal.Cordon = opened, false
			result := start(t, s, drain.Options{}, goal).succeed()
			if s.HasPod("default/a") != c.stays || (result.Skipped == 1) != c.stays {
				t.Errorf("it is there: %t; the result is %+v", s.HasPod("default/a"), result)
			}
		})
	}
}

// uncordonedOnce fails unless one uncordon was reported, of a node that stays open until the next generation, which it begins.
func (r *trial) uncordonedOnce(s *apitest.Server) {
	r.t.Helper()
	reported := r.of(state.NodeUncordoned)
	if len(reported) != 1 || s.CurrentNode().Spec.Unschedulable {
		r.t.Errorf("reported %+v; the node is closed: %t", reported, s.CurrentNode().Spec.Unschedulable)
	}
	r.adjust(joining)
	await(r.t, "the cordon of the next generation", func() bool { return s.CurrentNode().Spec.Unschedulable })
	if reported := r.of(state.NodeUncordoned); len(reported) != 1 {
		r.t.Errorf("reported again: %+v", reported)
	}
}

func TestUncordoned_ConcernsTheGenerationsBefore(t *testing.T) {
	t.Parallel()
	for name, uncordons := range map[string]func(*apitest.Server, *trial){
		"seen in the same generation": func(s *apitest.Server, _ *trial) { s.UncordonAs("kubectl") },
		"a generation begins before the next look": func(s *apitest.Server, r *trial) {
			s.UncordonAs("kubectl")
			r.adjust(joining)
		},
		"with its claim": func(s *apitest.Server, _ *trial) {
			s.ChangeNode(func(n *corev1.Node) { uncordoned(n); delete(n.Annotations, drain.CordonAnnotation) }, "kubectl")
		},
		// The look that sees it began before the generation did. Which events it concerns, the agent knows, so it stands until the next one.
		"seen by a look of the generation before": func(s *apitest.Server, r *trial) {
			s.Answer("get node", func(w http.ResponseWriter, _ *http.Request) bool {
				s.UncordonAs("kubectl")
				seen := s.CurrentNode()
				time.Sleep(500 * time.Millisecond)
				r.adjust(joining)
				time.Sleep(500 * time.Millisecond)
				w.Header().Set("Content-Type", "application/json")
				return json.NewEncoder(w).Encode(seen) == nil
			})
		},
	} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			r := drained(t, s, drain.Options{})
			time.Sleep(10 * time.Second)
			uncordons(s, r)
			time.Sleep(time.Minute)
			r.uncordonedOnce(s)
		})
	}
}

// No matter who has set it: the claim on an open Node says for which events it was closed.
func TestUncordoned_BeforeTheGuard(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"ours": ours, "nth-queue's": strings.Replace(ours, `{`, `{"writer":"nth-queue",`, 1)} {
		run(t, name, func(t *testing.T, s *apitest.Server) {
			s.ChangeNode(func(n *corev1.Node) { n.Annotations[drain.CordonAnnotation] = text })
			r := start(t, s, drain.Options{}, toCordon())
			time.Sleep(time.Minute)
			if reported := r.of(state.NodeUncordoned); len(reported) != 1 || !reported[0].Claim.Names("event-0") || reported[0].Claim.Names(claim.Event) {
				t.Errorf("reported %+v", reported)
			}
			r.uncordonedOnce(s)
		})
	}
}
