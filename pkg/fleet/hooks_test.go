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
	"github.com/nth-project/nth/pkg/state"
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

func TestHold_BeginsWhileANodeWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"), nodeOf("b", other), podOn("b", "two"))
		c.before("evict", held)
		r := c.run(func(o *fleet.Options) { o.Limits.Draining = 1 })
		first := r.take(notice(other, event.RebalanceRecommendation, "", 0))
		time.Sleep(time.Second)
		second := r.take(termination(instance))
		time.Sleep(time.Minute)
		if held := r.hooks.holds(); held != 1 {
			t.Errorf("%d hooks are held, want one", held)
		}
		c.before("evict", nil)
		first.want(t, "done")
		second.want(t, "done")
		r.hooks.want(t, "drain "+instance+" drained")
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
		if held := r.hooks.holds(); held != 1 || !strings.Contains(r.log.String(), "is held until the node") {
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
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
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
		r.take(launch(instance)).want(t, "done")
		r.hooks.want(t, "drain "+instance+" drained", "ready "+instance)
		if n := c.node("a"); n.Spec.Unschedulable || len(n.Spec.Taints) > 0 {
			t.Errorf("the node is unschedulable: %t, and has the taints %v", n.Spec.Unschedulable, n.Spec.Taints)
		}
	})
}

func TestDrain_CountsWritesAndReads(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance))
		for _, name := range strings.Split("0123456789", "") {
			c.add(podOn("a", name))
		}
		r := c.run(nil)
		lists := c.times("list")
		r.take(spot(instance)).want(t, "done")
		c.wantDrained("a")
		if writes := c.times("evict") + c.times("change") + c.times("note") + c.times("taint"); writes > 11 || c.times("list") > lists+1 { // How new the last list of pods has to be is asked once.
			t.Errorf("there were %d writes and %d more lists of Nodes", writes, c.times("list")-lists)
		}
	})
}

// People open a node in mid-drain: that is heard, and told once.
func TestDrain_HearsPeopleWhoOpenTheNode(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		c.before("evict", held)
		r := c.run(nil)
		r.take(notice(instance, event.RebalanceRecommendation, "", 0))
		eventually(t, "it is cordoned", func() bool { return c.node("a").Spec.Unschedulable })
		c.change("a", func(n *corev1.Node) { n.Spec.Unschedulable = false })
		time.Sleep(time.Minute)
		if c.node("a").Spec.Unschedulable || r.ear.times(state.NodeReopened)+r.ear.times(state.Failed) > 1 {
			t.Error("the node was cordoned again")
		}
	})
}

func TestTakeLaunch_WaitsForTheNextNodeOfAnInstance(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		n := nodeOf("a", instance)
		n.Status.Conditions = nil
		c.add(n)
		r := c.run(func(o *fleet.Options) { o.CompleteLaunches = true })
		m := r.take(launch(instance))
		time.Sleep(5 * time.Second)
		c.remove("a")
		time.Sleep(5 * time.Second)
		m.held(t)
		again := nodeOf("a", instance)
		again.UID = "uid-2"
		c.add(again)
		m.want(t, "done")
		r.hooks.want(t, "ready "+instance)
	})
}
