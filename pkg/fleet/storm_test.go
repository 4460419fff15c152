package fleet_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
)

// cordoning makes every kind of event cordon.
func cordoning(o *fleet.Options) {
	o.Policy = policy.Settings{}
	for _, kind := range event.QueuedKinds() {
		o.Policy[kind] = policy.Rule{Action: policy.Cordon}
	}
}

// storm adds so many nodes, and returns their instances.
func (c *cluster) storm(size int) (ids []string) {
	for i := range size {
		id := fmt.Sprintf("i-%017x", i+1)
		c.add(nodeOf(fmt.Sprintf("n%04d", i), id, nil))
		ids = append(ids, id)
	}
	return ids
}

func TestAThousandInterruptionsAtOnceTakeTheirTurnsAndTheLeaseIsKept(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		ids := c.storm(1000)
		// A hundred requests a second.
		c.busy = &busy{places: make(chan struct{}, 10), takes: 100 * time.Millisecond}
		r := c.run(func(o *fleet.Options) {
			o.Policy = policy.Settings{event.SpotInterruption: {Action: policy.Notify}} // There is a claim for that, too.
		})
		var messages []parcel
		for _, id := range ids {
			m := newParcel()
			r.Take(interruption(id, event.SpotInterruption), 1, m)
			messages = append(messages, m)
		}
		for _, m := range messages {
			if m.want(t, "done"); t.Failed() {
				break
			}
		}
		time.Sleep(time.Minute)
		if made, claims := c.times("make"), c.times("claim"); made != 1 || claims != 2*len(ids) {
			t.Errorf("%d Leases were made, and claims written or ended %d times, want 1 and twice for each node", made, claims)
		}
		if most := c.busy.most; most > 100 {
			t.Errorf("%d requests about Nodes were under way at once", most)
		}
	})
}

func TestWhatIsUrgentWaitsBehindNoOtherNode(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		const urgent = 20
		ids := c.storm(300)
		c.busy = &busy{places: make(chan struct{}, 10), takes: 100 * time.Millisecond}
		r := c.run(cordoning)
		for i, id := range ids {
			if i == len(ids)-urgent {
				time.Sleep(500 * time.Millisecond) // All others have begun.
			}
			notices := endless(id)
			if i >= len(ids)-urgent {
				notices = interruption(id, event.SpotInterruption)
			}
			r.Take(notices, 1, newParcel())
		}
		time.Sleep(5 * time.Second)
		cordoned, others := 0, 0
		for i := range ids {
			switch closed := c.node(fmt.Sprintf("n%04d", i)).Spec.Unschedulable; {
			case closed && i >= len(ids)-urgent:
				cordoned++
			case closed:
				others++
			}
		}
		if cordoned != urgent || others == len(ids)-urgent {
			t.Errorf("after five seconds %d of %d urgent nodes are cordoned, and %d of the others", cordoned, urgent, others)
		}
	})
}

// Its first request waits for its place already.
func TestWhatBecomesUrgentWhileItAsksForItsNodeWaitsBehindNoOtherOne(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		const urgent = 20
		ids := c.storm(300)
		c.busy = &busy{places: make(chan struct{}, 10), takes: 100 * time.Millisecond}
		r := c.run(cordoning)
		for _, id := range ids {
			r.Take(endless(id), 1, newParcel())
		}
		time.Sleep(500 * time.Millisecond) // All have begun.
		var late []int
		for i := range ids {
			if !c.node(fmt.Sprintf("n%04d", i)).Spec.Unschedulable && c.holder(fmt.Sprintf("n%04d", i)) == "" && len(late) < urgent {
				late = append(late, i)
				r.Take(interruption(ids[i], event.SpotInterruption), 1, newParcel())
			}
		}
		time.Sleep(5 * time.Second)
		cordoned := 0
		for _, i := range late {
			if c.node(fmt.Sprintf("n%04d", i)).Spec.Unschedulable {
				cordoned++
			}
		}
		if cordoned != urgent {
			t.Errorf("after five seconds %d of %d urgent nodes are cordoned", cordoned, len(late))
		}
	})
}
