package queuelab_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/lifecycle/asgtest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/lab"
	"github.com/nth-project/nth/test/region"
)

// The tests of this file are those that aws-node-termination-handler is accepted by when it reads a queue, under their
// numbers there. Its workload is a Deployment of one pod.

// taints are its taints, which nth-queue puts on a node if it is told to.
const taints = "[fleet]\ntaints = true\n"

const prefix = "aws-node-termination-handler/"

func TestPeer20ASpotInterruptionIsDrainedAndTheQueueIsEmpty(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	node, id := s.add(t)
	node.AddDeployment(t, "regular", 1)
	consumer := s.start(t, taints)

	s.Send(t, region.Spot(id))

	node.WaitCordoned(t)
	waitTainted(t, node, prefix+"spot-itn")
	node.WaitEmpty(t)
	consumer.WaitLog(t, systemd.Drained)
	s.WaitEmpty(t)
	s.early.mustHaveJudged(t, 1)
	consumer.Stop(t)
}

func TestPeer21ARebalanceRecommendationIsTaintedDrainedAndTheQueueIsEmpty(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	node, id := s.add(t)
	node.AddDeployment(t, "regular", 1)
	consumer := s.start(t, taints+"[events.rebalance-recommendation]\naction = \"drain\"\n")

	s.Send(t, region.Rebalance(id))

	node.WaitCordoned(t)
	waitTainted(t, node, prefix+"rebalance-recommendation")
	node.WaitEmpty(t)
	s.WaitEmpty(t)
	consumer.Stop(t)
}

func TestPeer22AMessageOfAnInstanceThatHasNoNodeIsDeleted(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	other, _ := s.add(t)
	consumer := s.start(t, taints+"unknown = \"delete\"\n[events.rebalance-recommendation]\naction = \"drain\"\n")

	s.Send(t, region.Rebalance(s.NewInstance("ip-192-168-0-4."+region.Name+".compute.internal", nil)))

	s.WaitEmpty(t)
	if got := other.Object(t); got.Spec.Unschedulable || len(got.Spec.Taints) > 0 {
		t.Errorf("another node was touched: %+v", got.Spec)
	}
	consumer.Stop(t)
}

func TestPeer23AScheduledChangeIsTaintedDrainedAndTheQueueIsEmpty(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	node, id := s.add(t)
	second, another := s.add(t) // An AWS Health event can be about several instances.
	node.AddDeployment(t, "regular", 1)
	second.AddDeployment(t, "regular", 1)
	consumer := s.start(t, taints)

	s.Send(t, region.Scheduled(id, another))

	for _, n := range []*lab.Node{node, second} {
		n.WaitCordoned(t)
		waitTainted(t, n, prefix+"scheduled-maintenance")
		n.WaitEmpty(t)
	}
	s.WaitEmpty(t)
	consumer.Stop(t)
}

func TestPeer24AnInstanceThatStopsIsDrainedAndTheQueueIsEmpty(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	node, id := s.add(t)
	node.AddDeployment(t, "regular", 1)
	consumer := s.start(t, taints)

	s.Send(t, region.State(id, "stopping"))

	node.WaitCordoned(t)
	node.WaitEmpty(t)
	s.WaitEmpty(t)
	if got := node.Object(t).Spec.Taints; len(got) > 1 || len(got) == 1 && got[0].Key != corev1.TaintNodeUnschedulable {
		t.Errorf("the node has the taints %+v, want none of a kind", got)
	}
	consumer.Stop(t)
}

func TestPeer25ATerminationByAutoScalingIsDrainedCompletedAndTheQueueIsEmpty(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	node, id := s.add(t)
	node.AddDeployment(t, "regular", 1)
	s.Groups.AddGroup("group-25", asgtest.Hook{Name: "drain", HeartbeatTimeout: 5 * time.Minute})
	s.Groups.AddInstance("group-25", id)
	consumer := s.start(t, taints)

	s.Groups.Terminate(id)
	s.Send(t, region.Terminating("group-25", "drain", id))

	node.WaitCordoned(t)
	waitTainted(t, node, prefix+"asg-lifecycle-termination")
	node.WaitEmpty(t)
	s.WaitEmpty(t)
	mustBeCompleted(t, s, id)
	consumer.Stop(t)
}

// mustBeCompleted fails the test unless an instance's one lifecycle action has been completed with CONTINUE.
func mustBeCompleted(t *testing.T, s *scene, id string) asgtest.Action {
	t.Helper()
	actions := s.Groups.Actions(id)
	if len(actions) != 1 || actions[0].Result != "CONTINUE" || actions[0].TimedOut {
		t.Fatalf("the lifecycle action came to %+v, want CONTINUE", actions)
	}
	return actions[0]
}

// The peer is told how often to send heartbeats, and until when. nth-queue asks the hook: with one that would not wait
// longer than eight seconds by itself, an instance stays until its pods have had their grace.
func TestPeer26HeartbeatsHoldAnInstanceUntilItsNodeIsDrained(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	node, id := s.add(t)
	node.AddDeployment(t, "regular", 1, lab.Grace(20*time.Second), lab.GoesAtGrace())
	s.Groups.AddGroup("group-26", asgtest.Hook{Name: "drain", HeartbeatTimeout: 8 * time.Second})
	s.Groups.AddInstance("group-26", id)
	consumer := s.start(t, "")

	s.Groups.Terminate(id)
	s.Send(t, region.Terminating("group-26", "drain", id))

	node.WaitCordoned(t)
	node.WaitEmpty(t)
	s.WaitEmpty(t)
	if action := mustBeCompleted(t, s, id); len(action.Heartbeats) < 2 {
		t.Errorf("%d heartbeats were sent in %s, want some", len(action.Heartbeats), action.Ended.Sub(action.Began))
	}
	consumer.Stop(t)
}

func TestPeer26HeartbeatsEndWhenNothingWaitsAnyMore(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	node, id := s.add(t)
	node.AddDeployment(t, "regular", 1, lab.Grace(20*time.Second), lab.GoesAtGrace())
	s.Groups.AddGroup("group-26", asgtest.Hook{Name: "drain", HeartbeatTimeout: 6 * time.Second})
	s.Groups.AddInstance("group-26", id)
	consumer := s.start(t, "")
	heartbeats := func() int { return len(s.Groups.Calls("RecordLifecycleActionHeartbeat")) }

	s.Groups.Terminate(id)
	s.Send(t, region.Terminating("group-26", "drain", id))
	s.Await(t, "a heartbeat is sent", func() bool { return heartbeats() > 0 })
	s.Groups.Forget(id) // Somebody else has completed it.
	before := heartbeats()

	node.WaitEmpty(t)
	s.WaitEmpty(t)
	if more := heartbeats() - before; more > 1 {
		t.Errorf("%d heartbeats were sent after the first that was refused", more-1)
	}
	consumer.Stop(t)
}

func TestPeer27OnlyTaggedInstancesAreDrainedAndTheQueueIsEmpty(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const key = prefix + "managed"
	var ids []string
	var nodes []*lab.Node
	for _, tags := range []map[string]string{{key: ""}, {key: "yes"}, {"another": "tag"}} {
		node, id := s.AddInstance(t, s.cp, tags)
		node.AddDeployment(t, "regular", 1)
		nodes, ids = append(nodes, node), append(ids, id)
	}
	consumer := s.start(t, taints+"managed_tag = \""+key+"\"\n")

	for _, id := range ids {
		s.Send(t, region.State(id, "stopping"))
	}

	for _, node := range nodes[:2] {
		node.WaitCordoned(t)
		node.WaitEmpty(t)
	}
	s.WaitEmpty(t)
	if strange := nodes[2]; strange.Object(t).Spec.Unschedulable || len(strange.Pods(t)) != 1 {
		t.Error("a node whose instance has no tag was drained")
	}
	if asked := len(s.EC2.Asked()); asked == 0 || asked > 3 {
		t.Errorf("EC2 was asked %d times for three instances", asked)
	}
	consumer.Stop(t)
}

func TestPeer28ALaunchIsCompletedOnceTheNodeIsReady(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.Groups.AddGroup("group-28", asgtest.Hook{Name: "join", Transition: asgtest.Launching, HeartbeatTimeout: time.Minute})
	consumer := s.start(t, "")
	id := s.NewInstance("ip-192-168-0-28."+region.Name+".compute.internal", nil)
	s.Groups.AddInstance("group-28", id)
	s.Groups.SetState(id, "Pending:Wait")

	s.Send(t, region.Launching("group-28", "join", id))

	s.Await(t, "the message is being worked on", func() bool { _, held := s.Count(t); return held == 1 })
	if calls := s.Groups.Calls("CompleteLifecycleAction"); len(calls) > 0 {
		t.Errorf("the launch was completed before there was a node: %v", calls)
	}
	node := s.cp.AddNode(t)
	region.Bind(t, s.cp, node, id)
	s.Await(t, "the launch is completed", func() bool { return s.Groups.State(id) == "Pending:Proceed" })
	s.WaitEmpty(t)
	mustBeCompleted(t, s, id)
	if node.Object(t).Spec.Unschedulable {
		t.Error("the new node was cordoned")
	}
	consumer.Stop(t)
}
