package fleet_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
)

// What was drained and runs on is of no use, and paid for.
func TestAnInstanceIsReplacedThatOutlivesItsDrain(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		kind    event.Kind
		code    string
		prepare func(c *cluster)
		err     error
		want    int
	}{
		"it is recommended to rebalance":     {kind: event.RebalanceRecommendation, want: 1},
		"it is to be retired":                {kind: event.ScheduledMaintenance, code: "instance-retirement", want: 1},
		"it is to be retired, and AWS fails": {kind: event.ScheduledMaintenance, code: "instance-retirement", err: errors.New("not now"), want: 1},
		"it is to be rebooted":               {kind: event.ScheduledMaintenance, code: "system-reboot"},
		"it is taken":                        {kind: event.SpotInterruption, code: "terminate"},
		"its time is over and a pod is left": {kind: event.ScheduledMaintenance, code: "instance-stop", prepare: func(c *cluster) { c.before("evict", held) }},
		"people want the node left as it is": {kind: event.ScheduledMaintenance, code: "instance-stop", prepare: func(c *cluster) { c.change("a", asking(drain.LeaveNode)) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil), podOn("a", "one"))
				if row.prepare != nil {
					row.prepare(c)
				}
				var replaced []string
				r := c.run(func(o *fleet.Options) {
					draining(o)
					o.Policy[event.ScheduledMaintenance] = policy.Rule{Action: policy.Drain}
					o.Replace = func(_ context.Context, id string) error {
						replaced = append(replaced, id)
						return row.err
					}
				})
				notices := interruption(instance, row.kind)
				notices[0].Event.Code = row.code
				if row.kind == event.RebalanceRecommendation {
					notices[0].Event.Deadline = time.Time{}
				}
				r.toTheEnd(t, notices, 10)
				if len(replaced) != row.want || row.want > 0 && replaced[0] != instance {
					t.Errorf("replaced were %q", replaced)
				}
			})
		})
	}
}

// It stays, and its pods with it.
func TestAnInstanceIsNotReplacedWhoseMaintenanceIsCalledOff(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		refused bool // EC2 is not asked
		held    bool // its pods do not go
		first   int  // how often it is replaced before
	}{
		"during its drain":                         {held: true},
		"after its drain":                          {first: 1},
		"by a message, where EC2 may not be asked": {refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				if row.held {
					c.before("evict", held)
				}
				stop := at("instance-stop", 100*time.Minute)
				s := (&schedule{}).say(instance, stop)
				if row.refused {
					s.fail(ec2.ErrRefused)
				}
				var replaced []string
				r := c.run(func(o *fleet.Options) {
					within(s)(o)
					o.Replace = func(_ context.Context, id string) error {
						replaced = append(replaced, id)
						return nil
					}
				})
				time.Sleep(10 * time.Minute)
				if synctest.Wait(); len(replaced) != row.first {
					t.Fatalf("before it is called off, replaced were %q", replaced)
				}
				s.say(instance, canceled(stop))
				m := newParcel()
				r.Take(announced(stop, event.Completed, time.Minute), 1, m)
				m.want(t, "done")
				time.Sleep(20 * time.Minute)
				if synctest.Wait(); len(replaced) != row.first {
					t.Errorf("replaced were %q", replaced)
				}
			})
		})
	}
}
