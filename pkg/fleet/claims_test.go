package fleet_test

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
)

// Versions before the Leases wrote their claims again and again.
func TestAClaimWithoutALeaseHoldsForThirtySecondsWhateverItsClockSays(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{
		"its clock is right": 0, "its clock is an hour ahead": time.Hour, "its clock is an hour behind": -time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				seen := time.Now()
				c.add(nodeOf("a", instance, claimed("other/space/2", seen.Add(30*time.Second+ahead))))
				r := c.run(nil)
				m := newParcel()
				r.Take(interruption(instance, event.SpotInterruption), 1, m)
				m.want(t, "done")
				if held := time.Since(seen).Truncate(time.Second); held != 30*time.Second {
					t.Errorf("another's claim held for %s, want 30s", held)
				}
			})
		})
	}
}

func TestAClaimUnderItsOldKeyHoldsAndIsReplaced(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		seen, old := time.Now(), map[string]string{}
		for key, value := range claimed("other/space/2", seen.Add(time.Hour)) {
			old[drain.OldKey(key)] = value
		}
		c.add(nodeOf("a", instance, old))
		r := c.run(nil)
		m := newParcel()
		r.Take(interruption(instance, event.SpotInterruption), 1, m)
		m.want(t, "done")
		if held := time.Since(seen).Truncate(time.Second); held != 30*time.Second {
			t.Errorf("another's claim held for %s, want 30s", held)
		}
		if left := c.node("a").Annotations; len(left[drain.OldKey(fleet.ClaimAnnotation)]) > 0 {
			t.Errorf("the Node still has %v", left)
		}
	})
}

func TestWhatWaitsForAClaimOfAnotherIsGivenBackAtTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nodeOf("a", instance, claimed("other/space/2", time.Now().Add(30*time.Second))))
	m := newParcel()
	r.Take(interruption(instance, event.SpotInterruption), 1, m)
	eventually(t, "it has its place", func() bool { return r.Status().Draining == 1 })
	r.stop()
	m.want(t, "returned")
	if told := r.ear.whats("a"); len(told) > 0 {
		t.Errorf("under another's claim was told %v", told)
	}
}

// Another process may have a better way to the API server.
func TestANodeThatCannotBeClaimedIsLeftToOthers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(c *cluster) error{
		"the API server fails":   fail,
		"the API server hangs":   hang,
		"the API server refuses": func(*cluster) error { return forbidden(0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil))
				c.before("claim", func(int) error { return answer(c) })
				r := c.run(draining)
				m := newParcel()
				r.Take(reclaimed(instance, "terminate", 0), 1, m)
				if became := m.want(t, "returned"); became.after != 2*time.Second {
					t.Errorf("it was returned for %s, want 2s", became.after)
				}
				if s := r.Status(); s.Draining+s.Waiting > 0 || c.times("claim") != 2 {
					t.Errorf("after %d attempts to claim the fleet stands as %+v", c.times("claim"), s)
				}
				c.before("claim", nil)
				again := newParcel()
				r.Take(reclaimed(instance, "terminate", 0), 2, again)
				again.want(t, "done")
			})
		})
	}
}

// page is what a load balancer in front of the API server says while its backend moves.
func page(first, last int) func(times int) error {
	return func(times int) error {
		if times < first || times > last {
			return nil
		}
		return apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{Resource: "nodes"}, "a", "default backend - 404", 0, true)
	}
}

func TestAProxysPageIsNotTakenForTheEndOfANodeOrALease(t *testing.T) {
	t.Parallel()
	for what, page := range map[string]func(int) error{"claim": page(1, 1), "renew": page(3, 3)} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.ending = 30 * time.Second
				c.add(nodeOf("a", instance, nil), podOn("a", "pod"))
				c.before(what, page)
				r := c.run(draining)
				m := newParcel()
				r.Take(interruption(instance, event.SpotInterruption), 1, m)
				m.want(t, "done")
				if !c.node("a").Spec.Unschedulable || c.times("evict") != 1 || r.LeaseError() != nil {
					t.Errorf("the node is %+v, after %d evictions; the Lease: %v", c.node("a").Spec, c.times("evict"), r.LeaseError())
				}
			})
		})
	}
}

// A claim stands as long as its process lives, which may be for weeks.
func TestAClaimThatNobodyDrainsUnderDoesNotStay(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		claim  func(c *cluster, times int) error
		became string
	}{
		"it could not be ended": {became: "done", claim: func(c *cluster, times int) error {
			if times == 2 || times == 3 {
				return fail(c)
			}
			return nil
		}},
		"it was written after nobody waited for it any more": {became: "returned", claim: func(_ *cluster, times int) error {
			if times <= 2 {
				time.Sleep(20 * time.Second)
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil), nodeOf("b", other, nil))
				c.before("claim", func(times int) error { return row.claim(c, times) })
				p, q := c.run(limited(1, 0)), c.run(limited(1, 0))
				m := newParcel()
				p.Take(endless(instance), 1, m)
				m.want(t, row.became)
				time.Sleep(time.Minute)
				if by := c.holder("a"); by != "" {
					t.Errorf("the node bears the claim of %q", by)
				}
				same, another := newParcel(), newParcel()
				q.Take(interruption(instance, event.SpotInterruption), 1, same)
				same.want(t, "done")
				q.Take(endless(other), 1, another)
				another.want(t, "done")
			})
		})
	}
}

func TestAClaimThatHasEndedIsNotEndedAgainWhereTheWatchIsBehind(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.ending, c.lag = 20*time.Second, 40*time.Second
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		m := newParcel()
		c.run(draining).Take(interruption(instance, event.SpotInterruption), 1, m)
		m.want(t, "done")
		time.Sleep(2 * time.Minute) // The watch tells of it all.
		if n := c.times("claim"); n != 2 {
			t.Errorf("the claim was written and ended %d times, want 2", n)
		}
	})
}
