package queue_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
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

func TestDryRun_WritesAndDeletesNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	node, id := s.add(t)
	node.AddPod(t, "pod")
	before := node.Object(t)
	consumer := s.start(t, "dry_run = true\n")

	s.Send(t, region.Spot(id))

	consumer.WaitLog(t, systemd.Drained)
	consumer.Stop(t)
	if after := node.Object(t); after.Spec.Unschedulable || len(after.Annotations) != len(before.Annotations) {
		t.Errorf("the node was changed: %v", after.Annotations)
	}
	if s.left(t) != 1 {
		t.Error("the message was deleted")
	}
}

func TestCapacityBlock_ItsEndDrainsAllItsNodes(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var nodes []*lab.Node
	for range 3 {
		node, id := s.add(t)
		node.AddPod(t, "pod")
		nodes = append(nodes, node)
		s.EC2.Add(ec2test.Instance{ID: id, State: "running", Reservation: "cr-0123456789abcdef0"})
	}
	consumer := s.start(t, "")

	s.Send(t, region.CapacityBlockEnd("cr-0123456789abcdef0", time.Now().Add(40*time.Minute)))

	for _, node := range nodes {
		node.WaitCordoned(t)
		node.WaitEmpty(t)
	}
	s.WaitEmpty(t)
	consumer.Stop(t)
}
