package fleet_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/event"
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
		r.take(row.first...)
		eventually(t, "it is cordoned", func() bool { return c.node("a").Spec.Unschedulable })
		time.Sleep(10 * time.Second)
		if row.whileLed {
			c.change("a", uncordon)
			time.Sleep(20 * time.Second)
		}
		if len(row.then) > 0 {
			r.take(row.then...)
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
		if !row.closed {
			return
		}
		c.change("a", uncordon) // for all events
		time.Sleep(time.Minute)
		next.stop()
		third := c.start("host-3", nil)
		eventually(t, "the third leads", func() bool { return third.Status().Leads })
		for _, n := range append(row.first, row.then...) {
			third.take(n)
		}
		time.Sleep(time.Minute)
		if c.node("a").Spec.Unschedulable {
			t.Error("the node is cordoned again")
		}
	})
}
