package asg_test

import (
	"testing"
	"time"

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

func TestKeeper_FollowsTheOutcomeUntilTheCompletion(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.terminate()
		r.aws.Fail(asgtest.Throttled("CompleteLifecycleAction", 0))
		r.keeper.Settled(ending, event.Drained)
		r.pass(time.Minute)
		r.keeper.Settled(ending, event.LeftAlone) // It is left to its timeout.
		r.pass(0)
		r.aws.Lift()
		r.pass(3 * time.Minute)
		r.wantActions("drain beaten at 0s")
		r.keeper.Settled(ending, "") // The annotation is gone.
		r.pass(2 * time.Minute)
		r.keeper.Settled(ending, event.Drained)
		r.pass(0)
		r.wantActions("drain beaten at 0s 4m0s 5m40s, CONTINUE at 6m0s")
	})
}

// short is a hook for which Auto Scaling waits 50 minutes at the very most.
var short = asgtest.Hook{Name: "drain", HeartbeatTimeout: 30 * time.Second}
