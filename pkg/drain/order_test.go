package drain_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
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
			g.Events, g.Met = append(slices.Clone(g.Events), "another"), claim.Since.Add(time.Hour)
			g.Claim.Event = "another"
		})
		time.Sleep(10 * time.Second)
		told := r.of(drain.NodeReopened)
		if !s.CurrentNode().Spec.Unschedulable || len(told) != 1 || !slices.Equal(told[0].Events, []string{claim.Event}) {
			t.Errorf("the node takes pods: %t; told are %+v", !s.CurrentNode().Spec.Unschedulable, told)
		}
		s.ChangeNode(func(n *corev1.Node) { n.Spec.Unschedulable = false })
		time.Sleep(10 * time.Second)
		if s.CurrentNode().Spec.Unschedulable || len(r.of(drain.NodeReopened)) != 2 {
			t.Errorf("the order is not heard; told are %+v", r.of(drain.NodeReopened))
		}
	})
}
