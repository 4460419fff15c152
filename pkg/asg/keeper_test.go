package asg_test

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/internal/querytest"
)

// A group takes minutes to take an instance out of its load balancers, and hooks wait only after that. The node may be drained sooner.
func TestKeeper_CompletesTheHookInEveryStateOfWaiting(t *testing.T) {
	type row struct {
		target, before, waits string
		drained               bool // before it waits
	}
	each(t, map[string]row{
		"ended":                       {"Terminated", "Terminating", "Terminating:Wait", false},
		"ended, and drained sooner":   {"Terminated", "Terminating", "Terminating:Wait", true},
		"ended in the warm pool":      {"Warmed:Terminated", "Warmed:Terminating", "Warmed:Terminating:Wait", false},
		"back to the warm pool":       {"Warmed:Stopped", "Warmed:Pending", "Warmed:Pending:Wait", false},
		"its root volume is replaced": {"ReplacingRootVolume", "ReplacingRootVolume", "ReplacingRootVolume:Wait", false},
	}, func(r *rig, row row) {
		r.aws.AddGroup(group, hook, asgtest.Hook{Name: "greet", Transition: asgtest.Launching})
		ev := ending
		ev.Code = row.target
		r.run()
		r.settle(ev, "")
		r.aws.SetState(instance, row.before)
		if row.drained {
			r.settle(ev, event.Drained)
		}
		r.pass(5 * time.Minute)
		r.aws.SetState(instance, row.waits)
		r.pass(3 * time.Minute)
		r.settle(ev, event.Drained)
		a := r.aws.Actions(instance)
		if len(a) != 1 || a[0].Hook != "drain" || a[0].Result != "CONTINUE" || a[0].TimedOut || (len(a[0].Heartbeats) < 2) != row.drained {
			r.t.Errorf("the hooks are %+v", a)
		}
		if calls := r.aws.Calls(""); len(calls) > 48 { // Nothing is asked in a hurry meanwhile.
			r.t.Errorf("%d requests within eight minutes", len(calls))
		}
		r.wantReports(found, completed)
	})
}

// The outcome may change until the hook is completed: an operator opts the node out, and in again.
func TestKeeper_FollowsTheOutcomeUntilTheCompletion(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.terminate()
		r.aws.Fail(querytest.Throttled("CompleteLifecycleAction", 0))
		r.settle(ending, event.Drained)
		r.pass(time.Minute)
		r.settle(ending, event.LeftAlone)
		r.aws.Lift()
		r.pass(3 * time.Minute)
		r.wantActions("drain beaten at 0s")
		r.settle(ending, "")
		r.pass(2 * time.Minute)
		r.settle(ending, event.Drained)
		r.wantActions("drain beaten at 0s 4m0s 5m40s, CONTINUE at 6m0s")
	})
}

// The metadata service goes on announcing an instance that is kept, or that is in the warm pool. nth is started only then.
func TestKeeper_AsksNothingOfAnInstanceThatWaitsNoMore(t *testing.T) {
	type row struct{ state, target string }
	each(t, map[string]row{
		"it is kept": {"Terminating:Retained", "Terminated"}, "it proceeds": {"Terminating:Proceed", "Terminated"},
		"it is in the warm pool": {"Warmed:Running", "Warmed:Running"},
	}, func(r *rig, row row) {
		r.aws.SetState(instance, row.state)
		r.run()
		ev := ending
		ev.Code = row.target
		r.settle(ev, "")
		r.pass(time.Hour)
		r.settle(ev, event.Drained)
		r.pass(time.Hour)
		if calls := r.aws.Calls(""); len(calls) > 4 {
			r.t.Errorf("%d requests within two hours", len(calls))
		}
		r.wantReports(found, "completed: Auto Scaling no longer waits for the lifecycle hook \"drain\" of the Auto Scaling group \"workers\" for i-0a1b2c3d4e5f60718, which has timed out or is completed")
	})
}

func TestKeeper_LeavesWhatIsNotOurs(t *testing.T) {
	type row struct {
		prepare func(r *rig)
		reports []string // Without one, nothing is asked.
	}
	each(t, map[string]row{
		"the group has no hook":    {func(r *rig) { r.aws.AddGroup(group) }, []string{"found: the Auto Scaling group \"workers\" has no lifecycle hook for terminations"}},
		"none of several is named": {func(r *rig) { r.aws.AddGroup(group, hook, asgtest.Hook{Name: "logs"}) }, []string{"found: the lifecycle hook \"drain\", \"logs\" for terminations of the Auto Scaling group \"workers\" is left alone"}},
		"it is in no group":        {func(r *rig) { r.metadata["instance-id"] = "i-0ffffffffffffffff" }, []string{"found: the instance is in no Auto Scaling group"}},
		"the instance has no role": {func(r *rig) { delete(r.metadata, "iam/security-credentials/") }, []string{"refused: cannot look for lifecycle hooks: the instance has no IAM role; drains continue"}},
		"hooks are disabled":       {func(r *rig) { r.settings.Complete = false }, nil},
	}, func(r *rig, row row) {
		row.prepare(r)
		r.terminate()
		r.settle(ending, event.Drained)
		r.pass(time.Hour)
		for _, a := range r.aws.Actions(instance) {
			if len(a.Heartbeats) > 0 || a.Result != "ABANDON" {
				r.t.Errorf("the hook is %+v", a)
			}
		}
		if calls := r.aws.Calls(""); len(calls) > 75*len(row.reports) {
			r.t.Errorf("%d requests in an hour", len(calls))
		}
		r.wantReports(row.reports...)
	})
}

func TestKeeper_HoldsAndCompletesEachNamedHookOnce(t *testing.T) {
	t.Parallel()
	over := asgtest.Hook{Name: "short", HeartbeatTimeout: time.Hour, GlobalTimeout: time.Minute, DefaultResult: "CONTINUE"}
	bubble(t, []asgtest.Hook{{Name: "logs", HeartbeatTimeout: time.Hour}, {Name: "other"}, hook, over}, func(r *rig) {
		r.settings.Hooks = []string{"drain", "logs", "short", "elsewhere"}
		r.terminate()
		r.pass(2 * time.Minute)
		r.settle(ending, event.Drained)
		r.pass(10 * time.Minute)
		r.wantActions("logs beaten at 0s, CONTINUE at 2m0s", "other beaten at ", "drain beaten at 0s 1m40s, CONTINUE at 2m0s",
			"short beaten at 0s, CONTINUE at 1m0s, timed out")
		r.wantCalls("CompleteLifecycleAction", 3)
	})
}

func TestKeeper_ContinuesAfterARestart(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.terminate()
		r.pass(time.Minute)
		r.end()
		r.run()
		r.settle(ending, "")
		r.settle(ending, event.Drained)
		r.pass(10 * time.Minute)
		r.wantActions("drain beaten at 0s 1m0s, CONTINUE at 1m0s")
		r.wantCalls("CompleteLifecycleAction", 1)
	})
}

func TestKeeper_EndsAtOnceDuringARequest(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.aws.Fail(asgtest.Fault{})
		r.run()
		r.settle(ending, "")
		time.Sleep(time.Second)
		synctest.Wait()
		r.end() // which minds that it takes no time
		r.wantReports()
	})
}

// Requests fail for a while, or are refused for good. Each is counted, and reported once.
func TestKeeper_CopesWithWhatFails(t *testing.T) {
	const (
		looking    = "cannot look for lifecycle hooks: "
		holding    = "cannot send a heartbeat for the lifecycle hook \"drain\" of the Auto Scaling group \"workers\" for i-0a1b2c3d4e5f60718: "
		completing = "cannot complete the lifecycle hook \"drain\" of the Auto Scaling group \"workers\" for i-0a1b2c3d4e5f60718: "
		refused    = "the IAM role does not allow autoscaling:"
		instances  = "DescribeAutoScalingInstances"
		beat       = "RecordLifecycleActionHeartbeat"
		complete   = "CompleteLifecycleAction"
		timedOut   = "drain beaten at , ABANDON at 5m0s, timed out"
	)
	fails := func(faults ...asgtest.Fault) func(r *rig) {
		return func(r *rig) {
			for _, f := range faults {
				r.aws.Fail(f)
			}
		}
	}
	denied := func(action string) func(r *rig) { return func(r *rig) { r.aws.Deny(action) } }
	type row struct {
		spoil   func(r *rig)
		want    string
		reports []string
	}
	each(t, map[string]row{
		"looks are throttled": {
			fails(querytest.Throttled(instances, 2)), "drain beaten at 0s~3s 1m40s~3s 3m20s~3s, CONTINUE at 4m0s", []string{
				"trouble: " + looking + "calling autoscaling:DescribeAutoScalingInstances: Throttling: it is a fault; retrying the request", found, completed,
			},
		},
		"heartbeats are throttled": {
			fails(querytest.Throttled(beat, 3)), "drain beaten at 0s~7s 1m40s~7s 3m20s~7s, CONTINUE at 4m0s",
			[]string{found, "trouble: " + holding + "calling autoscaling:Record", completed},
		},
		"the completion hangs": {
			fails(asgtest.Fault{Action: complete, Times: 1}), "drain beaten at 0s 1m40s 3m20s, CONTINUE at 4m10s~1s",
			[]string{found, "trouble: " + completing + "calling autoscaling:CompleteLifecycleAction: no answer within 10s", completed},
		},
		"the answer to the completion is lost": {
			fails(asgtest.Fault{Action: complete, Times: 1, Status: 500, Code: "InternalFailure", After: true}),
			"drain beaten at 0s 1m40s 3m20s, CONTINUE at 4m0s",
			[]string{found, "trouble: " + completing, "completed: Auto Scaling no longer waits for the lifecycle hook \"drain\" of the Auto Scaling group \"workers\" for i-0a1b2c3d4e5f60718, which has timed out or is completed"},
		},
		"the group may not be asked for": {
			denied(instances), timedOut, []string{"refused: " + looking + refused + "DescribeAutoScalingInstances; " +
				"drains continue, and lifecycle hooks are left to their timeouts " + policy},
		},
		"heartbeats are refused": {
			denied(beat), "drain beaten at , CONTINUE at 4m0s",
			[]string{found, "refused: " + holding + refused + "RecordLifecycleActionHeartbeat; Auto Scaling waits only until the hook times out " + policy, completed},
		},
		"completions are refused": {
			denied(complete), "drain beaten at 0s 1m40s 3m20s, ABANDON at 8m20s, timed out", []string{
				found, "refused: " + completing + refused + "CompleteLifecycleAction; the hook is left to its timeout " + policy,
			},
		},
	}, func(r *rig, row row) {
		counted := map[string]int{}
		r.opts.Requested = func(what asg.Request, answer asg.Answer) {
			r.mu.Lock()
			defer r.mu.Unlock()
			counted[fmt.Sprint(what, " ", answer)]++
		}
		row.spoil(r)
		r.terminate()
		r.pass(4 * time.Minute)
		r.settle(ending, event.Drained)
		r.pass(10 * time.Minute)
		r.wantCounted(counted)
		r.wantActions(row.want)
		r.wantReports(row.reports...)
	})
}

// wantCounted fails unless each heartbeat and completion was counted, as Auto Scaling answered it.
func (r *rig) wantCounted(counted map[string]int) {
	r.t.Helper()
	want := map[string]int{}
	for _, c := range r.aws.Calls("") {
		what := map[string]asg.Request{"RecordLifecycleActionHeartbeat": asg.Heartbeat, "CompleteLifecycleAction": asg.Continue}[c.Action]
		answer := map[string]asg.Answer{"": asg.OK, "ValidationError": asg.Nothing, "AccessDenied": asg.NotAllowed}[c.Code]
		if c.Status == 0 || answer == "" {
			answer = asg.Failed
		}
		if what != "" {
			want[fmt.Sprint(what, " ", answer)]++
		}
	}
	if !maps.Equal(counted, want) {
		r.t.Errorf("the requests are counted as %v, want %v", counted, want)
	}
}

// The beginnings of what is reported in most tests.
const (
	policy    = "(docs/lifecycle.md has the policy)"
	found     = "found: the Auto Scaling group \"workers\" has the lifecycle hook \"drain\" for terminations: heartbeats will extend the hook until the drain ends, then it will be completed"
	completed = "completed: completed the lifecycle hook \"drain\""
)

func one(h asgtest.Hook) []asgtest.Hook { return []asgtest.Hook{h} }
