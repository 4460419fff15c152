package queue_test

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
)

func TestNotices_OfManyNodesAreInTheCluster(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	first, one := s.add(t)
	second, other := s.add(t)
	first.AddPod(t, "pod")
	second.AddPod(t, "pod")
	consumer := s.start(t, "[kubernetes]\nlabels = true\n")

	s.EC2.Enter(other, "stopping")
	s.Send(t, region.Spot(one), region.State(other, "stopping"))

	s.WaitEmpty(t)
	kinds := map[string]string{"SpotInterruption": "spot-interruption", "StateChange": "state-change"}
	for node, reason := range map[*lab.Node]string{first: "SpotInterruption", second: "StateChange"} {
		node.WaitFor(t, "it has the condition, with a label", func(n *corev1.Node) bool {
			return n.Labels["nth-project.github.io/interruption"] == kinds[reason] && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == "InterruptionPending" && c.Status == corev1.ConditionTrue && c.Reason == reason
			})
		})
		s.waitEvents(t, fields.Set{"involvedObject.kind": "Node", "involvedObject.uid": node.Name}, reason, "CordonAndDrain")
	}
	consumer.Stop(t)
}

// waitEvents waits until there are Events about an object with all those reasons, of which nth-queue is the source.
func (s *scene) waitEvents(t *testing.T, about fields.Set, reasons ...string) {
	t.Helper()
	lab.Await(t, fmt.Sprintf("%v has the Events %v", about, reasons), func() bool {
		list, err := s.cp.Admin.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: fields.SelectorFromSet(about).String()})
		if err != nil {
			t.Fatalf("listing Events: %v", err)
		}
		for _, reason := range reasons {
			if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.Reason == reason && e.Source.Component == "nth-queue" }) {
				return false
			}
		}
		return true
	})
}
