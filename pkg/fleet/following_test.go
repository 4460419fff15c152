package fleet_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// What comes as a drain ends is begun as that is about to end its claim.
func TestADrainThatFollowsAnotherKeepsItsClaim(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil))
		r := c.run(draining)
		m, next := newParcel(), newParcel()
		c.before("claim", func(times int) error {
			if times == 2 { // The first ends.
				c.add(podOn("a", "late"))
				r.Take(endless(instance), 1, next)
				time.Sleep(500 * time.Millisecond)
			}
			return nil
		})
		c.before("evict", func(int) error {
			if c.holder("a") == "" {
				t.Error("a pod is evicted under no claim")
			}
			return nil
		})
		c.ending = 10 * time.Second
		r.Take(interruption(instance, event.SpotInterruption), 1, m)
		m.want(t, "done")
		next.want(t, "done")
		synctest.Wait()
		if by := c.holder("a"); by != "" {
			t.Errorf("the node bears the claim of %q", by)
		}
	})
}
