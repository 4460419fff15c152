package fleet_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// Auto Scaling does not answer at once, and nth-queue is started anew before it does.
func TestAnInstanceIsReplacedByTheNextProcessWhereTheFirstCouldNot(t *testing.T) {
	t.Parallel()
	for name, message := range map[string]bool{"a message told of it": true, "EC2 lists it": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				retirement, s := at("instance-retirement", 100*time.Minute), &schedule{}
				asked, replaced := 0, 0
				by := func(replace func(ctx context.Context) error) func(*fleet.Options) {
					return func(o *fleet.Options) {
						within(s)(o)
						o.Replace = func(ctx context.Context, _ string) error { return replace(ctx) }
					}
				}
				r := c.run(by(func(ctx context.Context) error {
					asked++
					<-ctx.Done()
					return ctx.Err()
				}))
				m := newParcel()
				if message {
					r.Take(announced(retirement, event.Pending, 0), 1, m)
				} else {
					s.say(instance, retirement)
				}
				time.Sleep(2 * time.Minute)
				if synctest.Wait(); asked != 1 {
					t.Fatalf("its group was asked %d times", asked)
				}
				r.stop()
				s.say(instance, retirement)
				next := c.run(by(func(context.Context) error {
					replaced++
					return nil
				}))
				if message {
					m.want(t, "returned")
					next.toTheEnd(t, announced(retirement, event.Pending, 2*time.Minute), 5)
				}
				time.Sleep(10 * time.Minute)
				c.wantCordoned(true, 1, "when it is replaced")
				next.stop()
				c.run(by(func(context.Context) error {
					replaced++
					return nil
				}))
				time.Sleep(10 * time.Minute)
				if synctest.Wait(); replaced != 1 {
					t.Errorf("it was replaced %d times", replaced)
				}
			})
		})
	}
}

// Two processes see what EC2 lists, and Auto Scaling takes its time.
func TestAnInstanceIsReplacedOnceHoweverLongThatTakes(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.booted()
		retirement := at("instance-retirement", 100*time.Minute)
		s := (&schedule{}).say(instance, retirement)
		replaced := 0
		slowly := func(o *fleet.Options) {
			within(s)(o)
			o.Replace = func(context.Context, string) error {
				replaced++
				time.Sleep(4 * time.Minute)
				return nil
			}
		}
		r := c.run(slowly)
		c.run(slowly)
		time.Sleep(time.Minute)
		m := newParcel()
		r.Take(announced(retirement, event.Pending, 0), 1, m)
		time.Sleep(20 * time.Minute)
		m.want(t, "done")
		if synctest.Wait(); replaced != 1 {
			t.Errorf("it was replaced %d times", replaced)
		}
		c.wantCordoned(true, 1, "when it is replaced")
	})
}

// The node is drained for one event; of another was told, as that is all that is to be done about it.
func TestWhatHasBeenToldIsNotToldAgainAfterTheClaimIsLost(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(c *cluster){
		"somebody takes it off the Node": func(c *cluster) {
			c.change("a", func(n *corev1.Node) { delete(n.Annotations, fleet.ClaimAnnotation) })
		},
		"the Lease is not renewed": func(c *cluster) { c.before("renew", func(int) error { return fail(c) }) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				c.before("evict", held)
				told, stop := at("system-maintenance", 5*time.Hour), at("instance-stop", 100*time.Minute)
				told.ID = "instance-event-2"
				s := (&schedule{}).say(instance, told, stop)
				first := c.run(within(s))
				time.Sleep(time.Minute)
				lose(c)
				time.Sleep(20 * time.Second)
				first.stop()
				c.before("renew", nil)
				second := c.run(within(s))
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				times := 0
				for _, r := range []*rig{first, second} {
					r.ear.mu.Lock()
					for _, h := range r.ear.heard {
						if h.Kind == state.Announced && h.Entry.Event.ID == told.ID {
							times++
						}
					}
					r.ear.mu.Unlock()
				}
				if times != 1 {
					t.Errorf("it was told %d times", times)
				}
			})
		})
	}
}

func TestRulesThatAskForMoreHoldForWhatStandsAlready(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		before    policy.Action
		code      policy.When
		restarted bool
		check     bool // it is a status check that fails
	}{
		"it was only told":                      {before: policy.Notify},
		"only its code was to be told":          {before: policy.Drain, code: policy.OnlyNotify},
		"it was ignored":                        {before: policy.Ignore},
		"it was only cordoned":                  {before: policy.Cordon},
		"it was only told, before a restart":    {before: policy.Notify, restarted: true},
		"it was cordoned, before a restart":     {before: policy.Cordon, restarted: true},
		"a status check was only told":          {before: policy.Notify, check: true},
		"a status check was told, then restart": {before: policy.Notify, check: true, restarted: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				s := (&schedule{}).say(instance, at("instance-retirement", 100*time.Minute))
				if row.check {
					s.tell(instance, ec2.Status{Impaired: "system", Since: time.Now().Add(-time.Hour)})
				}
				rules := func(action policy.Action, code policy.When) func(*fleet.Options) {
					return func(o *fleet.Options) {
						checking(s, action)(o)
						rule := o.Policy[event.ScheduledMaintenance]
						rule.Action = action
						if code != "" {
							rule.Codes = map[string]policy.When{"instance-retirement": code}
						}
						o.Policy[event.ScheduledMaintenance] = rule
					}
				}
				r := c.run(rules(row.before, row.code))
				time.Sleep(10 * time.Minute)
				c.wantCordoned(row.before == policy.Cordon, 0, "by the rules before")
				if row.restarted {
					r.stop()
					c.run(rules(policy.Drain, ""))
				} else {
					var o fleet.Options
					rules(policy.Drain, "")(&o)
					r.Use(fleet.Rules{Policy: o.Policy, Impaired: o.Impaired})
				}
				time.Sleep(5 * time.Minute)
				c.wantCordoned(true, 1, "by the rules then")
				c.add(podOn("a", "two"))
				time.Sleep(10 * time.Minute)
				c.wantCordoned(true, 1, "a while later")
			})
		})
	}
}

// Those who say how the node stands would forget its drain over that, and whoever says so last keeps the Node's conditions alone.
func TestThatAnEventIsOverIsToldByTheSessionThatWorksOnTheNode(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.booted()
		c.ending = 20 * time.Minute
		retirement, heard := at("instance-retirement", 5*24*time.Hour), &ear{}
		s := (&schedule{}).say(instance, retirement)
		made, left := 0, 0
		r := c.run(func(o *fleet.Options) {
			within(s)(o)
			o.Listeners = func(string, func() []state.Entry) ([]agent.Listener, func(bool)) {
				made++
				left++
				return []agent.Listener{heard}, func(bool) { left-- }
			}
		})
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if left > 0 || c.node("a").Annotations[fleet.NotesAnnotation] == "" {
			t.Fatalf("%d go on listening, and noted is %q", left, c.node("a").Annotations[fleet.NotesAnnotation])
		}
		before := made
		r.Take(endless(instance), 1, newParcel())
		time.Sleep(time.Minute)
		s.say(instance, canceled(retirement))
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if whats := heard.whats("a"); made != before+1 || left != 1 || !slices.Contains(whats, state.ClosedWith) {
			t.Errorf("%d have listened beside each other, %d more than were there, and heard is %q", left, made-before, whats)
		}
	})
}
