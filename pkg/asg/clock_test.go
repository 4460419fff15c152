package asg_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/event"
)

// Auto Scaling's clock is its own: what it waits for is a span, and the deadline tells its end by the clock as it is set.
func TestAClockThatIsSetMovesTheDeadlineAndNoHeartbeat(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"ahead": 5 * time.Hour, "back": -5 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(short), func(r *rig) {
				r.settings.Budget = 2 * time.Hour
				r.terminate()
				r.pass(10 * time.Minute)
				if got := r.deadline(); got != 50*time.Minute {
					t.Errorf("the event has a deadline after %s, want 50m", got)
				}
				r.ahead.Store(int64(by))
				for range 20 {
					r.pass(time.Minute)
					if got := r.deadline(); got != 50*time.Minute+by {
						t.Fatalf("by the clock as it is set the event has a deadline after %s, want 50m and %s", got, by)
					}
				}
				r.keeper.Settled(ending, event.Drained)
				r.pass(0)
				a := r.aws.Actions(instance)[0]
				if a.Result != "CONTINUE" || a.TimedOut || len(a.Heartbeats) != 181 {
					t.Errorf("the hook ended as %s after %d heartbeats, want CONTINUE after 181", a.Result, len(a.Heartbeats))
				}
				for i, at := range a.Heartbeats {
					if want := time.Duration(i) * 10 * time.Second; at.Sub(r.start) != want {
						t.Fatalf("heartbeat %d was sent after %s, want %s", i, at.Sub(r.start), want)
					}
				}
			})
		})
	}
}

// When an action began is told by Auto Scaling's clock, and this machine's may be hours away from it.
func TestAnActionThatAMessageToldOfIsHeldWhateverTheClockSays(t *testing.T) {
	t.Parallel()
	for name, began := range map[string]time.Duration{"right": 0, "far behind": 5 * time.Hour, "far ahead": -5 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(short), func(r *rig) {
				told := r.told(r.settings)
				r.aws.Terminate(instance)
				action := asg.Action{Group: group, Hook: short.Name, Instance: instance, Since: time.Now().Add(began)}
				holding, release := context.WithCancel(r.t.Context())
				go told.Hold(holding, action)
				time.Sleep(20 * time.Minute)
				release()
				synctest.Wait()
				if err := told.Complete(r.t.Context(), action, event.Drained); err != nil {
					r.t.Error(err)
				}
				if a := r.aws.Actions(instance)[0]; a.Result != "CONTINUE" || a.TimedOut || len(a.Heartbeats) < 119 {
					r.t.Errorf("the hook ended as %s after %d heartbeats", a.Result, len(a.Heartbeats))
				}
			})
		})
	}
}

// Where it is not known when the waiting began, it may be about to end, but is not over.
func TestAnActionIsHeldThoughNobodyKnowsWhenItBeganAndAHeartbeatFails(t *testing.T) {
	t.Parallel()
	bubble(t, one(short), func(r *rig) {
		told := r.told(r.settings)
		r.aws.Terminate(instance)
		r.aws.Fail(asgtest.Fault{Action: "RecordLifecycleActionHeartbeat", Status: 503, Code: "ServiceUnavailable", Times: 2})
		holding, release := context.WithCancel(r.t.Context())
		go told.Hold(holding, asg.Action{Group: group, Hook: short.Name, Instance: instance})
		time.Sleep(20 * time.Minute)
		release()
		synctest.Wait()
		if a := r.aws.Actions(instance)[0]; a.TimedOut || len(a.Heartbeats) < 115 || a.Heartbeats[0].Sub(a.Began) > 9*time.Second {
			r.t.Errorf("after %d heartbeats the action is %+v", len(a.Heartbeats), a)
		}
	})
}
