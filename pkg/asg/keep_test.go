package asg_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/event"
)

// The beginnings of what is told in most tests.
const (
	found     = "found: after the drain, the lifecycle hook drain of the Auto Scaling group workers will be completed"
	completed = "completed: completed the lifecycle hook drain"
)

func one(h asgtest.Hook) []asgtest.Hook { return []asgtest.Hook{h} }

func TestHeartbeatsHoldTheMachineUntilTheDrainIsDone(t *testing.T) {
	t.Parallel()
	bubble(t, []asgtest.Hook{hook, {Name: "greet", Transition: asgtest.Launching}}, func(r *rig) {
		r.terminate()
		r.pass(7 * time.Minute)
		r.wantActions("drain beaten at 0s 1m40s 3m20s 5m0s 6m40s")
		r.wantNews(found)
		r.keeper.Settled(ending, event.Drained)
		r.keeper.Settled(ending, event.Drained)
		r.pass(time.Hour)
		r.wantActions("drain beaten at 0s 1m40s 3m20s 5m0s 6m40s, CONTINUE at 7m0s")
		r.wantCalls("CompleteLifecycleAction", 1)
		r.wantNews(completed)
		if r.deadline() != 0 {
			t.Errorf("the event has a deadline after %s, want none: heartbeats get through", r.deadline())
		}
	})
}

func TestAHookIsCompletedOnlyWhenItWaits(t *testing.T) {
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
		r.wantNews(found, completed)
	})
}

func TestAHookThatDoesNotWaitYetAlthoughTheStateSaysSoIsAskedAgain(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.run()
		r.aws.Show(instance, "Terminating:Wait")
		r.announce(ending)
		r.pass(3 * time.Second)
		r.aws.Terminate(instance)
		r.pass(time.Minute)
		r.wantActions("drain beaten at 0s~6s")
		r.keeper.Settled(ending, event.Drained)
		r.pass(0)
		r.wantActions("drain beaten at 0s~6s, CONTINUE at 1m3s")
		r.wantNews(found, completed)
	})
}

func TestAnInstanceIsLeftAloneThatIsPastItsHooks(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"Terminating:Proceed", "Terminating:Retained", "Terminated", "Warmed:Terminating:Proceed"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(hook), func(r *rig) {
				r.run()
				r.aws.SetState(instance, state)
				r.announce(ending)
				r.keeper.Settled(ending, event.Drained)
				r.pass(time.Hour)
				r.wantCalls("", 2)
				r.wantNews(found, "found: the Auto Scaling group workers does not wait for its lifecycle hooks any more: the instance is in state "+state)
			})
		})
	}
}

func TestAnInstanceOfTheWarmPoolIsHeldAsOneInService(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.run()
		r.aws.SetState(instance, "Warmed:Terminating:Wait")
		r.announce(ending)
		r.pass(2 * time.Minute)
		r.keeper.Settled(ending, event.Drained)
		r.pass(0)
		r.wantActions("drain beaten at 0s 1m40s, CONTINUE at 2m0s")
		if state := r.aws.State(instance); state != "Warmed:Terminating:Proceed" {
			t.Errorf("the instance is %s", state)
		}
	})
}

func TestAnInstanceInNoGroupHasNothingToComplete(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.run()
		r.aws.Detach(instance)
		r.announce(ending)
		r.keeper.Settled(ending, event.Drained)
		r.pass(time.Minute)
		r.wantCalls("DescribeLifecycleHooks", 0)
		r.wantNews("found: the instance is in no Auto Scaling group")
	})
}

func TestANoticeThatIsWithdrawnEndsTheHeartbeatsAndOneThatIsBackBeginsThemAgain(t *testing.T) {
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

func TestAHookThatSomebodyElseCompletesIsLeftAtThat(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.terminate()
		r.pass(time.Minute)
		r.aws.SetState(instance, "Terminating:Proceed")
		r.aws.Forget(instance)
		r.pass(time.Hour)
		r.keeper.Settled(ending, event.Drained)
		r.pass(time.Minute)
		r.wantCalls("RecordLifecycleActionHeartbeat", 2)
		r.wantCalls("CompleteLifecycleAction", 0)
		r.wantNews(found, "completed: the lifecycle hook drain of the Auto Scaling group workers is over before the drain")
	})
}

func TestCredentialsAreReadAnewInTime(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.terminate()
		r.pass(30 * time.Minute)
		r.mu.Lock()
		r.metadata = role("ASIATHENEXTONE000000")
		r.mu.Unlock()
		r.pass(90 * time.Minute)
		calls := r.aws.Calls("")
		if last := calls[len(calls)-1]; last.Credential != "ASIATHENEXTONE000000" || last.Status != 200 {
			t.Errorf("the last call is %v with the key %s", last, last.Credential)
		}
	})
}

func TestADryRunAsksAndChangesNothing(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.opts.DryRun = true
		r.terminate()
		r.pass(4 * time.Minute)
		r.keeper.Settled(ending, event.Drained)
		r.pass(2 * time.Minute)
		r.wantActions("drain beaten at , ABANDON at 5m0s, timed out")
		r.wantNews(found, "completed: dry run: not completing the lifecycle hook drain")
	})
}
