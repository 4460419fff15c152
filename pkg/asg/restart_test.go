package asg_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/event"
	decision "github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// nth is restarted in the sixth minute of a drain; the budget is fifteen, and the hook's timeout five, which heartbeats have prolonged. The
// first heartbeat of the new process is throttled once. Auto Scaling waits for minutes yet.
func TestAHeartbeatThatIsThrottledOnceAfterARestartIsNotTheEndOfTheMachinesTime(t *testing.T) {
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

// The same, with the rules that judge the event: the hook is completed with pods left, nine minutes before the budget is over.
func TestAHookIsNotCompletedBecauseAHeartbeatWasThrottledOnceAfterARestart(t *testing.T) {
	t.Parallel()
	rules := decision.Settings{event.ASGTermination: {Action: decision.Drain, Hard: true, Budget: 15 * time.Minute, WithdrawnAfter: 30 * time.Second}}
	bubble(t, one(asgtest.Hook{Name: "drain", HeartbeatTimeout: 5 * time.Minute}), func(r *rig) {
		past := []state.Entry{{
			Event: ending, Phase: state.Draining, BootID: "boot", ListedIn: "boot", FirstSeen: r.start.Round(0), Changed: r.start.Round(0),
			OnNode: true, CordonedAt: r.start.Round(0), ClosedIn: "boot", ActedFor: r.start.Round(0),
		}}
		// judged is what the agent makes of what the Keeper delivers.
		judged := func() {
			sit := decision.Situation{
				Now: time.Now().Round(0), BootID: "boot", Known: map[event.Kind][]event.Event{event.ASGTermination: r.source.delivered}, Past: past,
				Node: decision.Node{Closed: true, Ours: true}, LookedFor: []string{ending.ID},
			}
			for changed := rules.Fold(sit); len(changed) > 0; changed = rules.Fold(sit) {
				sit.Past = changed
			}
			past = sit.Past
			r.keeper.Settled(ending, rules.Settled(sit, ending))
			synctest.Wait()
		}
		r.terminate()
		for range 6 * 60 {
			r.pass(time.Second)
			judged()
		}
		r.end()
		r.opts.FirstSeen = func(string) time.Time { return r.start }
		r.aws.Fail(asgtest.Throttled("RecordLifecycleActionHeartbeat", 1))
		r.run()
		r.announce(ending)
		r.pass(0)
		judged()
		for range 60 {
			r.pass(500 * time.Millisecond)
			judged()
		}
		if a := r.aws.Actions(instance)[0]; a.Result != "" {
			t.Errorf("%s after %s, with pods left and a budget of 15m: the record says %s", a.Result, a.Ended.Sub(r.start), past[0].Phase)
		}
	})
}
