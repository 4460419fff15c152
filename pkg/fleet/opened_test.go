package fleet_test

import (
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

func (r *rig) takeOnce(t *testing.T, notices []sqs.Notice, receives int) outcome {
	t.Helper()
	m := newParcel()
	r.Take(notices, receives, m)
	select {
	case became := <-m.became:
		synctest.Wait()
		return became
	case <-time.After(10 * time.Minute):
		t.Fatal("nothing became of the message")
		return outcome{}
	}
}

// What a rebalance recommendation's cordon covers meanwhile is not opened when its time to live ends.
func TestATimeToLiveDoesNotOpenANodeThatAnotherEventWasDrainedFor(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		r := c.run(func(o *fleet.Options) {
			draining(o)
			o.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, CordonFor: 10 * time.Minute}
		})
		recommended := []sqs.Notice{{About: sqs.Interruption, Instance: instance, Event: event.Event{
			ID: "rebalance", Kind: event.RebalanceRecommendation, State: event.Pending,
		}}}
		retired := []sqs.Notice{{About: sqs.Interruption, Instance: instance, Event: event.Event{
			ID: "retirement", Kind: event.ScheduledMaintenance, Code: "instance-retirement", State: event.Pending,
			Deadline: time.Now().Add(7 * 24 * time.Hour).Round(0),
		}}}
		back := r.takeOnce(t, recommended, 1)
		if n := c.node("a"); back.what != "returned" || !n.Spec.Unschedulable || n.Annotations[drain.CordonAnnotation] == "" {
			t.Fatalf("%+v, %+v", back, n)
		}
		time.Sleep(time.Minute)
		if became := r.takeOnce(t, retired, 1); became.what != "done" || c.times("evict") != 1 {
			t.Fatalf("%+v, %d evicted", became, c.times("evict"))
		}
		time.Sleep(10 * time.Minute)
		became := r.takeOnce(t, recommended, 2)
		if !c.node("a").Spec.Unschedulable {
			t.Errorf("the recommendation is %+v, and the node that was drained for its retirement takes pods again", became)
		}
	})
}

// A drain has been stopped, as the process's Lease could not be renewed, people uncordon the node, and the message is received again.
func TestAnUncordonBetweenTwoReceivesIsAnOrder(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		c.before("evict", held)
		r := c.run(draining)
		c.before("renew", func(int) error { return fail(c) })
		notice := []sqs.Notice{{About: sqs.Interruption, Instance: instance, Event: event.Event{
			ID: "stop", Kind: event.ScheduledMaintenance, Code: "instance-stop", State: event.Pending,
			Deadline: time.Now().Add(2 * time.Minute).Round(0),
		}}}
		back := r.takeOnce(t, notice, 1)
		if n := c.node("a"); back.what != "returned" || !n.Spec.Unschedulable || n.Annotations[drain.CordonAnnotation] == "" {
			t.Fatalf("%+v, %+v", back, n)
		}
		c.before("renew", nil)
		c.change("a", func(n *corev1.Node) { n.Spec.Unschedulable = false })
		time.Sleep(10 * time.Second) // There is a Lease again.
		again := r.takeOnce(t, notice, 2)
		if n := c.node("a"); n.Spec.Unschedulable || again.what != "done" {
			t.Errorf("people have uncordoned the node, and it was cordoned again for the same event (the message is %+v, claim %s)",
				again, n.Annotations[drain.CordonAnnotation])
		}
	})
}

// The same with a drain that a restart of nth-queue interrupts.
func TestAnUncordonWhileNthQueueIsRestartedIsAnOrder(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		c.before("evict", func(int) error { return apierrors.NewTooManyRequests("busy", 1) })
		r := c.run(draining)
		notice := []sqs.Notice{{About: sqs.Interruption, Instance: instance, Event: event.Event{
			ID: "stop", Kind: event.ScheduledMaintenance, Code: "instance-stop", State: event.Pending,
			Deadline: time.Now().Add(48 * time.Hour).Round(0),
		}}}
		m := newParcel()
		r.Take(notice, 1, m)
		time.Sleep(time.Minute)
		if !c.node("a").Spec.Unschedulable {
			t.Fatal("not cordoned")
		}
		r.stop()
		<-m.became
		c.change("a", func(n *corev1.Node) { n.Spec.Unschedulable = false })
		r = c.run(draining)
		m = newParcel()
		r.Take(notice, 2, m)
		time.Sleep(time.Minute)
		if n := c.node("a"); n.Spec.Unschedulable {
			t.Errorf("people have uncordoned the node, and it was cordoned again for the same event: %s", n.Annotations[drain.CordonAnnotation])
		}
	})
}

// A dry run of a cordon while the API server is slow holds the message for ever.
func TestADryRunsMessageComesToAnEnd(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil))
		c.before("get", func(int) error { time.Sleep(2 * time.Second); return nil })
		r := c.run(func(o *fleet.Options) {
			o.DryRun = true
			o.Policy = policy.Settings{event.SpotInterruption: {Action: policy.Cordon}, event.RebalanceRecommendation: {Action: policy.Cordon}}
		})
		one, other := newParcel(), newParcel()
		without := func(kind event.Kind) []sqs.Notice {
			notices := interruption(instance, kind)
			notices[0].Event.Deadline = time.Time{}
			return notices
		}
		r.Take(without(event.RebalanceRecommendation), 1, one)
		time.Sleep(time.Second)
		r.Take(without(event.SpotInterruption), 1, other)
		time.Sleep(2 * time.Hour)
		if len(one.became) == 0 || len(other.became) == 0 {
			t.Errorf("after two hours, %d and %d of the messages have come to an end; the fleet stands as %+v", len(one.became), len(other.became), r.Status())
		}
	})
}

// An event of which the message has come to its end is not withdrawn because another of its kind comes.
func TestAnEventIsNotWithdrawnByAnotherOfItsKind(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), podOn("a", "one"))
		c.before("evict", func(int) error { return apierrors.NewTooManyRequests("busy", 1) })
		r := c.run(func(o *fleet.Options) {
			draining(o)
			rule := o.Policy[event.ScheduledMaintenance]
			rule.Codes, rule.Lead = map[string]policy.When{"system-reboot": policy.Lead, "other": policy.Now}, time.Hour
			o.Policy[event.ScheduledMaintenance] = rule
		})
		maintenance := func(id, code string, in time.Duration) []sqs.Notice {
			return []sqs.Notice{{About: sqs.Interruption, Instance: instance, Event: event.Event{
				ID: id, Kind: event.ScheduledMaintenance, Code: code, State: event.Pending, Deadline: time.Now().Add(in).Round(0),
			}}}
		}
		m := newParcel()
		r.Take(interruption(instance, event.StateChange), 1, m) // is drained for, and goes on
		time.Sleep(10 * time.Second)
		if back := r.takeOnce(t, maintenance("reboot", "system-reboot", 48*time.Hour), 1); back.what != "returned" {
			t.Fatalf("%+v", back)
		}
		r.Take(maintenance("stop", "instance-stop", 24*time.Hour), 1, newParcel())
		time.Sleep(10 * time.Second)
		r.ear.mu.Lock()
		defer r.ear.mu.Unlock()
		for _, h := range r.ear.heard {
			if h.Kind == state.ClosedWith {
				t.Errorf("those who listen are told that %s is over: %s; EC2 still announces it", h.Entry.Event.ID, h.Entry.Ending)
			}
		}
	})
}

// A retirement only cordons, by the rules, and for as long as it stands; a recommendation has cordoned the node before, for ten minutes.
func TestATimeToLiveDoesNotOpenANodeThatAnotherEventIsCordonedFor(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil))
		r := c.run(func(o *fleet.Options) {
			durationOf(o)
			o.Policy[event.ScheduledMaintenance] = policy.Rule{Action: policy.Cordon}
		})
		recommended := noticed("rebalance", event.RebalanceRecommendation, "", 0)
		if back := r.takeOnce(t, recommended, 1); back.what != "returned" || !c.node("a").Spec.Unschedulable {
			t.Fatalf("%+v", back)
		}
		time.Sleep(time.Minute)
		if became := r.takeOnce(t, noticed("retirement", event.ScheduledMaintenance, "instance-retirement", 7*24*time.Hour), 1); became.what != "done" {
			t.Fatalf("%+v", became)
		}
		time.Sleep(10 * time.Minute)
		became := r.takeOnce(t, recommended, 2)
		if !c.node("a").Spec.Unschedulable {
			t.Errorf("the recommendation is %+v, and the node that is cordoned for its retirement takes pods again", became)
		}
	})
}

// noticed is a notice about the instance; with a time, if there is one.
func noticed(id string, kind event.Kind, code string, in time.Duration) []sqs.Notice {
	ev := event.Event{ID: id, Kind: kind, Code: code, State: event.Pending}
	if in > 0 {
		ev.Deadline = time.Now().Add(in).Round(0)
	}
	return []sqs.Notice{{About: sqs.Interruption, Instance: instance, Event: ev}}
}

// durationOf makes every kind of event drain but recommendations, for which a node is cordoned for ten minutes.
func durationOf(o *fleet.Options) {
	draining(o)
	o.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, CordonFor: 10 * time.Minute}
}

// A drain for two events, which nth-queue's restart interrupts. People open the node meanwhile, and the messages are back one after the other.
func TestAnUncordonWhileNthQueueIsRestartedIsAnOrderForAllThatTheClaimNames(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		n := nodeOf("a", instance, nil)
		n.UID = "uid-of-a" // as each Node has
		c.add(n, podOn("a", "one"))
		c.before("evict", func(int) error { return apierrors.NewTooManyRequests("busy", 1) })
		r := c.run(draining)
		stop := noticed("stop", event.ScheduledMaintenance, "instance-stop", 48*time.Hour)
		retired := noticed("retirement", event.ScheduledMaintenance, "instance-retirement", 72*time.Hour)
		c.change("a", func(n *corev1.Node) { n.Annotations = claimed("other/space/2", time.Now()) }) // so that both are there when it is closed
		one, other := newParcel(), newParcel()
		r.Take(stop, 1, one)
		r.Take(retired, 1, other)
		time.Sleep(time.Minute)
		if !c.node("a").Spec.Unschedulable {
			t.Fatal("not cordoned")
		}
		r.stop()
		<-one.became
		<-other.became
		c.change("a", func(n *corev1.Node) { n.Spec.Unschedulable = false })
		r = c.run(draining)
		r.Take(stop, 2, newParcel())
		time.Sleep(10 * time.Second)
		if c.node("a").Spec.Unschedulable {
			t.Fatal("cordoned for the first")
		}
		r.Take(retired, 2, newParcel())
		time.Sleep(time.Minute)
		if n := c.node("a"); n.Spec.Unschedulable {
			t.Errorf("people have opened the node that was closed for both, and it was cordoned again for one: %s", n.Annotations[drain.CordonAnnotation])
		}
	})
}
