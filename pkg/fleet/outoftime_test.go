package fleet_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

// never is longer than anything lasts here.
const never = 1000 * time.Hour

// held is what a disruption budget says.
func held(int) error {
	return apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
}

// toTheEnd lets a message come again for as long as it is returned, and tells how often it was received until it was done.
func (r *rig) toTheEnd(t *testing.T, notices []sqs.Notice, most int) (receives int) {
	t.Helper()
	for receives = 1; ; receives++ {
		m := newParcel()
		r.Take(notices, receives, m)
		became := <-m.became
		if became.what == "done" {
			synctest.Wait()
			return receives
		}
		if receives == most {
			t.Fatalf("the message was received %d times, and is not done", receives)
		}
		time.Sleep(became.after)
	}
}

// ranOut is how often it was told of a node that its time is over.
func (r *rig) ranOut(node string) (times int) {
	for _, what := range r.ear.whats(node) {
		if what == state.RanOut {
			times++
		}
	}
	return times
}

// The budget is people's word for how long a termination may take. When it is over, the group is told so, whatever is left.
func TestTheHookOfADrainThatDoesNotEndIsHeldForItsBudgetAndCompletedThen(t *testing.T) {
	t.Parallel()
	soft := policy.Rule{Action: policy.Drain, Budget: 4 * time.Minute}
	hard := policy.Rule{Action: policy.Drain, Budget: 4 * time.Minute, Hard: true}
	for name, row := range map[string]struct {
		prepare func(c *cluster)
		rule    policy.Rule
	}{
		"a pod never ends":            {func(c *cluster) { c.ending = never; c.before("delete", forbidden) }, hard},
		"a disruption budget holds":   {func(c *cluster) { c.before("evict", held) }, soft},
		"somebody has cordoned it":    {func(c *cluster) { c.before("evict", held); c.change("a", cordon) }, soft},
		"it cannot be cordoned":       {func(c *cluster) { c.before("change", forbidden) }, soft},
		"it cannot be looked at well": {func(c *cluster) { c.before("change", func(int) error { return fail(c) }) }, soft},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil), podOn("a", "one"))
				row.prepare(c)
				asg := &waiting{}
				r := c.run(func(o *fleet.Options) {
					terminating(asg, 0)(o)
					o.Policy[event.ASGTermination] = row.rule
				})
				began := time.Now()
				r.toTheEnd(t, timeless(instance), 100)
				if took := time.Since(began); took < 4*time.Minute || took > 6*time.Minute {
					t.Errorf("it took %s", took)
				}
				if asg.holding() > 0 || !slices.Equal(asg.outcomes, []event.Outcome{event.OutOfTime}) {
					t.Errorf("%d hooks are held, and completed were %v", asg.holding(), asg.outcomes)
				}
				if times := r.ranOut("a"); times != 1 {
					t.Errorf("it was told %d times that the time is over: %v", times, r.ear.whats("a"))
				}
			})
		})
	}
}

// The kubelet of a machine that is off confirms the end of no pod.
func TestAStoppedInstanceTakesAPlaceForItsBudgetAndNoLonger(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.ending = never
		c.before("delete", forbidden)
		c.add(nodeOf("a", instance, nil), podOn("a", "one"), nodeOf("b", other, nil))
		r := c.run(func(o *fleet.Options) {
			draining(o)
			o.Limits.Draining = 1
			o.Instances = &knowledge{states: map[string]string{instance: "stopped"}}
			o.Policy[event.StateChange] = policy.Rule{Action: policy.Drain, Hard: true, Budget: 3 * time.Minute}
		})
		began := time.Now()
		m, second := newParcel(), newParcel()
		r.Take(entered(instance, "stopped", 0), 1, m)
		time.Sleep(time.Second)
		r.Take(timeless(other), 1, second)
		time.Sleep(150 * time.Second)
		m.wantOpen(t)
		second.wantOpen(t)
		m.want(t, "done")
		if took := time.Since(began); took > 4*time.Minute {
			t.Errorf("it took %s", took)
		}
		second.want(t, "done")
		synctest.Wait()
		if n := c.node("a"); !n.Spec.Unschedulable || r.ranOut("a") != 1 || c.holder("a") != "" {
			t.Errorf("told was %v, and the node is %+v", r.ear.whats("a"), n)
		}
	})
}

// What is known of a drain that is out of time does not end with the process.
func TestTheTimeOfAnEventGoesOnOverRestartsAndOtherProcesses(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.ending = never
		c.before("delete", forbidden)
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		asg := &waiting{}
		brief := func(o *fleet.Options) {
			terminating(asg, 0)(o)
			o.Policy[event.ASGTermination] = policy.Rule{Action: policy.Drain, Hard: true, Budget: 4 * time.Minute}
		}
		began := time.Now()
		for range 3 {
			r := c.run(brief)
			m := newParcel()
			r.Take(timeless(instance), 1, m)
			time.Sleep(time.Minute)
			m.wantOpen(t)
			r.stop()
			m.want(t, "returned")
		}
		if asg.outcomes != nil {
			t.Errorf("before its time is over, completed were %v", asg.outcomes)
		}
		c.run(brief).toTheEnd(t, timeless(instance), 10)
		if took := time.Since(began); took > 6*time.Minute || len(asg.outcomes) != 1 || asg.outcomes[0] != event.OutOfTime {
			t.Errorf("after %s, completed were %v", took, asg.outcomes)
		}
	})
}

// A planned change has a time of its own, and its message comes again until then.
func TestADrainThatFailsUntilItsDeadlineIsGivenUpThen(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		c.before("change", forbidden)
		r := c.run(draining)
		notices := interruption(instance, event.ScheduledMaintenance)
		notices[0].Event.Code, notices[0].Event.Deadline = "system-reboot", time.Now().Add(5*time.Minute).Round(0)
		began := time.Now()
		r.toTheEnd(t, notices, 100)
		if took := time.Since(began); took < 5*time.Minute || took > 7*time.Minute || r.ranOut("a") != 1 {
			t.Errorf("after %s, told was %v", took, r.ear.whats("a"))
		}
	})
}

// What a drain that is out of time has closed stays closed when a mere cordon's time to live ends.
func TestATimeToLiveDoesNotOpenANodeWhoseDrainRanOutOfTime(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		c.before("evict", held)
		r := c.run(func(o *fleet.Options) {
			draining(o)
			o.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, CordonFor: 20 * time.Minute}
		})
		recommended := []sqs.Notice{{About: sqs.Interruption, Instance: instance, Event: event.Event{
			ID: "rebalance", Kind: event.RebalanceRecommendation, State: event.Pending,
		}}}
		r.takeOnce(t, recommended, 1)
		r.toTheEnd(t, interruption(instance, event.StateChange), 10)
		time.Sleep(20 * time.Minute)
		r.takeOnce(t, recommended, 2)
		if n := c.node("a"); !n.Spec.Unschedulable {
			t.Errorf("the node takes pods again: %s", n.Annotations[drain.CordonAnnotation])
		}
	})
}

// Where people would have the machine kept, nothing is deleted for the end of the budget, if the group keeps it then.
func TestPodsAreDeletedForTheEndOfTheBudgetOnlyWhereTheMachineIsLostThen(t *testing.T) {
	t.Parallel()
	for name, loses := range map[string]bool{"it is kept": false, "it is lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil), podOn("a", "one"))
				c.before("evict", held)
				asg := &waiting{loses: loses}
				r := c.run(func(o *fleet.Options) {
					terminating(asg, 0)(o)
					o.Policy[event.ASGTermination] = policy.Rule{Action: policy.Drain, Hard: true, SoftBudget: true, Budget: 3 * time.Minute}
				})
				r.toTheEnd(t, timeless(instance), 10)
				want := map[bool]event.Outcome{false: event.OutOfTime, true: event.Drained}[loses]
				if deleted := c.times("delete") > 0; deleted != loses || !slices.Equal(asg.outcomes, []event.Outcome{want}) {
					t.Errorf("deleted: %t, completed for %v", deleted, asg.outcomes)
				}
			})
		})
	}
}

// Whoever only cordons has somebody else drain.
func TestWhereTerminationsAreOnlyCordonedForNoHookIsCompleted(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		asg := &waiting{}
		r := c.run(func(o *fleet.Options) {
			terminating(asg, 0)(o)
			o.Policy = policy.Settings{event.ASGTermination: {Action: policy.Cordon, Hard: true, Budget: 10 * time.Minute}}
		})
		r.toTheEnd(t, timeless(instance), 10)
		if got := asg.heard(); got != nil || c.times("evict") > 0 || !c.node("a").Spec.Unschedulable {
			t.Errorf("completed: %q, %d evictions, cordoned: %t", got, c.times("evict"), c.node("a").Spec.Unschedulable)
		}
	})
}

func TestALaunchHookIsCompletedOnlyForAnInstanceThatIsManaged(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		managed, leave bool
		became         outcome
	}{
		"it is":                          {managed: true, became: outcome{what: "done"}},
		"it is not":                      {became: outcome{what: "done"}},
		"it is not, and others may read": {leave: true, became: outcome{"returned", 2 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil))
				asg := &waiting{}
				r := c.run(func(o *fleet.Options) {
					terminating(asg, 0)(o)
					o.CompleteLaunches, o.ManagedOnly, o.LeaveUnknown = true, true, row.leave
					o.Instances = &knowledge{states: map[string]string{instance: "running"}, managed: map[string]bool{instance: row.managed}}
				})
				m := newParcel()
				r.Take(atHook(sqs.Launch, instance), 1, m)
				if became := m.want(t, row.became.what); became != row.became {
					t.Errorf("the message was %+v, want %+v", became, row.became)
				}
				if completed := len(asg.heard()) > 0; completed != row.managed {
					t.Errorf("completed: %t", completed)
				}
			})
		})
	}
}
