package queue_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/test/internal/region"
)

// These tests are about which nodes are drained, when, and when not.

const outOfService = "[fleet]\nout_of_service = true\n"

func TestStopped_VolumesAreFreedAndPodsComeBackWhenItRuns(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	node, id := s.add(t)
	node.AddPod(t, "pod")
	consumer := s.start(t, outOfService)

	s.EC2.Enter(id, "stopped")
	s.Send(t, region.State(id, "stopped"))
	node.WaitEmpty(t)
	waitTainted(t, node, corev1.TaintNodeOutOfService)
	s.WaitEmpty(t)

	s.EC2.Enter(id, "running")
	s.Send(t, region.State(id, "running"))
	node.WaitUncordoned(t)
	node.WaitFor(t, "back in service", func(n *corev1.Node) bool { return !tainted(n, corev1.TaintNodeOutOfService) })
	s.WaitEmpty(t)
	consumer.Stop(t)
}
