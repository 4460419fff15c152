package fleet_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
)

// The shares are those of pkg/policy's tests: the nth on the machine begins at the same moment.
func TestAPlannedChangeWaitsForItsInstancesShareOfTheFleetsTime(t *testing.T) {
	t.Parallel()
	const first, second = "i-0a1b2c3d4e5f60718", "i-1234567890abcdef0"
	for id, share := range map[string]time.Duration{first: 10*time.Minute + 59*time.Second, second: 10*time.Minute + 15*time.Second} {
		bubble(t, func(t *testing.T, c *cluster) {
			c.add(nodeOf("a", id, nil), podOn("a", "one"))
			r := c.run(func(o *fleet.Options) {
				draining(o)
				o.Policy[event.ScheduledMaintenance] = policy.Rule{
					Action: policy.Drain, Lead: 10 * time.Minute, Window: 24 * time.Hour, Spread: 20 * time.Minute,
					Codes: map[string]policy.When{"instance-retirement": policy.Window},
				}
			})
			begins := 5*time.Minute + share
			retired := []sqs.Notice{{About: sqs.Interruption, Instance: id, Event: event.Event{
				ID: "retirement", Kind: event.ScheduledMaintenance, Code: "instance-retirement", State: event.Pending,
				Deadline: time.Now().Add(24*time.Hour + 5*time.Minute).Round(0),
			}}}
			back := r.takeOnce(t, retired, 1)
			if back.what != "returned" || (back.after-begins).Abs() > time.Minute || c.times("evict") > 0 {
				t.Fatalf("%s: the message is %+v, want it back in %s", id, back, begins)
			}
			time.Sleep(back.after)
			if became := r.takeOnce(t, retired, 2); became.what != "done" || c.times("evict") != 1 {
				t.Errorf("%s: the message is %+v at its time, with %d evictions", id, became, c.times("evict"))
			}
			r.ear.mu.Lock()
			defer r.ear.mu.Unlock()
			if told := r.ear.heard[0]; !strings.Contains(told.Plan, "drain begins at") || !strings.Contains(told.Plan, "spread over 20m") {
				t.Errorf("those who listen are told %s: %s", told.Kind, told.Plan)
			}
		})
	}
}
