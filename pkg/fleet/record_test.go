package fleet_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
)

// An event that was active when an operator uncordoned the node is not acted on again in that boot, also by the next leader, to which SQS
// shows its message again.
func TestRecord_KeepsWhomAnOperatorUncordonedFor(t *testing.T) {
	uncordon := func(n *corev1.Node) { n.Spec.Unschedulable = false }
	type row struct {
		first, then []sqs.Notice // then come after the cordon
		whileLed    bool         // the node is uncordoned before the leader ends, and the others come after that
		closed      bool         // in the end
	}
	advice := func() []sqs.Notice { return []sqs.Notice{notice(instance, event.RebalanceRecommendation, "", 0)} }
	each(t, map[string]row{
		"between two leaders":                           {first: advice()},
		"between two leaders, after another has joined": {first: advice(), then: []sqs.Notice{termination(instance)}},
		"while one leads":                               {first: advice(), whileLed: true},
		"while one leads, and another joins after that": {first: advice(), then: []sqs.Notice{termination(instance)}, whileLed: true, closed: true},
	}, func(t *testing.T, c *cluster, row row) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		c.before("evict", held)
		r := c.run(nil)
		for _, n := range row.first {
			r.take(n)
		}
		eventually(t, "it is cordoned", func() bool { return c.node("a").Spec.Unschedulable })
		time.Sleep(10 * time.Second)
		if row.whileLed {
			c.change("a", uncordon)
			time.Sleep(20 * time.Second)
		}
		for _, n := range row.then {
			r.take(n)
			time.Sleep(20 * time.Second)
		}
		r.stop()
		if !row.whileLed {
			c.change("a", uncordon)
		}
		next := c.start("host-2", nil)
		eventually(t, "the next leads", func() bool { return next.Status().Leads })
		for _, n := range append(row.first, row.then...) {
			next.take(n)
		}
		time.Sleep(time.Minute)
		if closed := c.node("a").Spec.Unschedulable; closed != row.closed {
			t.Errorf("the node is unschedulable: %t", closed)
		}
	})
}

// The claim names the event that came first, and that one ends first. If the other one joined in another boot, no boot since then has ended it.
func TestRecord_KeepsAnEventThatJoinedAndStays(t *testing.T) {
	type row struct{ reboots, broken, nextLeads bool }
	each(t, map[string]row{
		"in one term": {}, "and the next leads": {nextLeads: true}, "after a reboot, and the next leads": {reboots: true, nextLeads: true},
		"while the claim is broken, and the next leads": {broken: true, nextLeads: true},
	}, func(t *testing.T, c *cluster, row row) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		says := &knowledge{states: map[string]string{instance: "stopping"}, planned: planned("instance-stop", 30*time.Minute, "")}
		change := func(o *fleet.Options) { o.EC2 = says }
		r := c.run(change)
		eventually(t, "it is cordoned", func() bool { return c.node("a").Spec.Unschedulable })
		time.Sleep(time.Minute)
		if row.reboots {
			c.change("a", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-2" })
			time.Sleep(time.Minute)
		}
		if row.broken {
			c.change("a", func(n *corev1.Node) { n.Annotations[drain.CordonAnnotation] = "{" })
		}
		r.take(notice(instance, event.StateChange, "stopping", 0)).want(t, "done")
		time.Sleep(time.Minute)
		if claim := c.node("a").Annotations[drain.CordonAnnotation]; !strings.Contains(claim, `"writer":"nth-queue"`) {
			t.Errorf("the claim is %s", claim)
		}
		says.say(func(k *knowledge) { k.planned = planned("instance-stop", 30*time.Minute, "[Canceled]") })
		time.Sleep(5 * time.Minute)
		if row.nextLeads {
			r.stop()
			r = c.start("host-2", change)
		}
		time.Sleep(time.Hour)
		if c.wantDrained("a"); strings.Contains(r.log.String(), "uncordon") {
			t.Errorf("the log is\n%s", r.log)
		}
		says.starts(instance)
		c.change("a", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-3" })
		r.take(running(instance, 0)).want(t, "done")
		time.Sleep(time.Minute)
		if n := c.node("a"); n.Spec.Unschedulable || len(n.Annotations) > 0 {
			t.Errorf("after the start, the node is unschedulable: %t, with %v", n.Spec.Unschedulable, n.Annotations)
		}
	})
}

func TestRecord_KnowsACordonThatShowsLate(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		says := &knowledge{states: map[string]string{instance: "stopping"}}
		r := c.run(func(o *fleet.Options) { o.EC2 = says })
		r.take(notice(instance, event.StateChange, "stopping", 0)).want(t, "done")
		c.wantDrained("a")
		closed := c.node("a")
		c.change("a", func(n *corev1.Node) { n.Spec.Unschedulable, n.Annotations = false, nil })
		time.Sleep(time.Minute)
		c.change("a", func(n *corev1.Node) { n.Spec, n.Annotations = closed.Spec, closed.Annotations })
		time.Sleep(time.Minute)
		c.wantDrained("a")
		c.change("a", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-2" })
		eventually(t, "the node is open", func() bool { return !c.node("a").Spec.Unschedulable })
	})
}

// An instance stops again before the watch of the Nodes shows that its node was uncordoned. Operators have not opened the node: it is closed.
func TestRecord_ClosesANodeWhoseUncordonShowsLate(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		c.lag = 3 * time.Second
		says := &knowledge{states: map[string]string{instance: "stopping"}}
		r := c.run(func(o *fleet.Options) { o.EC2 = says })
		r.take(notice(instance, event.StateChange, "stopping", 0)).want(t, "done")
		time.Sleep(time.Minute)
		says.starts(instance)
		c.change("a", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-2" })
		r.take(running(instance, 0)).want(t, "done")
		eventually(t, "the node is open", func() bool { return !c.node("a").Spec.Unschedulable })
		time.Sleep(3 * time.Second)
		says.say(func(k *knowledge) { k.states[instance] = "stopping" })
		again := notice(instance, event.StateChange, "stopping", 0)
		again.Event.ID += "-again"
		r.take(again).want(t, "done")
		time.Sleep(time.Minute)
		c.wantDrained("a")
	})
}

// The leaders of two queues may serve one cluster, by rules of their own. Neither continues or takes back what the other does.
func TestRecord_OfAnotherQueueIsLeftAlone(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		c.before("evict", held)
		first := c.run(nil)
		first.take(notice(instance, event.RebalanceRecommendation, "", 0))
		first.take(termination(instance))
		eventually(t, "it is cordoned", func() bool { return c.node("a").Spec.Unschedulable })
		second := c.start("host-2", func(o *fleet.Options) { o.Lease, o.Policy = "nth-queue-2", policy.Settings{} })
		eventually(t, "the second leads, too", func() bool { return second.Status().Leads })
		time.Sleep(10 * time.Minute)
		if n := c.node("a"); !n.Spec.Unschedulable {
			t.Errorf("the node is open; the second one's log:\n%s", second.log)
		}
		if text := second.log.String(); strings.Contains(text, "node=a") {
			t.Errorf("the second one has worked on the node:\n%s", text)
		}
	})
}
