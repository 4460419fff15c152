package queue

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
)

// These tests read a queue that others have written, and ask EC2.

// consume starts an nth-queue in a region.
func consume(t *testing.T, r *region.Region, settings string) *daemon.Daemon {
	t.Helper()
	consumer := daemon.StartQueue(t, daemon.QueueOptions{
		Kubeconfig: lab.Shared(t).Kubeconfig, URL: r.QueueURL, Endpoint: r.URL, Settings: settings,
	})
	consumer.WaitStatus(t, "reading the queue")
	return consumer
}

func TestAnOldStopOfAnInstanceThatRunsAgainIsOver(t *testing.T) {
	t.Parallel()
	r, cp := region.New(t), lab.Shared(t)
	back, started := addInstance(t, cp)
	down, stopped := addInstance(t, cp)
	back.AddPod(t, "pod")
	down.AddPod(t, "pod")
	r.EC2.Add(ec2test.Instance{ID: started, State: "running"}, ec2test.Instance{ID: stopped, State: "stopped"})
	consumer := consume(t, r, "[fleet]\nout_of_service = true\n")

	for _, instance := range []string{started, stopped} { // Nobody has read the queue for three days.
		for _, state := range []string{"stopping", "stopped"} {
			r.Send(t, bridgedAt(time.Now().Add(-72*time.Hour), "aws.ec2", "EC2 Instance State-change Notification",
				map[string]any{"instance-id": instance, "state": state}))
		}
	}

	down.WaitCordoned(t)
	down.WaitEmpty(t)
	down.WaitFor(t, "out of service", func(n *corev1.Node) bool { return tainted(n, corev1.TaintNodeOutOfService) })
	consumer.WaitSays(t, "the instance "+started+" runs again")
	r.WaitEmpty(t)
	consumer.Stop(t)
	if n := back.Object(t); n.Spec.Unschedulable || len(n.Spec.Taints) > 0 || len(back.Pods(t)) != 1 {
		t.Errorf("the node of the instance that runs again has %d pods, and is %+v", len(back.Pods(t)), n.Spec)
	}
}

func TestASpotInterruptionIsHeldWhileEC2Throttles(t *testing.T) {
	t.Parallel()
	r := region.New(t)
	node, instance := addInstance(t, lab.Shared(t))
	node.AddPod(t, "pod")
	r.EC2.Add(ec2test.Instance{ID: instance, State: "running", Tags: map[string]string{"nth/managed": ""}})
	r.EC2.ThrottleInstances(9)
	consumer := consume(t, r, "[fleet]\nmanaged_tag = \"nth/managed\"\n")

	r.Send(t, region.Spot(instance))

	node.WaitCordoned(t)
	node.WaitEmpty(t)
	r.WaitEmpty(t)
	consumer.Stop(t)
	if asked, received := len(r.EC2.Asked()), len(r.Received()); asked != 10 || received != 1 {
		t.Errorf("EC2 was asked %d times for a message that was received %d times, want 10 and 1", asked, received)
	}
}

func TestAGroupNeedNotWaitForAnInstanceOfOursThatHasNoNode(t *testing.T) {
	t.Parallel()
	r := region.New(t)
	_, member := addInstance(t, lab.Shared(t))
	ours, theirs := fmt.Sprintf("i-%017x", instances.Add(1)), fmt.Sprintf("i-%017x", instances.Add(1))
	in := func(id, group string) ec2test.Instance {
		return ec2test.Instance{ID: id, State: "running", Tags: map[string]string{"aws:autoscaling:groupName": group}}
	}
	r.EC2.Add(in(member, "ours"), in(ours, "ours"), in(theirs, "theirs"))
	for group, instance := range map[string]string{"ours": ours, "theirs": theirs} {
		r.Groups.AddGroup(group, asgtest.Hook{Name: "hook", HeartbeatTimeout: time.Hour})
		r.Groups.AddInstance(group, instance)
		r.Groups.Terminate(instance)
	}
	r.Deleting(func(m region.Message) {
		if strings.Contains(m.Body, ours) && r.Groups.Actions(ours)[0].Result == "" {
			t.Error("the message was deleted before the lifecycle action was completed")
		}
	})
	consumer := consume(t, r, "")

	r.Send(t, region.Terminating("ours", "hook", ours), region.Terminating("theirs", "hook", theirs))

	r.WaitEmpty(t)
	consumer.Stop(t)
	if action := r.Groups.Actions(ours)[0]; action.Result != "CONTINUE" || action.TimedOut {
		t.Errorf("our group's lifecycle action came to %+v, want CONTINUE", action)
	}
	if action := r.Groups.Actions(theirs)[0]; action.Result != "" {
		t.Errorf("the lifecycle action of another cluster's group came to %+v", action)
	}
}
