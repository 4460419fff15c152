package asg_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/event"
)

func TestDeadline_IsTheHooksGlobalTimeoutWithinTheBudget(t *testing.T) {
	t.Parallel()
	bubble(t, one(short), func(r *rig) {
		r.settings.Budget = 2 * time.Hour
		r.run()
		r.aws.SetState(instance, "Terminating")
		r.announce(ending)
		if got := r.deadline(); got != 0 {
			t.Errorf("before the waiting begins the event has a deadline after %s", got)
		}
		r.aws.Terminate(instance)
		for range 40 {
			r.pass(time.Minute)
			if got := r.deadline(); got != 50*time.Minute {
				t.Fatalf("the event has a deadline after %s, want 50m: it must not move", got)
			}
		}
		r.settings.Budget = 20 * time.Minute
		r.keeper.Use(r.settings)
		r.pass(0)
		if got := r.deadline(); got != 0 {
			t.Errorf("with a budget that is over sooner the event has a deadline after %s", got)
		}
		r.pass(time.Hour)
		actions := r.aws.Actions(instance)
		if got := actions[0].Ended.Sub(r.start); got != 50*time.Minute || !actions[0].TimedOut {
			t.Errorf("the hook ended after %s: %+v", got, actions[0])
		}
	})
}

func TestDeadline_IsNotThatOfAHookThatIsOver(t *testing.T) {
	t.Parallel()
	brief := asgtest.Hook{Name: "brief", HeartbeatTimeout: 30 * time.Minute, GlobalTimeout: 15 * time.Minute, DefaultResult: "CONTINUE"}
	bubble(t, []asgtest.Hook{hook, brief}, func(r *rig) {
		r.settings.Hooks, r.settings.Budget = []string{"drain", "brief"}, time.Hour
		r.terminate()
		for at, want := range []time.Duration{15 * time.Minute, 15 * time.Minute, 0} {
			if got := r.deadline(); at > 0 && got != want {
				t.Errorf("%s after the start, the event has a deadline after %s, want %s", time.Since(r.start), got, want)
			}
			r.pass(11 * time.Minute)
		}
	})
}

func TestDeadline_CountsFromFirstSeenAcrossARestart(t *testing.T) {
	t.Parallel()
	bubble(t, one(short), func(r *rig) {
		r.settings.Budget = 2 * time.Hour
		r.opts.FirstSeen = func(id string) time.Time {
			if id != ending.ID || time.Now().Equal(r.start) {
				return time.Time{}
			}
			return r.start.Round(0)
		}
		r.terminate()
		r.pass(10 * time.Minute)
		r.end()
		r.run()
		r.announce(ending)
		r.pass(time.Second)
		if got := r.deadline(); got != 50*time.Minute {
			t.Errorf("the event has a deadline after %s, want 50m", got)
		}
	})
}

func TestDeadline_IsNearerWhileHeartbeatsFail(t *testing.T) {
	t.Parallel()
	patient := asgtest.Hook{Name: "drain", HeartbeatTimeout: 12 * time.Minute}
	bubble(t, one(patient), func(r *rig) {
		r.terminate()
		r.pass(10 * time.Second)
		r.aws.Fail(asgtest.Throttled("RecordLifecycleActionHeartbeat", 0))
		r.pass(7 * time.Minute)
		if got := r.deadline(); got != 0 {
			t.Errorf("while there is time the event has a deadline after %s", got)
		}
		r.pass(150 * time.Second) // It is known with a heartbeat that fails.
		if got := r.deadline(); got != 12*time.Minute {
			t.Errorf("the event has a deadline after %s, want 12m: nothing was heard since the start", got)
		}
		r.aws.Lift()
		r.pass(2 * time.Minute)
		if got := r.deadline(); got != 0 {
			t.Errorf("once heartbeats get through again the event has a deadline after %s", got)
		}
	})
}

// nth is restarted in the sixth minute of a drain; the budget is fifteen, and the hook's timeout five, which heartbeats have prolonged. The
// first heartbeat of the new process is throttled once. Auto Scaling waits for minutes yet.
func TestDeadline_SurvivesAThrottledHeartbeatAfterARestart(t *testing.T) {
	t.Parallel()
	bubble(t, one(asgtest.Hook{Name: "drain", HeartbeatTimeout: 5 * time.Minute}), func(r *rig) {
		r.terminate()
		r.pass(6 * time.Minute)
		r.end()
		r.opts.FirstSeen = func(string) time.Time { return r.start }
		r.aws.Fail(asgtest.Throttled("RecordLifecycleActionHeartbeat", 1))
		r.run()
		r.announce(ending)
		r.source.look()
		synctest.Wait()
		if got := r.deadline(); got != 0 && got <= time.Since(r.start) {
			t.Errorf("after %s the event has a deadline after %s, which is over; Auto Scaling waits until %s after the start",
				time.Since(r.start), got, r.aws.Actions(instance)[0].Until.Sub(r.start))
		}
	})
}

// Heartbeats are refused, so that the hook's timeout is the deadline. Other hooks are named, and Auto Scaling does not answer for a while.
func TestDeadline_StaysWhileHooksAreLookedForAgain(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.aws.Deny("RecordLifecycleActionHeartbeat")
		r.terminate()
		r.pass(time.Minute)
		before := r.deadline()
		r.aws.Fail(asgtest.Throttled("", 0))
		r.keeper.Use(asg.Settings{Complete: true, Budget: r.settings.Budget, Hooks: []string{"drain"}})
		r.pass(30 * time.Second)
		if now := r.deadline(); before == 0 || (now-before).Abs() > 2*time.Second {
			t.Errorf("the deadline was after %s, and is after %s", before, now)
		}
		r.aws.Lift()
		r.keeper.Use(asg.Settings{Complete: true, Budget: r.settings.Budget, Hooks: []string{"other"}})
		r.pass(time.Minute)
		if now := r.deadline(); now != 0 {
			t.Errorf("the deadline is after %s, of a hook that is not ours any more", now)
		}
	})
}

// Pods that resist are deleted in time for a deadline of the event, and for none that the settings give it where the machine is kept then.
func TestDeadline_IsTheBudgetsEndUnlessTheGroupKeepsTheMachine(t *testing.T) {
	t.Parallel()
	const minutes = 15 * time.Minute
	for name, row := range map[string]struct {
		keep            bool // the settings ask for that
		retain          bool // the group does
		denied          string
		target, state   string // if others than those of a termination
		hook            asgtest.Hook
		outside         bool // it is in no group
		before, waiting time.Duration
	}{
		"nobody wants it kept":                   {retain: true, hook: hook},
		"it is kept":                             {keep: true, retain: true, hook: hook},
		"it is kept, from the warm pool":         {keep: true, retain: true, target: "Warmed:Terminated", state: "Warmed:Terminating:Wait", hook: hook},
		"it is kept already":                     {keep: true, retain: true, state: "Terminating:Retained", hook: hook},
		"the group does not keep it":             {keep: true, hook: hook, before: minutes, waiting: minutes},
		"nobody may ask":                         {keep: true, retain: true, denied: "DescribeAutoScalingGroups", hook: hook, before: minutes, waiting: minutes},
		"nobody may ask for hooks":               {keep: true, retain: true, denied: "DescribeLifecycleHooks", hook: hook, before: minutes, waiting: minutes},
		"it has no hook":                         {keep: true, retain: true, hook: asgtest.Hook{Name: "greet", Transition: asgtest.Launching}, before: minutes, waiting: minutes},
		"it is in no group":                      {keep: true, retain: true, outside: true, hook: hook, before: minutes, waiting: minutes},
		"it returns to the warm pool":            {keep: true, retain: true, target: "Warmed:Stopped", state: "Warmed:Pending:Wait", hook: hook, before: minutes, waiting: minutes},
		"its hook ends sooner":                   {keep: true, retain: true, denied: "RecordLifecycleActionHeartbeat", hook: hook, waiting: hook.HeartbeatTimeout},
		"its hook ends sooner, and it would not": {keep: true, denied: "RecordLifecycleActionHeartbeat", hook: hook, before: minutes, waiting: hook.HeartbeatTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(row.hook), func(r *rig) {
				r.settings.Abandon = row.keep
				r.aws.Retain(group, row.retain)
				if row.denied != "" {
					r.aws.Deny(row.denied)
				}
				ev := ending
				if row.target != "" {
					ev.Code = row.target
				}
				if row.outside {
					r.metadata["instance-id"] = "i-0ffffffffffffffff"
				}
				r.aws.SetState(instance, "Terminating")
				r.run()
				r.announce(ev)
				r.pass(time.Second)
				if got := r.deadline(); got != row.before {
					t.Errorf("before it waits, the event has a deadline after %s, want %s", got, row.before)
				}
				if r.aws.Terminate(instance); row.state != "" {
					r.aws.SetState(instance, row.state)
				}
				r.pass(time.Minute)
				if got := r.deadline(); got < row.waiting || got > row.waiting+time.Second { // It counts from the last look before.
					t.Errorf("while it waits, the event has a deadline after %s, want %s", got, row.waiting)
				}
			})
		})
	}
}

func TestDeadline_WaitsUntilTheGroupsPolicyIsKnown(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.aws.Fail(asgtest.Throttled("DescribeAutoScalingGroups", 0))
		r.terminate()
		r.pass(time.Minute)
		r.wantCalls("DescribeAutoScalingGroups", 0)
		s := r.settings
		s.Abandon = true
		r.keeper.Use(s)
		r.keeper.Settled(ending, event.OutOfTime)
		r.pass(5 * time.Minute)
		if got := r.deadline(); got != 0 {
			t.Errorf("while it is not known the event has a deadline after %s", got)
		}
		if a := r.aws.Actions(instance)[0]; a.Result != "" || a.TimedOut {
			t.Errorf("while it is not known the hook is %+v, want it held", a)
		}
		r.keeper.Settled(ending, "")
		r.aws.Lift()
		r.pass(time.Minute)
		if got := r.deadline(); got != s.Budget {
			t.Errorf("of a machine that is not kept the event has a deadline after %s", got)
		}
		before := len(r.aws.Calls("DescribeAutoScalingGroups"))
		if r.pass(5 * time.Minute); before > 40 {
			t.Errorf("that was asked %d times", before)
		}
		r.wantCalls("DescribeAutoScalingGroups", before)
		r.keeper.Use(r.settings)
		r.pass(0)
		if got := r.deadline(); got != 0 {
			t.Errorf("where nobody wants it kept the event has a deadline after %s", got)
		}
	})
}

func TestOutcome_AnOptedOutNodeIsHeldForTheBudget(t *testing.T) {
	t.Parallel()
	bubble(t, one(asgtest.Hook{Name: "drain", HeartbeatTimeout: 6 * time.Minute, DefaultResult: "CONTINUE"}), func(r *rig) {
		r.terminate()
		r.keeper.Settled(ending, event.LeftAlone)
		r.pass(time.Hour)
		r.wantActions("drain beaten at 0s 0s 2m0s 4m0s 6m0s 8m0s 10m0s 12m0s 14m0s, CONTINUE at 20m0s, timed out")
		r.wantCalls("CompleteLifecycleAction", 0)
		r.wantReports(found, "found: the node is opted out: the lifecycle hook drain of the Auto Scaling group workers")
	})
}

// The last word counts, also where the one before was about to be sent.
func TestOutcome_TheLastOneCountsUntilTheCompletion(t *testing.T) {
	t.Parallel()
	t.Run("while it is throttled", func(t *testing.T) {
		t.Parallel()
		bubble(t, one(hook), func(r *rig) {
			r.terminate()
			r.aws.Fail(asgtest.Throttled("CompleteLifecycleAction", 0))
			r.keeper.Settled(ending, event.Drained)
			r.pass(time.Minute)
			r.keeper.Settled(ending, event.LeftAlone)
			r.pass(0)
			r.aws.Lift()
			r.pass(5 * time.Minute)
			if a := r.aws.Actions(instance)[0]; a.Result != "" || len(a.Heartbeats) < 4 {
				t.Errorf("the hook is %+v, want it held", a)
			}
			r.keeper.Settled(ending, "") // the annotation is gone, and the node is drained again
			r.pass(time.Minute)
			r.keeper.Settled(ending, event.Drained)
			r.pass(0)
			if a := r.aws.Actions(instance)[0]; a.Result != "CONTINUE" {
				t.Errorf("the hook is %+v, want it completed", a)
			}
		})
	})
	t.Run("after the budget", func(t *testing.T) {
		t.Parallel()
		bubble(t, one(asgtest.Hook{Name: "drain", HeartbeatTimeout: time.Hour}), func(r *rig) {
			r.terminate()
			r.keeper.Settled(ending, event.LeftAlone)
			r.pass(30 * time.Minute)
			beats := len(r.aws.Actions(instance)[0].Heartbeats)
			r.keeper.Settled(ending, "")
			r.pass(time.Minute)
			if a := r.aws.Actions(instance)[0]; len(a.Heartbeats) != beats+1 {
				t.Errorf("the hook is %+v, want it held again", a)
			}
			r.keeper.Settled(ending, event.OutOfTime)
			r.pass(0)
			if a := r.aws.Actions(instance)[0]; a.Result != "CONTINUE" {
				t.Errorf("the hook is %+v, want it completed", a)
			}
		})
	})
}

// Auto Scaling takes its time to say whether the group keeps the machine. What has come of the drain meanwhile counts.
func TestOutcome_AChangeWhileTheGroupIsAskedCounts(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		meanwhile    func(r *rig)
		result, ends string
	}{
		"nothing":       {func(*rig) {}, "ABANDON", "Terminating:Retained"},
		"it is drained": {func(r *rig) { r.keeper.Settled(ending, event.Drained) }, "CONTINUE", "Terminating:Proceed"},
		"it is not to be abandoned any more": {func(r *rig) {
			s := r.settings
			s.Abandon = false
			r.keeper.Use(s)
		}, "CONTINUE", "Terminating:Proceed"},
		"it is left alone":    {func(r *rig) { r.keeper.Settled(ending, event.LeftAlone) }, "", "Terminating:Wait"},
		"it is drained again": {func(r *rig) { r.keeper.Settled(ending, "") }, "", "Terminating:Wait"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(hook), func(r *rig) {
				r.settings.Abandon = true
				r.aws.Retain(group, true)
				r.aws.Fail(asgtest.Fault{Action: "DescribeAutoScalingGroups", Status: 200, Delay: 5 * time.Second})
				r.terminate()
				r.keeper.Settled(ending, event.OutOfTime)
				r.pass(2 * time.Second)
				row.meanwhile(r)
				r.pass(8 * time.Second)
				if a := r.aws.Actions(instance)[0]; a.Result != row.result || r.aws.State(instance) != row.ends {
					t.Errorf("the hook is %+v, and the instance %s", a, r.aws.State(instance))
				}
			})
		})
	}
}

// short is a hook for which Auto Scaling waits 50 minutes at the very most.
var short = asgtest.Hook{Name: "drain", HeartbeatTimeout: 30 * time.Second}
