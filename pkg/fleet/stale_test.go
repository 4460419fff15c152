package fleet_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/sqs"
)

// entered is what EC2 told some time ago: that an instance had entered a state.
func entered(id, state string, ago time.Duration) []sqs.Notice {
	n := interruption(id, event.StateChange)[0]
	n.Event.Code, n.Event.Deadline, n.Event.Noticed = state, time.Time{}, time.Now().Add(-ago).Round(0)
	n.Stopped = state == "stopped" || state == "terminated"
	return []sqs.Notice{n}
}

// reclaimed is the warning, some time ago, that a spot instance would be taken in two minutes.
func reclaimed(id, action string, ago time.Duration) []sqs.Notice {
	n := interruption(id, event.SpotInterruption)[0]
	n.Event.Code, n.Event.Noticed = action, time.Now().Add(-ago).Round(0)
	n.Event.Deadline = n.Event.Noticed.Add(2 * time.Minute)
	return []sqs.Notice{n}
}

// outOfService drains for everything, and taints what has stopped.
func outOfService(ec2 fleet.Instances) func(*fleet.Options) {
	return func(o *fleet.Options) {
		tainting(fleet.Taints{OutOfService: true})(o)
		o.Instances = ec2
	}
}

// untouched fails the test if anything was done to a node.
func (c *cluster) untouched(name string) {
	c.t.Helper()
	if n := c.node(name); n.Spec.Unschedulable || len(n.Spec.Taints) > 0 || c.times("evict") > 0 {
		c.t.Errorf("%d pods were evicted, and the node is %+v", c.times("evict"), n.Spec)
	}
}

const days = 3 * 24 * time.Hour

func TestAnOldMessageCountsIfItsInstanceDoesNotRunAgain(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		notices func() []sqs.Notice
		state   string // what EC2 says now
		drained bool
	}{
		"it has stopped a minute ago, whatever EC2 says": {func() []sqs.Notice { return entered(instance, "stopped", time.Minute) }, "running", true},
		"it has stopped and is stopped":                  {func() []sqs.Notice { return entered(instance, "stopped", days) }, "stopped", true},
		"it was stopping and still is":                   {func() []sqs.Notice { return entered(instance, "stopping", 5*time.Minute) }, "stopping", true},
		"it was stopping and is terminated":              {func() []sqs.Notice { return entered(instance, "stopping", days) }, "terminated", true},
		"it was shutting down, and nobody knows it":      {func() []sqs.Notice { return entered(instance, "shutting-down", days) }, "", true},
		"it was stopping and runs again":                 {func() []sqs.Notice { return entered(instance, "stopping", 3*time.Minute) }, "running", false},
		"it has stopped and runs again":                  {func() []sqs.Notice { return entered(instance, "stopped", days) }, "running", false},
		"it has stopped and is being started":            {func() []sqs.Notice { return entered(instance, "stopped", days) }, "pending", false},
		"it was to be stopped for spot and runs again":   {func() []sqs.Notice { return reclaimed(instance, "stop", days) }, "running", false},
		"it was to be hibernated and runs again":         {func() []sqs.Notice { return reclaimed(instance, "hibernate", days) }, "running", false},
		"it was to be stopped for spot by now":           {func() []sqs.Notice { return reclaimed(instance, "stop", 3*time.Minute) }, "running", true},
		"it was to be terminated for spot and still runs": {
			func() []sqs.Notice { return reclaimed(instance, "terminate", days) }, "running", true,
		},
		"a message that does not tell when it is of": {
			func() []sqs.Notice { return interruption(instance, event.StateChange) }, "running", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.ending = time.Second
				c.add(nodeOf("a", instance, nil), podOn("a", "pod"))
				ec2 := &knowledge{states: map[string]string{}}
				if row.state != "" {
					ec2.states[instance] = row.state
				}
				m := newParcel()
				c.run(outOfService(ec2)).Take(row.notices(), 1, m)
				m.want(t, "done")
				synctest.Wait()
				if !row.drained {
					c.untouched("a")
				} else if !c.node("a").Spec.Unschedulable || c.times("evict") != 1 {
					t.Errorf("%d pods were evicted, and the node is %+v", c.times("evict"), c.node("a").Spec)
				}
			})
		})
	}
}

func TestWhereEC2CannotBeAskedTheNodeTells(t *testing.T) {
	t.Parallel()
	for ready, drained := range map[corev1.ConditionStatus]bool{
		corev1.ConditionTrue: false, corev1.ConditionFalse: true, corev1.ConditionUnknown: true,
	} {
		bubble(t, func(t *testing.T, c *cluster) {
			node := nodeOf("a", instance, nil)
			node.Status.Conditions[0].Status = ready
			c.add(node)
			m := newParcel()
			c.run(outOfService(nil)).Take(entered(instance, "stopped", days), 1, m)
			m.want(t, "done")
			synctest.Wait()
			if got := c.node("a").Spec.Unschedulable; got != drained {
				t.Errorf("with a Node that is Ready: %s, it was drained: %t, want %t", ready, got, drained)
			}
		})
	}
}

func TestAnOldMessageWaitsForEC2(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil))
		ec2 := &knowledge{states: map[string]string{instance: "stopped"}, err: errors.New("not now")}
		r := c.run(outOfService(ec2))
		for receives, want := range []time.Duration{1: 2 * time.Second, 4 * time.Second} {
			if receives == 0 {
				continue
			}
			m := newParcel()
			r.Take(entered(instance, "stopped", days), receives, m)
			if became := m.want(t, "returned"); became.after != want {
				t.Errorf("after %d receives it was returned for %s, want %s", receives, became.after, want)
			}
		}
		c.untouched("a")
	})
}

// A drain may wait in the line for its turn for longer than an instance is stopped for.
func TestWhatHasGrownOldInTheLineIsLookedAtAgain(t *testing.T) {
	t.Parallel()

	for name, row := range map[string]struct {
		state   string
		err     error
		became  string
		drained bool
	}{
		"it runs again":        {state: "running", became: "done"},
		"it is still stopped":  {state: "stopped", became: "done", drained: true},
		"EC2 cannot be asked":  {err: errors.New("not now"), became: "returned"},
		"nobody knows it more": {became: "done", drained: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.add(nodeOf("a", instance, nil), nodeOf("b", other, nil))
				ec2 := &knowledge{states: map[string]string{}, err: row.err}
				r := c.run(func(o *fleet.Options) {
					outOfService(ec2)(o)
					o.Limits.Draining = 1
				})
				first, second := newParcel(), newParcel()
				c.change("b", func(n *corev1.Node) { n.Annotations = claimed("other/space/2", time.Now().Add(30*time.Second)) })
				synctest.Wait()
				r.Take(interruption(other, event.SpotInterruption), 1, first) // It waits for nobody, and counts.
				synctest.Wait()
				r.Take(entered(instance, "stopped", 0), 1, second)
				if row.state != "" {
					ec2.say(func(k *knowledge) { k.states[instance] = row.state })
				}
				for range 12 { // Another process is about to drain the first, for four minutes of the bubble's.
					c.change("b", func(n *corev1.Node) { n.Annotations = claimed("other/space/2", time.Now().Add(30*time.Second)) })
					time.Sleep(20 * time.Second)
				}
				first.want(t, "done")
				second.want(t, row.became)
				synctest.Wait()
				n := c.node("a")
				if n.Spec.Unschedulable != row.drained || (len(n.Spec.Taints) > 0) != row.drained || c.holder("a") != "" {
					t.Errorf("the node is %+v", n)
				}
			})
		})
	}
}
