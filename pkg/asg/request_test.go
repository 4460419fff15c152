package asg_test

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/event"
)

// count counts requests, each as "heartbeat ok".
type count struct {
	mu    sync.Mutex
	kinds map[string]int
}

func (c *count) requested(what asg.Request, answer asg.Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kinds == nil {
		c.kinds = map[string]int{}
	}
	c.kinds[fmt.Sprintf("%s %s", what, answer)]++
}

func (c *count) want(t *testing.T, want map[string]int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !maps.Equal(c.kinds, want) {
		t.Errorf("the requests were %v, want %v", c.kinds, want)
	}
}

func TestWhatBecomesOfRequestsAboutAHookIsTold(t *testing.T) {
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
		"too much is asked": {
			before:  func(r *rig) { r.aws.Fail(asgtest.Throttled(beats, 1)) },
			then:    func(r *rig) { r.aws.Fail(asgtest.Throttled(completions, 2)) },
			outcome: event.Drained,
			want:    map[string]int{"heartbeat throttled": 1, "heartbeat ok": 2, "continue throttled": 2, "continue ok": 1},
		},
		"there is no answer for a while": {
			then: func(r *rig) {
				r.aws.Fail(asgtest.Fault{Action: completions, Status: 503, Code: "ServiceUnavailable", Times: 1})
			},
			outcome: event.Drained, want: map[string]int{"heartbeat ok": 2, "continue failed": 1, "continue ok": 1},
		},
		"the role allows nothing": {
			before: func(r *rig) { r.aws.Deny(beats, completions) }, then: func(r *rig) { r.aws.Allow(completions) },
			outcome: event.Drained, want: map[string]int{"heartbeat refused": 1, "continue ok": 1},
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
				var c count
				r.opts.Requested = c.requested
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
				c.want(t, row.want)
			})
		})
	}
}

// It is no answer, and nobody is to look into it.
func TestARequestThatIsGivenUpAtTheEndIsNotTold(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		var c count
		r.opts.Requested = c.requested
		r.aws.Fail(asgtest.Fault{Action: "RecordLifecycleActionHeartbeat", Delay: time.Minute})
		r.terminate()
		r.end()
		c.want(t, nil)
	})
}
