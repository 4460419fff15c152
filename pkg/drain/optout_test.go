package drain_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/state"
)

func asking(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[key] = value
	}
}

func TestTheNodesAnnotationLimitsWhatIsDoneToIt(t *testing.T) {
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
		run(t, action, func(t *testing.T) {
			s := apitest.New(t)
			s.ChangeNode(asking(drain.ActionAnnotation, action))
			s.AddPod(pod("a"), 0)
			r := begin(t, s, drain.Options{})
			if want.evictions == 0 {
				r.result = r.leave()
				time.Sleep(time.Minute)
				if len(r.of(state.NodeEmpty)) > 0 {
					t.Errorf("it is said to be drained: %+v", r.told)
				}
			} else {
				r.succeed()
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

func TestAPodThatAsksForItIsNeverEvictedAndNotWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", annotated(evict.Annotation, evict.Never)), 0)
		s.AddPod(pod("b"), 0)
		r := drained(t, s, drain.Options{})
		if r.result.Evicted != 1 || r.result.Skipped != 1 || !s.HasPod("default/a") {
			t.Errorf("the result is %+v", r.result)
		}
	})
}

func TestAPodThatAsksForItRunsUntilTheDeadlineNeedsItGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("late", grace(1), annotated(evict.Annotation, evict.AtDeadline)), 0)
		s.AddPod(pod("b"), 0)
		r := beginWithin(t, s, drain.Options{}, true, 5*time.Second)
		if result := r.succeed(); result.Evicted != 2 {
			t.Errorf("the result is %+v", result)
		}
		if gone := r.of(state.PodGone); len(gone) != 2 || gone[1].Pod != "default/late" {
			t.Errorf("gone are %+v", gone)
		}
	})
}

func TestWithoutADeadlineAPodThatWaitsForOneIsLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("late", annotated(evict.Annotation, evict.AtDeadline)), 0)
		result := beginWithin(t, s, drain.Options{}, false, 0).succeed()
		if result.Skipped != 1 || count(s, "evict") != 0 {
			t.Errorf("the result is %+v", result)
		}
	})
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[key] = value
	}
}

// Somebody uncordons the node in the midst of a drain: what comes to it then was meant to, or the two would go on for
// ever.
func TestPodsThatComeToANodeThatSomebodyHasUncordonedAreLeftThere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		free := addHeld(s, pod("held"))
		r := begin(t, s, drain.Options{})
		r.await(state.PodHeld, "default/held")
		time.Sleep(1500 * time.Millisecond) // a pod that a scheduler had bound before it heard of the cordon comes sooner
		s.ChangeNode(func(n *corev1.Node) { n.Spec.Unschedulable = false })
		s.AddPod(pod("new"), 0)
		free()
		result := r.succeed()
		if result.Evicted != 1 || !s.HasPod("default/new") || count(s, "evict default/new") != 0 {
			t.Errorf("the result is %+v, told %+v", result, r.told)
		}
	})
}

// A drain that is begun anew, after a restart say, finds the claim of its own event on a node that takes pods: somebody has
// lifted that cordon.
func TestADrainThatIsBegunAnewDoesNotCordonANodeAgainThatSomebodyHasUncordoned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(func(n *corev1.Node) {
			n.Annotations[drain.CordonAnnotation] = strings.Replace(ours, "event-0", claim.Event, 1)
		})
		at := func(year int) func(*corev1.Pod) {
			return func(p *corev1.Pod) { p.CreationTimestamp = metav1.Date(year, 1, 3, 0, 0, 0, 0, time.UTC) }
		}
		s.AddPod(pod("old", at(2025)), 0)
		s.AddPod(pod("new", at(2026)), 0)
		s.AddPod(pod("waited", at(2025), func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC),
			}}
		}), 0)
		goal := goalWithin(false, plenty)
		r := start(t, s, drain.Options{}, goal)
		r.succeed()
		if s.HasPod("default/old") || !s.HasPod("default/new") || !s.HasPod("default/waited") || r.result.Cordon != drain.CordonLifted || count(s, "patch") != 0 {
			t.Errorf("the result is %+v after %d patches", r.result, count(s, "patch"))
		}
		if told := r.of(state.NodeReopened); len(told) != 1 {
			t.Errorf("told %+v", told)
		}
	})
}

// By the API server's clock. It is bound once, and later made Ready and unready.
func TestOfThePodsOnANodeThatWasOpenedThoseStayThatCameSince(t *testing.T) {
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
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", func(p *corev1.Pod) {
				p.CreationTimestamp = c.created
				if c.condition.Type != "" {
					p.Status.Conditions = []corev1.PodCondition{c.condition}
				}
			}), 0)
			goal := goalWithin(false, plenty)
			goal.Before, goal.Close = opened, false
			result := start(t, s, drain.Options{}, goal).succeed()
			if s.HasPod("default/a") != c.stays || (result.Skipped == 1) != c.stays {
				t.Errorf("it is there: %t; the result is %+v", s.HasPod("default/a"), result)
			}
		})
	}
}

func TestADryRunLeavesPodsThatCameSinceSomebodyHasUncordonedTheNode(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"as the goal knows": true, "as a claim on the open node shows": false} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("old"), 0)
			time.Sleep(10 * time.Second)
			goal := goalWithin(false, plenty)
			if known {
				goal.Before, goal.Close = time.Now(), false
			} else {
				onlyCordon := goal
				onlyCordon.Evict = false
				r := start(t, s, drain.Options{}, onlyCordon)
				r.await(state.NodeClosed)
				r.cancel()
				<-r.done
				s.UncordonAs("kubectl")
			}
			time.Sleep(10 * time.Second)
			s.AddPod(pod("new"), 0)
			r := watchOver(t, drain.NewDryRun(drain.New(s.Client(), apitest.Node, drain.Options{})), goal)
			r.await(state.NodeReopened)
			r.adjust(func(g *drain.Goal) { g.Close = false }) // as the agent does
			if result := r.succeed(); result.Evicted != 1 || result.Skipped != 1 || len(r.of(state.PodEvicted, "default/old")) != 1 {
				t.Errorf("the result is %+v; told is %+v", result, r.of(state.PodEvicted))
			}
		})
	}
}

// A load balancer in front of the API server answers so while its backend moves.
func TestAProxysPageIsNotTakenForTheEndOfTheNode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		goal  func(*drain.Goal)
		looks int // that were answered before
	}{
		"at the first look":                 {func(*drain.Goal) {}, 0},
		"at the first look after a restart": {func(g *drain.Goal) { g.NodeSeen = true }, 0},
		"later":                             {func(*drain.Goal) {}, 1},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.ChangeNode(asking(drain.ActionAnnotation, drain.OnlyCordon))
			s.AddPod(pod("a"), 0)
			goal := goalWithin(true, plenty)
			c.goal(&goal)
			if c.looks == 0 {
				s.Answer("get node", apitest.Page(http.StatusNotFound), apitest.Page(http.StatusNotFound))
			}
			r := start(t, s, drain.Options{}, goal)
			if c.looks > 0 {
				r.leave()
				s.Answer("get node", apitest.Page(http.StatusNotFound))
			}
			time.Sleep(time.Minute)
			if !s.HasPod("default/a") || len(r.of(state.NodeMissing)) > 0 || r.guard.Result().Cordon != drain.CordonSet {
				t.Errorf("a pod that people want left alone is there: %t; told %+v, and the result is %+v", s.HasPod("default/a"), r.told, r.guard.Result())
			}
		})
	}
}
