package fleet_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
)

// An instance is started again while its pods are still being moved for its stop. What was to be done for that is over.
func TestADrainForAStopEndsWhenTheInstanceRunsAgain(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		ran     time.Duration // since the stop
		also    bool          // the group terminates it as well
		drained bool          // its pods go all the same
	}{
		"it runs":                          {ran: time.Minute},
		"it ran before":                    {ran: -time.Minute, drained: true},
		"it runs, and is to be terminated": {ran: time.Minute, also: true, drained: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				n := nodeOf("a", instance, nil)
				n.Status.NodeInfo.BootID = "boot-1"
				c.add(n, podOn("a", "one"))
				c.before("evict", held)
				r := c.run(func(o *fleet.Options) {
					draining(o)
					o.UncordonStarted, o.Hooks = true, &waiting{}
					o.Policy[event.StateChange] = policy.Rule{Action: policy.Drain, Hard: true, Budget: 5 * time.Minute}
				})
				stopped := time.Now()
				m, third := newParcel(), newParcel()
				r.Take(entered(instance, "stopping", 0), 1, m)
				if row.also {
					r.Take(timeless(instance), 1, third)
				}
				time.Sleep(50 * time.Second)
				c.change("a", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-2" })
				ran := newParcel()
				r.Take(running(stopped.Add(row.ran)), 1, ran)
				ran.want(t, "done")
				if !row.drained || row.also {
					m.want(t, "done")
				}
				synctest.Wait()
				c.before("evict", func(int) error { return nil })
				time.Sleep(2 * time.Minute)
				pods, err := c.store.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if closed := c.node("a").Spec.Unschedulable; len(pods.Items) == 0 != row.drained || closed != row.drained {
					t.Errorf("%d pods are left, unschedulable: %t", len(pods.Items), closed)
				}
			})
		})
	}
}
