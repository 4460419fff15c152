package fleet_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

const days = 3 * 24 * time.Hour

func TestLook_BelievesAStopUnlessEC2SaysThatItRuns(t *testing.T) {
	stop := func(code string, ago time.Duration) func() sqs.Notice {
		return func() sqs.Notice { return notice(instance, event.StateChange, code, ago) }
	}
	reclaim := func(code string, ago time.Duration) func() sqs.Notice {
		return func() sqs.Notice { return notice(instance, event.SpotInterruption, code, ago) }
	}
	timeless := func() sqs.Notice {
		n := notice(instance, event.StateChange, "stopped", 0)
		n.Event.Noticed = time.Time{}
		return n
	}
	const ready, down = corev1.ConditionTrue, corev1.ConditionUnknown
	type row struct {
		notice  func() sqs.Notice
		state   string // what EC2 says now; "" if it does not know the instance
		err     error  // what EC2 answers instead
		node    corev1.ConditionStatus
		drained bool
	}
	each(t, map[string]row{
		"stopped a minute ago and runs":         {stop("stopped", time.Minute), "running", nil, ready, false},
		"stopped just now, and EC2 lags":        {stop("stopped", 0), "running", nil, ready, false},
		"stopped days ago and is":               {stop("stopped", days), "stopped", nil, ready, true},
		"stopping and still is":                 {stop("stopping", 5*time.Minute), "stopping", nil, ready, true},
		"stopping and is terminated":            {stop("stopping", days), "terminated", nil, ready, true},
		"shutting down, and nobody knows it":    {stop("shutting-down", days), "", nil, ready, true},
		"stopped days ago and is being started": {stop("stopped", days), "pending", nil, ready, false},
		"to be stopped for spot and runs again": {reclaim("stop", days), "running", nil, ready, false},
		"to be hibernated and runs again":       {reclaim("hibernate", days), "running", nil, ready, false},
		"to be stopped for spot in a minute":    {reclaim("stop", time.Minute), "running", nil, ready, true},
		"to be terminated for spot, long ago":   {reclaim("terminate", days), "running", nil, ready, true},
		"no time, and it is stopped":            {timeless, "stopped", nil, ready, true},
		"no time, and it runs":                  {timeless, "running", nil, ready, false},
		"EC2 refuses, long ago, Ready":          {stop("stopped", days), "", ec2.ErrRefused, ready, false},
		"EC2 refuses, long ago, not Ready":      {stop("stopped", days), "", ec2.ErrRefused, down, true},
		"EC2 refuses, just now, Ready":          {stop("stopped", time.Minute), "", ec2.ErrRefused, ready, true},
		"EC2 fails, not Ready":                  {stop("stopped", days), "", errors.New("down"), down, true},
	}, func(t *testing.T, c *cluster, row row) {
		n := nodeOf("a", instance)
		n.Status.Conditions[0].Status = row.node
		c.add(n, podOn("a", "one"))
		r := c.run(func(o *fleet.Options) {
			o.EC2 = &knowledge{states: map[string]string{instance: row.state}, err: row.err}
			if row.state == "" {
				o.EC2 = &knowledge{err: row.err}
			}
		})
		r.take(row.notice()).want(t, "done")
		c.want("a", row.drained)
	})
}

// An instance was drained because it stopped, and runs again. Its node is opened once it is Ready.
func TestTakeStart_OpensTheNodeOnceItIsReady(t *testing.T) {
	type row struct {
		boot    string
		refused bool          // nth-queue may not ask EC2
		after   time.Duration // until then it is not Ready
		lag     time.Duration // of the watch: the drain is over before the cordon shows
		older   bool          // SQS does not keep the order: a message about an older start comes last
		broken  bool          // somebody has broken the claim meanwhile
		kept    int           // taints, with the cordon, for maintenance that EC2 still lists
	}
	each(t, map[string]row{
		"it has booted":                  {boot: "boot-2"},
		"it has booted, and takes long":  {boot: "boot-2", after: 40 * time.Minute},
		"it was hibernated":              {boot: "boot-1"},
		"it has booted, and EC2 refuses": {boot: "boot-2", refused: true},
		"the watch lags":                 {boot: "boot-2", lag: 3 * time.Second},
		"an older start comes last":      {boot: "boot-1", older: true},
		"somebody breaks the claim":      {boot: "boot-1", broken: true},
		"maintenance keeps the cordon":   {boot: "boot-2", kept: 2},
	}, func(t *testing.T, c *cluster, row row) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		c.lag = row.lag
		says := &knowledge{states: map[string]string{instance: "stopped"}}
		if row.refused {
			says.err = ec2.ErrRefused
		}
		if row.kept > 0 {
			says.planned = planned("instance-stop", 90*time.Minute, "")
		}
		r := c.run(func(o *fleet.Options) {
			o.EC2, o.Taints = says, fleet.Taints{OutOfService: true, Kinds: true, Effect: "NoSchedule"}
		})
		r.take(notice(instance, event.SpotInterruption, "stop", 2*time.Minute)).want(t, "done")
		r.take(notice(instance, event.StateChange, "stopped", 0)).want(t, "done")
		time.Sleep(10 * row.lag)
		c.wantDrained("a")
		if taints := c.node("a").Spec.Taints; len(taints) == 0 || !row.refused && len(taints) != 2 {
			t.Errorf("its taints are %v, want one for the kind and out-of-service", taints)
		}
		c.change("a", func(n *corev1.Node) {
			if n.Status.Conditions[0].Status = corev1.ConditionUnknown; row.broken {
				n.Annotations[drain.CordonAnnotation] = "{"
			}
		})
		time.Sleep(time.Hour)
		says.starts(instance)
		r.take(running(instance, 0)).want(t, "done")
		time.Sleep(max(row.after, 10*time.Second))
		if row.older {
			r.take(running(instance, 24*time.Hour)).want(t, "done")
		}
		if !c.node("a").Spec.Unschedulable {
			t.Error("the node was opened before it was Ready")
		}
		c.change("a", func(n *corev1.Node) {
			n.Status.NodeInfo.BootID, n.Status.Conditions[0].Status = row.boot, corev1.ConditionTrue
		})
		time.Sleep(2 * time.Minute)
		if n := c.node("a"); n.Spec.Unschedulable != (row.kept > 0) || len(n.Spec.Taints) != row.kept {
			t.Errorf("the node is unschedulable: %t, and has the taints %v", n.Spec.Unschedulable, n.Spec.Taints)
		}
	})
}

// planned is an event that EC2 has scheduled for the instance.
func planned(code string, in time.Duration, description string) map[string]ec2.Status {
	return map[string]ec2.Status{instance: {Planned: []event.Event{{
		ID: "instance-event-1", Kind: event.ScheduledMaintenance, Code: code, State: event.StateIn(description), Description: description,
		Deadline: time.Now().Add(in).Round(time.Second),
	}}}}
}

func TestLook_DrainsNodesOfManagedInstancesOnly(t *testing.T) {
	type row struct{ managed, listed bool }
	each(t, map[string]row{
		"a message":                             {managed: true},
		"a message, unmanaged":                  {},
		"maintenance that EC2 lists":            {managed: true, listed: true},
		"maintenance that EC2 lists, unmanaged": {listed: true},
	}, func(t *testing.T, c *cluster, row row) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		says := &knowledge{states: map[string]string{instance: "running"}, managed: map[string]bool{instance: row.managed}}
		if row.listed {
			says.planned = planned("instance-stop", time.Minute, "")
		}
		r := c.run(func(o *fleet.Options) { o.EC2, o.ManagedOnly = says, true })
		if row.listed {
			time.Sleep(10 * time.Minute)
		} else {
			r.take(spot(instance)).want(t, "done")
		}
		c.want("a", row.managed)
		if !row.managed && r.ear.times(state.Announced) > 0 {
			t.Error("an event of a node that is not ours was announced")
		}
	})
}

func TestPoll_PursuesWhatEC2HasScheduled(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		says := &knowledge{states: map[string]string{instance: "running"}, planned: planned("instance-stop", 4*time.Hour, "")}
		r := c.run(func(o *fleet.Options) { o.EC2 = says })
		time.Sleep(time.Hour)
		c.wantUntouched("a")
		if r.ear.times(state.Announced) != 1 {
			t.Errorf("it was announced %d times, want once", r.ear.times(state.Announced))
		}
		time.Sleep(2*time.Hour + time.Minute)
		c.wantDrained("a")
		r.stop()
		c.run(func(o *fleet.Options) { o.EC2, o.Identity = says, "host-2" })
		time.Sleep(10 * time.Minute)
		if evictions := c.times("evict"); !c.node("a").Spec.Unschedulable || evictions != 1 {
			t.Errorf("with the next leader, the node is unschedulable: %t, after %d evictions", c.node("a").Spec.Unschedulable, evictions)
		}
		says.say(func(k *knowledge) { k.planned = planned("instance-stop", time.Hour, "[Canceled]") })
		eventually(t, "the node takes pods again", func() bool { return !c.node("a").Spec.Unschedulable })
		if notes := c.node("a").Annotations; len(notes) > 0 {
			t.Errorf("of an event that is over, the Node still has %v", notes)
		}
	})
}

// Canceled maintenance drains nothing on the old date, also while EC2's list may be incomplete.
func TestPoll_BeginsNothingThatEC2ListsNoMore(t *testing.T) {
	each(t, map[string]bool{"alone": false, "one of two": true}, func(t *testing.T, c *cluster, ofTwo bool) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		says := &knowledge{planned: planned("instance-stop", 70*time.Minute, "")} // to begin in ten minutes
		var left map[string]ec2.Status
		if ofTwo {
			left = planned("instance-stop", days, "")
			left[instance].Planned[0].ID = "second"
			says.planned[instance] = ec2.Status{Planned: slices.Concat(says.planned[instance].Planned, left[instance].Planned)}
		}
		r := c.run(func(o *fleet.Options) { o.EC2 = says })
		time.Sleep(5 * time.Minute)
		says.say(func(k *knowledge) { k.planned = left })
		time.Sleep(time.Hour)
		if c.wantUntouched("a"); r.begun.Load() > 2 { // It is announced, and over.
			t.Errorf("there were %d sessions", r.begun.Load())
		}
	})
}

// A reboot is over with a new boot, or when EC2 says so for long enough; not because a kubelet was restarted.
func TestPoll_KnowsARebootByItsBootID(t *testing.T) {
	type row struct {
		boot        string
		description string
		opened      bool
		nextLeads   bool
	}
	each(t, map[string]row{
		"the kubelet was restarted":     {"boot-1", "", false, false},
		"the machine was rebooted":      {"boot-2", "", true, false},
		"it was, and another leads":     {"boot-2", "", true, true},
		"EC2 says so, long enough":      {"boot-1", "[Completed]", true, false},
		"EC2 has canceled it meanwhile": {"boot-1", "[Canceled]", true, false},
	}, func(t *testing.T, c *cluster, row row) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		c.lag = 5 * time.Second // The drain is over before the watch shows its cordon, which looks like an uncordon by operators.
		says := &knowledge{states: map[string]string{instance: "running"}, planned: planned("system-reboot", 30*time.Minute, "")}
		change := func(o *fleet.Options) { o.EC2 = says }
		r := c.run(change)
		eventually(t, "it is drained", func() bool { return c.node("a").Spec.Unschedulable })
		time.Sleep(40 * time.Minute)
		if row.nextLeads {
			r.stop()
		}
		c.goesDown("a", row.boot)
		says.say(func(k *knowledge) {
			said := k.planned[instance]
			said.Planned = slices.Clone(said.Planned) // What was answered before stays as it was.
			k.planned[instance] = said
			k.planned[instance].Planned[0].Description = row.description
			k.planned[instance].Planned[0].State = event.StateIn(row.description)
		})
		if row.nextLeads {
			c.run(change)
		}
		time.Sleep(20 * time.Minute)
		if n := c.node("a"); n.Spec.Unschedulable == row.opened {
			t.Errorf("the node is unschedulable: %t", n.Spec.Unschedulable)
		}
	})
}

// A spot notice ends two minutes after its receipt, even if the clock of AWS is not known.
func TestTake_MovesTimesToThisMachinesClock(t *testing.T) {
	type row struct {
		ahead   time.Duration
		unknown bool
	}
	each(t, map[string]row{
		"AWS is behind":                 {ahead: -10 * time.Minute},
		"AWS has the same time":         {},
		"AWS is ahead":                  {ahead: 10 * time.Minute},
		"AWS is ahead, and nobody knew": {ahead: time.Hour, unknown: true},
	}, func(t *testing.T, c *cluster, row row) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		c.before("evict", held)
		began := time.Now()
		var deleted time.Duration
		c.before("delete", func(int) error {
			deleted = time.Since(began)
			return nil
		})
		r := c.run(func(o *fleet.Options) {
			if !row.unknown {
				o.Clock = func() time.Time { return time.Now().Round(0).Add(row.ahead) }
			}
		})
		began = time.Now()
		r.take(notice(instance, event.SpotInterruption, "terminate", -row.ahead)).want(t, "done")
		if deleted < time.Minute || deleted > 2*time.Minute {
			t.Errorf("the pod that resists was deleted after %s", deleted)
		}
	})
}

func TestPoll_ActsOnStatusChecksThatFailForLong(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		says := &knowledge{states: map[string]string{instance: "running"}, planned: map[string]ec2.Status{instance: {Impaired: "system", Since: time.Now()}}}
		c.run(func(o *fleet.Options) { o.EC2, o.Impaired = says, 5*time.Minute })
		time.Sleep(4 * time.Minute)
		c.wantUntouched("a")
		time.Sleep(5 * time.Minute)
		c.wantDrained("a")
		says.say(func(k *knowledge) { k.planned = nil })
		time.Sleep(20 * time.Minute)
		if c.node("a").Spec.Unschedulable {
			t.Error("the check has passed for long, and the node is still cordoned")
		}
	})
}

// The taints go with the cordon, in one write: what is written after that may fail, or the leader may end.
func TestDrain_TaintsAsPartOfTheGoal(t *testing.T) {
	const key = "aws-node-termination-handler/scheduled-maintenance"
	type row struct {
		action  policy.Action
		in      time.Duration // until the maintenance
		people  string        // what people want done to the node at most
		tainted bool
	}
	each(t, map[string]row{
		"to be drained":            {action: policy.Drain, in: time.Minute, tainted: true},
		"to be cordoned":           {action: policy.Cordon, in: time.Minute, tainted: true},
		"only told":                {action: policy.Notify, in: time.Minute},
		"announced for later":      {action: policy.Drain, in: days},
		"left alone by people":     {action: policy.Drain, in: time.Minute, people: drain.LeaveNode},
		"only told, as people say": {action: policy.Drain, in: time.Minute, people: drain.OnlyNotify},
	}, func(t *testing.T, c *cluster, row row) {
		n := nodeOf("a", instance)
		n.Spec.Taints = []corev1.Taint{{Key: "people", Effect: corev1.TaintEffectNoSchedule}}
		if row.people != "" {
			n.Annotations[drain.ActionAnnotation] = row.people
		}
		c.add(n, podOn("a", "one"))
		says := &knowledge{states: map[string]string{instance: "running"}, planned: planned("instance-stop", row.in, "")}
		c.run(func(o *fleet.Options) {
			o.EC2, o.Taints = says, fleet.Taints{Kinds: true, Effect: "NoExecute"}
			rule := o.Policy[event.ScheduledMaintenance]
			rule.Action = row.action
			o.Policy[event.ScheduledMaintenance] = rule
		})
		time.Sleep(30 * time.Second)
		if taints := c.node("a").Spec.Taints; (len(taints) == 2 && taints[1].Key == key) != row.tainted || len(taints) < 1 {
			t.Errorf("the taints are %v", taints)
		}
		c.before("taint", held)
		says.say(func(k *knowledge) { k.planned = planned("instance-stop", row.in, "[Canceled]") })
		time.Sleep(5 * time.Minute)
		c.before("taint", nil)
		time.Sleep(5 * time.Minute)
		if taints := c.node("a").Spec.Taints; len(taints) != 1 || taints[0].Key != "people" {
			t.Errorf("after it was canceled the taints are %v", taints)
		}
	})
}

// A drain can last for hours without another change of its record.
func TestDrain_TriesAgainToTaint(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		c.before("evict", held)
		c.before("taint", held)
		says := &knowledge{planned: planned("instance-stop", time.Minute, "")}
		c.run(func(o *fleet.Options) { o.EC2, o.Taints = says, fleet.Taints{Kinds: true, Effect: "NoSchedule"} })
		time.Sleep(30 * time.Second)
		c.before("taint", nil)
		time.Sleep(3 * time.Minute)
		if n := c.node("a"); len(n.Spec.Taints) != 1 {
			t.Errorf("the taints are %v", n.Spec.Taints)
		}
	})
}

// No drain is left that could take off what keeps pods and traffic away from the node.
func TestLook_TidiesANodeThatIsOpenedAfterItsDrain(t *testing.T) {
	type row struct {
		closed    bool // others have cordoned the node before
		nextLeads bool
	}
	each(t, map[string]row{
		"in the same term":                    {},
		"a node that was closed, by the next": {closed: true, nextLeads: true},
	}, func(t *testing.T, c *cluster, row row) {
		n := nodeOf("a", instance)
		n.Spec.Unschedulable = row.closed
		c.add(n, podOn("a", "one"))
		change := func(o *fleet.Options) {
			o.EC2, o.Drain.ExcludeFromLoadBalancers = &knowledge{}, true
			o.Taints = fleet.Taints{Kinds: true, Effect: "NoSchedule"}
		}
		c.before("evict", held) // Taints and label are written at the same time: the one that meets a conflict is written later.
		r := c.run(change)
		m := r.take(termination(instance))
		time.Sleep(20 * time.Second)
		c.before("evict", nil)
		m.want(t, "done")
		if n := c.node("a"); n.Labels[drain.ExcludeLabel] == "" || len(n.Spec.Taints) == 0 != row.closed { // Taints are part of our cordon.
			t.Errorf("after the drain, the node has the labels %v and the taints %v", n.Labels, n.Spec.Taints)
		}
		if row.nextLeads {
			r.stop()
			r = c.start("host-2", change)
			eventually(t, "the next leads", func() bool { return r.Status().Leads })
		}
		c.change("a", func(n *corev1.Node) { n.Spec.Unschedulable = false })
		time.Sleep(2 * time.Minute)
		if n := c.node("a"); n.Spec.Unschedulable || n.Labels[drain.ExcludeLabel] != "" || len(n.Spec.Taints) > 0 {
			t.Errorf("the node is unschedulable: %t, has the labels %v and the taints %v", n.Spec.Unschedulable, n.Labels, n.Spec.Taints)
		}
	})
}

// The instance runs again before the node is drained for its stop. The node may have been cordoned by the leader before.
func TestLook_EndsAStopThatAStartOvertakes(t *testing.T) {
	type row struct{ waits, nextLeads bool }
	each(t, map[string]row{
		"as a message says while its drain waits":                    {waits: true},
		"as a message says while its drain waits, and another leads": {waits: true, nextLeads: true},
		"as only EC2 says, and another leads":                        {nextLeads: true},
	}, func(t *testing.T, c *cluster, row row) {
		c.add(nodeOf("a", instance), podOn("a", "one"), nodeOf("b", other), podOn("b", "two"))
		c.before("evict", held)
		says := &knowledge{states: map[string]string{instance: "stopping", other: "running"}}
		change := func(o *fleet.Options) { o.EC2, o.Limits.Draining = says, 1 }
		r := c.run(change)
		stop := notice(instance, event.StateChange, "stopping", 0)
		var m parcel
		if row.nextLeads {
			m = r.take(stop)
			time.Sleep(10 * time.Second)
			r.stop()
			m.want(t, "returned")
			r = c.start("host-2", change)
			eventually(t, "it leads", func() bool { return r.Status().Leads })
		}
		if row.waits {
			r.take(notice(other, event.RebalanceRecommendation, "", 0))
			time.Sleep(5 * time.Second)
			m = r.take(stop)
			time.Sleep(20 * time.Second)
			m.held(t)
		}
		says.starts(instance)
		if row.nextLeads {
			c.change("a", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-2" })
		}
		if row.waits {
			r.take(running(instance, 0)).want(t, "done")
		} else {
			time.Sleep(time.Minute)
			m = r.take(stop)
		}
		m.want(t, "done")
		time.Sleep(time.Minute)
		c.wantUntouched("a")
	})
}

// The machine reboots between a spot notice to stop and the stop.
func TestLook_ARebootEndsNoStopThatIsAhead(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		c.before("evict", held)
		m := c.run(func(o *fleet.Options) { o.EC2 = &knowledge{states: map[string]string{instance: "running"}} }).take(notice(instance, event.SpotInterruption, "stop", 0))
		time.Sleep(10 * time.Second)
		c.goesDown("a", "boot-2")
		time.Sleep(5 * time.Second)
		m.held(t)
	})
}

func TestLook_UrgentWaitsForNoAnswerOfEC2(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		const stops = 300
		for i := range stops {
			c.add(nodeOf(fmt.Sprintf("n%d", i), fmt.Sprintf("i-%d", i)))
		}
		r := c.run(func(o *fleet.Options) { o.EC2 = &knowledge{lag: 30 * time.Second, err: errors.New("throttled")} })
		for i := range stops {
			r.take(notice(fmt.Sprintf("i-%d", i), event.StateChange, "stopping", 0))
		}
		time.Sleep(time.Second)
		r.take(spot(instance))
		time.Sleep(10 * time.Second)
		c.wantDrained("a")
	})
}

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
	each(t, map[string]error{"refused": apierrors.NewForbidden(corev1.Resource("nodes"), "a", nil), "allowed": nil}, func(t *testing.T, c *cluster, refusal error) {
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
}

// A new leader receives the message about a start before EC2 has answered the first poll.
func TestTakeStart_BeforeTheFirstPoll(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		says := &knowledge{states: map[string]string{instance: "stopped"}}
		r := c.run(func(o *fleet.Options) { o.EC2 = says })
		r.take(notice(instance, event.StateChange, "stopped", 0)).want(t, "done")
		time.Sleep(time.Minute)
		r.stop()
		time.Sleep(time.Hour)
		says.starts(instance)
		says.say(func(k *knowledge) { k.lag = 2 * time.Second })
		r = c.run(func(o *fleet.Options) { o.EC2, o.Identity = says, "host-2" })
		r.take(running(instance, 0)).want(t, "done")
		eventually(t, "the node is open", func() bool { return !c.node("a").Spec.Unschedulable })
	})
}
