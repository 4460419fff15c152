package drain_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// Who lifts the cordon knows nothing of an event that comes before the guard has looked again.
func TestAnOrderToOpenTheNodeIsNoneForAnEventThatCameAfterIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := begin(t, s, drain.Options{})
		r.succeed()
		time.Sleep(10 * time.Second)
		s.ChangeNode(func(n *corev1.Node) { n.Spec.Unschedulable = false })
		r.adjust(func(g *drain.Goal) {
			g.Events, g.Unclosed = append(slices.Clone(g.Events), "another"), []string{"another"}
			g.Claim.Event = "another"
		})
		time.Sleep(10 * time.Second)
		told := r.of(state.NodeReopened)
		if !s.CurrentNode().Spec.Unschedulable || len(told) != 1 || !slices.Equal(told[0].Events, []string{claim.Event}) {
			t.Errorf("the node takes pods: %t; told are %+v", !s.CurrentNode().Spec.Unschedulable, told)
		}
		s.ChangeNode(func(n *corev1.Node) { n.Spec.Unschedulable = false })
		time.Sleep(10 * time.Second)
		if s.CurrentNode().Spec.Unschedulable || len(r.of(state.NodeReopened)) != 2 {
			t.Errorf("the order is not heard; told are %+v", r.of(state.NodeReopened))
		}
	})
}

// An event is withdrawn, and comes back under the same ID before the guard has looked again.
func TestAnOrderToOpenTheNodeIsNoneForAnEventThatWasGoneThen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		goal := goalWithin(false, plenty)
		joining(&goal)
		r := start(t, s, drain.Options{}, goal)
		r.succeed()
		time.Sleep(9 * time.Second)
		r.adjust(func(g *drain.Goal) { g.Events = []string{claim.Event} })
		time.Sleep(time.Millisecond) // Of two changes at once, only the last is taken over.
		s.ChangeNode(func(n *corev1.Node) { n.Spec.Unschedulable = false; delete(n.Annotations, drain.CordonAnnotation) })
		r.adjust(joining)
		time.Sleep(10 * time.Second)
		told := r.of(state.NodeReopened)
		if !s.CurrentNode().Spec.Unschedulable || len(told) != 1 || !slices.Equal(told[0].Events, []string{claim.Event}) {
			t.Errorf("the node takes pods: %t; told are %+v", !s.CurrentNode().Spec.Unschedulable, told)
		}
	})
}

// What is known of the events says of a cordon that is gone for which of them it stood, whoever had set it.
func TestACordonThatWasLiftedBeforeTheGuardBeganIsAnOrderForThoseThatTheNodeWasClosedFor(t *testing.T) {
	t.Parallel()
	byQueue := strings.Replace(ours, `{`, `{"writer":"nth-queue",`, 1)
	for name, c := range map[string]struct {
		claim    string
		unclosed []string
		order    bool
	}{
		"for all":                        {ours, nil, true},
		"not for one that came after it": {ours, []string{claim.Event}, false},
		"also nth-queue's cordon":        {byQueue, nil, true},
		"and nth-queue's is none for an event that it does not name": {byQueue, []string{claim.Event}, false},
		"none is known where there was no claim":                     {"", nil, false},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			if c.claim != "" {
				s.ChangeNode(func(n *corev1.Node) { n.Annotations[drain.CordonAnnotation] = c.claim })
			}
			goal := toCordon()
			goal.Unclosed = c.unclosed
			r := start(t, s, drain.Options{}, goal)
			if r.looked(); s.CurrentNode().Spec.Unschedulable == c.order || len(r.of(state.NodeReopened)) > 0 != c.order {
				t.Errorf("the node takes pods: %t; told are %+v", !s.CurrentNode().Spec.Unschedulable, r.of(state.NodeReopened))
			}
		})
	}
}

// joining has another event join, for which the node was not closed yet.
func joining(g *drain.Goal) {
	g.Events, g.Unclosed, g.Claim.Event = append(g.Events, "event-2"), []string{"event-2"}, "event-2"
}

// A Node that was registered just now changes often: the first attempt to cordon it fails, and the next is one all the same.
func TestANodeThatRegistersAnewIsCordonedAgainThoughTheFirstAttemptFails(t *testing.T) {
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

// People lift the cordon, and another event joins. The cordon for that one is set, but nobody hears so.
func TestAnOrderIsHeardThoughTheAnswerToTheNextCordonIsLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{})
		s.Answer("patch", apitest.Lost())
		s.UncordonAs("kubectl")
		r.adjust(joining)
		time.Sleep(time.Minute)
		if told := r.of(state.NodeReopened); len(told) != 1 || !slices.Equal(told[0].Events, []string{claim.Event}) {
			t.Errorf("told %+v", told)
		}
	})
}

// The look that sees the order began before the event joined.
func TestAnOrderIsHeardThoughAnEventJoinsWhileTheLookIsUnderWay(t *testing.T) {
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
		if told := r.of(state.NodeReopened); len(told) != 1 || !slices.Equal(told[0].Events, []string{claim.Event}) || !s.CurrentNode().Spec.Unschedulable {
			t.Errorf("told %+v; the node takes pods: %t", told, !s.CurrentNode().Spec.Unschedulable)
		}
	})
}

// The claim on the open Node is an order for its event, which nobody hears: the guard sees only that the node is to be left alone, and
// at the looks that follow it does not ask the claim any more.
func TestACordonThatWasLiftedBeforeTheGuardBeganIsAnOrderThoughTheNodeIsLeftAlone(t *testing.T) {
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

// The claim on the open Node is an order for the event that it names. For another one the node is closed, and the claim written anew.
func TestACordonThatWasLiftedBeforeTheGuardBeganIsAnOrderForSomeOfItsEvents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.ChangeNode(func(n *corev1.Node) {
			n.Annotations[drain.CordonAnnotation] = strings.Replace(ours, "event-0", claim.Event, 1)
		})
		goal := goalWithin(false, plenty)
		joining(&goal)
		r := start(t, s, drain.Options{}, goal)
		time.Sleep(time.Minute)
		if told := r.of(state.NodeReopened); len(told) != 1 || !slices.Equal(told[0].Events, []string{claim.Event}) || !s.CurrentNode().Spec.Unschedulable {
			t.Errorf("told %+v; the node takes pods: %t", told, !s.CurrentNode().Spec.Unschedulable)
		}
	})
}

// The process that has closed the node again for another event may have ended before it noted for which that was no word.
func TestAnOrderIsHeardThoughTheProcessThatSawItHasEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		anew  []string
		again bool // one more process begins, which does not know that the event is back
		want  []string
	}{
		"by the next one": {nil, false, []string{claim.Event}},
		"but not for an event that has come back since":        {[]string{claim.Event}, false, nil},
		"nor by a process that begins when that is closed for": {[]string{claim.Event}, true, nil},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			goal := goalWithin(false, plenty)
			s.ChangeNode(func(n *corev1.Node) {
				n.Annotations[drain.CordonAnnotation] = strings.Replace(ours, "event-0", claim.Event, 1)
			})
			joining(&goal)
			first := start(t, s, drain.Options{}, goal)
			time.Sleep(10 * time.Second)
			first.cancel()
			<-first.done
			goal.Unclosed, goal.Anew = nil, c.anew
			r := start(t, s, drain.Options{}, goal)
			time.Sleep(10 * time.Second)
			if c.again {
				r.cancel()
				<-r.done
				goal.Anew = nil
				r = start(t, s, drain.Options{}, goal)
				time.Sleep(10 * time.Second)
			}
			var got []string
			for _, told := range r.of(state.NodeReopened) {
				got = append(got, told.Events...)
			}
			if !slices.Equal(got, c.want) || !s.CurrentNode().Spec.Unschedulable {
				t.Errorf("told of %q, want %q; the node takes pods: %t", got, c.want, !s.CurrentNode().Spec.Unschedulable)
			}
		})
	}
}
