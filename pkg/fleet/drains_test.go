package fleet_test

import (
	"testing"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

func TestTake_DrainsTheNodeOfTheInstanceAlone(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]event.Kind{"spot": event.SpotInterruption, "rebalance": event.RebalanceRecommendation} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance), podOn("a", "one"), podOn("a", "two"), nodeOf("b", other), podOn("b", "three"))
				r := c.run(nil)
				r.take(notice(instance, kind, "terminate", 0)).want(t, "done")
				c.wantDrained("a")
				c.wantUntouched("b")
				if r.ear.times(state.Done) != 1 {
					t.Errorf("drains were done %d times, want once", r.ear.times(state.Done))
				}
			})
		})
	}
}
