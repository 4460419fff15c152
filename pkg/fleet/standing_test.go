package fleet_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

func TestTheStatusSaysOfEachNodeWhatIsDoneToIt(t *testing.T) {
	t.Parallel()
	const leadTime = 10 * time.Minute
	maintained := func(o *fleet.Options) {
		o.Policy = policy.Settings{event.ScheduledMaintenance: {
			Action: policy.Drain, Codes: map[string]policy.When{policy.OtherCodes: policy.Lead}, Lead: leadTime,
		}}
		o.Limits.Draining = 1
	}
	for name, row := range map[string]struct {
		change  func(*fleet.Options)
		prepare func(c *cluster)
		notice  func() []sqs.Notice
		want    fleet.Status
		phase   state.Phase
		left    bool
		plan    string
	}{
		"that people want left alone": {
			change: terminating(&waiting{}, 0), prepare: func(c *cluster) { c.change("a", asking(drain.LeaveNode)) },
			notice: func() []sqs.Notice { return timeless(instance) },
			want:   fleet.Status{Nodes: 1, LeftAlone: 1}, phase: state.Draining, left: true,
			plan: "; the node is left alone because of its annotation",
		},
		"that is being drained near its date": {
			change: maintained, prepare: func(c *cluster) {
				c.before("evict", func(int) error { return apierrors.NewTooManyRequests("busy", 1) })
			},
			notice: func() []sqs.Notice { return planned(leadTime / 2) },
			want:   fleet.Status{Nodes: 1, Draining: 1}, phase: state.Draining, plan: "; drain now",
		},
		"that is due, and waits for another's drain": {
			change: maintained, prepare: func(c *cluster) {
				c.add(nodeOf("b", other, claimed("other/space/2", time.Now().Add(time.Hour))))
			},
			notice: func() []sqs.Notice { return planned(leadTime / 2) },
			want:   fleet.Status{Nodes: 2, Waiting: 1}, phase: state.Seen, plan: "; drain now",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil), podOn("a", "one"))
				row.prepare(c)
				r := c.run(row.change)
				r.Take(row.notice(), 1, newParcel())
				time.Sleep(20 * time.Second)
				synctest.Wait()
				got := r.Status()
				if len(got.Events) != 1 {
					t.Fatalf("it stands as %+v", got)
				}
				if e := got.Events[0]; e.Phase != row.phase || e.LeftAlone != row.left || !strings.HasSuffix(e.Plan, row.plan) {
					t.Errorf("the event is %+v", e)
				}
				if got.Nodes != row.want.Nodes || got.Draining != row.want.Draining || got.Waiting != row.want.Waiting || got.LeftAlone != row.want.LeftAlone {
					t.Errorf("it stands as %+v", got)
				}
			})
		})
	}
}

// planned is a stop that is due in some time.
func planned(in time.Duration) []sqs.Notice {
	return []sqs.Notice{{About: sqs.Interruption, Instance: instance, Event: event.Event{
		ID: "stop", Kind: event.ScheduledMaintenance, Code: "instance-stop", State: event.Pending, Deadline: time.Now().Add(in).Round(0),
	}}}
}

func TestTheStandingTellsSinceWhenTheAPIServerIsAway(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil))
		r := c.run(nil)
		if away := r.Status().Away; !away.IsZero() {
			t.Errorf("it is away since %s, and the nodes are known", away)
		}
		c.before("list", func(int) error { return apierrors.NewServiceUnavailable("a moment") })
		c.server.Break()
		time.Sleep(time.Minute)
		away := r.Status().Away
		if away.IsZero() || time.Since(away) < 30*time.Second {
			t.Errorf("after a minute without an answer it is away since %v", away)
		}
		time.Sleep(time.Minute)
		if later := r.Status().Away; !later.Equal(away) {
			t.Errorf("it is away since %s, and a minute later since %s", away, later)
		}
		c.before("list", nil)
		time.Sleep(2 * time.Minute)
		if away := r.Status().Away; !away.IsZero() {
			t.Errorf("it answers, and is away since %s", away)
		}
	})
}
