package fleet_test

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
)

// finishRow is maintenance whose node is drained at once.
type finishRow struct {
	finish fleet.Finish
	code   string
	before func(c *cluster, says *knowledge)
	want   string // the requests
	open   bool   // the node is uncordoned soon after
	said   string
}

// goesDown has the node's machine down for a minute, and then up in another boot.
func (c *cluster) goesDown(name, boot string) {
	ready := func(status corev1.ConditionStatus, boot string) {
		c.change(name, func(n *corev1.Node) { n.Status.Conditions[0].Status, n.Status.NodeInfo.BootID = status, boot })
	}
	ready(corev1.ConditionUnknown, c.node(name).Status.NodeInfo.BootID)
	time.Sleep(time.Minute)
	ready(corev1.ConditionTrue, boot)
}

// carriesOut has EC2 carry out requests: the machine goes down for a minute, and EC2 lists its events no more.
func (k *knowledge) carriesOut(c *cluster, clears bool) {
	k.change = func(request ec2.Request, id string) error {
		switch request {
		case ec2.Stop:
			go c.change("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
			k.say(func(k *knowledge) { k.states[id] = "stopped" })
			return nil
		case ec2.Terminate:
			go c.remove("a")
			return nil
		case ec2.Start:
			k.starts(id)
		case ec2.Reboot:
		}
		if clears {
			k.say(func(k *knowledge) { k.planned = nil })
		}
		go c.goesDown("a", "boot-2")
		return nil
	}
}

// finishing has a fleet finish maintenance, which begins for every code at once.
func finishing(says *knowledge, finish fleet.Finish) func(*fleet.Options) {
	return func(o *fleet.Options) {
		o.EC2, o.Finish = says, finish
		rule := o.Policy[event.ScheduledMaintenance]
		rule.Codes, rule.Lead = map[string]policy.When{policy.OtherCodes: policy.Now}, 10*time.Minute
		o.Policy[event.ScheduledMaintenance] = rule
	}
}

func TestFinish_ByTheRequestForTheCode(t *testing.T) {
	const once = "is left to EC2"
	each(t, map[string]finishRow{
		"wait":                         {"wait", "system-reboot", nil, "", false, ""},
		"a reboot":                     {"reboot", "system-reboot", nil, "RebootInstances", true, ""},
		"a reboot that EC2 keeps":      {"reboot", "instance-reboot", nil, "", false, ""},
		"no reboot for a stop":         {"reboot", "instance-stop", nil, "", false, ""},
		"a reboot, with stop-start":    {"stop-start", "system-reboot", nil, "RebootInstances", true, ""},
		"a stop and a start":           {"stop-start", "instance-stop", nil, "StopInstances StartInstances", true, ""},
		"a stop, for a retirement":     {"stop-start", "instance-retirement", nil, "StopInstances StartInstances", true, ""},
		"no stop of a group's":         {"stop-start", "instance-stop", func(_ *cluster, k *knowledge) { k.stays = map[string]string{instance: "its group"} }, "", false, once + ": its group"},
		"no stop without EC2's answer": {"stop-start", "system-maintenance", func(_ *cluster, k *knowledge) { k.refused = true }, "", false, once + ": IAM does not allow the request: ec2:StopInstances"},
		"a termination":                {"replace", "instance-retirement", nil, "TerminateInstances", true, ""},
		"without the right":            {"reboot", "system-reboot", func(_ *cluster, k *knowledge) { k.refused = true }, "", false, once + ": IAM does not allow the request: ec2:RebootInstances"},
	}, func(t *testing.T, c *cluster, row finishRow) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		says := &knowledge{states: map[string]string{instance: "running"}, planned: planned(row.code, days, "")}
		says.carriesOut(c, true)
		if row.before != nil {
			row.before(c, says)
		}
		r := c.run(finishing(says, row.finish))
		time.Sleep(10 * time.Minute)
		if got := strings.Join(says.requests(), " "); got != row.want {
			t.Errorf("the requests were %q, want %q", got, row.want)
		}
		if n := strings.Count(r.log.String(), once); row.said != "" && n != 1 || !strings.Contains(r.log.String(), row.said) {
			t.Errorf("it was said %d times that it %s:\n%s", n, once, r.log)
		}
		if row.finish == "replace" {
			return
		}
		n := c.node("a")
		if n.Spec.Unschedulable == row.open || row.open && len(n.Annotations) > 0 || len(c.podsOn("a")) > 0 {
			t.Errorf("the node is unschedulable: %t, has the annotations %v and the pods %q", n.Spec.Unschedulable, n.Annotations, c.podsOn("a"))
		}
	})
}

func TestFinish_OnlyOfADrainedNodeAndOnce(t *testing.T) {
	open := func(c *cluster) { c.change("a", func(n *corev1.Node) { n.Spec.Unschedulable = false }) }
	type row struct {
		in     time.Duration // until EC2's own reboot; 0 is days
		before func(t *testing.T, c *cluster, says *knowledge)
		after  func(t *testing.T, c *cluster, says *knowledge, r *rig) // a minute later
		want   int
		open   bool
		kept   bool // it is said that EC2 has kept the event
	}
	each(t, map[string]row{
		"a pod resists": {before: func(_ *testing.T, c *cluster, _ *knowledge) { c.before("evict", held) }},
		"others have cordoned the node": {before: func(_ *testing.T, c *cluster, _ *knowledge) {
			c.change("a", func(n *corev1.Node) { n.Spec.Unschedulable = true })
		}},
		"an operator uncordons it meanwhile": {before: func(_ *testing.T, c *cluster, _ *knowledge) {
			c.before("evict", func(int) error { open(c); return nil })
		}, open: true},
		"the mark cannot be written": {
			before: func(_ *testing.T, c *cluster, _ *knowledge) {
				c.before("change", func(times int) error {
					if times > 1 {
						return errors.New("no")
					}
					return nil
				})
			},
		},
		"the answer is lost": {
			before: func(_ *testing.T, c *cluster, says *knowledge) {
				does := says.change
				says.change = func(request ec2.Request, id string) error { _ = does(request, id); return errors.New("lost") }
			}, want: 1, open: true,
		},
		"EC2 keeps the event": {before: func(_ *testing.T, c *cluster, says *knowledge) { says.carriesOut(c, false) }, want: 1, open: true, kept: true},
		"EC2 keeps the event, and another leads": {
			before: func(_ *testing.T, c *cluster, says *knowledge) { says.carriesOut(c, false) },
			after: func(_ *testing.T, c *cluster, says *knowledge, r *rig) {
				time.Sleep(5 * time.Minute)
				r.stop()
				c.run(finishing(says, "reboot"))
			}, want: 1, open: true, kept: true,
		},
		"another leads while EC2's own reboot is drained for": {
			in:     20 * time.Minute,
			before: func(_ *testing.T, c *cluster, says *knowledge) { says.carriesOut(c, false) },
			after: func(_ *testing.T, c *cluster, says *knowledge, r *rig) {
				time.Sleep(9 * time.Minute)
				c.add(podOn("a", "two"))
				c.before("evict", held)
				time.Sleep(2 * time.Minute)
				r.stop()
				c.before("evict", nil)
				c.run(finishing(says, "reboot"))
			}, want: 1, kept: true,
		},
		"another leads, to whom the cordon seems later": {
			before: func(_ *testing.T, _ *cluster, says *knowledge) { says.change = nil },
			after: func(t *testing.T, c *cluster, says *knowledge, r *rig) {
				r.stop()
				c.change("a", func(n *corev1.Node) {
					claim := n.Annotations[drain.CordonAnnotation]
					n.Annotations[drain.CordonAnnotation] = strings.Replace(claim, `"since":"2000-01-01T00:00:00`, `"since":"2000-01-01T00:00:09`, 1)
				})
				c.goesDown("a", "boot-2")
				c.run(finishing(says, "reboot"))
			}, want: 1, open: true,
		},
		"another leads while the machine is down": {
			after: func(_ *testing.T, c *cluster, says *knowledge, r *rig) {
				r.stop()
				c.run(finishing(says, "reboot"))
			}, want: 1, open: true,
		},
		"the machine does not go down": {before: func(_ *testing.T, _ *cluster, says *knowledge) { says.change = nil }, want: 1, open: true, kept: true},
		"EC2 lists the event no more": {
			before: func(_ *testing.T, c *cluster, says *knowledge) {
				c.before("evict", func(int) error {
					says.say(func(k *knowledge) { k.planned = nil })
					time.Sleep(70 * time.Second)
					return nil
				})
			}, open: true,
		},
		"EC2's list is old": {
			before: func(_ *testing.T, c *cluster, says *knowledge) {
				c.before("evict", func(int) error {
					says.say(func(k *knowledge) { k.err = errors.New("no answer") })
					time.Sleep(4 * time.Minute)
					return nil
				})
			}, open: true, kept: true,
		},
		"EC2 has canceled the event": {
			before: func(_ *testing.T, c *cluster, says *knowledge) {
				c.before("evict", func(int) error {
					says.say(func(k *knowledge) { k.planned = planned("system-reboot", days, "[Canceled]") })
					time.Sleep(2 * time.Minute)
					return nil
				})
			}, open: true,
		},
	}, func(t *testing.T, c *cluster, row row) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		says := &knowledge{states: map[string]string{instance: "running"}, planned: planned("system-reboot", cmp.Or(row.in, days), "")}
		says.carriesOut(c, true)
		if row.before != nil {
			row.before(t, c, says)
		}
		r := c.run(finishing(says, "reboot"))
		time.Sleep(30 * time.Second)
		if row.after != nil {
			row.after(t, c, says, r)
		}
		time.Sleep(15 * time.Minute)
		if got := says.requests(); len(got) != row.want {
			t.Errorf("the requests were %q, want %d\n%s", got, row.want, r.log)
		}
		if n := strings.Count(r.log.String(), "uncordoned the node: the maintenance is not over"); n > 1 || (n == 1) != row.kept {
			t.Errorf("it is said %d times that EC2 has kept the event\n%s", n, r.log)
		}
		if n := c.node("a"); n.Spec.Unschedulable == row.open {
			t.Errorf("the node is unschedulable: %t, has the annotations %v\n%s", n.Spec.Unschedulable, n.Annotations, r.log)
		}
	})
}

// The nodes of a group have their turns, also when the leader changes; nothing waits when only the lead is left.
func TestFinish_OneNodeOfAGroupAtATime(t *testing.T) {
	type row struct {
		groups     [3]string
		nextLeads  bool
		in         time.Duration
		most, last int // how many are cordoned at once, and how many are at the end
	}
	each(t, map[string]row{
		"one group":                   {[3]string{"x", "x", "x"}, false, days, 1, 0},
		"one group, with two leaders": {[3]string{"x", "x", "x"}, true, days, 1, 0},
		"two groups":                  {[3]string{"x", "y", "y"}, false, days, 2, 0},
		"no time is left":             {[3]string{"x", "x", "x"}, false, 8 * time.Minute, 3, 3},
	}, func(t *testing.T, c *cluster, row row) {
		says := &knowledge{states: map[string]string{}, planned: map[string]ec2.Status{}}
		names := map[string]string{instance: "a", other: "b", third: "c"}
		for i, id := range []string{instance, other, third} {
			n := nodeOf(names[id], id)
			n.Labels = map[string]string{"zone": row.groups[i]}
			c.add(n, podOn(names[id], "on-"+names[id]))
			says.states[id] = "running"
			of := planned("system-reboot", row.in, "")[instance]
			of.Planned[0].ID += id
			says.planned[id] = of
		}
		says.change = func(_ ec2.Request, id string) error {
			go func() {
				says.say(func(k *knowledge) { delete(k.planned, id) })
				c.goesDown(names[id], "boot-2")
			}()
			return nil
		}
		change := func(o *fleet.Options) {
			finishing(says, "reboot")(o)
			o.GroupLabel = "zone"
		}
		if row.nextLeads {
			c.before("evict", held) // The first leader ends in a drain.
		}
		r := c.run(change)
		most := 0
		for round := range 15 * 12 {
			time.Sleep(5 * time.Second)
			cordoned := 0
			for _, name := range names {
				if c.node(name).Spec.Unschedulable {
					cordoned++
				}
			}
			most = max(most, cordoned)
			if row.nextLeads && slices.Contains([]int{4, 26}, round) {
				r.stop()
				r = c.start("host-2", change)
			}
			if row.nextLeads && round == 12 {
				c.before("evict", nil)
			}
		}
		if got := says.requests(); len(got) != 3 && row.last == 0 || most != row.most {
			t.Errorf("the requests were %q, and %d nodes were cordoned at once, want %d", got, most, row.most)
		}
	})
}

// EventBridge tells of the stop and of the start that nth-queue itself has requested.
func TestFinish_AStopOfItsOwnIsOverAfterTheStart(t *testing.T) {
	each(t, map[string]bool{"by one leader": false, "by two": true}, func(t *testing.T, c *cluster, nextLeads bool) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		says := &knowledge{states: map[string]string{instance: "running"}, planned: planned("instance-stop", days, "")}
		says.carriesOut(c, true)
		r := c.run(finishing(says, "stop-start"))
		eventually(t, "EC2 is asked for a stop", func() bool { return len(says.requests()) > 0 })
		r.take(notice(instance, event.StateChange, "stopping", 0)).want(t, "done")
		if nextLeads {
			r.stop()
			r = c.run(finishing(says, "stop-start"))
		}
		r.take(notice(instance, event.StateChange, "stopped", 0)).want(t, "done")
		eventually(t, "EC2 is asked for a start", func() bool { return len(says.requests()) > 1 })
		r.take(running(instance, 0)).want(t, "done")
		time.Sleep(10 * time.Minute)
		if got := strings.Join(says.requests(), " "); got != "StopInstances StartInstances" {
			t.Errorf("the requests were %q", got)
		}
		if n := c.node("a"); n.Spec.Unschedulable || len(n.Annotations) > 0 {
			t.Errorf("the node is unschedulable: %t, and has the annotations %v\n%s", n.Spec.Unschedulable, n.Annotations, r.log)
		}
	})
}
