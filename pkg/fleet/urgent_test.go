package fleet_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/sqs"
)

// managed drains what EC2 says is managed.
func managed(ec2 fleet.Instances) func(*fleet.Options) {
	return func(o *fleet.Options) {
		draining(o)
		o.Instances, o.ManagedOnly = ec2, true
	}
}

func TestWhatIsUrgentIsNotLeftAloneForLong(t *testing.T) {
	t.Parallel()
	const often = 20
	spot := func(ago time.Duration) func() []sqs.Notice {
		return func() []sqs.Notice { return reclaimed(instance, "terminate", ago) }
	}
	other := func() []sqs.Notice { return interruption(instance, event.StateChange) }
	for name, row := range map[string]struct {
		notices  func() []sqs.Notice // In the bubble it is another time.
		receives int
		refuses  bool // the API server, not EC2
		want     time.Duration
	}{
		"a spot interruption of which EC2 says nothing":      {spot(time.Second), often, false, 5 * time.Second},
		"the first time it fails":                            {spot(time.Second), 1, false, 2 * time.Second},
		"a spot interruption whose drain fails":              {spot(time.Second), often, true, 5 * time.Second},
		"one whose two minutes are over":                     {spot(3 * time.Minute), often, false, time.Minute},
		"a reservation that is wanted back in two minutes":   {lent(2 * time.Minute), often, false, 5 * time.Second},
		"one that is wanted back in ten":                     {lent(10 * time.Minute), often, false, time.Minute},
		"what is not urgent and has no answer":               {other, often, false, time.Minute},
		"what is not urgent and whose drain fails like that": {other, often, true, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil))
				ec2 := &knowledge{states: map[string]string{instance: "running"}, managed: map[string]bool{instance: true}}
				if row.refuses {
					c.before("change", forbidden)
				} else {
					ec2.err = errors.New("not now")
				}
				m := newParcel()
				c.run(managed(ec2)).Take(row.notices(), row.receives, m)
				if became := m.want(t, "returned"); became.after != row.want {
					t.Errorf("it was returned for %s, want %s", became.after, row.want)
				}
			})
		})
	}
}

// lent is the notice that an interruptible reservation is wanted back in so much time.
func lent(left time.Duration) func() []sqs.Notice {
	return func() []sqs.Notice {
		n := interruption(instance, event.ReservationEnd)
		n[0].Event.Code, n[0].Event.Deadline = "interruptible", time.Now().Add(left).Round(0)
		return n
	}
}

func TestWhatLeavesNoTimeDoesNotWaitInTheLineWhateverItsKind(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		notices func() []sqs.Notice
		after   time.Duration
		waits   bool
	}{
		"a reservation is wanted back in two minutes":               {notices: lent(2 * time.Minute)},
		"a Capacity Block ends in ten":                              {notices: lent(10 * time.Minute), waits: true},
		"a Capacity Block ends in ten, of which eight go by":        {notices: lent(10 * time.Minute), after: 8 * time.Minute},
		"a spot interruption whose time nobody knows":               {notices: undated(event.SpotInterruption)},
		"people terminate the instance":                             {notices: undated(event.StateChange), waits: true},
		"what was planned for last week, and has not come about":    {notices: lent(-7 * 24 * time.Hour), waits: true},
		"what was planned for a minute ago, and may yet come about": {notices: lent(-time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.ending = time.Hour
				c.add(nodeOf("a", other, nil), podOn("a", "one"), nodeOf("b", instance, nil), podOn("b", "two"))
				r := c.run(func(o *fleet.Options) {
					draining(o)
					o.Limits.Draining = 1
				})
				r.Take(interruption(other, event.StateChange), 1, newParcel())
				time.Sleep(5 * time.Second)
				r.Take(row.notices(), 1, newParcel())
				time.Sleep(row.after + 5*time.Second)
				synctest.Wait()
				if waits := !c.node("b").Spec.Unschedulable; waits != row.waits {
					t.Errorf("with another node being drained, of one at a time, it waits: %t, want %t", waits, row.waits)
				}
			})
		})
	}
}

// undated is a notice of a kind that says not until when there is time.
func undated(kind event.Kind) func() []sqs.Notice {
	return func() []sqs.Notice {
		n := interruption(instance, kind)
		n[0].Event.Deadline = time.Time{}
		return n
	}
}

// A dead-letter queue takes what has been received a hundred times.
func TestWhatIsUrgentIsNoDeadLetterForThat(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil))
		r := c.run(managed(&knowledge{err: errors.New("not now")}))
		notices := reclaimed(instance, "terminate", 0)
		receives := 0
		for time.Now().Before(notices[0].Event.Deadline) {
			m := newParcel()
			receives++
			r.Take(notices, receives, m)
			time.Sleep(m.want(t, "returned").after)
		}
		if receives < 20 || receives > 30 {
			t.Errorf("in two minutes it was received %d times, want some 25", receives)
		}
	})
}
