package asg_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/event"
)

const policy = "(docs/lifecycle.md has the policy that is needed)"

func TestAMissingPermissionIsToldOnceAndTheRestIsDone(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		denied string
		want   string
		news   []string
		// deadline is the event's after four minutes.
		deadline time.Duration
	}{
		{
			denied: "DescribeAutoScalingInstances", want: "drain beaten at , ABANDON at 5m0s, timed out",
			news: []string{"refused: the instance's role does not allow autoscaling:DescribeAutoScalingInstances; " +
				"the drain goes on within its budget, and lifecycle hooks are left to their timeouts " + policy},
		},
		{
			denied: "DescribeLifecycleHooks", want: "drain beaten at , ABANDON at 5m0s, timed out",
			news: []string{"refused: the instance's role does not allow autoscaling:DescribeLifecycleHooks; the drain goes on within its budget"},
		},
		{
			// Auto Scaling waits for one timeout then, which is sooner than the budget.
			denied: "RecordLifecycleActionHeartbeat", want: "drain beaten at , CONTINUE at 4m0s", deadline: 5 * time.Minute,
			news: []string{
				found, "refused: holding the machine by the lifecycle hook drain: the instance's role does not allow " +
					"autoscaling:RecordLifecycleActionHeartbeat; the machine is held for one timeout of the hook only " + policy, completed,
			},
		},
		{
			denied: "CompleteLifecycleAction", want: "drain beaten at 0s 1m40s 3m20s, ABANDON at 8m20s, timed out",
			news: []string{found, "refused: completing the lifecycle hook drain: the instance's role does not allow " +
				"autoscaling:CompleteLifecycleAction; the hook is left to its timeout " + policy},
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
				r.wantNews(row.news...)
			})
		})
	}
}

func TestAPermissionThatIsGivenMeanwhileIsUsed(t *testing.T) {
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

func TestInstancesThatAreTerminatedTogetherDoNotAskTogether(t *testing.T) {
	t.Parallel()
	for action, begin := range map[string]func(r *rig){
		"DescribeAutoScalingInstances":   func(r *rig) { r.aws.SetState(instance, "Terminating") },
		"RecordLifecycleActionHeartbeat": func(r *rig) { r.aws.Terminate(instance) },
	} {
		bubble(t, one(hook), func(r *rig) {
			r.aws.Fail(asgtest.Throttled("RecordLifecycleActionHeartbeat", 1000))
			r.run()
			begin(r)
			r.announce(ending)
			r.pass(10 * time.Minute)
			calls, pauses := r.aws.Calls(action), map[time.Duration]bool{}
			for n, call := range calls[1:] {
				pauses[call.At.Sub(calls[n].At).Round(time.Millisecond)] = true
			}
			if len(calls) < 10 || len(pauses) < len(calls)*2/3 {
				t.Errorf("of the pauses between %d requests for %s, %d differ", len(calls), action, len(pauses))
			}
		})
	}
}

func TestAnInstanceWithoutARoleIsToldOnce(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		delete(r.metadata, "iam/security-credentials/")
		r.terminate()
		r.pass(4 * time.Minute)
		r.wantCalls("", 0)
		r.wantNews("refused: the instance has no IAM role; the drain goes on within its budget")
	})
}

func TestWhatFailsForAWhileIsTriedAgain(t *testing.T) {
	t.Parallel()
	lost := asgtest.Fault{Action: "CompleteLifecycleAction", Times: 1, Status: 500, Code: "InternalFailure", After: true}
	for _, row := range []struct {
		name   string
		faults []asgtest.Fault
		want   string
		news   []string
	}{
		{
			name: "the looks are throttled", want: "drain beaten at 0s~3s, CONTINUE at 1m0s",
			faults: []asgtest.Fault{asgtest.Throttled("DescribeAutoScalingInstances", 1), asgtest.Throttled("DescribeLifecycleHooks", 1)},
			news: []string{
				"trouble: calling autoscaling:DescribeAutoScalingInstances: Throttling: it is a fault; Auto Scaling is asked again",
				"trouble: calling autoscaling:DescribeLifecycleHooks: Throttling", found, completed,
			},
		},
		{
			name: "heartbeats are throttled", want: "drain beaten at 0s~7s, CONTINUE at 1m0s",
			faults: []asgtest.Fault{asgtest.Throttled("RecordLifecycleActionHeartbeat", 3)},
			news:   []string{found, "trouble: holding the machine by the lifecycle hook drain: calling autoscaling:Record", completed},
		},
		{
			name: "the completion is throttled", want: "drain beaten at 0s, CONTINUE at 1m~3s",
			faults: []asgtest.Fault{asgtest.Throttled("CompleteLifecycleAction", 2)},
			news:   []string{found, "trouble: completing the lifecycle hook drain: calling autoscaling:Complete", completed},
		},
		{
			name: "the completion hangs", want: "drain beaten at 0s, CONTINUE at 1m10s~1s",
			faults: []asgtest.Fault{{Action: "CompleteLifecycleAction", Times: 1}},
			news: []string{found, "trouble: completing the lifecycle hook drain: calling autoscaling:CompleteLifecycleAction: " +
				"no answer within 10s", completed},
		},
		{
			name: "the answer to the completion is lost", want: "drain beaten at 0s, CONTINUE at 1m0s", faults: []asgtest.Fault{lost},
			news: []string{found, "trouble: completing", "completed: the lifecycle hook drain of the Auto Scaling group workers is completed already"},
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
				r.wantNews(row.news...)
			})
		})
	}
}

func TestARestartInTheMidstCompletesTheHookOnce(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		midst  func(r *rig)
		want   string
		effect int // requests for a completion
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
		}, "drain beaten at 0s, CONTINUE at 1m0s", 4},
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
				r.wantCalls("CompleteLifecycleAction", row.effect)
			})
		})
	}
}

func TestTroubleAndOtherEventsPassThrough(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.run()
		r.source.sink.Trouble(event.ASGTermination, nil)
		r.pass(time.Minute)
		if r.source.troubles != 1 {
			t.Errorf("%d troubles came through", r.source.troubles)
		}
		r.wantCalls("", 0)
		r.wantNews()
	})
}
