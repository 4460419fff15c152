package queue

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

func TestTwoProcessesDrainANodeOnce(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	node, instance := addInstance(t, lab.Shared(t))
	node.AddPods(t, "pod", 3, lab.Grace(4*time.Second), lab.GoesAtGrace())
	both := []*daemon.Daemon{q.start(t, ""), q.start(t, "")}

	for range 6 { // EventBridge delivers at least once, and a queue has no order.
		q.Send(spot(instance), state(instance, "stopping"))
	}

	node.WaitEmpty(t)
	q.waitEmpty(t)
	waitUnclaimed(t, node)
	evicted := map[string]int{}
	for _, consumer := range both {
		consumer.Stop(t)
		for _, e := range consumer.Logged(systemd.PodEvicted) {
			evicted[e.Fields[systemd.FieldPod]]++
		}
	}
	for pod, times := range evicted {
		if times != 1 {
			t.Errorf("%s was evicted %d times", pod, times)
		}
	}
	if len(evicted) != 3 {
		t.Errorf("%d pods were evicted", len(evicted))
	}
}

func TestAnotherProcessGoesOnWhereOneWasKilled(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	node, instance := addInstance(t, lab.Shared(t))
	node.AddPods(t, "pod", 2, lab.Grace(40*time.Second), lab.GoesAtGrace())
	consumers := []*daemon.Daemon{q.start(t, "[queue]\nvisibility = \"10s\"\n"), q.start(t, "[queue]\nvisibility = \"10s\"\n")}
	q.Send(spot(instance))
	holder, other := awaitHolder(t, consumers)

	holder.Kill()

	other.WaitLog(t, systemd.DrainStarted)
	node.WaitEmpty(t)
	q.waitEmpty(t)
	waitUnclaimed(t, node)
	other.Stop(t)
}

// awaitHolder tells which of two has begun to drain.
func awaitHolder(t *testing.T, consumers []*daemon.Daemon) (holder, other *daemon.Daemon) {
	t.Helper()
	eventually(t, "a drain has begun", func() bool {
		for i, c := range consumers {
			if len(c.Logged(systemd.PodEvicted)) > 0 {
				holder, other = c, consumers[1-i]
				return true
			}
		}
		return false
	})
	return holder, other
}

func TestStoppedProcessesLeaveTheirWorkToOthersAtOnce(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	node, instance := addInstance(t, lab.Shared(t))
	node.AddPods(t, "pod", 2, lab.Grace(time.Minute), lab.GoesAtGrace())
	consumers := []*daemon.Daemon{q.start(t, ""), q.start(t, "")}
	q.Send(spot(instance))
	holder, other := awaitHolder(t, consumers)

	holder.Stop(t)

	other.WaitLog(t, systemd.DrainStarted)
	other.Stop(t)
	if q.Visible() != 1 {
		t.Errorf("the queue has %d messages that can be seen, want the one", q.Visible())
	}
	waitUnclaimed(t, node)
}

func TestNodesWaitForEachOtherButSpotDoesNot(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.groups.AddGroup("group")
	var mu sync.Mutex
	var cordoned []string
	draining, most := map[string]bool{}, 0
	add := func(name string) (*lab.Node, string) {
		node, instance := addInstance(t, lab.Shared(t))
		node.AddPod(t, name, lab.Grace(3*time.Second), lab.GoesAtGrace())
		node.Observe(t, func(m lab.Moment) {
			mu.Lock()
			defer mu.Unlock()
			switch m.What {
			case lab.Cordoned:
				cordoned = append(cordoned, name)
				draining[name] = true
				most = max(most, len(draining))
			case lab.PodGone:
				delete(draining, name)
			case lab.Uncordoned, lab.PodTerminating:
			}
		})
		return node, instance
	}
	first, a := add("first")
	second, b := add("second")
	urgent, c := add("urgent")
	consumer := q.start(t, "[fleet]\nmax_draining = 1\n")

	q.Send(state(a, "stopping"), state(b, "stopping"))
	eventually(t, "one has begun", func() bool { mu.Lock(); defer mu.Unlock(); return len(cordoned) == 1 })
	q.Send(spot(c))

	for _, node := range []*lab.Node{first, second, urgent} {
		node.WaitEmpty(t)
	}
	q.waitEmpty(t)
	consumer.Stop(t)
	mu.Lock()
	defer mu.Unlock()
	if len(cordoned) != 3 || cordoned[1] != "urgent" || most != 2 {
		t.Errorf("drained in the order %s, %d at once; want the urgent one second, beside the first", strings.Join(cordoned, ", "), most)
	}
}

func TestALifecycleActionIsCompletedAfterTheDrain(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	node, instance := addInstance(t, lab.Shared(t))
	node.AddPod(t, "pod", lab.Grace(2*time.Second), lab.GoesAtGrace())
	q.groups.AddGroup("group", asgtest.Hook{Name: "hook", HeartbeatTimeout: time.Minute})
	q.groups.AddInstance("group", instance)
	var mu sync.Mutex
	var gone time.Time
	node.Observe(t, func(m lab.Moment) {
		if m.What == lab.PodGone {
			mu.Lock()
			defer mu.Unlock()
			gone = m.At
		}
	})
	consumer := q.start(t, "")
	q.groups.Terminate(instance)
	q.Send(terminating("group", instance))

	node.WaitEmpty(t)
	q.waitEmpty(t)
	consumer.Stop(t)
	actions := q.groups.Actions(instance)
	mu.Lock()
	defer mu.Unlock()
	if len(actions) != 1 || actions[0].Result != "CONTINUE" || actions[0].TimedOut || actions[0].Ended.Before(gone) {
		t.Errorf("the lifecycle action came to %+v, and the pod was gone at %s", actions, gone)
	}
}

func TestALaunchIsCompletedOnceTheNodeIsReady(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	_, instance := addInstance(t, lab.Shared(t))
	q.groups.AddGroup("group", asgtest.Hook{Name: "hook", Transition: asgtest.Launching, HeartbeatTimeout: time.Minute})
	q.groups.AddInstance("group", instance)
	q.groups.SetState(instance, "Pending:Wait")
	consumer := q.start(t, "")
	q.Send(strings.Replace(terminating("group", instance), "TERMINATING", "LAUNCHING", 1))
	q.waitEmpty(t)
	consumer.Stop(t)
	if calls := q.groups.Calls("CompleteLifecycleAction"); len(calls) == 0 || calls[0].Values.Get("InstanceId") != instance {
		t.Errorf("completed was %+v", calls)
	}
}

func TestOnlyManagedInstancesAreDrainedIfATagIsAskedFor(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	ours, managed := addInstance(t, lab.Shared(t))
	others, unmanaged := addInstance(t, lab.Shared(t))
	ours.AddPod(t, "ours")
	others.AddPod(t, "others")
	q.ec2.Add(
		ec2test.Instance{ID: managed, State: "running", Tags: map[string]string{"nth/managed": ""}},
		ec2test.Instance{ID: unmanaged, State: "running"},
	)
	q.ec2.Throttle(1)
	consumer := q.start(t, "[fleet]\nmanaged_tag = \"nth/managed\"\n")
	q.Send(spot(managed), spot(unmanaged))
	ours.WaitEmpty(t)
	q.waitEmpty(t)
	consumer.Stop(t)
	if others.Object(t).Spec.Unschedulable {
		t.Error("a node without the tag was cordoned")
	}
}

func TestTheEndOfACapacityBlockDrainsAllItsNodes(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	var nodes []*lab.Node
	for range 3 {
		node, instance := addInstance(t, lab.Shared(t))
		node.AddPod(t, "pod")
		nodes = append(nodes, node)
		q.ec2.Add(ec2test.Instance{ID: instance, State: "running", Reservation: "cr-0123"})
	}
	consumer := q.start(t, "")
	q.Send(bridged("aws.ec2", "Capacity Block Reservation Expiration Warning",
		map[string]any{"capacity-reservation-id": "cr-0123", "end-date": time.Now().Add(40 * time.Minute).UTC().Format(time.RFC3339)}))
	for _, node := range nodes {
		node.WaitCordoned(t)
		node.WaitEmpty(t)
	}
	q.waitEmpty(t)
	consumer.Stop(t)
}
