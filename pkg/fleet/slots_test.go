package fleet_test

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
)

// endless is a notice without a deadline.
func endless(id string) []sqs.Notice {
	notices := interruption(id, event.StateChange)
	notices[0].Event.Deadline = time.Time{}
	return notices
}

// limited drains at most so many nodes at once, and in each zone.
func limited(all, zone int) func(*fleet.Options) {
	return func(o *fleet.Options) {
		draining(o)
		o.Limits, o.GroupLabel = fleet.Limits{Draining: all, Group: zone}, "zone"
	}
}

// crowd adds nodes of some zones with a pod each, and returns their instances.
func (c *cluster) crowd(size, zones int) (ids []string) {
	for i := range size {
		name, id := fmt.Sprintf("n%02d", i), fmt.Sprintf("i-%017x", i+1)
		n := nodeOf(name, id, nil)
		n.Labels = map[string]string{"zone": fmt.Sprintf("z%d", i%zones)}
		c.add(n, podOn(name, "on-"+name))
		ids = append(ids, id)
	}
	return ids
}

// most counts how many nodes are being drained at once, in all and in one zone: those of which a pod was evicted that is not gone.
type most struct {
	mu        sync.Mutex
	all, zone int
}

func (m *most) watch(c *cluster, zones int) {
	c.before("evict", func(int) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		busy, perZone := 0, map[int]int{}
		for i := range 100 {
			n, err := c.store.CoreV1().Nodes().Get(c.t.Context(), fmt.Sprintf("n%02d", i), metav1.GetOptions{})
			if err != nil {
				break
			}
			if strings.Contains(n.Annotations[fleet.ClaimAnnotation], "holder") {
				busy++
				perZone[i%zones]++
				m.zone = max(m.zone, perZone[i%zones])
			}
		}
		m.all = max(m.all, busy)
		return nil
	})
}

func TestCeilingsHoldForProcessesThatBeginAtTheSameMoment(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		all, zone int
		lag       time.Duration
	}{
		"one at a time":                         {all: 1},
		"one at a time, with watches behind":    {all: 1, lag: 40 * time.Second},
		"three at a time, with watches behind":  {all: 3, lag: 40 * time.Second},
		"one of each zone, with watches behind": {zone: 1, lag: 40 * time.Second},
		"both":                                  {all: 2, zone: 1, lag: 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.ending, c.lag = 20*time.Second, row.lag
				ids := c.crowd(12, 3)
				seen := &most{}
				seen.watch(c, 3)
				three := []*rig{c.run(limited(row.all, row.zone)), c.run(limited(row.all, row.zone)), c.run(limited(row.all, row.zone))}
				var messages []parcel
				for i, id := range ids {
					m := newParcel()
					messages = append(messages, m)
					three[i%2+i/6].Take(endless(id), 1, m) // at one moment
				}
				waits := func(m parcel) bool { return len(m.became) == 0 }
				for began := time.Now(); time.Since(began) < 30*time.Minute && slices.ContainsFunc(messages, waits); {
					time.Sleep(time.Second)
				}
				for _, m := range messages {
					m.want(t, "done")
				}
				if row.all > 0 && seen.all != row.all || row.zone > 0 && seen.zone != row.zone {
					t.Errorf("%d nodes were drained at once, and %d of one zone; want %d and %d", seen.all, seen.zone, row.all, row.zone)
				}
			})
		})
	}
}

func TestSpotWaitsForNoPlaceAndTakesOne(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.ending, c.lag = 50*time.Second, time.Hour
		ids := c.crowd(4, 1)
		p, q := c.run(limited(1, 0)), c.run(limited(1, 0))
		c.before("place", fails)
		first, second, later := newParcel(), newParcel(), newParcel()
		p.Take(interruption(ids[0], event.SpotInterruption), 1, first)
		p.Take(interruption(ids[1], event.SpotInterruption), 1, second)
		synctest.Wait()
		if n := c.times("evict"); n != 2 {
			t.Errorf("%d spot instances are drained, want both at once", n)
		}
		c.before("place", nil)
		time.Sleep(10 * time.Second)
		q.Take(endless(ids[2]), 1, later)
		time.Sleep(35 * time.Second)
		if c.times("evict") != 2 {
			t.Error("what has to wait did not count what another process drains")
		}
		first.want(t, "done")
		second.want(t, "done")
		time.Sleep(2 * time.Minute)
		later.want(t, "done")
	})
}

func fails(int) error { return fail(nil) }

// taking is what a process elsewhere has taken.
func (c *cluster) taking(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &coordination.Lease{}
	l.Name, l.Namespace, l.UID = "places", fleet.LeaseNamespace, "uid-places"
	l.Annotations = map[string]string{fleet.SlotsAnnotation: text}
	c.keepLease(l)
}

func TestPlacesOfProcessesThatAreNoMoreAreFree(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		lives bool
		text  string
		waits time.Duration
	}{
		"it has no Lease":             {false, `{"` + otherProcess + `":{"elsewhere":"z0"}}`, 4 * time.Second},
		"it does not renew its Lease": {true, `{"` + otherProcess + `":{"elsewhere":"z0"}}`, 30 * time.Second},
		"people have written there":   {false, "what is this?", 3 * time.Second},
		"people have written nothing": {false, "null", 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				ids := c.crowd(1, 1)
				c.taking(row.text)
				if row.lives {
					c.stranger(otherProcess)
				}
				r := c.run(limited(1, 0))
				m := newParcel()
				r.Take(endless(ids[0]), 1, m)
				if synctest.Wait(); row.lives && r.Status().Waiting != 1 {
					t.Errorf("the fleet stands as %+v", r.Status())
				}
				time.Sleep(row.waits)
				m.want(t, "done")
			})
		})
	}
}

func TestWhatCannotTakeAPlaceIsLeftToOthers(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		ids := c.crowd(2, 1)
		c.before("place", forbidden)
		r := c.run(limited(1, 0))
		m, spot := newParcel(), newParcel()
		r.Take(endless(ids[0]), 1, m)
		r.Take(interruption(ids[1], event.SpotInterruption), 1, spot)
		if became := m.want(t, "returned"); became.after != 2*time.Second {
			t.Errorf("it was returned for %s", became.after)
		}
		spot.want(t, "done")
		c.before("place", nil)
		again := newParcel()
		r.Take(endless(ids[0]), 2, again)
		again.want(t, "done")
	})
}

// Ceilings are of those who drain: what is over takes no place.
func TestPlacesAreGivenBack(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		ids := c.crowd(2, 1)
		p, q := c.run(limited(1, 0)), c.run(limited(1, 0))
		for i, r := range []*rig{p, q} {
			m := newParcel()
			r.Take(interruption(ids[i], event.ScheduledMaintenance), 1, m)
			m.want(t, "done")
			time.Sleep(10 * time.Second)
			c.mu.Lock()
			if text := c.leases["places"].Annotations[fleet.SlotsAnnotation]; text != "{}" {
				t.Errorf("after the drain is written %s", text)
			}
			c.mu.Unlock()
		}
	})
}

func TestAPlaceIsGivenBackThoughTheLastLookIsOfBeforeItWasTaken(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.taking("{}")
		c.add(nodeOf("a", instance, nil), nodeOf("b", other, nil))
		telling := func(o *fleet.Options) {
			limited(1, 0)(o)
			o.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Notify}
		}
		p, q := c.run(telling), c.run(telling)
		time.Sleep(6 * time.Second)
		m, next := newParcel(), newParcel()
		notices := interruption(instance, event.RebalanceRecommendation)
		notices[0].Event.Deadline = time.Time{}
		p.Take(notices, 1, m) // It is told, and that is all.
		m.want(t, "done")
		time.Sleep(10 * time.Second)
		c.mu.Lock()
		if text := c.leases["places"].Annotations[fleet.SlotsAnnotation]; text != "{}" {
			t.Errorf("after the drain is written %s", text)
		}
		c.mu.Unlock()
		q.Take(endless(other), 1, next)
		next.want(t, "done")
	})
}

func TestThePlacesOfTenThousandNodesFitIntoAnAnnotation(t *testing.T) {
	t.Parallel()
	const most = 256 << 10 // bytes of all annotations of an object
	drained, want := map[string]map[string]string{}, map[string]int{}
	for i := range 10_000 {
		process, zone := fmt.Sprintf("nth-queue-%016x", i%3), fmt.Sprintf("eu-central-1%c", 'a'+i%5)
		if drained[process] == nil {
			drained[process] = map[string]string{}
		}
		drained[process][fmt.Sprintf("ip-10-%d-%d-12.eu-central-1.compute.internal", i/200, i%200)] = zone
		want[zone]++
	}
	text := fleet.SlotsText(drained)
	if len(text) > most/2 {
		t.Errorf("they take %d bytes, of %d that there are", len(text), most)
	}
	if got := fleet.SlotsRead(text); !maps.Equal(got, want) {
		t.Errorf("read are %v, want %v", got, want)
	}
}

func TestThePlacesThatAreRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]map[string]int{
		`{"p":{"a":"zone","b":"zone","c":""},"q":{"d":"other"}}`:                            {"zone": 2, "other": 1, "": 1}, // of an earlier version
		fleet.SlotsText(map[string]map[string]string{"p": {"a": "zone", "b": ""}, "q": {}}): {"zone": 1, "": 1},
		`{"p":{"zone":":"}}`:    {},
		`{"p":{"zone":":abc"}}`: {"zone": 1},
		`{"p":null}`:            {},
		"":                      {},
		"what is this?":         {},
	} {
		if got := fleet.SlotsRead(text); !maps.Equal(got, want) {
			t.Errorf("read of %s are %v, want %v", text, got, want)
		}
	}
}

func TestThePlacesOfThirtyThousandNodesAreWrittenWithoutCopyingThemOverAndOver(t *testing.T) {
	nodes := map[string]string{}
	for i := range 30_000 {
		nodes[fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/250, i%250)] = "eu-central-1a"
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	text := fleet.SlotsText(map[string]map[string]string{"nth-queue-0": nodes})
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 100<<20 || len(text) > 256<<10 {
		t.Errorf("%d MiB were allocated for a text of %d bytes", used>>20, len(text))
	}
}
