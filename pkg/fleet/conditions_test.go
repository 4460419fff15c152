package fleet_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/state"
)

// teller is who keeps a node's conditions: by what is open as he ends, and unless the node is another's then.
type teller struct {
	mu   sync.Mutex
	open map[string]state.Phase
	lost []bool
}

func (k *teller) listeners(_ string, entries func() []state.Entry) ([]agent.Listener, func(bool)) {
	return nil, func(lost bool) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.open, k.lost = map[string]state.Phase{}, append(k.lost, lost)
		for _, e := range entries() {
			if e.Phase != state.Closed {
				k.open[e.Event.ID] = e.Phase
			}
		}
	}
}

// Two events are announced for a node, and one is over. The other one stands.
func TestWhoSaysHowANodeStandsForgetsNoEventOverTheEndOfAnother(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		stays, ends string
		in, endsIn  time.Duration
		rebooted    bool // else the one that ends is canceled
		want        state.Phase
	}{
		"one waits for its time, and the other is canceled after its drain": {
			stays: "instance-retirement", in: 9 * time.Hour, ends: "instance-stop", endsIn: 100 * time.Minute, want: state.Seen,
		},
		"one waits for its time, and the machine is rebooted for the other": {
			stays: "instance-retirement", in: 9 * time.Hour, ends: "system-reboot", endsIn: 5 * time.Minute, rebooted: true, want: state.Seen,
		},
		"the node is drained for one, and the other was only told": {
			stays: "instance-stop", in: 100 * time.Minute, ends: "system-maintenance", endsIn: 9 * time.Hour, want: state.Drained,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				k, stays, ends := &teller{}, at(row.stays, row.in), at(row.ends, row.endsIn)
				ends.ID = "instance-event-2"
				s := (&schedule{}).say(instance, stays, ends)
				c.run(func(o *fleet.Options) {
					within(s)(o)
					o.Listeners = k.listeners
				})
				time.Sleep(5 * time.Minute)
				if row.rebooted {
					c.reboot("boot-2")
				} else {
					s.say(instance, stays, canceled(ends))
				}
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				k.mu.Lock()
				defer k.mu.Unlock()
				if len(k.open) != 1 || k.open[planID] != row.want {
					t.Errorf("what is open is %v, want %s as %s", k.open, planID, row.want)
				}
			})
		})
	}
}

func TestWhoSaysHowANodeStandsHearsWhetherItIsAnothersSince(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		during func(c *cluster, r *rig)
		lost   bool
	}{
		"the drain ends":   {func(c *cluster, _ *rig) { c.before("evict", nil) }, false},
		"the process ends": {func(_ *cluster, r *rig) { r.stop() }, false},
		"the claim is taken off the Node": {func(c *cluster, _ *rig) {
			c.change("a", func(n *corev1.Node) { delete(n.Annotations, fleet.ClaimAnnotation) })
		}, true},
		"the Lease is not renewed": {func(c *cluster, _ *rig) { c.before("renew", func(int) error { return fail(c) }) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil), podOn("a", "one"))
				c.before("evict", held)
				k := &teller{}
				r := c.run(func(o *fleet.Options) {
					draining(o)
					o.Listeners = k.listeners
				})
				r.Take(noticed("stop", event.ScheduledMaintenance, "instance-stop", time.Hour), 1, newParcel())
				time.Sleep(10 * time.Second)
				row.during(c, r)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				k.mu.Lock()
				defer k.mu.Unlock()
				if !slices.Equal(k.lost, []bool{row.lost}) {
					t.Errorf("it was told %v", k.lost)
				}
			})
		})
	}
}
