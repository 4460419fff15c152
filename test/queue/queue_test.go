// Package queue judges nth-queue as a process, against a real control plane and an SQS of its own.
package queue

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // The tests wait far more than they work.
	os.Exit(lab.Main(m))
}

func TestASpotInterruptionInTheQueueDrainsTheNode(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	node, instance := addInstance(t, lab.Shared(t))
	node.AddDaemonSet(t, "agent")
	node.AddDeployment(t, "web", 3)
	consumer := q.start(t, "")

	q.Send(spot(instance))

	node.WaitCordoned(t)
	node.WaitEmpty(t)
	consumer.WaitLog(t, systemd.Drained)
	q.waitEmpty(t)
	waitUnclaimed(t, node)
	consumer.Stop(t)
}

func TestEverythingThatEndsAnInstanceDrainsItsNode(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	consumer := q.start(t, "[fleet]\ntaints = true\n[events.rebalance-recommendation]\naction = \"drain\"\n"+
		"[events.scheduled-maintenance.codes]\nsystem-maintenance = \"now\"\n")
	for name, row := range map[string]struct {
		message func(instance string) string
		taint   string
	}{
		"a spot interruption":        {spot, "spot-itn"},
		"a rebalance recommendation": {rebalance, "rebalance-recommendation"},
		"a scheduled change":         {scheduled, "scheduled-maintenance"},
		"a stop":                     {func(i string) string { return state(i, "stopping") }, ""},
		"an end of its reservation":  {reservationEnd, ""},
	} {
		node, instance := addInstance(t, lab.Shared(t))
		node.AddPods(t, "pod", 2)
		q.Send(row.message(instance))
		node.WaitCordoned(t)
		node.WaitEmpty(t)
		if row.taint != "" {
			node.WaitFor(t, "tainted for "+name, func(n *corev1.Node) bool { return tainted(n, "aws-node-termination-handler/"+row.taint) })
		}
	}
	q.waitEmpty(t)
	consumer.Stop(t)
}

func TestAnInstanceThatHasStoppedLosesItsVolumesAndGetsItsPodsBackWhenItRuns(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	node, instance := addInstance(t, lab.Shared(t))
	node.AddPod(t, "pod")
	consumer := q.start(t, "[fleet]\nout_of_service = true\n")

	q.Send(state(instance, "stopped"))
	node.WaitEmpty(t)
	node.WaitFor(t, "out of service", func(n *corev1.Node) bool { return tainted(n, corev1.TaintNodeOutOfService) })
	q.waitEmpty(t)

	q.Send(bridgedAt(time.Now().Add(time.Minute), "aws.ec2", "EC2 Instance State-change Notification", // Its times are in seconds.
		map[string]any{"instance-id": instance, "state": "running"}))
	node.WaitUncordoned(t)
	node.WaitFor(t, "back in service", func(n *corev1.Node) bool { return !tainted(n, corev1.TaintNodeOutOfService) })
	q.waitEmpty(t)
	consumer.Stop(t)
}

func TestADryRunWritesAndDeletesNothing(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	node, instance := addInstance(t, lab.Shared(t))
	node.AddPod(t, "pod")
	before := node.Object(t)
	consumer := q.start(t, "dry_run = true\n[queue]\nvisibility = \"10s\"\n")
	q.Send(spot(instance))
	consumer.WaitLog(t, systemd.Drained)
	consumer.Stop(t)
	if after := node.Object(t); after.Spec.Unschedulable || len(after.Annotations) != len(before.Annotations) {
		t.Errorf("the node was changed: %v", after.Annotations)
	}
	if q.Visible()+q.InFlight() != 1 {
		t.Error("the message was deleted")
	}
}

func TestWhatHasNoNodeHereIsDeletedOrLeft(t *testing.T) {
	t.Parallel()
	for setting, left := range map[string]int{"delete": 0, "leave": 1} {
		q := newQueue(t)
		consumer := q.start(t, "[fleet]\nunknown = \""+setting+"\"\n")
		q.Send(spot("i-0ffffffffffffffff"))
		consumer.WaitSays(t, "has no Node in this cluster")
		consumer.Stop(t)
		if got := q.Visible() + q.InFlight(); got != left {
			t.Errorf("with unknown = %q, %d messages are left, want %d", setting, got, left)
		}
	}
}

func TestAPoisonedMessageIsToldOnceAndLeftToTheDeadLetterQueue(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.DeadAfter(2)
	consumer := q.start(t, "[queue]\nvisibility = \"10s\"\n")
	q.Send("what is this?")
	eventually(t, "the message is a dead letter", func() bool { return len(q.DeadLetters()) == 1 })
	consumer.Stop(t)
	if told := len(consumer.Logged(systemd.MessagePoisoned)); told != 1 {
		t.Errorf("it was told %d times", told)
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(150 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waiting until %s: it is not", what)
		}
	}
}

var instances atomic.Int64

// addInstance adds a node that says which EC2 instance it is.
func addInstance(t *testing.T, cp *lab.ControlPlane) (*lab.Node, string) {
	t.Helper()
	node := cp.AddNode(t)
	instance := fmt.Sprintf("i-%017x", instances.Add(1))
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"providerID": "aws:///eu-central-1a/" + instance}})
	if err == nil {
		_, err = cp.Admin.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		t.Fatalf("giving %s a provider ID: %v", node.Name, err)
	}
	return node, instance
}

// spot is what EventBridge delivers two minutes before a spot instance is taken.
func spot(instance string) string {
	return bridged("aws.ec2", "EC2 Spot Instance Interruption Warning", map[string]any{"instance-id": instance, "instance-action": "terminate"})
}

func rebalance(instance string) string {
	return bridged("aws.ec2", "EC2 Instance Rebalance Recommendation", map[string]any{"instance-id": instance})
}

func state(instance, state string) string {
	return bridged("aws.ec2", "EC2 Instance State-change Notification", map[string]any{"instance-id": instance, "state": state})
}

func reservationEnd(instance string) string {
	return bridged("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning",
		map[string]any{"instance-id": instance, "instance-action": "terminate"})
}

func scheduled(instance string) string {
	return bridged("aws.health", "AWS Health Event", map[string]any{
		"eventArn": "arn:aws:health:eu-central-1::event/EC2/" + instance, "service": "EC2", "eventTypeCategory": "scheduledChange",
		"eventTypeCode": "AWS_EC2_DEDICATED_HOST_NETWORK_MAINTENANCE_SCHEDULED", "startTime": "Sun, 01 Mar 2099 12:00:00 GMT",
		"affectedEntities": []map[string]any{{"entityValue": "vol-0123456789abcdef0"}, {"entityValue": instance}},
	})
}

// terminating is what Auto Scaling itself sends to a queue.
func terminating(group, instance string) string {
	return fmt.Sprintf(`{"LifecycleActionToken":"token-%s","AutoScalingGroupName":%q,"LifecycleHookName":"hook","EC2InstanceId":%q,
		"LifecycleTransition":"autoscaling:EC2_INSTANCE_TERMINATING","Time":%q,"RequestId":"%s"}`,
		instance, group, instance, time.Now().UTC().Format(time.RFC3339), instance)
}

func tainted(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == key })
}

var events atomic.Int64

func bridged(source, kind string, detail any) string {
	return bridgedAt(time.Now(), source, kind, detail)
}

// bridgedAt is an event of that time as EventBridge delivers it.
func bridgedAt(at time.Time, source, kind string, detail any) string {
	text, err := json.Marshal(map[string]any{
		"version": "0", "id": fmt.Sprintf("00000000-0000-4000-8000-%012d", events.Add(1)), "source": source, "detail-type": kind,
		"account": "123456789012", "region": "eu-central-1", "time": at.UTC().Format(time.RFC3339), "detail": detail,
	})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// waitUnclaimed waits until no process has a claim on the node.
func waitUnclaimed(t *testing.T, node *lab.Node) {
	t.Helper()
	node.WaitFor(t, "unclaimed", func(n *corev1.Node) bool { return n.Annotations["nth-project.github.io/queue"] == "" })
}

// What is said of it is when its drain begins; the nth on the machine would say the same.
func TestARetirementWeeksAwayWaitsInTheQueue(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	node, instance := addInstance(t, lab.Shared(t))
	node.AddPod(t, "pod")
	before := node.Object(t)
	consumer := q.start(t, "")
	q.Send(bridged("aws.health", "AWS Health Event", map[string]any{
		"eventArn": "arn:aws:health:eu-central-1::event/EC2/" + instance, "service": "EC2", "eventTypeCategory": "scheduledChange",
		"eventTypeCode": "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED", "startTime": time.Now().Add(10 * 24 * time.Hour).UTC().Format(time.RFC1123),
		"affectedEntities": []map[string]any{{"entityValue": instance}},
	}))
	consumer.WaitSays(t, "EC2 has scheduled instance-retirement at ")
	consumer.WaitSays(t, "(spread over 20m, sooner with kubectl drain)")
	waitUnclaimed(t, node)
	consumer.Stop(t)
	if after := node.Object(t); after.Spec.Unschedulable != before.Spec.Unschedulable || len(node.Pods(t)) != 1 {
		t.Errorf("the node was drained: %+v", after.Spec)
	}
	if q.Visible()+q.InFlight() != 1 {
		t.Error("the message was deleted")
	}
}
