package asg_test

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/event"
)

func TestKeeper_HoldsUntilDrainedAndCompletesOnce(t *testing.T) {
	t.Parallel()
	bubble(t, []asgtest.Hook{hook, {Name: "greet", Transition: asgtest.Launching}}, func(r *rig) {
		r.terminate()
		r.pass(7 * time.Minute)
		r.wantActions("drain beaten at 0s 1m40s 3m20s 5m0s 6m40s")
		r.wantReports(found)
		r.keeper.Settled(ending, event.Drained)
		r.keeper.Settled(ending, event.Drained)
		r.pass(time.Hour)
		r.wantActions("drain beaten at 0s 1m40s 3m20s 5m0s 6m40s, CONTINUE at 7m0s")
		r.wantCalls("CompleteLifecycleAction", 1)
		r.wantReports(completed)
		if r.deadline() != 0 {
			t.Errorf("the event has a deadline after %s, want none: heartbeats get through", r.deadline())
		}
	})
}

func TestKeeper_CompletesAHookOnlyWhenItWaits(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.run()
		r.announce(ending) // the state that the API tells may lag behind
		r.pass(5 * time.Second)
		r.aws.SetState(instance, "Terminating")
		r.pass(time.Minute)
		r.keeper.Settled(ending, event.Drained)
		r.pass(4 * time.Minute)
		r.wantActions()
		r.wantCalls("CompleteLifecycleAction", 0)
		r.aws.Terminate(instance)
		r.pass(15 * time.Second)
		if a := r.aws.Actions(instance); a[0].Result != "CONTINUE" || len(a[0].Heartbeats) != 0 {
			t.Errorf("the hook is %+v, want it to be completed without a heartbeat", a[0])
		}
		// Nothing is asked in a hurry while the group takes the instance out of its load balancers.
		if calls := r.aws.Calls("DescribeAutoScalingInstances"); len(calls) < 24 || len(calls) > 48 {
			t.Errorf("%d requests for the state within five minutes", len(calls))
		}
		r.wantCalls("DescribeLifecycleHooks", 1)
		r.wantReports(found, completed)
	})
}

func TestKeeper_AsksAgainWhereTheStateIsAheadOfTheHook(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.run()
		r.aws.Show(instance, "Terminating:Wait")
		r.announce(ending)
		r.pass(3 * time.Second)
		r.aws.Terminate(instance)
		r.pass(time.Minute)
		r.wantActions("drain beaten at 0s~7s")
		r.keeper.Settled(ending, event.Drained)
		r.pass(0)
		r.wantActions("drain beaten at 0s~7s, CONTINUE at 1m3s")
		r.wantReports(found, completed)
	})
}

func TestKeeper_HoldsInEveryStateOfWaitingOnTheWayOut(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ target, before, waits, ends string }{
		"ended":                       {"Terminated", "Terminating", "Terminating:Wait", "Terminating:Proceed"},
		"ended in the warm pool":      {"Warmed:Terminated", "Warmed:Terminating", "Warmed:Terminating:Wait", "Warmed:Terminating:Proceed"},
		"back to the warm pool":       {"Warmed:Stopped", "Warmed:Pending", "Warmed:Pending:Wait", "Warmed:Pending:Proceed"},
		"its root volume is replaced": {"ReplacingRootVolume", "ReplacingRootVolume", "ReplacingRootVolume:Wait", "ReplacingRootVolume:Proceed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, []asgtest.Hook{hook, {Name: "greet", Transition: asgtest.Launching}}, func(r *rig) {
				ev := ending
				ev.Code = row.target
				r.run()
				r.announce(ev) // the state that the API tells may lag behind
				r.pass(2 * time.Second)
				r.aws.SetState(instance, row.before)
				r.pass(8 * time.Second)
				r.aws.SetState(instance, row.waits)
				r.pass(3 * time.Minute)
				r.keeper.Settled(ev, event.Drained)
				r.pass(0)
				a := r.aws.Actions(instance)
				if len(a) != 1 || a[0].Hook != "drain" || a[0].Result != "CONTINUE" || len(a[0].Heartbeats) < 2 || r.aws.State(instance) != row.ends {
					t.Errorf("the hooks are %+v, and the instance %s", a, r.aws.State(instance))
				}
				r.wantReports(found, completed)
			})
		})
	}
}

// Where an instance waits on its way into the warm pool, hooks for launches are waited for. It is ended later.
func TestKeeper_LeavesAnInstanceOnItsWayIntoAWarmPool(t *testing.T) {
	t.Parallel()
	bubble(t, []asgtest.Hook{hook, {Name: "greet", Transition: asgtest.Launching}}, func(r *rig) {
		ev := ending
		ev.Code = "Warmed:Terminated"
		r.run()
		r.aws.SetState(instance, "Warmed:Running")
		r.aws.SetState(instance, "Warmed:Pending:Wait")
		r.announce(ev)
		r.keeper.Settled(ev, event.Drained)
		r.pass(time.Minute)
		r.wantCalls("CompleteLifecycleAction", 0)
		r.wantCalls("RecordLifecycleActionHeartbeat", 0)
		r.aws.SetState(instance, "Warmed:Terminating:Wait")
		r.pass(time.Minute)
		r.wantCalls("CompleteLifecycleAction", 1)
	})
}

func TestKeeper_HasNothingToCompleteWhereNoHookWaits(t *testing.T) {
	t.Parallel()
	const over = "found: the Auto Scaling group workers does not wait for its lifecycle hooks any more: the instance is in state "
	for name, row := range map[string]struct {
		prepare func(r *rig)
		calls   int
		reports []string
	}{
		"it proceeds":              {func(r *rig) { r.aws.SetState(instance, "Terminating:Proceed") }, 2, []string{found, over + "Terminating:Proceed"}},
		"it is retained":           {func(r *rig) { r.aws.SetState(instance, "Terminating:Retained") }, 2, []string{found, over + "Terminating:Retained"}},
		"it proceeds, warmed":      {func(r *rig) { r.aws.SetState(instance, "Warmed:Terminating:Proceed") }, 2, []string{found, over + "Warmed:Terminating:Proceed"}},
		"the group has no hook":    {func(r *rig) { r.aws.AddGroup(group) }, 2, []string{"found: the Auto Scaling group workers has no lifecycle hook for terminations"}},
		"none of several is named": {func(r *rig) { r.aws.AddGroup(group, hook, asgtest.Hook{Name: "logs"}) }, 2, []string{"found: the Auto Scaling group workers has several lifecycle hooks"}},
		"the instance has no role": {func(r *rig) { delete(r.metadata, "iam/security-credentials/") }, 0, []string{"refused: looking for lifecycle hooks: the instance has no IAM role; the node is drained within its budget"}},
		"somebody else completes it": {
			func(r *rig) {
				r.aws.Terminate(instance)
				r.aws.Forget(instance)
				r.aws.Show(instance, "Terminating:Wait")
				time.AfterFunc(100*time.Millisecond, func() { r.aws.Show(instance, "Terminating:Proceed") })
			}, 4, []string{found, "completed: the lifecycle hook drain of the Auto Scaling group workers, for i-0a1b2c3d4e5f60718 does not wait any more", over + "Terminating:Proceed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(hook), func(r *rig) {
				r.run()
				row.prepare(r)
				r.source.see([]event.Event{ending})
				r.source.look()
				r.keeper.Settled(ending, event.Drained)
				r.pass(time.Hour)
				r.wantCalls("", row.calls)
				r.wantReports(row.reports...)
			})
		})
	}
}

func TestKeeper_HoldsAndCompletesEachNamedHook(t *testing.T) {
	t.Parallel()
	bubble(t, []asgtest.Hook{{Name: "logs", HeartbeatTimeout: time.Hour}, {Name: "other"}, hook}, func(r *rig) {
		r.settings.Hooks = []string{"drain", "logs", "elsewhere"}
		r.terminate()
		r.pass(2 * time.Minute)
		r.keeper.Settled(ending, event.Drained)
		r.pass(time.Minute)
		r.wantActions("logs beaten at 0s, CONTINUE at 2m0s", "other beaten at ", "drain beaten at 0s 1m40s, CONTINUE at 2m0s")
	})
}

func TestKeeper_StopsForAWithdrawnNotice(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.terminate()
		r.pass(time.Minute)
		r.announce()
		r.pass(2 * time.Minute)
		r.keeper.Settled(ending, event.Drained) // of which nobody speaks any more
		r.announce(ending)
		r.pass(time.Minute)
		r.wantActions("drain beaten at 0s 3m0s")
	})
}

func TestKeeper_CompletesOnceAcrossARestart(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		midst  func(r *rig)
		want   string
		effect int // requests for a completion; 0 if that does not matter
	}{
		{"of the drain", func(*rig) {}, "drain beaten at 0s 1m0s, CONTINUE at 1m0s", 1},
		{"of the completion, before it arrives", func(r *rig) {
			r.aws.Fail(asgtest.Fault{Action: "CompleteLifecycleAction", Times: 1})
			r.keeper.Settled(ending, event.Drained)
			r.pass(0)
		}, "drain beaten at 0s 1m0s, CONTINUE at 1m0s", 2},
		{"after the completion", func(r *rig) {
			r.keeper.Settled(ending, event.Drained)
			r.pass(0)
		}, "drain beaten at 0s, CONTINUE at 1m0s", 1},
		{"after the completion, which the state does not show yet", func(r *rig) {
			r.keeper.Settled(ending, event.Drained)
			r.pass(0)
			r.aws.Show(instance, "Terminating:Wait")
		}, "drain beaten at 0s, CONTINUE at 1m0s", 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(hook), func(r *rig) {
				r.terminate()
				r.pass(time.Minute)
				row.midst(r)
				r.end()
				r.run()
				r.announce(ending)
				r.keeper.Settled(ending, event.Drained)
				r.pass(10 * time.Minute)
				r.wantActions(row.want)
				if row.effect > 0 {
					r.wantCalls("CompleteLifecycleAction", row.effect)
				}
			})
		})
	}
}

func TestKeeper_ADryRunChangesNothing(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.opts.DryRun = true
		r.terminate()
		r.pass(4 * time.Minute)
		r.keeper.Settled(ending, event.Drained)
		r.pass(2 * time.Minute)
		r.wantActions("drain beaten at , ABANDON at 5m0s, timed out")
		r.wantReports(found, "completed: dry run: not completing the lifecycle hook drain")
	})
}

func TestKeeper_EndsAtOnceDuringARequest(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.aws.Fail(asgtest.Fault{})
		r.run()
		r.announce(ending)
		time.Sleep(time.Second)
		synctest.Wait()
		r.end() // which minds that it takes no time
		r.wantReports()
	})
}

func TestKeeper_AsksNothingWhereHooksAreDisabled(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.settings.Complete = false
		r.terminate()
		r.keeper.Settled(ending, event.Drained)
		r.pass(time.Minute)
		r.wantCalls("", 0)

		r.settings.Complete = true
		r.keeper.Use(r.settings)
		r.pass(time.Minute)
		r.wantActions("drain beaten at 1m0s")
		r.settings.Complete = false
		r.keeper.Use(r.settings)
		r.keeper.Settled(ending, event.Drained)
		r.pass(3 * time.Minute)
		r.wantActions("drain beaten at 1m0s")
	})
}

func TestKeeper_RetriesWhatFails(t *testing.T) {
	t.Parallel()
	lost := asgtest.Fault{Action: "CompleteLifecycleAction", Times: 1, Status: 500, Code: "InternalFailure", After: true}
	for _, row := range []struct {
		name    string
		faults  []asgtest.Fault
		want    string
		reports []string
	}{
		{
			name: "the looks are throttled", want: "drain beaten at 0s~3s, CONTINUE at 1m0s",
			faults: []asgtest.Fault{asgtest.Throttled("DescribeAutoScalingInstances", 1), asgtest.Throttled("DescribeLifecycleHooks", 1)},
			reports: []string{
				"trouble: looking for lifecycle hooks: calling autoscaling:DescribeAutoScalingInstances: Throttling: it is a fault; Auto Scaling is asked again",
				"trouble: looking for lifecycle hooks: calling autoscaling:DescribeLifecycleHooks: Throttling", found, completed,
			},
		},
		{
			name: "heartbeats are throttled", want: "drain beaten at 0s~7s, CONTINUE at 1m0s",
			faults:  []asgtest.Fault{asgtest.Throttled("RecordLifecycleActionHeartbeat", 3)},
			reports: []string{found, "trouble: holding the machine by the lifecycle hook drain of the Auto Scaling group workers, for i-0a1b2c3d4e5f60718: calling autoscaling:Record", completed},
		},
		{
			name: "the completion is throttled", want: "drain beaten at 0s, CONTINUE at 1m~3s",
			faults:  []asgtest.Fault{asgtest.Throttled("CompleteLifecycleAction", 2)},
			reports: []string{found, "trouble: completing the lifecycle hook drain of the Auto Scaling group workers, for i-0a1b2c3d4e5f60718: calling autoscaling:Complete", completed},
		},
		{
			name: "the completion hangs", want: "drain beaten at 0s, CONTINUE at 1m10s~1s",
			faults: []asgtest.Fault{{Action: "CompleteLifecycleAction", Times: 1}},
			reports: []string{found, "trouble: completing the lifecycle hook drain of the Auto Scaling group workers, for i-0a1b2c3d4e5f60718: calling autoscaling:CompleteLifecycleAction: " +
				"no answer within 10s", completed},
		},
		{
			name: "the answer to the completion is lost", want: "drain beaten at 0s, CONTINUE at 1m0s", faults: []asgtest.Fault{lost},
			reports: []string{found, "trouble: completing", "completed: the lifecycle hook drain", "found: the Auto Scaling group workers does not wait"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(hook), func(r *rig) {
				for _, f := range row.faults {
					r.aws.Fail(f)
				}
				r.terminate()
				r.pass(time.Minute)
				r.keeper.Settled(ending, event.Drained)
				r.pass(time.Minute)
				r.wantActions(row.want)
				r.wantReports(row.reports...)
			})
		})
	}
}

func TestKeeper_ReportsAMissingPermissionOnce(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		denied  string
		want    string
		reports []string
		// deadline is the event's after four minutes.
		deadline time.Duration
	}{
		{
			denied: "DescribeAutoScalingInstances", want: "drain beaten at , ABANDON at 5m0s, timed out",
			reports: []string{"refused: looking for lifecycle hooks: the instance's role does not allow autoscaling:DescribeAutoScalingInstances; " +
				"the node is drained within its budget, and lifecycle hooks are left to their timeouts " + policy},
		},
		{
			denied: "DescribeLifecycleHooks", want: "drain beaten at , ABANDON at 5m0s, timed out",
			reports: []string{"refused: looking for lifecycle hooks: the instance's role does not allow autoscaling:DescribeLifecycleHooks; the node is drained within its budget"},
		},
		{
			// Auto Scaling waits for one timeout then, which is sooner than the budget.
			denied: "RecordLifecycleActionHeartbeat", want: "drain beaten at , CONTINUE at 4m0s", deadline: 5 * time.Minute,
			reports: []string{
				found, "refused: holding the machine by the lifecycle hook drain of the Auto Scaling group workers, for i-0a1b2c3d4e5f60718: the instance's role does not allow " +
					"autoscaling:RecordLifecycleActionHeartbeat; the machine is held for one timeout of the hook only " + policy, completed,
			},
		},
		{
			denied: "CompleteLifecycleAction", want: "drain beaten at 0s 1m40s 3m20s, ABANDON at 8m20s, timed out",
			reports: []string{found, "refused: completing the lifecycle hook drain of the Auto Scaling group workers, for i-0a1b2c3d4e5f60718: the instance's role does not allow " +
				"autoscaling:CompleteLifecycleAction; the hook is left to its timeout " + policy, "trouble: the lifecycle hook drain", "found: the Auto Scaling group workers does not wait"},
		},
	} {
		t.Run(row.denied, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(hook), func(r *rig) {
				r.aws.Deny(row.denied)
				r.terminate()
				r.pass(4 * time.Minute)
				if got := r.deadline(); got != row.deadline {
					t.Errorf("the event has a deadline after %s, want %s", got, row.deadline)
				}
				r.keeper.Settled(ending, event.Drained)
				r.pass(10 * time.Minute)
				r.wantActions(row.want)
				r.wantReports(row.reports...)
			})
		})
	}
}

func TestKeeper_UsesAPermissionThatIsGrantedLater(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.aws.Deny("DescribeAutoScalingInstances")
		r.terminate()
		r.pass(90 * time.Second)
		r.aws.Allow("DescribeAutoScalingInstances")
		r.pass(time.Minute)
		r.keeper.Settled(ending, event.Drained)
		r.pass(0)
		r.wantActions("drain beaten at 1m24s~48s, CONTINUE at 2m30s")
	})
}

func TestKeeper_CountsRequests(t *testing.T) {
	t.Parallel()
	const beats, completions = "RecordLifecycleActionHeartbeat", "CompleteLifecycleAction"
	for name, row := range map[string]struct {
		before, then func(r *rig) // the termination, and the end of the drain
		outcome      event.Outcome
		want         map[string]int
	}{
		"all is well": {outcome: event.Drained, want: map[string]int{"heartbeat ok": 2, "continue ok": 1}},
		"the time is over, and the group keeps the machine": {
			before:  func(r *rig) { r.settings.Abandon = true; r.aws.Retain(group, true) },
			outcome: event.OutOfTime, want: map[string]int{"heartbeat ok": 2, "abandon ok": 1},
		},
		"requests fail in all ways": {
			before: func(r *rig) { r.aws.Fail(asgtest.Throttled(beats, 1)) },
			then: func(r *rig) {
				r.aws.Fail(asgtest.Throttled(completions, 2))
				r.aws.Fail(asgtest.Fault{Action: completions, Status: 503, Code: "ServiceUnavailable", Times: 1})
			},
			outcome: event.Drained,
			want:    map[string]int{"heartbeat throttled": 1, "heartbeat ok": 2, "continue throttled": 2, "continue failed": 1, "continue ok": 1},
		},
		"the role allows nothing": {
			before: func(r *rig) { r.aws.Deny(beats, completions) }, then: func(r *rig) { r.aws.Allow(completions) },
			outcome: event.Drained, want: map[string]int{"heartbeat refused": 2, "continue ok": 1},
		},
		"somebody else has completed it": {
			then: func(r *rig) { r.aws.Forget(instance) }, outcome: event.Drained,
			want: map[string]int{"heartbeat ok": 2, "continue nothing-waits": 1},
		},
		"it is a dry run": {before: func(r *rig) { r.opts.DryRun = true }, outcome: event.Drained},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(hook), func(r *rig) {
				var mu sync.Mutex
				got := map[string]int{}
				r.opts.Requested = func(what asg.Request, answer asg.Answer) {
					mu.Lock()
					defer mu.Unlock()
					got[fmt.Sprintf("%s %s", what, answer)]++
				}
				if row.before != nil {
					row.before(r)
				}
				r.terminate()
				r.pass(2 * time.Minute)
				if row.then != nil {
					row.then(r)
				}
				r.keeper.Settled(ending, row.outcome)
				r.pass(time.Minute)
				mu.Lock()
				defer mu.Unlock()
				if !maps.Equal(got, row.want) {
					t.Errorf("the requests were %v, want %v", got, row.want)
				}
			})
		})
	}
}

// The beginnings of what is reported in most tests.
const (
	policy    = "(docs/lifecycle.md has the policy)"
	found     = "found: after the drain, the lifecycle hook drain of the Auto Scaling group workers will be completed"
	completed = "completed: completed the lifecycle hook drain"
)

func one(h asgtest.Hook) []asgtest.Hook { return []asgtest.Hook{h} }

func TestKeeper_CompletesOnceThoughAnotherHookIsOver(t *testing.T) {
	t.Parallel()
	bubble(t, []asgtest.Hook{hook, {Name: "short", HeartbeatTimeout: time.Hour, GlobalTimeout: time.Minute, DefaultResult: "CONTINUE"}, {Name: "other"}}, func(r *rig) {
		r.settings.Hooks = []string{"drain", "short"}
		r.terminate()
		r.pass(2 * time.Minute)
		r.keeper.Settled(ending, event.Drained)
		r.pass(10 * time.Minute)
		drain := 0
		for _, call := range r.aws.Calls("CompleteLifecycleAction") {
			if call.Values.Get("LifecycleHookName") == "drain" {
				drain++
			}
		}
		if drain != 1 {
			t.Errorf("%d requests complete the hook, want one", drain)
		}
	})
}
