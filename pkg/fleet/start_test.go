package fleet_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
)

// The instance was started again while its node waited for its turn.
func TestOutOfService_IsNotSetOnAMachineThatRunsAgain(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		says := &knowledge{states: map[string]string{instance: "stopped"}}
		r := c.run(func(o *fleet.Options) {
			o.EC2, o.Taints, o.Limits.Draining = says, fleet.Taints{OutOfService: true}, 1
		})
		c.add(nodeOf("b", other), podOn("b", "two")) // It takes the only place.
		c.before("evict", held)
		says.say(func(k *knowledge) { k.states[other] = "running" })
		r.take(notice(other, event.RebalanceRecommendation, "", 0))
		time.Sleep(2 * time.Second)
		r.take(notice(instance, event.StateChange, "stopped", 0))
		time.Sleep(time.Minute)
		if n := c.node("a"); len(n.Spec.Taints) > 0 {
			t.Fatalf("too early: %v", n.Spec.Taints)
		}
		says.starts(instance)
		r.take(running(instance, 0)).want(t, "done")
		c.change("a", func(n *corev1.Node) {
			n.Status.NodeInfo.BootID, n.Status.Conditions[0].Status = "boot-2", corev1.ConditionFalse
		})
		time.Sleep(time.Minute)
		c.before("evict", nil)
		time.Sleep(time.Minute)
		if n := c.node("a"); len(n.Spec.Taints) > 0 {
			t.Errorf("EC2 says that the instance runs, and the Node has %v", n.Spec.Taints)
		}
	})
}

// A spot interruption comes right after the end of another drain.
func TestTaints_RefusedOnesDelayNoSpotInterruption(t *testing.T) {
	for name, refusal := range map[string]error{"refused": apierrors.NewForbidden(corev1.Resource("nodes"), "a", nil), "allowed": nil} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance), podOn("a", "one"))
				c.before("taint", func(int) error { return refusal })
				r := c.run(func(o *fleet.Options) {
					o.Taints = fleet.Taints{Kinds: true, Effect: "NoSchedule"}
					o.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon}
				})
				r.take(notice(instance, event.RebalanceRecommendation, "", 0)).want(t, "done")
				time.Sleep(1500 * time.Millisecond)
				began := time.Now()
				r.take(spot(instance))
				eventually(t, "a pod is evicted", func() bool { return c.times("evict") > 0 })
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("the first eviction came %s after a spot interruption", took)
				}
			})
		})
	}
}

// drainForStop runs nth-queue, which drains the node a because its instance has stopped.
func (c *cluster) drainForStop() (*knowledge, *rig) {
	c.t.Helper()
	c.add(nodeOf("a", instance), podOn("a", "one"))
	says := &knowledge{states: map[string]string{instance: "stopped"}}
	r := c.run(func(o *fleet.Options) { o.EC2 = says })
	r.take(notice(instance, event.StateChange, "stopped", 0)).want(c.t, "done")
	c.wantDrained("a")
	return says, r
}

// wantOpenAgain waits, and fails the test if the node a is still cordoned, whose instance runs and is Ready.
func (c *cluster) wantOpenAgain() {
	c.t.Helper()
	time.Sleep(20 * time.Minute)
	if c.node("a").Spec.Unschedulable {
		c.t.Error("the instance runs and is Ready, and its node is cordoned")
	}
}

// SQS does not keep the order: a message about an older start comes last.
func TestTakeStart_TheLatestCounts(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		says, r := c.drainForStop()
		c.change("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
		time.Sleep(time.Hour)
		says.starts(instance)
		r.take(running(instance, 0)).want(t, "done")
		time.Sleep(5 * time.Second)
		r.take(running(instance, 24*time.Hour)).want(t, "done")
		c.change("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
		c.wantOpenAgain()
	})
}

// slow answers Notable late.
type slow struct {
	*knowledge
	wait time.Duration
}

func (s slow) Notable(ctx context.Context, checks bool) (map[string]ec2.Status, error) {
	time.Sleep(s.wait)
	return s.knowledge.Notable(ctx, checks)
}

// A new leader receives the message about a start before EC2 has answered the first poll.
func TestTakeStart_BeforeTheFirstPoll(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		says, r := c.drainForStop()
		time.Sleep(time.Minute)
		r.stop()
		time.Sleep(time.Hour)
		says.starts(instance)
		r = c.run(func(o *fleet.Options) { o.EC2, o.Identity = slow{says, 2 * time.Second}, "host-2" })
		r.take(running(instance, 0)).want(t, "done")
		c.wantOpenAgain()
	})
}
