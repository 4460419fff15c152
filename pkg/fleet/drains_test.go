package fleet_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

// draining makes every kind of event drain.
func draining(o *fleet.Options) {
	o.Policy = policy.Settings{}
	for _, kind := range event.QueuedKinds() {
		o.Policy[kind] = policy.Rule{Action: policy.Drain, Codes: map[string]policy.When{"system-reboot": policy.Now}}
	}
}

// holder says whose claim a node bears; "" if it bears none.
func (c *cluster) holder(name string) string {
	var claim struct{ Holder string }
	_ = json.Unmarshal([]byte(c.node(name).Annotations[fleet.ClaimAnnotation]), &claim) // no claim is no JSON
	return claim.Holder
}

func forbidden(int) error {
	return apierrors.NewForbidden(corev1.Resource("nodes"), "a", errors.New("not for you"))
}

func TestAnInterruptedNodeIsClaimedDrainedAndItsMessageDone(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), podOn("a", "one"), podOn("a", "two"),
			nodeOf("b", "i-0fedcba9876543210", nil), podOn("b", "three"))
		c.before("evict", func(int) error {
			if by := c.holder("a"); !slices.Equal(c.processes(), []string{by}) {
				t.Errorf("a pod is evicted under the claim of %q, and there are the processes %q", by, c.processes())
			}
			return nil
		})
		r := c.run(draining)
		m := newParcel()
		r.Take(interruption(instance, event.SpotInterruption), 1, m)
		m.want(t, "done")
		synctest.Wait()
		if !c.node("a").Spec.Unschedulable || c.times("evict") != 2 || c.holder("a") != "" {
			t.Errorf("%d pods were evicted, and the node is %+v", c.times("evict"), c.node("a"))
		}
		if c.node("b").Spec.Unschedulable {
			t.Error("another node was cordoned")
		}
		if told := r.ear.whats("a"); !slices.Contains(told, state.Done) {
			t.Errorf("what was told is %v", told)
		}
	})
}

func TestAFailedDrainGivesItsMessageBackForLongerEachTime(t *testing.T) {
	t.Parallel()
	for receives, want := range map[int]time.Duration{1: 2 * time.Second, 3: 8 * time.Second} {
		bubble(t, func(t *testing.T, c *cluster) {
			c.add(nodeOf("a", instance, nil), podOn("a", "one"))
			c.before("change", forbidden)
			m := newParcel()
			c.run(draining).Take(interruption(instance, event.StateChange), receives, m)
			if became := m.want(t, "returned"); became.after != want {
				t.Errorf("after %d receives it was returned for %s, want %s", receives, became.after, want)
			}
			synctest.Wait()
			if c.node("a").Spec.Unschedulable || c.holder("a") != "" {
				t.Errorf("after the failure the node is %+v", c.node("a"))
			}
		})
	}
}

func TestANodeThatIsGoneMeanwhileNeedsNothingMore(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(c *cluster) (then func()){
		"before it is claimed": func(c *cluster) func() {
			c.before("claim", func(int) error {
				c.remove("a")
				return nil
			})
			return nil
		},
		"before it is cordoned": func(c *cluster) func() {
			c.before("get", func(times int) error {
				if times == 1 {
					c.remove("a")
				}
				return nil
			})
			return nil
		},
		"while another drains it": func(c *cluster) func() {
			c.change("a", func(n *corev1.Node) { n.Annotations = claimed("other/space/2", time.Now().Add(time.Hour)) })
			return func() { c.remove("a") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil))
				then := prepare(c)
				m := newParcel()
				r := c.run(draining)
				r.Take(interruption(instance, event.SpotInterruption), 1, m)
				if then != nil {
					synctest.Wait()
					if len(m.became) > 0 {
						t.Fatal("the message came to something too early")
					}
					then()
				}
				m.want(t, "done")
				synctest.Wait()
				if s := r.Status(); s.Nodes+s.Draining+s.Waiting > 0 {
					t.Errorf("the fleet stands as %+v", s)
				}
			})
		})
	}
}

func fail(*cluster) error { return apierrors.NewServiceUnavailable("not now") }

func hang(*cluster) error {
	time.Sleep(time.Minute)
	return nil
}

func TestADrainEndsWhereItsClaimIsNotOnTheNodeAnyMore(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		annotations map[string]string
		holder      string
	}{
		"another has taken it": {claimed("other/space/2", time.Now().Add(time.Hour)), "other/space/2"},
		"people took it away":  {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.ending = 45 * time.Second
				c.add(nodeOf("a", instance, nil), podOn("a", "one"))
				m := newParcel()
				c.run(draining).Take(interruption(instance, event.SpotInterruption), 1, m)
				time.Sleep(9 * time.Second)
				if len(m.became) > 0 {
					t.Fatal("the drain has ended before")
				}
				taken := time.Now()
				c.change("a", func(n *corev1.Node) { n.Annotations = row.annotations })
				if became := m.want(t, "returned"); became.after != 2*time.Second || time.Since(taken) > 2*time.Second {
					t.Errorf("the message was returned after %s for %s, want it soon and for 2s", time.Since(taken), became.after)
				}
				synctest.Wait()
				if by := c.holder("a"); by != row.holder {
					t.Errorf("the claim that is left is of %q, want %q", by, row.holder)
				}
			})
		})
	}
}

// A watch that is behind shows what was on the Node before, and what others have changed there since.
func TestADrainGoesOnThoughTheWatchDoesNotShowItsClaimYet(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.ending = 45 * time.Second
		c.lag = 20 * time.Second
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		r := c.run(draining)
		for range 3 {
			c.change("a", func(n *corev1.Node) { n.Labels = map[string]string{"changed": time.Now().Format("150405")} })
			time.Sleep(time.Second)
		}
		m := newParcel()
		r.Take(interruption(instance, event.SpotInterruption), 1, m)
		m.want(t, "done")
		if n := c.times("evict"); n != 1 {
			t.Errorf("pods were evicted %d times", n)
		}
	})
}

func TestADrainIsLeftWhereItIsAtTheEndAndGivenBackAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.ending = time.Hour
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		r := c.run(draining)
		m, again := newParcel(), newParcel()
		notices := interruption(instance, event.SpotInterruption)
		r.Take(notices, 1, m)
		r.Take(notices, 5, again) // Of the same event: what becomes of one becomes of the other.
		eventually(t, "the pod is evicted", func() bool { return c.times("evict") == 1 })
		r.stop()
		for _, m := range []parcel{m, again} {
			if became := m.want(t, "returned"); became.after != 0 {
				t.Errorf("a message was returned for %s, want it at once", became.after)
			}
		}
		if n := c.node("a"); !n.Spec.Unschedulable || c.holder("a") != "" {
			t.Errorf("the node is left as %+v", n)
		}
	})
}

func TestADrainThatAnotherBeganIsGoneOnWithUnderTheCordonThatItSet(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		notices := interruption(instance, event.SpotInterruption)
		before := drain.Claim{Event: notices[0].Event.ID, Kind: string(event.SpotInterruption), BootID: "boot-1", Since: time.Now().Add(-time.Minute).UTC()}
		text, err := json.Marshal(before)
		if err != nil {
			t.Fatal(err)
		}
		n := nodeOf("a", instance, map[string]string{drain.CordonAnnotation: string(text)})
		n.Spec.Unschedulable, n.Status.NodeInfo.BootID = true, "boot-1"
		c.add(n, podOn("a", "one"))
		m := newParcel()
		r := c.run(draining)
		r.Take(notices, 2, m)
		m.want(t, "done")
		if told := r.ear.whats("a"); slices.Contains(told, state.Announced) || !slices.Contains(told, state.Done) {
			t.Errorf("of what was known was told %v, want its end and not its beginning", told)
		}
		if now := c.node("a").Annotations[drain.CordonAnnotation]; now != string(text) || c.times("evict") != 1 {
			t.Errorf("%d pods were evicted, and the cordon is %s, want %s", c.times("evict"), now, text)
		}
	})
}

// Else the budget of the event would have been over long ago.
func TestACordonSinceATimeThatNobodyBelievesIsSinceNow(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.ending = 45 * time.Second
		notices := interruption(instance, event.SpotInterruption)
		text := `{"writer":"nth-queue","event":"` + notices[0].Event.ID + `","kind":"spot-interruption","boot_id":"boot-1","since":"0000-01-01T00:00:00Z"}`
		n := nodeOf("a", instance, map[string]string{drain.CordonAnnotation: text})
		n.Spec.Unschedulable, n.Status.NodeInfo.BootID = true, "boot-1"
		c.add(n, podOn("a", "one"))
		m := newParcel()
		c.run(func(o *fleet.Options) {
			o.Policy = policy.Settings{event.SpotInterruption: {Action: policy.Drain, Hard: true, Budget: 2 * time.Minute}}
		}).Take(notices, 2, m)
		m.want(t, "done")
		if c.times("evict") != 1 {
			t.Errorf("%d pods were evicted", c.times("evict"))
		}
	})
}

func TestAllPartsOfAMessageAreDoneBeforeItIs(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		const other = "i-0fedcba9876543210"
		c.add(nodeOf("a", instance, nil), nodeOf("b", other, claimed("other/space/2", time.Now().Add(20*time.Second))))
		var notices []sqs.Notice
		for _, id := range []string{instance, other} {
			notices = append(notices, interruption(id, event.ScheduledMaintenance)...)
		}
		began := time.Now()
		m := newParcel()
		c.run(draining).Take(notices, 1, m)
		eventually(t, "the first node is drained", func() bool { return c.node("a").Spec.Unschedulable && c.holder("a") == "" })
		m.want(t, "done")
		if took := time.Since(began); took < 20*time.Second || !c.node("b").Spec.Unschedulable {
			t.Errorf("it was done after %s, and the second node is %+v", took, c.node("b").Spec)
		}
	})
}
