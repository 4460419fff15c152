package drain_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/state"
)

// slowly has the server answer by itself after a while, unless the client has left by then.
func slowly(by time.Duration) apitest.Answer {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-r.Context().Done():
			return true
		case <-time.After(by):
			return false
		}
	}
}

// People want the pods left alone. That the cordon is refused, or fails, is no reason to evict them.
func TestPodsOfALimitedNodeStayThoughTheCordonFails(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]apitest.Answer{"refused": apitest.Forbidden("no cordons here"), "failing": apitest.Unavailable()} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			s.ChangeNode(asking(drain.ActionAnnotation, drain.OnlyCordon))
			s.Always("patch", answer)
			beginWithin(t, s, drain.Options{}, true, 2*time.Minute)
			time.Sleep(time.Minute)
			if n := count(s, "evict", "delete"); n != 0 {
				t.Errorf("%d evictions and deletions on a node with %s=%s", n, drain.ActionAnnotation, drain.OnlyCordon)
			}
		})
	}
}

// The annotation is taken away, and the cordon is refused. The machine is lost all the same.
func TestPodsGoOnceTheLimitIsTakenAwayThoughTheCordonIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		s.ChangeNode(asking(drain.ActionAnnotation, drain.LeaveNode))
		s.Always("patch", apitest.Forbidden("no cordons here"))
		r := beginWithin(t, s, drain.Options{}, true, 2*time.Minute)
		r.leave()
		s.ChangeNode(func(n *corev1.Node) { delete(n.Annotations, drain.ActionAnnotation) })
		time.Sleep(time.Minute)
		if n := count(s, "evict", "delete"); n == 0 || r.guard.Result().Limited {
			t.Errorf("%d evictions, %+v; the last that was told is %+v", n, r.guard.Result(), r.last())
		}
	})
}

// nth was restarted, and the API server does not answer when it asks for the Node. People's last word was to leave the pods alone.
func TestPodsThatWereLeftAloneStayUntilALookShowsOtherwise(t *testing.T) {
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
		if n := count(s, "evict", "delete"); n != 0 {
			t.Errorf("%d evictions and deletions before the Node could be looked at", n)
		}
		return r
	}
	run(t, "and go if it is so no more", func(t *testing.T) {
		s := apitest.New(t)
		r := limited(t, s, func(*corev1.Node) {})
		s.Always("get node", nil)
		r.succeed()
	})
	run(t, "and stay if it is so still", func(t *testing.T) {
		s := apitest.New(t)
		r := limited(t, s, asking(drain.ActionAnnotation, drain.OnlyCordon))
		s.Always("get node", nil)
		r.leave()
		time.Sleep(2 * time.Minute)
		if n := count(s, "evict", "delete"); n != 0 {
			t.Errorf("%d evictions and deletions on a node with %s=%s", n, drain.ActionAnnotation, drain.OnlyCordon)
		}
	})
	run(t, "and go if the Node is gone", func(t *testing.T) {
		s := apitest.New(t)
		r := limited(t, s, func(*corev1.Node) {})
		s.Always("get node", nil)
		s.RemoveNode()
		r.await(state.PodGone, "default/a")
	})
}

// A look that fails tells nothing. Without a hard deadline there is time for another.
func TestOneFailedLookIsNoReasonToEvictFromANodeThatPeopleHaveOpened(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		drained(t, s, drain.Options{})
		s.UncordonAs("kubectl")
		s.Answer("get", apitest.Unavailable())
		s.AddPod(pod("new"), 0)
		time.Sleep(time.Minute)
		if n := count(s, "evict"); n != 0 || !s.HasPod("default/new") {
			t.Errorf("%d evictions from a node that somebody has uncordoned", n)
		}
	})
}

// The node is opened, and a pod comes, while the answer of a look is on its way.
func TestALookThatBeganBeforeAPodCameSaysNothingOfIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		s.Answer("get node", func(w http.ResponseWriter, _ *http.Request) bool {
			seen := s.CurrentNode()
			s.UncordonAs("kubectl")
			s.AddPod(pod("new"), 0)
			time.Sleep(time.Second)
			w.Header().Set("Content-Type", "application/json")
			return json.NewEncoder(w).Encode(seen) == nil
		})
		r.await(state.NodeReopened)
		time.Sleep(time.Minute)
		if n := count(s, "evict"); n != 0 || !s.HasPod("default/new") {
			t.Errorf("%d evictions from a node that somebody has uncordoned", n)
		}
	})
}

// The last list may come from another API server, which has not heard of the annotation yet.
func TestAnOldListDoesNotOverruleWhatPeopleWantOfAPod(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		free := addHeld(s, pod("a"))
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld)
		time.Sleep(10 * time.Second)
		free()
		// In between no eviction is asked for: the next is, at the latest, in three seconds.
		s.Always("list", func(http.ResponseWriter, *http.Request) bool { s.SetLag(0, 2*time.Second); return false })
		s.ChangePod("default/a", annotated(evict.Annotation, evict.Never))
		time.Sleep(time.Minute)
		if !s.HasPod("default/a") || count(s, "list") < 2 {
			t.Errorf("a pod that is never to be evicted is gone; told: %+v", r.told)
		}
	})
}

// nth and nth-queue hear of the same interruption at the same time.
func TestACordonThatComesInBetweenIsNotOverwritten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		other := claim
		other.Writer = drain.Queue
		text, _ := json.Marshal(other)
		s.Answer("patch", func(http.ResponseWriter, *http.Request) bool {
			s.ChangeNode(func(n *corev1.Node) {
				n.Spec.Unschedulable = true
				n.Annotations[drain.CordonAnnotation] = string(text)
			}, drain.Queue)
			return false
		})
		r := begin(t, s, drain.Options{})
		r.succeed()
		if is := s.CurrentNode().Annotations[drain.CordonAnnotation]; is != string(text) {
			t.Errorf("the claim of nth-queue %s was replaced by %s", text, is)
		}
	})
}

// Docs/node-contract.md says of the annotation: remove it to make the cordon yours, and nth will then never lift it.
func TestACordonThatPeopleMakeTheirsInBetweenIsNotLifted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		r.cancel()
		<-r.done
		s.Answer("patch", func(http.ResponseWriter, *http.Request) bool {
			s.ChangeNode(func(n *corev1.Node) { delete(n.Annotations, drain.CordonAnnotation) }, "kubectl")
			return false
		})
		result, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(t.Context(), nil)
		if !s.CurrentNode().Spec.Unschedulable {
			t.Errorf("a cordon without our annotation was lifted: %s, %v", result, err)
		}
	})
}

// Each goal has all pods judged again, as they are by then.
func TestWhatPeopleWantOfAPodStandsUnderTheNextGoal(t *testing.T) {
	t.Parallel()
	for name, others := range map[string]bool{"while others are left": true, "once the node is drained": false} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			free := addHeld(s, pod("a"))
			if others {
				addHeld(s, pod("b"))
			}
			r := begin(t, s, drain.Options{})
			r.await(state.PodHeld, "default/a")
			s.ChangePod("default/a", annotated(evict.Annotation, evict.Never))
			if await(t, "that it is counted as one that stays", func() bool { return r.guard.Result().Skipped == 1 }); !others {
				r.succeed()
			}
			free()
			asked := count(s, "evict default/a")
			r.adjust(func(g *drain.Goal) { g.Hard = time.Now().Add(time.Minute) })
			time.Sleep(2 * time.Minute)
			if n := count(s, "evict default/a", "delete default/a") - asked; n != 0 || !s.HasPod("default/a") {
				t.Errorf("%d evictions and deletions of a pod that is never to be evicted", n)
			}
		})
	}
}

func TestAPodThatIsNoLongerToStayIsCountedAsOneThatGoes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		addHeld(s, pod("a", annotated(evict.Annotation, evict.Never)))
		r := drained(t, s, drain.Options{})
		if r.result.Skipped != 1 {
			t.Errorf("the result is %+v", r.result)
		}
		s.ChangePod("default/a", func(p *corev1.Pod) { p.Annotations = nil })
		r.await(state.PodHeld)
		if result := r.guard.Result(); result.Skipped != 0 || len(result.Left) != 1 {
			t.Errorf("the result is %+v", result)
		}
	})
}

// It was made before the cordon, and bound late. Only what came since the node was opened is meant to be there.
func TestAPodThatCameToTheClosedNodeGoesThoughTheNodeIsOpenedLater(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		late := pod("late")
		late.CreationTimestamp = s.Now()
		time.Sleep(10 * time.Second)
		r := drained(t, s, drain.Options{})
		time.Sleep(10 * time.Second)
		free := addHeld(s, late)
		r.await(state.PodHeld)
		time.Sleep(10 * time.Second)
		s.UncordonAs("kubectl")
		r.await(state.NodeReopened)
		free()
		r.await(state.PodGone, "default/late")
		if result := r.guard.Result(); result.Evicted != 1 || result.Skipped != 0 {
			t.Errorf("the result is %+v", result)
		}
	})
}

// Somebody else had closed it, so that the cordon says nothing of when pods came.
func TestAPodThatComesToANodeThatPeopleHaveOpenedStaysWhateverBecomesOfIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.CordonAs("kubectl")
		free := addHeld(s, pod("held"))
		r := beginWithin(t, s, drain.Options{}, false, 0)
		r.await(state.PodHeld)
		s.UncordonAs("kubectl")
		r.await(state.NodeReopened)
		s.AddPod(pod("fresh"), 0)
		time.Sleep(time.Minute)
		s.ChangePod("default/fresh", annotated("changed", "true"))
		time.Sleep(time.Minute)
		free()
		if result := r.succeed(); count(s, "evict default/fresh") != 0 || result.Evicted != 1 || result.Skipped != 1 {
			t.Errorf("the result is %+v after %d evictions of the pod that came", result, count(s, "evict default/fresh"))
		}
	})
}

// The order is on record by the machine's clock.
func TestAPodFromBeforeTheCordonGoesThoughTheClocksDifferAndNthWasRestartedAfterTheOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.SetSkew(5 * time.Minute)
		free := addHeld(s, pod("old"))
		time.Sleep(time.Minute)
		goal := goalWithin(true, 10*time.Minute)
		r := start(t, s, drain.Options{}, goal)
		r.await(state.PodHeld)
		time.Sleep(time.Minute)
		s.UncordonAs("kubectl")
		r.await(state.NodeReopened)
		r.cancel()
		<-r.done
		free()
		goal.Before, goal.Close, goal.NodeSeen = goal.Claim.Since, false, true
		start(t, s, drain.Options{}, goal)
		time.Sleep(5 * time.Minute)
		if s.HasPod("default/old") {
			t.Error("the pod that was there before the cordon is left to die with the machine")
		}
	})
}

// The API server remembers one time for each writer. Here the process after this one knows the order by the Node alone.
func TestPodsThatCameToANodeThatPeopleOpenedStayThoughOurLabelWasTakenOffAfterThat(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
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
		r.cancel()
		<-r.done
		time.Sleep(time.Minute)
		goal.NodeSeen = true
		start(t, s, opts, goal)
		time.Sleep(10 * time.Minute)
		if !s.HasPod("default/new") {
			t.Errorf("a pod that came to the node after people had opened it was evicted by the next process; the node is closed: %t", s.CurrentNode().Spec.Unschedulable)
		}
	})
}

// CleanToBeDeleted takes the taint off and makes the node schedulable in one update.
func TestAClusterAutoscalerThatGivesUpDoesNotOpenANodeThatIsInterrupted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
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
			t.Errorf("20 s before the machine is lost, the node is closed: %t, and has %d pods; told %+v", s.CurrentNode().Spec.Unschedulable, left, r.of(state.NodeReopened))
		}
	})
}

// Some API servers that stand in for others leave managedFields out.
func TestACordonThatPeopleSetAfterTheGuardSawThemLiftOursIsNotLiftedWithoutManagedFields(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		s.ChangeNode(func(n *corev1.Node) { n.Spec.Unschedulable, n.ManagedFields = false, nil })
		r.await(state.NodeReopened)
		s.ChangeNode(func(n *corev1.Node) { n.Spec.Unschedulable, n.ManagedFields = true, nil })
		time.Sleep(time.Minute)
		r.cancel()
		<-r.done
		result, err := drain.New(s.Client(), apitest.Node, drain.Options{}).Uncordon(t.Context(), nil)
		if !s.CurrentNode().Spec.Unschedulable {
			t.Errorf("people's cordon was lifted with %q, %v", result, err)
		}
	})
}
