package fleet_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

func TestTake_DrainsTheNodeOfTheInstanceAlone(t *testing.T) {
	each(t, map[string]event.Kind{"spot": event.SpotInterruption, "rebalance": event.RebalanceRecommendation}, func(t *testing.T, c *cluster, kind event.Kind) {
		c.add(nodeOf("a", instance), podOn("a", "one"), podOn("a", "two"), nodeOf("b", other), podOn("b", "three"))
		r := c.run(nil)
		r.take(notice(instance, kind, "terminate", 0)).want(t, "done")
		c.wantDrained("a")
		c.wantUntouched("b")
		if r.ear.times(state.Done) != 1 {
			t.Errorf("drains were done %d times, want once", r.ear.times(state.Done))
		}
	})
}

// The list of its pods comes before the Node does, and each pod asks for a look at that.
func TestDrain_CountsWritesAndReads(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance))
		for _, name := range strings.Split("0123456789", "") {
			c.add(podOn("a", name))
		}
		r := c.run(nil)
		c.before("get", func(int) error {
			time.Sleep(100 * time.Millisecond)
			return nil
		})
		lists, gets := c.times("list"), c.times("get")
		r.take(spot(instance)).want(t, "done")
		c.wantDrained("a")
		writes := c.times("evict") + c.times("change") + c.times("taint")
		lists, gets = c.times("list")-lists, c.times("get")-gets
		if writes > 11 || lists > 1 || gets > 0 { // How new the last list of pods has to be is asked once.
			t.Errorf("there were %d writes, %d more lists of Nodes, and %d reads of the Node", writes, lists, gets)
		}
	})
}
