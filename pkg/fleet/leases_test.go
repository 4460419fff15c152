package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/sqs"
)

const otherProcess = "nth-queue-00000000000000ff"

// ofProcess are a node's annotations while a process drains it.
func ofProcess(name string) map[string]string {
	return map[string]string{fleet.ClaimAnnotation: fmt.Sprintf(`{"holder":%q}`, name)}
}

func TestAThousandDrainsAreKeptByOneLease(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.ending = 10 * time.Minute
		c.add(nodeOf("a", instance, nil), podOn("a", "one"), nodeOf("b", other, nil), podOn("b", "two"))
		r := c.run(draining)
		process := c.processes()
		if len(process) != 1 {
			t.Fatalf("there are the processes %q", process)
		}
		c.mu.Lock()
		if host := c.leases[process[0]].Labels["kubernetes.io/hostname"]; host != "host" {
			t.Errorf("the Lease says that its host is %q", host)
		}
		c.mu.Unlock()
		var messages []parcel
		for _, id := range []string{instance, other} {
			messages = append(messages, newParcel())
			r.Take(endless(id), 1, messages[len(messages)-1])
		}
		time.Sleep(5 * time.Minute)
		if claims, renewals := c.times("claim"), c.times("renew"); claims != 2 || renewals < 70 || renewals > 80 {
			t.Errorf("in five minutes of two drains there were %d claims and %d renewals, want 2 and some 75", claims, renewals)
		}
		for _, node := range []string{"a", "b"} {
			if by := c.holder(node); by != process[0] {
				t.Errorf("the claim on %s is of %q, want %q", node, by, process[0])
			}
		}
		r.stop()
		for _, m := range messages {
			m.want(t, "returned")
		}
		if left := c.processes(); len(left) > 0 || c.holder("a") != "" || c.holder("b") != "" {
			t.Errorf("at the end there are the processes %q, and claims of %q and %q", left, c.holder("a"), c.holder("b"))
		}
	})
}

func TestAClaimHoldsAsLongAsTheLeaseOfItsProcess(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		// renewed is for how long the stranger renews its Lease, every ten seconds; negative if there is none.
		renewed time.Duration
		ended   bool // it deletes it then
		least   time.Duration
		most    time.Duration
	}{
		"there is none":                        {-1, false, 0, 5 * time.Second},
		"its process has been killed":          {0, false, 20 * time.Second, 28 * time.Second},
		"its process is killed later":          {time.Minute, false, 80 * time.Second, 88 * time.Second},
		"its process goes on and ends orderly": {time.Minute, true, time.Minute, 70 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, ofProcess(otherProcess)), podOn("a", "one"))
				if row.renewed >= 0 {
					c.stranger(otherProcess)
				}
				began := time.Now()
				r := c.run(draining)
				m := newParcel()
				r.Take(endless(instance), 1, m)
				for time.Since(began) < row.renewed {
					time.Sleep(10 * time.Second)
					c.changeLease(otherProcess, func(*coordination.Lease) {})
				}
				if row.ended {
					c.changeLease(otherProcess, nil)
				}
				for len(m.became) == 0 {
					time.Sleep(time.Second)
				}
				m.want(t, "done")
				if took := time.Since(began); took < row.least || took > row.most {
					t.Errorf("the node was drained after %s, want it between %s and %s", took, row.least, row.most)
				}
				if left := c.processes(); len(left) != 1 || left[0] == otherProcess {
					t.Errorf("there are the processes %q", left)
				}
			})
		})
	}
}

// Another may begin 20 s after it has last seen a Lease renewed.
func TestADrainGoesOnForAsLongAsTheLeaseIsRenewedAndNoLonger(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		renewal func(c *cluster) error
		// returned is when the message is; zero if the drain goes on to its end.
		returned time.Duration
	}{
		"all renewals get through": {renewal: func(*cluster) error { return nil }},
		"two in a row do not": {renewal: func(c *cluster) error {
			if times := c.times("renew"); times == 2 || times == 3 {
				return fail(c)
			}
			return nil
		}},
		"people have written to it": {renewal: func(c *cluster) error {
			if c.times("renew") == 1 {
				c.changeLease(c.processes()[0], func(l *coordination.Lease) { l.Labels["theirs"] = "" })
			}
			return nil
		}},
		"they fail": {renewal: fail, returned: 14 * time.Second},
		"they hang": {renewal: hang, returned: 14 * time.Second},
		"it has been deleted": {renewal: func(c *cluster) error {
			if c.times("renew") == 1 {
				c.changeLease(c.processes()[0], nil)
			}
			return nil
		}, returned: 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.ending = 45 * time.Second
				c.add(nodeOf("a", instance, nil), podOn("a", "one"))
				c.before("renew", func(int) error { return row.renewal(c) })
				began := time.Now()
				r := c.run(draining)
				m := newParcel()
				r.Take(interruption(instance, event.SpotInterruption), 1, m)
				if row.returned == 0 {
					m.want(t, "done")
					return
				}
				first := c.holder("a")
				if became := m.want(t, "returned"); became.after != 0 || time.Since(began) != row.returned {
					t.Errorf("the message was returned after %s for %s, want %s, for others to see it at once", time.Since(began), became.after, row.returned)
				}
				c.before("renew", nil)
				eventually(t, "there is a Lease again", func() bool { return !r.Paused() })
				again := newParcel()
				r.Take(interruption(instance, event.SpotInterruption), 2, again)
				again.want(t, "done")
				if slices.Contains(c.processes(), first) {
					t.Error("the process has come back under the same name")
				}
			})
		})
	}
}

func TestAProcessThatCannotReachTheAPIServerLeavesItsWorkToOneThatCan(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.ending = 30 * time.Second
		c.add(nodeOf("a", instance, nil), podOn("a", "one"), nodeOf("b", other, nil))
		bad := &way{}
		launching := func(o *fleet.Options) { draining(o); o.Hooks, o.CompleteLaunches = &waiting{}, true }
		sick, well := c.runBy(bad, launching), c.run(draining)
		m, launch := newParcel(), newParcel()
		sick.Take(interruption(instance, event.SpotInterruption), 1, m)
		sick.Take(atHook(sqs.Launch, "i-00000000000000000"), 1, launch)
		time.Sleep(5 * time.Second)
		bad.broken.Store(true)
		broke := time.Now()
		m.want(t, "returned")
		launch.want(t, "returned")
		if !sick.Paused() || sick.LeaseError() == nil || sick.Status().LeaseError == nil || well.Paused() || well.LeaseError() != nil {
			t.Errorf("the sick one stands as %+v, and the well one as %+v", sick.Status(), well.Status())
		}
		late := newParcel()
		sick.Take(interruption(other, event.SpotInterruption), 1, late) // It was on its way.
		if became := late.want(t, "returned"); became.after != 0 {
			t.Errorf("what came later was returned for %s", became.after)
		}
		again := newParcel()
		well.Take(interruption(instance, event.SpotInterruption), 2, again)
		again.want(t, "done")
		if took := time.Since(broke); took > time.Minute || c.times("evict") != 1 {
			t.Errorf("the node was drained after %s, and pods were evicted %d times", took, c.times("evict"))
		}
		bad.broken.Store(false)
		eventually(t, "it is well again", func() bool { return !sick.Paused() && sick.LeaseError() == nil })
	})
}

func TestTwoProcessesOnHostsOfOneNameDrainANodeOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.ending = 50 * time.Second
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		p, q := c.run(draining), c.run(draining)
		m, n := newParcel(), newParcel()
		p.Take(endless(instance), 1, m)
		synctest.Wait()
		first := c.holder("a")
		q.Take(endless(instance), 1, n)
		time.Sleep(40 * time.Second)
		if by := c.holder("a"); by != first || len(n.became) > 0 {
			t.Errorf("the claim is of %q, want it of %q", by, first)
		}
		time.Sleep(2 * time.Minute)
		m.want(t, "done")
		n.want(t, "done")
		if c.times("evict") != 1 {
			t.Errorf("pods were evicted %d times", c.times("evict"))
		}
	})
}

func TestLeasesOfProcessesThatAreNoMoreAreDeletedAFewAtATime(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		for i := range 25 {
			c.stranger(fmt.Sprintf("nth-queue-%016x", i))
		}
		c.add(nodeOf("a", instance, nil))
		most, before := 0, 0
		c.before("list leases", func(int) error {
			ends := c.times("end")
			most, before = max(most, ends-before), ends
			return nil
		})
		c.run(draining)
		for range 6 {
			time.Sleep(9 * time.Second)
			c.changeLease("nth-queue-0000000000000007", func(*coordination.Lease) {})
		}
		c.mu.Lock()
		_, lives := c.leases["nth-queue-0000000000000007"]
		left := len(c.leases)
		c.mu.Unlock()
		if left != 2 || !lives || most != 10 {
			t.Errorf("after a minute %d Leases are left, the one that is renewed is there: %t, and at most %d were deleted at a look; want 2 and 10", left, lives, most)
		}
	})
}

func TestADryRunHasNoLease(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, ofProcess(otherProcess)))
		c.stranger(otherProcess)
		r := c.run(func(o *fleet.Options) { draining(o); o.DryRun, o.Limits.Draining = true, 1 })
		m := newParcel()
		r.Take(endless(instance), 1, m)
		m.want(t, "done")
		time.Sleep(time.Minute)
		if n := c.times("make") + c.times("renew") + c.times("end") + c.times("place"); n > 0 || len(c.processes()) != 1 {
			t.Errorf("it has written %d times, and there are the processes %q", n, c.processes())
		}
	})
}

// Who asks which Nodes there are is answered in a later term, too.
func TestAnInstanceWithoutANodeIsAnsweredForAfterALeaseWasLost(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil))
		c.before("renew", func(times int) error {
			if times == 1 {
				c.changeLease(c.processes()[0], nil)
			}
			return nil
		})
		r := c.run(draining)
		time.Sleep(3500 * time.Millisecond)
		m, again := newParcel(), newParcel()
		r.Take(endless(other), 1, m)
		m.want(t, "returned")
		eventually(t, "there is a Lease again", func() bool { return !r.Paused() })
		r.Take(endless(other), 2, again)
		again.want(t, "done")
	})
}

func TestTheLeaseIsRenewedThoughNothingElseIsAnswered(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.ending = 45 * time.Second
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		all, leases := &way{}, &way{}
		r := c.runBy(all, func(o *fleet.Options) { draining(o); o.Leases = c.client(leases) })
		m := newParcel()
		r.Take(interruption(instance, event.SpotInterruption), 1, m)
		time.Sleep(5 * time.Second)
		all.broken.Store(true)
		time.Sleep(30 * time.Second)
		if r.Paused() || len(m.became) > 0 {
			t.Errorf("the process stands as %+v, and the message has become %d things", r.Status(), len(m.became))
		}
		all.broken.Store(false)
		m.want(t, "done")
		if n := c.times("evict"); n != 1 {
			t.Errorf("pods were evicted %d times", n)
		}
		leases.broken.Store(true)
		time.Sleep(20 * time.Second)
		if !r.Paused() {
			t.Error("the process goes on without its Lease")
		}
		leases.broken.Store(false)
		eventually(t, "there is a Lease again", func() bool { return !r.Paused() })
	})
}

// Others write to the Node all the time, so that the taint is tried again and again.
func TestWhatIsBegunEndsWithTheLeaseAndIsFinishedAtAnOrderlyEnd(t *testing.T) {
	t.Parallel()
	const slow = 5 * time.Second
	for name, row := range map[string]struct {
		lost bool // or it is stopped
		// refused is how often the taint is refused.
		refused int
		tainted bool
	}{
		"the Lease is deleted":    {lost: true, refused: 10},
		"the process is to stop":  {refused: 3, tainted: true},
		"nothing holds the taint": {tainted: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.ending = time.Minute
				c.add(nodeOf("a", instance, nil), podOn("a", "one"))
				c.before("taint", func(times int) error {
					if times > row.refused {
						return nil
					}
					time.Sleep(slow)
					return apierrors.NewConflict(corev1.Resource("nodes"), "a", errors.New("the object has been modified"))
				})
				r := c.run(tainting(byKind))
				r.Take(interruption(instance, event.SpotInterruption), 1, newParcel())
				time.Sleep(2 * time.Second)
				first := c.processes()
				if row.lost {
					c.changeLease(first[0], nil)
					time.Sleep(4*time.Second + slow) // It notices at the next renewal.
					if now := c.processes(); len(now) != 1 || now[0] == first[0] {
						t.Errorf("after %q there is %q", first, now)
					}
				}
				r.stop()
				if tries, is := c.times("taint"), len(c.taintsOf("a")) > 0; is != row.tainted || row.lost && tries > 3 {
					t.Errorf("after %d tries the node is tainted: %t, want %t", tries, is, row.tainted)
				}
			})
		})
	}
}

// slowEC2 answers late, also who waits no more.
type slowEC2 struct {
	*knowledge
	takes time.Duration
}

// Look implements fleet.Instances.
func (s slowEC2) Look(ctx context.Context, id string) (ec2.Instance, bool, error) {
	time.Sleep(s.takes)
	return s.knowledge.Look(ctx, id)
}

// The drain of one term would have the lifecycle action of another, which nobody holds any more.
func TestWhatIsFoundOutAfterALeaseWasLostIsLeftToTheMessageThatComesAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.ending = time.Minute
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		known := &knowledge{managed: map[string]bool{instance: true}, states: map[string]string{instance: "running"}}
		hooks := &waiting{}
		r := c.run(func(o *fleet.Options) {
			draining(o)
			o.Hooks, o.Instances, o.ManagedOnly = hooks, slowEC2{known, 20 * time.Second}, true
		})
		m, again := newParcel(), newParcel()
		r.Take(atHook(sqs.Interruption, instance), 1, m)
		time.Sleep(time.Second)
		c.changeLease(c.processes()[0], nil)
		m.want(t, "returned")
		r.Take(atHook(sqs.Interruption, instance), 2, again)
		time.Sleep(40 * time.Second)
		if n := hooks.holding(); c.times("evict") != 1 || n != 1 {
			t.Errorf("%d evictions while %d lifecycle actions are held", c.times("evict"), n)
		}
		again.want(t, "done")
	})
}
