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
)

func TestHold_LastsUntilTheHookIsCompletedOnce(t *testing.T) {
	type row struct {
		prepare   func(c *cluster, o *fleet.Options)
		completed []string
	}
	each(t, map[string]row{
		"the node is drained": {prepare: func(*cluster, *fleet.Options) {}, completed: []string{"drain " + instance + " drained"}},
		"its time is over": {
			prepare:   func(c *cluster, _ *fleet.Options) { c.before("evict", held) },
			completed: []string{"drain " + instance + " out-of-time"},
		},
		"people want it left alone": {prepare: func(c *cluster, _ *fleet.Options) {
			c.change("a", func(n *corev1.Node) { n.Annotations[drain.ActionAnnotation] = drain.OnlyCordon })
		}},
		"the node is deleted": {
			prepare: func(c *cluster, _ *fleet.Options) {
				c.before("evict", held)
				time.AfterFunc(time.Minute, func() { c.remove("a") })
			},
			completed: []string{"drain " + instance + " drained"},
		},
		"it is only told": {prepare: func(_ *cluster, o *fleet.Options) {
			o.Policy[event.ASGTermination] = policy.Rule{Action: policy.Notify}
		}},
		"a dry run": {prepare: func(_ *cluster, o *fleet.Options) { o.DryRun = true }},
	}, func(t *testing.T, c *cluster, row row) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		r := c.run(func(o *fleet.Options) {
			o.Policy[event.ASGTermination] = policy.Rule{Action: policy.Drain, Budget: 10 * time.Minute, Hard: true, SoftBudget: true}
			row.prepare(c, o)
		})
		r.take(termination(instance)).want(t, "done")
		r.hooks.want(t, row.completed...)
	})
}

func TestTakeLaunch_CompletesItsHookWhenTheNodeIsReady(t *testing.T) {
	t.Parallel()
	completing := func(o *fleet.Options) {
		o.CompleteLaunches, o.EC2 = true, &knowledge{states: map[string]string{instance: "running"}}
	}
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.run(completing)
		m := r.take(launch(instance))
		time.Sleep(time.Minute)
		m.held(t)
		if held := r.hooks.holds(); held != 1 || !strings.Contains(r.log.String(), "until the node is Ready") {
			t.Errorf("%d hooks are held, and it was said: %s", held, r.log)
		}
		n := nodeOf("a", instance)
		n.Status.Conditions[0].Status = corev1.ConditionFalse
		c.add(n)
		time.Sleep(time.Minute)
		m.held(t)
		c.change("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
		m.want(t, "done")
		r.hooks.want(t, "ready "+instance)
	})
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.run(completing)
		r.take(launch(instance)).want(t, "done") // It never joins.
		r.hooks.want(t)
	})
}

// A group with a warm pool of running instances takes one back, and later has it in service again.
func TestTakeLaunch_OpensANodeThatComesBackFromAWarmPool(t *testing.T) {
	each(t, map[string]time.Duration{"the launch is later": 0, "the launch is an older one": 2 * time.Hour}, func(t *testing.T, c *cluster, age time.Duration) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		r := c.run(func(o *fleet.Options) {
			o.CompleteLaunches, o.EC2 = true, &knowledge{states: map[string]string{instance: "running"}}
			o.Taints = fleet.Taints{Kinds: true, Effect: "NoSchedule"}
		})
		back := termination(instance)
		back.Hook.Back = true
		r.take(back).want(t, "done")
		c.wantDrained("a")
		time.Sleep(time.Hour)
		launched := launch(instance)
		launched.Event.Noticed = launched.Event.Noticed.Add(-age)
		r.take(launched).want(t, "done")
		r.hooks.want(t, "drain "+instance+" drained", "ready "+instance)
		if n, closed := c.node("a"), age > 0; n.Spec.Unschedulable != closed || len(n.Spec.Taints) > 0 != closed {
			t.Errorf("the node is unschedulable: %t, and has the taints %v", n.Spec.Unschedulable, n.Spec.Taints)
		}
	})
}
