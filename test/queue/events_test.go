package queue_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
)

// taints are those that nth-queue puts on a node if it is configured to, under the keys of aws-node-termination-handler.
const taints = "[fleet]\ntaints = \"NoSchedule\"\n"

const prefix = "aws-node-termination-handler/"

const drainForRebalance = "[events.rebalance-recommendation]\naction = \"drain\"\n"

// What one message comes to: its nodes are cordoned, tainted, emptied but for a DaemonSet's pod, and left, and the queue is empty.
func TestEvent_DrainsItsNodesAndIsDeleted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		message func(instance string) string // nil if EC2 lists maintenance
		nodes   int
		state   string // that EC2 says the instances are in; "" is running
		taint   string // its key, without the prefix; "" if there must be none
	}{
		"spot interruption":         {message: region.Spot, taint: "spot-itn"},
		"rebalance recommendation":  {message: region.Rebalance, taint: "rebalance-recommendation"},
		"maintenance of two":        {nodes: 2, taint: "scheduled-maintenance"},
		"instance that stops":       {message: func(id string) string { return region.State(id, "stopping") }, state: "stopping"},
		"reservation is taken back": {message: region.ReservationEnd},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			var nodes []*lab.Node
			var ids []string
			for range max(c.nodes, 1) {
				node, id := s.add(t)
				node.AddDaemonSet(t, "agent")
				node.AddDeployment(t, "regular", 1)
				nodes, ids = append(nodes, node), append(ids, id)
				if c.state != "" {
					s.EC2.Enter(id, c.state)
				}
				if c.message == nil {
					s.EC2.Schedule(id, ec2test.Planned{ID: "event-of-" + id, Code: "instance-retirement", NotBefore: time.Now().Add(10 * time.Minute)})
				}
			}
			consumer := s.start(t, taints+drainForRebalance)

			if c.message != nil {
				s.Send(t, c.message(ids[0]))
			}

			for _, node := range nodes {
				node.WaitCordoned(t)
				if c.taint != "" {
					waitTainted(t, node, prefix+c.taint)
				}
				node.WaitEmpty(t)
			}
			consumer.WaitLog(t, systemd.Drained)
			s.WaitEmpty(t)
			if c.message != nil {
				s.early.mustHaveJudged(t, 1)
			}
			for _, node := range nodes {
				if len(node.Pods(t)) != 1 {
					t.Error("the pod of the DaemonSet is not there any more")
				}
				if got := node.Object(t).Spec.Taints; c.taint == "" && len(got) > 1 {
					t.Errorf("the node has the taints %+v, want none beside that of the cordon", got)
				}
			}
			consumer.Stop(t)
		})
	}
}
