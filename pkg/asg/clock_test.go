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
