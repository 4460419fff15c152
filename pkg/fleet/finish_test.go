package fleet_test

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
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

// marked is the annotation by which a Node says what EC2 was asked.
const marked = "nth-project.github.io/maintenance-requested"

// goesDown has the node's machine down for a minute, and then up in another boot.
func (c *cluster) goesDown(name, boot string) {
	ready := func(status corev1.ConditionStatus, boot string) {
		c.change(name, func(n *corev1.Node) { n.Status.Conditions[0].Status, n.Status.NodeInfo.BootID = status, boot })
	}
	ready(corev1.ConditionUnknown, c.node(name).Status.NodeInfo.BootID)
	time.Sleep(time.Minute)
	ready(corev1.ConditionTrue, boot)
}

// maintained adds the node of an instance for which EC2 has scheduled something, and returns an EC2 that carries out requests: the machine
// goes down for a minute, and, if that clears them, EC2 lists its events no more.
func (c *cluster) maintained(code string, in time.Duration, clears bool) *knowledge {
	c.add(nodeOf("a", instance), podOn("a", "one"))
	k := &knowledge{states: map[string]string{instance: "running"}, planned: planned(code, in, "")}
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
	return k
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
	const once = "cannot carry out the maintenance of the instance " + instance + " early"
	untag := func(c *cluster, k *knowledge) {
		k.managed = map[string]bool{instance: true}
		c.before("evict", func(int) error { // The Node does not change any more before the request.
			time.AfterFunc(900*time.Millisecond, func() { k.say(func(k *knowledge) { k.managed = map[string]bool{} }) })
			return nil
		})
	}
	each(t, map[string]finishRow{
		"wait":                              {"wait", "system-reboot", nil, "", false, ""},
		"a reboot":                          {"reboot", "system-reboot", nil, "RebootInstances", true, ""},
		"a reboot that EC2 keeps":           {"reboot", "instance-reboot", nil, "", false, ""},
		"no reboot for a stop":              {"reboot", "instance-stop", nil, "", false, ""},
		"a reboot, with stop-start":         {"stop-start", "system-reboot", nil, "RebootInstances", true, ""},
		"a stop and a start":                {"stop-start", "instance-stop", nil, "StopInstances StartInstances", true, ""},
		"a stop, for a retirement":          {"stop-start", "instance-retirement", nil, "StopInstances StartInstances", true, ""},
		"no stop of a group's":              {"stop-start", "instance-stop", func(_ *cluster, k *knowledge) { k.stays = map[string]string{instance: "its group"} }, "", false, once + ": its group"},
		"no stop of what is stopped":        {"stop-start", "instance-stop", func(_ *cluster, k *knowledge) { k.states[instance] = "stopped" }, "", false, once + ": the instance does not run"},
		"no termination of what is stopped": {"replace", "instance-retirement", func(_ *cluster, k *knowledge) { k.states[instance] = "stopped" }, "", false, once + ": the instance does not run"},
		"it joins a group meanwhile": {"stop-start", "instance-stop", func(c *cluster, k *knowledge) {
			c.before("evict", func(int) error {
				k.say(func(k *knowledge) { k.stays = map[string]string{instance: "its group"} })
				return nil
			})
		}, "", false, " early: its group"},
		"its tag is removed meanwhile":                   {"wait", "system-reboot", untag, "", true, ""},
		"its tag is removed before it is to be replaced": {"replace", "instance-stop", untag, "", true, ""},
		"no stop without EC2's answer":                   {"stop-start", "system-maintenance", func(_ *cluster, k *knowledge) { k.refused = true }, "", false, once + ": IAM does not allow the request: ec2:StopInstances"},
		"its Node is deleted before it is marked": {"replace", "instance-stop", func(c *cluster, _ *knowledge) {
			c.before("change", func(times int) error {
				if times == 2 { // after the cordon
					c.remove("a")
				}
				return nil
			})
		}, "", false, ""},
		"no answer is no permission": {"reboot", "system-reboot", func(_ *cluster, k *knowledge) { k.silent = true }, "", false, ""},
		"a termination":              {"replace", "instance-retirement", nil, "TerminateInstances", true, ""},
		"without the right":          {"reboot", "system-reboot", func(_ *cluster, k *knowledge) { k.refused = true }, "", false, once + ": IAM does not allow the request: ec2:RebootInstances"},
	}, func(t *testing.T, c *cluster, row finishRow) {
		says := c.maintained(row.code, days, true)
		if row.before != nil {
			row.before(c, says)
		}
		managedOnly := says.managed != nil
		r := c.run(func(o *fleet.Options) {
			finishing(says, row.finish)(o)
			o.ManagedOnly = managedOnly
		})
		time.Sleep(10 * time.Minute)
		if got := strings.Join(says.requests(), " "); got != row.want {
			t.Errorf("the requests were %q, want %q", got, row.want)
		}
		if n := strings.Count(r.log.String(), cmp.Or(row.said, once)); row.said != "" && n != 1 {
			t.Errorf("it was said %d times: %s:\n%s", n, row.said, r.log)
		}
		if row.finish == "replace" {
			return
		}
		n := c.node("a")
		delete(n.Annotations, marked)
		if n.Spec.Unschedulable == row.open || row.open && len(n.Annotations) > 0 || len(c.podsOn("a")) > 0 {
			t.Errorf("the node is unschedulable: %t, has the annotations %v and the pods %q", n.Spec.Unschedulable, n.Annotations, c.podsOn("a"))
		}
	})
}

func TestFinish_OnlyOfADrainedNodeAndOnce(t *testing.T) {
	type row struct {
		in             time.Duration                      // until EC2's own reboot; 0 is days
		keeps          bool                               // EC2 lists the event after a reboot, too
		before, during func(c *cluster, says *knowledge)  // before and during the drain
		after          func(c *cluster, says *knowledge)  // half a minute later
		next           func(c *cluster, firstSaid string) // while nobody leads; another does then
		want           int
		open           bool
		kept           bool // it is said that EC2 has kept the event
	}
	atOnce := func(*cluster, string) {}
	each(t, map[string]row{
		"a pod resists": {before: func(c *cluster, _ *knowledge) { c.before("evict", held) }},
		"others have cordoned the node": {before: func(c *cluster, _ *knowledge) {
			c.change("a", func(n *corev1.Node) { n.Spec.Unschedulable = true })
		}},
		"an operator uncordons it meanwhile": {during: func(c *cluster, _ *knowledge) {
			c.change("a", func(n *corev1.Node) { n.Spec.Unschedulable = false })
		}, open: true},
		"the mark cannot be written": {before: func(c *cluster, _ *knowledge) {
			c.before("change", func(times int) error {
				if times > 1 {
					return errors.New("no")
				}
				return nil
			})
		}},
		"the watch lags": {before: func(c *cluster, _ *knowledge) { c.lag = 2 * time.Second }, want: 1, open: true},
		"the answer is lost": {before: func(_ *cluster, says *knowledge) {
			does := says.change
			says.change = func(request ec2.Request, id string) error { _ = does(request, id); return ec2.ErrUnanswered }
		}, next: func(c *cluster, said string) {
			if !strings.Contains(said, "cannot tell whether EC2 carries out ") || strings.Contains(said, "it is left to EC2") {
				c.t.Errorf("it is said of the answer that was lost:\n%s", said)
			}
		}, want: 1, open: true},
		"EC2 does not answer for a moment": {during: func(_ *cluster, says *knowledge) {
			says.say(func(k *knowledge) { k.err = errors.New("throttled") })
			time.AfterFunc(15*time.Second, func() { says.say(func(k *knowledge) { k.err = nil }) })
		}, want: 1, open: true},
		"the machine registers another Node meanwhile": {before: func(c *cluster, says *knowledge) {
			does := says.change
			says.change = func(request ec2.Request, id string) error {
				if len(c.podsOn("a2")) > 0 {
					c.t.Error("EC2 is asked before the other Node is drained")
				}
				return does(request, id)
			}
		}, during: func(c *cluster, _ *knowledge) {
			c.before("evict", nil)
			n := nodeOf("a2", instance)
			n.CreationTimestamp = metav1.Now()
			c.add(n, podOn("a2", "two"))
		}, want: 1},
		"others reboot it during the drain": {during: func(c *cluster, _ *knowledge) { c.goesDown("a", "boot-2") }, open: true, kept: true},
		"an operator opts it out meanwhile": {during: func(c *cluster, _ *knowledge) {
			c.change("a", func(n *corev1.Node) { n.Annotations[drain.ActionAnnotation] = drain.OnlyCordon })
		}, open: true, kept: true},
		"the Node is registered again, and another leads": {keeps: true, after: func(c *cluster, _ *knowledge) {
			time.Sleep(5 * time.Minute)
			c.remove("a")
			time.Sleep(10 * time.Second)
			n := nodeOf("a", instance)
			n.UID, n.Status.NodeInfo.BootID = "again", "boot-2"
			c.add(n, podOn("a", "two"))
			time.Sleep(time.Minute)
		}, next: atOnce, want: 1, open: true, kept: true},
		"EC2's list has a gap": {after: func(_ *cluster, says *knowledge) {
			time.Sleep(6 * time.Minute)
			says.say(func(k *knowledge) { k.planned = planned("system-reboot", days, "") })
		}, want: 1, open: true},
		"EC2 keeps the event, and another leads": {
			keeps: true, after: func(*cluster, *knowledge) { time.Sleep(5 * time.Minute) }, next: atOnce, want: 1, open: true, kept: true,
		},
		"another leads while EC2's own reboot is drained for": {in: 20 * time.Minute, keeps: true, after: func(c *cluster, _ *knowledge) {
			time.Sleep(9 * time.Minute)
			c.add(podOn("a", "two"))
			c.before("evict", held)
			time.Sleep(2 * time.Minute)
		}, next: func(c *cluster, _ string) { c.before("evict", nil) }, want: 1, kept: true},
		"another leads, to whom the cordon seems later": {
			before: func(_ *cluster, says *knowledge) { says.change = nil },
			next: func(c *cluster, _ string) {
				c.change("a", func(n *corev1.Node) {
					claim := n.Annotations[drain.CordonAnnotation]
					n.Annotations[drain.CordonAnnotation] = strings.Replace(claim, `"since":"2000-01-01T00:00:00`, `"since":"2000-01-01T00:00:09`, 1)
				})
				c.goesDown("a", "boot-2")
			}, want: 1, open: true,
		},
		"another leads while the machine is down": {next: atOnce, want: 1, open: true},
		"the machine does not go down":            {before: func(_ *cluster, says *knowledge) { says.change = nil }, want: 1, open: true, kept: true},
		"it was drained before a boot, and another leads": {before: func(_ *cluster, says *knowledge) { says.refused, says.change = true, nil }, after: func(c *cluster, says *knowledge) {
			c.goesDown("a", "boot-2")
			says.say(func(k *knowledge) { k.refused = false })
			eventually(c.t, "EC2 is asked for a reboot", func() bool { return len(says.requests()) > 0 })
		}, next: func(c *cluster, _ string) {
			time.AfterFunc(3*time.Minute, func() { c.wantDrained("a") }) // It may go down at any moment.
		}, want: 1, open: true},
		"EC2's list is old": {during: func(_ *cluster, says *knowledge) {
			says.say(func(k *knowledge) { k.err = errors.New("no answer") })
			time.Sleep(4 * time.Minute)
		}, open: true, kept: true},
		"EC2 has canceled the event": {during: func(_ *cluster, says *knowledge) {
			says.say(func(k *knowledge) { k.planned = planned("system-reboot", days, "[Canceled]") })
			time.Sleep(2 * time.Minute)
		}, open: true},
	}, func(t *testing.T, c *cluster, row row) {
		says := c.maintained("system-reboot", cmp.Or(row.in, days), !row.keeps)
		if row.during != nil {
			c.before("evict", func(int) error { row.during(c, says); return nil })
		}
		if row.before != nil {
			row.before(c, says)
		}
		r := c.run(finishing(says, "reboot"))
		time.Sleep(30 * time.Second)
		if row.after != nil {
			row.after(c, says)
		}
		if row.next != nil {
			r.stop()
			row.next(c, r.log.String())
			c.run(finishing(says, "reboot"))
		}
		time.Sleep(15 * time.Minute)
		if got := says.requests(); len(got) != row.want {
			t.Errorf("the requests were %q, want %d\n%s", got, row.want, r.log)
		}
		if n := strings.Count(r.log.String(), "uncordoned the node: nth's early reboot of the machine was tried, but EC2 still lists the maintenance"); n > 1 || (n == 1) != row.kept {
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
		groups    string // those of the three nodes
		nextLeads bool
		in        time.Duration
		requests  int  // at least
		most      int  // how many are cordoned at once
		advised   bool // one is cordoned for another event before
		replaces  bool // by terminating instances, whose Nodes stay
		leadless  bool // the rule has no lead
		deleted   bool // the Node of a machine that is down
		renamed   bool // each machine registers a Node of another name after its reboot
		before    func(c *cluster, says *knowledge)
	}
	annotated := func(action string) func(*cluster, *knowledge) {
		return func(c *cluster, _ *knowledge) {
			c.change("a", func(n *corev1.Node) { n.Annotations[drain.ActionAnnotation] = action })
		}
	}
	inTurn := func(does func(*corev1.Node)) func(*cluster, *knowledge) { // to a, before the others have maintenance
		return func(c *cluster, says *knowledge) {
			all := says.planned
			says.planned = map[string]ec2.Status{instance: all[instance]}
			c.before("evict on-a", held)
			time.AfterFunc(time.Minute, func() { c.change("a", does); says.say(func(k *knowledge) { k.planned = all }) })
		}
	}
	silent := func(c *cluster, says *knowledge) {
		says.addresses = map[string]string{instance: "10.0.0.1", other: "10.0.0.2", third: "10.0.0.3"}
		for id, name := range map[string]string{instance: "a", other: "b", third: "c"} {
			c.change(name, func(n *corev1.Node) {
				n.Spec.ProviderID = "k3s://" + name
				n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: says.addresses[id]}}
			})
		}
	}
	each(t, map[string]row{
		"one group":                         {groups: "xxx", in: days, requests: 3, most: 1},
		"one group, with two leaders":       {groups: "xxx", nextLeads: true, in: days, requests: 3, most: 1},
		"of Nodes that are silent":          {groups: "xxx", nextLeads: true, in: days, requests: 3, most: 1, before: silent},
		"two groups":                        {groups: "xyy", in: days, requests: 3, most: 2},
		"the Nodes outlive their instances": {groups: "xxx", in: days, requests: 3, most: 3, replaces: true},
		"no time is left":                   {groups: "xxx", in: 8 * time.Minute, requests: 1, most: 3},
		"no time is left, nor a lead set":   {groups: "xxx", in: 2 * time.Minute, leadless: true, requests: 1, most: 3},
		"EC2 refuses the requests": {groups: "xxx", in: days, most: 1, before: func(c *cluster, says *knowledge) {
			c.before("evict", held)
			time.AfterFunc(30*time.Second, func() { says.say(func(k *knowledge) { k.refused = true }) })
		}},
		"EC2 refuses one request, and another event keeps the cordon": {groups: "xxx", in: days, requests: 3, most: 2, before: func(_ *cluster, says *knowledge) {
			does := says.change
			says.change = func(request ec2.Request, id string) error {
				if id != instance {
					return does(request, id)
				}
				says.say(func(k *knowledge) {
					second := k.planned[id].Planned[0]
					second.ID, second.Code = "second", "instance-stop"
					k.planned[id] = ec2.Status{Planned: append(slices.Clone(k.planned[id].Planned), second)}
				})
				return errors.New("OperationNotPermitted")
			}
		}},
		"one is opted out":         {groups: "xxx", in: days, requests: 2, most: 1, before: annotated(drain.LeaveNode)},
		"one may only be cordoned": {groups: "xxx", in: days, requests: 2, most: 2, before: annotated(drain.OnlyCordon)},
		"one is opted out in its turn": {groups: "xxx", in: days, requests: 2, most: 2, before: inTurn(func(n *corev1.Node) {
			n.Annotations[drain.ActionAnnotation] = drain.OnlyCordon
		})},
		"one is uncordoned in its turn":     {groups: "xxx", in: days, requests: 2, most: 1, before: inTurn(func(n *corev1.Node) { n.Spec.Unschedulable = false })},
		"one is deleted while it is down":   {groups: "xxx", in: days, requests: 1, most: 0, deleted: true},
		"they come back as other Nodes":     {groups: "xxx", in: days, requests: 3, most: 3, renamed: true},
		"one is cordoned for another event": {groups: "xxx", in: days, requests: 2, most: 2, advised: true},
		"others have cordoned one": {groups: "xxx", in: days, requests: 2, most: 2, before: func(c *cluster, _ *knowledge) {
			c.before("evict on-a", held)
			c.change("a", func(n *corev1.Node) { n.Spec.Unschedulable = true })
		}},
	}, func(t *testing.T, c *cluster, row row) {
		says := &knowledge{states: map[string]string{}, planned: map[string]ec2.Status{}}
		names := map[string]string{instance: "a", other: "b", third: "c"}
		for i, id := range []string{instance, other, third} {
			n := nodeOf(names[id], id)
			n.Labels = map[string]string{"zone": row.groups[i : i+1]}
			c.add(n, podOn(names[id], "on-"+names[id]))
			says.states[id] = "running"
			of := planned(map[bool]string{true: "instance-stop", false: "system-reboot"}[row.replaces], row.in, "")[instance]
			of.Planned[0].ID += id
			says.planned[id] = of
		}
		var down atomic.Int32
		says.change = func(request ec2.Request, id string) error {
			if row.replaces {
				says.say(func(k *knowledge) { k.states[id] = "terminated" })
				go c.change(names[id], func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
				return nil
			}
			go func() {
				if int(down.Add(1)) > len(slices.Compact(strings.Split(row.groups, ""))) {
					t.Errorf("%s was requested while another machine was down", request)
				}
				says.say(func(k *knowledge) { delete(k.planned, id) })
				if row.deleted {
					c.remove(names[id])
					return
				}
				if row.renamed {
					c.change(names[id], func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
					time.Sleep(time.Minute)
					n := nodeOf("new-"+names[id], id)
					n.Labels, n.Status.NodeInfo.BootID = c.node(names[id]).Labels, "boot-2"
					c.add(n)
				} else {
					c.goesDown(names[id], "boot-2")
				}
				down.Add(-1)
			}()
			return nil
		}
		change := func(o *fleet.Options) {
			finishing(says, map[bool]fleet.Finish{true: "replace", false: "reboot"}[row.replaces])(o)
			o.GroupLabel = "zone"
			if rule := o.Policy[event.ScheduledMaintenance]; row.leadless {
				rule.Lead = 0
				o.Policy[event.ScheduledMaintenance] = rule
			}
		}
		if row.nextLeads {
			c.before("evict", held) // The first leader ends in a drain.
		}
		if row.before != nil {
			row.before(c, says)
		}
		all := says.planned
		if row.advised {
			says.planned = nil
		}
		r := c.run(change)
		if row.advised {
			<-r.take(notice(instance, event.RebalanceRecommendation, "", 0))
			says.say(func(k *knowledge) { k.planned = all })
		}
		most := 0
		for round := range 15 * 12 {
			time.Sleep(5 * time.Second)
			cordoned := 0
			nodes, _ := c.store.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			for _, n := range nodes.Items {
				if n.Spec.Unschedulable {
					cordoned++
				}
			}
			most = max(most, cordoned)
			if row.nextLeads && slices.Contains([]int{4, 26}, round) {
				r.stop()
				r = c.start("host-2", change)
			}
			if round == 12 {
				c.before("evict", nil)
			}
		}
		if got := says.requests(); len(got) < row.requests || most != row.most {
			t.Errorf("the requests were %q, want %d, and %d nodes were cordoned at once, want %d\n%s", got, row.requests, most, row.most, r.log)
		}
	})
}

// The second event of a node that waits leaves no time, but does not drain it.
func TestFinish_WaitsForTheTurnWithASecondEvent(t *testing.T) {
	each(t, map[string]func(*event.Event){
		"only told of":     func(ev *event.Event) { ev.Deadline = time.Now().Add(2 * time.Minute).Round(time.Second) },
		"that is canceled": func(ev *event.Event) { ev.State = event.Canceled },
	}, func(t *testing.T, c *cluster, change func(*event.Event)) {
		says := c.maintained("system-reboot", days, true)
		c.add(nodeOf("b", other), podOn("b", "two"))
		c.before("evict one", held)
		first, second := says.planned[instance].Planned[0], says.planned[instance].Planned[0]
		first.ID, second.ID, second.Code = "first", "second", "system-maintenance"
		says.states[other] = "running"
		c.run(func(o *fleet.Options) {
			finishing(says, "reboot")(o)
			o.Policy[event.ScheduledMaintenance].Codes[second.Code] = policy.OnlyNotify
		})
		list := func(events ...event.Event) {
			says.say(func(k *knowledge) {
				k.planned = map[string]ec2.Status{instance: k.planned[instance], other: {Planned: events}}
			})
			time.Sleep(2 * time.Minute)
		}
		list(second)
		list(first, second)
		change(&second)
		list(first, second)
		c.wantUntouched("b")
	})
}

// EventBridge tells of the stop and of the start that nth-queue itself has requested.
func TestFinish_AStopOfItsOwnIsOverAfterTheStart(t *testing.T) {
	each(t, map[string]bool{"by one leader": false, "by two": true}, func(t *testing.T, c *cluster, nextLeads bool) {
		says := c.maintained("instance-stop", 12*time.Minute, true)
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
		time.Sleep(14 * time.Minute) // The mark is not needed any more.
		if got := strings.Join(says.requests(), " "); got != "StopInstances StartInstances" {
			t.Errorf("the requests were %q", got)
		}
		if n := c.node("a"); n.Spec.Unschedulable || len(n.Annotations) > 0 {
			t.Errorf("the node is unschedulable: %t, and has the annotations %v\n%s", n.Spec.Unschedulable, n.Annotations, r.log)
		}
	})
}

func TestFinish_StartsTheInstanceThatItHasStopped(t *testing.T) {
	type row struct {
		in      time.Duration                                  // until EC2's own stop; 0 is days
		takes   time.Duration                                  // until it is stopped; 0 is 20 seconds
		refuses error                                          // EC2's answer to a stop that it does not carry out
		stopped func(c *cluster, says *knowledge, r *rig) *rig // once the instance is stopped
		starts  bool
		said    int // errors
	}
	refuses := errors.New("OperationNotPermitted")
	othersStop := func(c *cluster, says *knowledge, r *rig) *rig { // while another event keeps the cordon
		r.take(notice(instance, event.RebalanceRecommendation, "", 0))
		time.Sleep(20 * time.Minute)
		says.say(func(k *knowledge) { k.states[instance] = "stopped" })
		c.change("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
		return r
	}
	each(t, map[string]row{
		"nobody leads for an hour": {stopped: func(c *cluster, says *knowledge, r *rig) *rig {
			r.stop()
			time.Sleep(61 * time.Minute)
			return c.run(finishing(says, "stop-start"))
		}, starts: true},
		"its Node is deleted": {stopped: func(c *cluster, _ *knowledge, r *rig) *rig {
			c.remove("a")
			return r
		}, starts: true},
		"EC2 has no capacity for a while": {stopped: func(_ *cluster, says *knowledge, r *rig) *rig {
			time.Sleep(10 * time.Minute)
			says.say(func(k *knowledge) { k.broken = errors.New("Unsupported") })
			time.Sleep(10 * time.Minute)
			says.say(func(k *knowledge) { k.broken = nil })
			return r
		}, starts: true, said: 2},
		"others have started and stopped it": {stopped: func(_ *cluster, says *knowledge, r *rig) *rig {
			time.Sleep(40 * time.Second)
			says.starts(instance)
			says.say(func(k *knowledge) { k.states[instance], k.broken = "stopped", nil })
			return r
		}, said: 1},
		"EventBridge tells of the stop, which takes long": {takes: 12 * time.Minute, stopped: func(_ *cluster, _ *knowledge, r *rig) *rig {
			r.take(notice(instance, event.StateChange, "stopping", 0))
			time.Sleep(11 * time.Minute)
			r.take(notice(instance, event.StateChange, "stopped", 0))
			return r
		}, starts: true},
		"the process is frozen for a minute": {stopped: func(c *cluster, says *knowledge, r *rig) *rig {
			r.way.freeze()
			if time.Sleep(time.Minute); len(says.requests()) > 1 {
				c.t.Error("it was started by a process that may not lead")
			}
			r.way.thaw()
			return r
		}, starts: true},
		"others stop it after EC2 has refused the stop": {refuses: refuses, stopped: func(c *cluster, says *knowledge, r *rig) *rig {
			time.Sleep(time.Minute)
			says.say(func(k *knowledge) { k.states[instance] = "stopped" })
			c.change("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
			time.Sleep(time.Minute)
			c.remove("a")
			return r
		}},
		"others stop it after that, while another event keeps the cordon":             {refuses: refuses, stopped: othersStop},
		"others stop it after EC2 has neither answered nor acted, with another event": {refuses: ec2.ErrUnanswered, stopped: othersStop},
		"EC2 stops it at the time, after it has refused the stop": {in: 40 * time.Minute, refuses: refuses, stopped: func(c *cluster, says *knowledge, r *rig) *rig {
			time.Sleep(41 * time.Minute)
			says.say(func(k *knowledge) { k.states[instance] = "stopped" })
			c.change("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
			return r
		}},
	}, func(t *testing.T, c *cluster, row row) {
		says := c.maintained("instance-stop", cmp.Or(row.in, days), true)
		if row.said > 0 {
			says.broken = errors.New("InsufficientInstanceCapacity")
		}
		says.change = func(request ec2.Request, id string) (err error) {
			switch {
			case request == ec2.Start:
				says.say(func(k *knowledge) { err = k.broken })
				if err == nil {
					says.starts(id)
				}
				return err
			case row.refuses != nil:
				return row.refuses
			}
			says.say(func(k *knowledge) { k.states[id] = "stopping" })
			go func() {
				c.change("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
				time.Sleep(cmp.Or(row.takes, 20*time.Second))
				says.say(func(k *knowledge) { k.states[id] = "stopped" })
			}()
			return nil
		}
		r := c.run(finishing(says, "stop-start"))
		eventually(t, "EC2 is asked for a stop", func() bool { return len(says.requests()) > 0 })
		time.Sleep(5 * time.Second)
		r = row.stopped(c, says, r)
		time.Sleep(10 * time.Minute)
		got := says.requests()
		isStarted := slices.Contains(got, "StartInstances") && says.states[instance] == "running"
		if isStarted != row.starts || len(got) > 60 || row.starts && row.said == 0 && len(got) != 2 {
			t.Errorf("the requests were %q, and the instance is %s\n%s", got, says.states[instance], r.log)
		}
		synctest.Wait()
		if n := strings.Count(r.log.String(), "cannot start the instance"); n != row.said {
			t.Errorf("%d errors are logged, want %d\n%s", n, row.said, r.log)
		}
	})
}

func TestFinish_OfANodeThatIsDrainedAlready(t *testing.T) {
	second := func(code string) func(*cluster, *knowledge) {
		return func(_ *cluster, says *knowledge) {
			says.say(func(k *knowledge) {
				first, ev := k.planned[instance].Planned[0], k.planned[instance].Planned[0]
				ev.ID, ev.Code = "second", code
				k.planned = map[string]ec2.Status{instance: {Planned: []event.Event{first, ev}}}
			})
		}
	}
	type row struct {
		during, later func(c *cluster, says *knowledge)
	}
	each(t, map[string]row{
		"a second event came during the drain": {during: second("instance-retirement")},
		"a second event is over": {during: second("instance-reboot"), later: func(_ *cluster, says *knowledge) {
			says.say(func(k *knowledge) { k.planned[instance] = ec2.Status{Planned: k.planned[instance].Planned[:1]} })
		}},
		"the right is granted": {
			during: func(_ *cluster, says *knowledge) { says.say(func(k *knowledge) { k.refused = true }) },
			later:  func(_ *cluster, says *knowledge) { says.say(func(k *knowledge) { k.refused = false }) },
		},
		"it was opted out": {
			during: func(c *cluster, _ *knowledge) {
				c.change("a", func(n *corev1.Node) { n.Annotations[drain.ActionAnnotation] = drain.OnlyCordon })
			},
			later: func(c *cluster, _ *knowledge) {
				c.change("a", func(n *corev1.Node) { delete(n.Annotations, drain.ActionAnnotation) })
			},
		},
	}, func(t *testing.T, c *cluster, row row) {
		says := c.maintained("system-reboot", days, true)
		c.before("evict", held)
		if row.later != nil {
			row.during(c, says)
		}
		r := c.run(func(o *fleet.Options) {
			finishing(says, "stop-start")(o)
			o.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Notify}
		})
		time.Sleep(2 * time.Minute)
		for range 2 { // A message may come again during the drain.
			r.take(notice(instance, event.RebalanceRecommendation, "", 0)).want(t, "done")
		}
		if row.later == nil {
			row.during(c, says)
		}
		time.Sleep(2 * time.Minute)
		c.before("evict", nil)
		time.Sleep(3 * time.Minute)
		if row.later != nil {
			if got := says.requests(); len(got) > 0 {
				t.Errorf("the requests were %q before", got)
			}
			row.later(c, says)
		}
		for minutes := 0; minutes < 75 && (minutes < 2 || c.node("a").Spec.Unschedulable); minutes++ {
			time.Sleep(time.Minute)
		}
		if got := says.requests(); len(got) == 0 || c.node("a").Spec.Unschedulable {
			t.Errorf("the requests were %q, and the node is unschedulable: %t\n%s", got, c.node("a").Spec.Unschedulable, r.log)
		}
		if strings.Contains(r.log.String(), "drained the node: 0 pods evicted") {
			t.Errorf("a drain is reported that did not run\n%s", r.log)
		}
	})
}

// EC2 still takes the machine that nth-queue has rebooted.
func TestFinish_DoesNotEndANoticeByItsReboot(t *testing.T) {
	each(t, map[string]func(string) sqs.Notice{"spot": spot, "termination": termination}, func(t *testing.T, c *cluster, notice func(string) sqs.Notice) {
		says := c.maintained("system-reboot", days, false)
		r := c.run(finishing(says, "reboot"))
		eventually(t, "EC2 is asked for a reboot", func() bool { return len(says.requests()) > 0 })
		time.Sleep(2 * time.Second)
		r.take(notice(instance)).want(t, "done")
		time.Sleep(80 * time.Second)
		c.wantDrained("a")
	})
}

// A Node that was marked is deleted for good.
func TestFinish_ForgetsAnInstanceWithoutANode(t *testing.T) {
	each(t, map[string]string{"terminated": "terminated", "not known any more": "", "used for something else": "running"}, func(t *testing.T, c *cluster, state string) {
		says := c.maintained("system-reboot", time.Hour, true)
		r := c.run(finishing(says, "reboot"))
		time.Sleep(20 * time.Minute)
		c.remove("a")
		says.say(func(k *knowledge) {
			if k.states[instance] = state; state == "" {
				k.states = nil
			}
		})
		time.Sleep(time.Hour)
		if n := r.Instances(); n > 0 {
			t.Errorf("%d instances are kept in memory\n%s", n, r.log)
		}
	})
}
