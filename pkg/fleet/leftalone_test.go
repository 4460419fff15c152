package fleet_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

// terminating drains for terminations, for which there are ten minutes.
func terminating(hooks fleet.Hooks, limit int) func(*fleet.Options) {
	return func(o *fleet.Options) {
		o.Policy = policy.Settings{event.ASGTermination: {Action: policy.Drain, Hard: true, Budget: 10 * time.Minute}}
		o.Hooks, o.Limits.Draining = hooks, limit
		o.Instances = &knowledge{groups: map[string][]string{"workers": {instance, other}}}
	}
}

// asking sets what people want of a node.
func asking(action string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[drain.ActionAnnotation] = action
	}
}

// cordon is somebody else's.
func cordon(n *corev1.Node) { n.Spec.Unschedulable = true }

func TestTheHookOfANodeThatIsLeftAloneIsHeldForItsBudgetAndNotCompleted(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		c.change("a", asking(drain.OnlyCordon))
		asg := &waiting{}
		r := c.run(terminating(asg, 0))
		m := newParcel()
		r.Take(timeless(instance), 1, m)
		time.Sleep(10*time.Minute - time.Second)
		m.wantOpen(t)
		if asg.holding() != 1 {
			t.Errorf("%d hooks are held", asg.holding())
		}
		time.Sleep(5 * time.Second)
		m.want(t, "done")
		synctest.Wait()
		if got := asg.heard(); got != nil || asg.holding() != 0 || c.times("evict") != 0 {
			t.Errorf("completed: %q, held: %d, %d evictions", got, asg.holding(), c.times("evict"))
		}
		told := r.ear.whats("a")
		if slices.Contains(told, state.Done) || slices.Contains(told, state.RanOut) || !slices.Contains(told, state.LeftAlone) {
			t.Errorf("what was told is %v", told)
		}
	})
}

// A node that cannot be claimed is none that is known to be out of time. Its group is not kept waiting for it all the same.
func TestTheHookOfANodeThatCannotBeClaimedIsHeldForItsBudgetAndNotCompleted(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		c.before("claim", forbidden)
		asg := &waiting{}
		r := c.run(terminating(asg, 0))
		began := time.Now()
		m, receives := newParcel(), 1
		r.Take(timeless(instance), receives, m)
		for time.Since(began) < 15*time.Minute {
			time.Sleep(time.Second)
			synctest.Wait()
			if len(m.became) > 0 {
				time.Sleep(m.want(t, "returned").after)
				m, receives = newParcel(), receives+1
				r.Take(timeless(instance), receives, m)
				synctest.Wait()
			}
			if passed, holding := time.Since(began), asg.holding(); passed > 11*time.Minute && holding > 0 {
				t.Fatalf("after %s, %d hooks are held", passed, holding)
			}
		}
		if got := asg.heard(); got != nil {
			t.Errorf("completed: %q", got)
		}
	})
}

// Who waits in the line has not begun to spend its time.
func TestTheHookOfANodeThatWaitsInTheLineIsHeldForAsLongAsThatTakes(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), podOn("a", "one"), nodeOf("b", other, nil))
		c.ending = time.Hour
		asg := &waiting{}
		r := c.run(func(o *fleet.Options) {
			terminating(asg, 1)(o)
			o.Policy = policy.Settings{
				event.ASGTermination: {Action: policy.Drain, Budget: 2 * time.Minute}, event.SpotInterruption: {Action: policy.Drain},
			}
		})
		endless := interruption(instance, event.SpotInterruption)
		endless[0].Event.Deadline = time.Time{}
		r.Take(endless, 1, newParcel())
		time.Sleep(time.Second)
		second := newParcel()
		r.Take(timeless(other), 1, second)
		time.Sleep(5 * time.Minute)
		second.wantOpen(t)
		if asg.holding() != 1 {
			t.Errorf("%d hooks are held", asg.holding())
		}
	})
}

func TestANodeThatIsGivenFreeInTimeIsDrainedAndItsHookCompleted(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		c.change("a", asking(drain.LeaveNode))
		asg := &waiting{}
		r := c.run(terminating(asg, 0))
		m := newParcel()
		r.Take(timeless(instance), 1, m)
		time.Sleep(5 * time.Minute)
		m.wantOpen(t)
		c.change("a", asking(""))
		time.Sleep(30 * time.Second)
		m.want(t, "done")
		if got := asg.heard(); len(got) != 1 || c.times("evict") != 1 {
			t.Errorf("completed: %q, %d evictions", got, c.times("evict"))
		}
	})
}

func TestNobodyWaitsInLineForANodeThatIsLeftAlone(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), podOn("a", "one"), nodeOf("b", other, nil), podOn("b", "two"))
		c.change("a", asking(drain.LeaveNode))
		asg := &waiting{}
		r := c.run(terminating(asg, 1))
		first, second := newParcel(), newParcel()
		r.Take(timeless(instance), 1, first)
		time.Sleep(10 * time.Second)
		r.Take(timeless(other), 1, second)
		time.Sleep(10 * time.Second)
		second.want(t, "done")
		first.wantOpen(t)
		if got := asg.heard(); len(got) != 1 || got[0] != "workers "+other {
			t.Errorf("completed: %q", got)
		}
	})
}

// wantOpen fails unless nothing has become of the message yet.
func (m parcel) wantOpen(t *testing.T) {
	t.Helper()
	synctest.Wait()
	if len(m.became) > 0 {
		t.Fatalf("the message is %+v", <-m.became)
	}
}

// timeless is the notice of a group that waits for an instance, and says not until when.
func timeless(id string) []sqs.Notice {
	notices := atHook(sqs.Interruption, id)
	notices[0].Event.Code, notices[0].Event.Deadline = "Terminated", time.Time{}
	return notices
}
