package crash_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/test/internal/lab"
)

// A round is one life of a spot notice on a lane.
type round struct {
	*lane
	plan   plan
	number int
	// pods have to go, and late is one that comes when the node is drained.
	pods []string
	late string
	// drainedAt is when the drain was over, and the late pod gone.
	drainedAt time.Time
}

// play plays a round. The first requirement that is not met ends it.
func (l *lane) play(t *testing.T, number int, plan plan) {
	t.Logf("the plan: %+v", plan)
	r := &round{lane: l, plan: plan, number: number, late: fmt.Sprintf("late-%d", number)}
	r.populate(t)
	l.observe(t)
	l.due = time.Now().Add(time.Hour + time.Duration(number)*time.Minute).Truncate(time.Second) // no two notices are alike
	if plan.early {
		l.imds.SetSpot("terminate", l.due)
	}
	if l.nth == nil {
		l.start(t)
	}
	if !plan.early {
		l.imds.SetSpot("terminate", l.due)
	}

	l.pass(t, "the drain", plan.drain, plan.broken, func() bool { return l.phase(t) == state.Drained })
	r.mustBeDrained(t)

	l.node.AddLatePod(t, r.late)
	l.pass(t, "the rest", plan.rest, plan.brokenLater, func() bool { return r.seen(lab.PodGone, r.late) == 1 })
	l.pass(t, "some more looks", nil, trouble{}, l.hasLooked(3))
	r.mustRest(t)

	l.imds.ClearSpot()
	l.pass(t, "the withdrawal", plan.withdraw, trouble{}, func() bool { return l.phase(t) == state.Closed })
	l.end(t)
	r.mustBeUndone(t)
	l.node.Uncordon(t) // as the one who had cordoned it
}

// populate puts pods on the node: some that go at once and some that take their time.
func (r *round) populate(t *testing.T) {
	t.Helper()
	quick, slow := fmt.Sprintf("quick-%d", r.number), fmt.Sprintf("slow-%d", r.number)
	r.node.AddPods(t, quick, 3)
	r.node.AddPods(t, slow, 2, lab.Grace(time.Second), lab.GoesAtGrace())
	r.pods = []string{quick + "-0", quick + "-1", quick + "-2", slow + "-0", slow + "-1"}
	if r.plan.foreign {
		r.node.Cordon(t)
	}
}

// mustBeDrained judges the node when nth says on disk that it is drained.
func (r *round) mustBeDrained(t *testing.T) {
	t.Helper()
	r.node.WaitCordoned(t)
	for _, pod := range r.node.Pods(t) {
		if slices.Contains(r.pods, pod.Name) {
			t.Fatalf("pod %s is on the node, which nth says is drained", pod.Name)
		}
	}
	for _, pod := range r.pods {
		r.waitFor(t, pod+" to be seen to go", func() bool { return r.seen(lab.PodGone, pod) == 1 })
		if times := r.seen(lab.PodTerminating, pod); times > 1 {
			t.Fatalf("pod %s was terminated %d times", pod, times)
		}
		// An eviction that was under way when nth was killed may be asked for again, and changes nothing then.
		if times := r.saidToRemove(pod); times > 1 {
			t.Errorf("nth removed pod %s %d times, by its own words, want once", pod, times)
		}
	}
	r.drainedAt = time.Now()
}

// mustRest fails the test unless nth, since the drain, has let everything be but the pod that came late.
func (r *round) mustRest(t *testing.T) {
	t.Helper()
	for _, removal := range r.removals(t) {
		if removal.Name != r.late {
			t.Fatalf("after the drain nth asked for more: %+v", removal)
		}
	}
	if times := r.saidToRemove(r.late); times > 1 || r.seen(lab.PodTerminating, r.late) > 1 {
		t.Fatalf("pod %s came after the drain and was removed %d times, by nth's own words, want once", r.late, times)
	}
	if times := r.seen(lab.Uncordoned, ""); times > 0 {
		t.Fatalf("the node was uncordoned %d times before the notice was withdrawn", times)
	}
	r.drainedAt = time.Now()
}

// mustBeUndone judges the node after the withdrawal.
func (r *round) mustBeUndone(t *testing.T) {
	t.Helper()
	node := r.node.Object(t)
	if node.Spec.Unschedulable != r.plan.foreign {
		t.Errorf("unschedulable is %t after the withdrawal, want %t", node.Spec.Unschedulable, r.plan.foreign)
	}
	if claim, ok := node.Annotations[cordonAnnotation]; ok {
		t.Errorf("nth's claim is left on the node: %s", claim)
	}
	if removals := r.removals(t); len(removals) > 0 {
		t.Errorf("after the drain nth asked for more: %+v", removals)
	}
	changes := 1
	if r.plan.foreign {
		changes = 0
	}
	if node.Spec.Unschedulable == r.plan.foreign {
		r.waitFor(t, "the uncordon to be seen", func() bool { return r.seen(lab.Uncordoned, "") >= changes })
	}
	for what, want := range map[lab.Happening]int{lab.Cordoned: changes, lab.Uncordoned: changes} {
		if times := r.seen(what, ""); times != want {
			t.Errorf("the node was %s %d times, want %d", what, times, want)
		}
	}
	for _, pod := range r.node.Pods(t) {
		if pod.DeletionTimestamp != nil {
			t.Errorf("pod %s is about to go, want it to stay", pod.Name)
		}
	}
	if slices.ContainsFunc(r.moments(), func(m lab.Moment) bool { return m.What == lab.PodGone && strings.HasPrefix(m.Pod, "agent") }) {
		t.Error("a pod is gone that nth must leave alone")
	}
}

// removals are the evictions and deletions that nth has asked for since the drain was over.
func (r *round) removals(t *testing.T) []lab.Request {
	return slices.DeleteFunc(r.node.Requests(t), func(request lab.Request) bool { return !request.Removes() || request.At.Before(r.drainedAt) })
}
