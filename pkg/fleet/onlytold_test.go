package fleet_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
)

// A node waits in the line for its termination. People switch terminations off by a reload ("ignore", as docs/queue.md says to do where
// nth on the machine completes the hooks). The hook is not nth-queue's to complete then: nothing was drained.
func TestTheHookOfANodeThatWaitsInTheLineIsNotCompletedUndrainedAfterAReload(t *testing.T) {
	t.Parallel()
	for _, action := range []policy.Action{policy.Ignore, policy.Notify} {
		t.Run(string(action), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil), podOn("a", "one"), nodeOf("b", other, nil), podOn("b", "two"))
				c.mu.Lock()
				c.ending = time.Minute
				c.mu.Unlock()
				asg := &waiting{}
				r := c.run(terminating(asg, 1))
				r.Take(timeless(instance), 1, newParcel())
				time.Sleep(5 * time.Second)
				second := newParcel()
				r.Take(timeless(other), 1, second)
				time.Sleep(5 * time.Second)
				second.wantOpen(t)
				r.Use(fleet.Rules{Limits: fleet.Limits{Draining: 1}, Policy: policy.Settings{event.ASGTermination: {Action: action}}})
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				for _, heard := range asg.heard() {
					if heard == "workers "+other {
						t.Errorf("the hook of node b was completed, whose pod was not evicted (%d evictions, of one pod on a)", c.times("evict"))
					}
				}
			})
		})
	}
}

// The node is being drained for another event, by rules that do no more for terminations than cordon. When one comes, it is to be drained
// for.
func TestATerminationThatJoinsADrainOfFormerRulesIsNotCompletedUndrained(t *testing.T) {
	t.Parallel()
	for _, action := range []policy.Action{policy.Ignore, policy.Notify, policy.Cordon} {
		t.Run(string(action), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil), podOn("a", "one"))
				c.ending = 45 * time.Second
				asg := &waiting{}
				r := c.run(terminating(asg, 0))
				rules := func(terminations policy.Action) {
					r.Use(fleet.Rules{Policy: policy.Settings{
						event.SpotInterruption: {Action: policy.Drain, Hard: true, Budget: 2 * time.Minute},
						event.ASGTermination:   {Action: terminations, Hard: true, Budget: 10 * time.Minute},
					}})
				}
				rules(action)
				r.Take(interruption(instance, event.SpotInterruption), 1, newParcel())
				time.Sleep(5 * time.Second)
				rules(policy.Drain)
				m := newParcel()
				r.Take(timeless(instance), 1, m)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				if got := asg.heard(); len(got) > 0 {
					t.Errorf("completed, with the pod still there: %q", got)
				}
				became := m.want(t, "returned")
				time.Sleep(became.after + time.Minute)
				again := newParcel()
				r.Take(timeless(instance), 2, again)
				again.want(t, "done")
				synctest.Wait()
				if got := asg.heard(); len(got) != 1 {
					t.Errorf("completed, when the node is drained: %q", got)
				}
			})
		})
	}
}

// Whoever has nth-queue only say what happens has somebody else drain, such as the nth on the machine. "Where nth does not drain, it is
// not for nth to say when the machine may go" (cmd/nth/lifecycle.go).
func TestWhereTerminationsAreOnlyToldNoHookIsCompleted(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		asg := &waiting{}
		r := c.run(func(o *fleet.Options) {
			terminating(asg, 0)(o)
			o.Policy = policy.Settings{event.ASGTermination: {Action: policy.Notify, Hard: true, Budget: 10 * time.Minute}}
		})
		m := newParcel()
		r.Take(timeless(instance), 1, m)
		time.Sleep(time.Minute)
		m.want(t, "done")
		if got := asg.heard(); len(got) > 0 {
			t.Errorf("completed, with the pod still there and nobody asked to evict it: %q (%d evictions)", got, c.times("evict"))
		}
	})
}
