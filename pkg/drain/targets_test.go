package drain_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/wait"
)

// balancers are done with the machine, and with pods, after a time each.
type balancers struct {
	machine, pods time.Duration
	err           error // what it comes to then
	deaf          bool  // they wait on though nobody does any more

	mu    sync.Mutex
	asked []inquiry
}

// inquiry is one time that they were asked.
type inquiry struct {
	at        time.Time
	labeled   bool
	addresses []string
	ended     time.Time
}

func (b *balancers) Wait(ctx context.Context, node wait.Node, tell func(string)) error {
	labeled, addresses := node.Labeled, node.Addresses
	b.mu.Lock()
	number := len(b.asked)
	b.asked = append(b.asked, inquiry{at: time.Now(), labeled: labeled, addresses: addresses})
	b.mu.Unlock()
	err, wait := b.err, b.machine
	if len(addresses) > 0 {
		wait = b.pods
	}
	if number > 0 && len(addresses) == 0 {
		wait = 0
	}
	if wait > 0 {
		tell("1 target is still draining in tg/web")
	}
	if b.deaf {
		time.Sleep(wait)
	} else if !kube.Await(ctx, nil, wait) {
		err = ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked[number].ended = time.Now()
	return err
}

func (b *balancers) inquiries() []inquiry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.asked)
}

// at gives a pod addresses.
func at(addresses ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, ip := range addresses {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
	}
}

func TestEvictionsWaitUntilLoadBalancersAreDoneWithTheMachine(t *testing.T) {
	t.Parallel()
	const set = 20 * time.Second
	for name, c := range map[string]struct {
		balancers *balancers
		set       time.Duration
		want      time.Duration
		holding   string // what is told of evictions that wait for nothing else
	}{
		"that were done with it":              {&balancers{}, set, 0, ""},
		"that take three minutes":             {&balancers{machine: 3 * time.Minute}, set, 3 * time.Minute, ""},
		"that may not be asked":               {&balancers{err: errors.New("it is refused")}, set, set, "20s"},
		"that may not be asked, with no wait": {&balancers{err: errors.New("it is refused")}, 0, 0, ""},
		"that nobody tells, for longer":       {&balancers{machine: time.Minute, err: errors.New("nobody takes it out")}, set, time.Minute, ""},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			r := drained(t, s, drain.Options{
				LoadBalancers: c.balancers, ExcludeFromLoadBalancers: true, LoadBalancerWait: c.set,
			})
			if after := s.Requests("evict")[0].At.Sub(r.began); after != c.want {
				t.Errorf("evicted after %s, want %s", after, c.want)
			}
			left, out := r.of(state.TargetsLeft), r.of(state.TargetsOut)
			if waited := c.balancers.machine > 0; waited != (len(left) > 0) || (waited || c.balancers.err != nil) != (len(out) > 0) {
				t.Errorf("told %+v and %+v", left, out)
			}
			if c.balancers.err != nil && (len(out) != 1 || out[0].Detail != c.balancers.err.Error()) {
				t.Errorf("told %+v", out) // Once, though they are asked twice.
			}
			if held := r.of(state.EvictionsDelayed); len(held) > 1 || (c.holding != "") != (len(held) == 1) || len(held) == 1 && held[0].Detail != c.holding {
				t.Errorf("told %+v, want %q", held, c.holding)
			}
			if asked := c.balancers.inquiries(); !asked[0].labeled || len(asked) != 2 {
				t.Errorf("asked %+v", asked)
			}
		})
	}
}

// No target drains for longer. There is no deadline.
func TestLoadBalancersAreWaitedForAnHourAtMost(t *testing.T) {
	t.Parallel()
	const set = 20 * time.Second
	for name, deaf := range map[string]bool{"and asked no longer": false, "also where they hear nobody": true} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			b := &balancers{machine: 5 * time.Hour, deaf: deaf}
			r := beginWithin(t, s, drain.Options{LoadBalancers: b, ExcludeFromLoadBalancers: true, LoadBalancerWait: set}, false, 0)
			time.Sleep(2 * time.Hour)
			asked := s.Requests("evict")
			if len(asked) != 1 || asked[0].At.Sub(r.began) != time.Hour {
				t.Errorf("evictions %+v, want one after an hour", asked)
			}
			if reported := r.of(state.TargetsOut); len(reported) == 0 || reported[0].Detail != "the time for that is over" {
				t.Errorf("reported %+v", reported)
			}
		})
	}
}

// As with any hold: each pod keeps its grace. And half of the time is for the evictions.
func TestNoPodWaitsForLoadBalancersBeyondItsTurn(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"of a machine that is lost": true, "of one that is not": false} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("long", grace(80), at("10.0.0.7")), 0)
			s.AddPod(pod("short", grace(10), at("10.0.0.8")), 0)
			r := beginWithin(t, s, drain.Options{
				LoadBalancers: &balancers{machine: time.Hour, pods: time.Hour}, ExcludeFromLoadBalancers: true, Margin: 2 * time.Second,
			}, hard, 2*time.Minute)
			if result := r.succeed(); result.Evicted != 2 {
				t.Errorf("the result is %+v", result)
			}
			for name, want := range map[string]time.Duration{"long": 38 * time.Second, "short": 59 * time.Second} {
				if after := s.Requests("evict default/" + name)[0].At.Sub(r.began); after != want {
					t.Errorf("%s was evicted after %s, want %s", name, after, want)
				}
			}
			if after := r.drainedAt().Sub(r.began); after < 118*time.Second || after >= 2*time.Minute {
				t.Errorf("drained after %s", after)
			}
			out := r.of(state.TargetsOut)
			if len(out) != 2 || out[0].Detail != "half of the time is over, and the rest is for the evictions" || out[1].Detail != "the time for that is over" {
				t.Errorf("told %+v", out)
			}
		})
	}
}

// A target drains for five minutes by default. A budget that lets one pod go at a time needs time, too.
func TestTheHoldForLoadBalancersLeavesTimeForBudgets(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		for _, name := range []string{"a", "b"} {
			s.AddPod(pod(name, grace(30)), 0)
		}
		s.Always("evict", apitest.OneAtATime("budget", 20*time.Second))
		r := beginWithin(t, s, drain.Options{
			LoadBalancers: &balancers{machine: 5 * time.Minute}, ExcludeFromLoadBalancers: true, Margin: 2 * time.Second,
		}, true, 2*time.Minute)
		if result := r.succeed(); result.Evicted != 2 || result.Deleted != 0 {
			t.Errorf("the result is %+v", result)
		}
	})
}

// The half is that of the time there is now.
func TestTheHoldForLoadBalancersEndsByHalfOfTheTimeThereIs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		moved time.Duration // the deadline, after ten seconds
		want  time.Duration
	}{
		"there is":             {0, 5 * time.Minute},
		"that has become less": {-5 * time.Minute, 150 * time.Second},
		"that has become more": {5 * time.Minute, 450 * time.Second},
		"that is over at once": {-595 * time.Second, 10 * time.Second},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a"), 0)
			r := beginWithin(t, s, drain.Options{
				LoadBalancers: &balancers{machine: time.Hour}, ExcludeFromLoadBalancers: true,
			}, true, 10*time.Minute)
			time.Sleep(10 * time.Second)
			r.adjust(func(g *drain.Goal) { g.Hard, g.TimeEnds = g.Hard.Add(c.moved), g.TimeEnds.Add(c.moved) })
			r.await(state.PodEvicted)
			if after := s.Requests("evict")[0].At.Sub(r.began); after != c.want {
				t.Errorf("evicted after %s, want %s", after, c.want)
			}
			if held := r.of(state.EvictionsDelayed); len(held) > 0 {
				t.Errorf("reported %+v", held)
			}
		})
	}
}

// The machine was to be taken long ago, by an event that it outlives, and will be by another one.
func TestASoftDeadlineThatIsOverTakesNoTimeForLoadBalancersFromAHardOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", at("10.0.0.7")), 0)
		goal := goalWithin(true, 10*time.Minute)
		goal.Soft = goal.Hard.Add(-time.Hour)
		r := start(t, s, drain.Options{LoadBalancers: &balancers{machine: time.Minute, pods: 2 * time.Minute}, ExcludeFromLoadBalancers: true}, goal)
		r.await(state.NodeEmpty)
		if after := s.Requests("evict")[0].At.Sub(r.began); after != time.Minute {
			t.Errorf("evicted after %s", after)
		}
		if after := r.drainedAt().Sub(r.began); after < 3*time.Minute || after > 3*time.Minute+5*time.Second {
			t.Errorf("drained after %s", after)
		}
	})
}

// A pod that has gone may have been a target by its address, and its requests are under way. Those of pods that stay are there to stay,
// and one that had finished had no address any more.
func TestANodeIsDrainedWhenLoadBalancersAreDoneWithItsPods(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", at("10.0.0.7", "2001:db8::7")), 0)
		s.AddPod(pod("on-the-host", at("10.0.0.1")), 0)
		s.AddPod(pod("finished", phase(corev1.PodSucceeded), at("10.0.0.8")), 0)
		s.AddPod(pod("proxy", ownedBy("DaemonSet", "apps/v1"), at("10.0.0.1")), 0)
		b := &balancers{pods: 40 * time.Second}
		r := drained(t, s, drain.Options{LoadBalancers: b, ExcludeFromLoadBalancers: true})
		asked := b.inquiries()
		if len(asked) != 2 || asked[0].addresses != nil || !slices.Equal(asked[1].addresses, []string{"10.0.0.7", "2001:db8::7"}) {
			t.Fatalf("asked %+v", asked)
		}
		if after := r.drainedAt().Sub(asked[1].at); after < 40*time.Second || after > 41*time.Second {
			t.Errorf("drained %s after the pods had gone", after)
		}
	})
}

func TestAnAddressThatAPodHadAtAnyTimeIsWaitedForAtTheEnd(t *testing.T) {
	t.Parallel()
	const address = "10.0.0.7"
	for name, c := range map[string]struct {
		before []func(*corev1.Pod)
		goes   func(s *apitest.Server, free func())
	}{
		"it gets it during the drain": {nil, func(s *apitest.Server, free func()) {
			s.ChangePod("default/a", at(address))
			time.Sleep(time.Minute)
			free()
		}},
		"nobody sees it end": {[]func(*corev1.Pod){at(address)}, func(s *apitest.Server, _ func()) { s.RemovePod("default/a") }},
	} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			b := &balancers{}
			r := begin(t, s, drain.Options{LoadBalancers: b})
			r.await(state.NodeClosed) // With that, all pods are looked at again.
			free := addHeld(s, pod("a", c.before...))
			r.await(state.PodHeld)
			c.goes(s, free)
			r.succeed()
			asked := b.inquiries()
			if last := asked[len(asked)-1].addresses; !slices.Equal(last, []string{address}) {
				t.Errorf("asked at the end was for %q", last)
			}
		})
	}
}

func TestTheWaitForLoadBalancersAtTheEndIsOverInTimeForTheDeadline(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"of a machine that is lost": true, "of one that is not": false} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", at("10.0.0.7")), 0)
			b := &balancers{pods: time.Hour}
			r := beginWithin(t, s, drain.Options{LoadBalancers: b, Margin: 2 * time.Second}, hard, time.Minute)
			r.await(state.TargetsLeft)
			r.adjust(func(g *drain.Goal) { // It is not begun anew for a deadline that moves.
				g.Hard, g.Soft = g.Hard.Add(-10*time.Second), g.Soft.Add(-10*time.Second)
				if !hard {
					g.Hard = time.Time{}
				} else {
					g.Soft = time.Time{}
				}
			})
			r.succeed()
			if after := r.drainedAt().Sub(r.began); after < 48*time.Second || after > 49*time.Second {
				t.Errorf("drained after %s", after)
			}
			if asked := b.inquiries(); len(asked) != 2 {
				t.Errorf("asked %+v", asked)
			}
		})
	}
}

// Then the node has been drained for the event, and what is told of it, as under the next goal, is not to take another hour.
func TestTheWaitForLoadBalancersThatADeadlineHasEndedDoesNotBeginAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", at("10.0.0.7")), 0)
		b := &balancers{pods: time.Hour}
		r := beginWithin(t, s, drain.Options{LoadBalancers: b, Margin: 2 * time.Second}, true, time.Minute)
		r.await(state.NodeEmpty)
		r.adjust(func(g *drain.Goal) { g.Hard, g.TimeEnds = g.Hard.Add(time.Hour), g.TimeEnds.Add(time.Hour) })
		time.Sleep(time.Second)
		if told, asked := r.of(state.NodeEmpty), b.inquiries(); len(told) != 2 || len(asked) != 2 {
			t.Errorf("told %+v; asked %+v", told, asked)
		}
	})
}

func TestANodeThatSomebodyHasOpenedIsNotWaitedForAtLoadBalancers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		free := addHeld(s, pod("a", at("10.0.0.7")))
		b := &balancers{pods: 10 * time.Minute}
		r := begin(t, s, drain.Options{LoadBalancers: b, ExcludeFromLoadBalancers: true})
		r.await(state.PodHeld)
		s.UncordonAs("kubectl")
		r.await(state.NodeReopened)
		free()
		r.succeed()
		if asked := b.inquiries(); len(asked) != 1 {
			t.Errorf("asked %+v", asked)
		}
	})
}

// What was held for one event is not for the next one: the node was open in between.
func TestTheHoldForLoadBalancersEndsWithTheDrainThatAskedForIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		b := &balancers{machine: time.Hour}
		r := begin(t, s, drain.Options{LoadBalancers: b, ExcludeFromLoadBalancers: true})
		r.await(state.TargetsLeft)
		r.adjust(func(g *drain.Goal) { g.Evict = false })
		r.await(state.TargetsOut)
		if asked := b.inquiries(); len(asked) != 1 || asked[0].ended.IsZero() {
			t.Errorf("asked %+v", asked)
		}
		r.adjust(func(g *drain.Goal) { g.Evict = true })
		r.succeed()
	})
}

// Whoever was asked before the node was opened answers while it is not closed again yet.
func TestTheHoldForLoadBalancersOfTheEventsBeforeDoesNotBeginEvictionsForAnEventThatJoins(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a"), 0)
		r := begin(t, s, drain.Options{LoadBalancers: &balancers{machine: time.Minute}, ExcludeFromLoadBalancers: true})
		r.await(state.TargetsLeft)
		s.UncordonAs("kubectl")
		r.await(state.NodeReopened)
		s.Always("get node", apitest.Hang())
		r.adjust(joining)
		time.Sleep(5 * time.Minute)
		if n := count(s, "evict"); n != 0 {
			t.Errorf("%d evictions from a node that is open", n)
		}
		s.Always("get node", nil)
		r.await(state.PodGone, "default/a")
	})
}

func TestANodeWithoutPodsWaitsForLoadBalancers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := drained(t, s, drain.Options{LoadBalancers: &balancers{machine: 30 * time.Second}, ExcludeFromLoadBalancers: true})
		if after := r.drainedAt().Sub(r.began); after < 30*time.Second || after > 31*time.Second {
			t.Errorf("drained after %s", after)
		}
	})
}
