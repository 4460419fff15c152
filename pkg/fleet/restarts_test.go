package fleet_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
)

// returning has each restart of web bring about, after some time, a pod of its next ReplicaSet on each of those nodes instead of the pod "one":
// it tolerates their cordons.
func (w *workloads) returning(t *testing.T, after time.Duration, nodes ...string) {
	t.Helper()
	c := w.cluster
	w.restarted = func(string) {
		c.mu.Lock()
		at := w.byPath["deployments/web"].(*appsv1.Deployment).Spec.Template.Annotations // it is
		c.mu.Unlock()
		n := len(w.all()) + 1
		set := controlled(&appsv1.ReplicaSet{ObjectMeta: named("ReplicaSet", fmt.Sprintf("web-%d", n))}, "Deployment", "web")
		set.Annotations, set.Spec.Template.Annotations = map[string]string{revision: "1"}, at
		w.add(set)
		time.AfterFunc(after, func() {
			for _, node := range nodes {
				c.add(controlled(asksFor(podOn(node, fmt.Sprintf("%s-%d", node, n))), "ReplicaSet", set.Name))
			}
			_ = c.store.CoreV1().Pods("shop").Delete(t.Context(), "one", metav1.DeleteOptions{}) // It may have been evicted.
		})
	}
}

func TestThatADrainHasRestartedAWorkloadSaysNothingOfOtherNodes(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.workloads.add(deployment(nil)...)
		c.workloads.returning(t, 20*time.Second, "a", "b")
		c.add(nodeOf("a", instance, nil), nodeOf("b", other, nil), ofWeb("a", "one"))
		r := c.run(restarting(time.Minute))
		r.Take(endless(instance), 1, newParcel())
		time.Sleep(25 * time.Second)
		r.Take(endless(other), 1, newParcel())
		time.Sleep(5 * time.Second)
		if all := c.workloads.all(); len(all) != 2 || c.times("evict") != 1 {
			t.Errorf("restarted were %q, and %d pods evicted, want one for each node, and an eviction of what came to the first one", all, c.times("evict"))
		}
	})
}

// They tolerate the cordon.
func TestAProcessThatTakesADrainOverRestartsNothingAgain(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]time.Duration{"before another pod comes": 0, "after another pod has come": 15 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.workloads.add(deployment(nil)...)
				c.workloads.returning(t, 20*time.Second, "a")
				c.add(nodeOf("a", instance, nil), ofWeb("a", "one"))
				r := c.run(restarting(time.Minute))
				r.Take(endless(instance), 1, newParcel())
				time.Sleep(10 * time.Second)
				r.stop()
				time.Sleep(away)
				m := newParcel()
				c.run(restarting(time.Minute)).Take(endless(instance), 2, m)
				m.want(t, "done")
				if all := c.workloads.all(); len(all) != 1 || c.times("evict") != 1 {
					t.Errorf("restarted were %q, and %d pods evicted", all, c.times("evict"))
				}
			})
		})
	}
}

func TestWhatIsUrgentAsksForARestartBehindNothingThatIsNot(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.workloads.add(deployment(nil)...)
		restarted := make(chan struct{})
		c.workloads.restarted = func(string) { close(restarted) }
		c.before("look", func(times int) error {
			if times == 1 {
				return hang(nil)
			}
			return nil
		})
		c.add(nodeOf("a", instance, nil), ofWeb("a", "one"), nodeOf("b", other, nil), ofWeb("b", "two"))
		r := c.run(restarting(10 * time.Minute))
		r.Take(endless(instance), 1, newParcel())
		time.Sleep(time.Second)
		began := time.Now()
		r.Take(interruption(other, event.SpotInterruption), 1, newParcel())
		<-restarted
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("restarted after %s", took)
		}
	})
}

func TestOfADryRunNothingIsRestarted(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.workloads.add(deployment(nil)...)
		c.add(nodeOf("a", instance, nil), ofWeb("a", "one"))
		m := newParcel()
		c.run(func(o *fleet.Options) { restarting(time.Minute)(o); o.DryRun = true }).Take(endless(instance), 1, m)
		m.want(t, "done")
		if n := c.times("restart"); n > 0 {
			t.Errorf("%d restarts were asked for", n)
		}
	})
}

func TestEachPodIsToldWhyItsWorkloadIsNotRestarted(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		log, said := logtest.NewNullLogger()
		c.workloads.add(deployment(nil)...)
		c.before("look", fails)
		c.add(nodeOf("a", instance, nil), ofWeb("a", "one"), ofWeb("a", "two"))
		m := newParcel()
		c.run(func(o *fleet.Options) { restarting(10 * time.Minute)(o); o.Log = logrus.NewEntry(log) }).Take(endless(instance), 1, m)
		m.want(t, "done")
		if n := timesSaid(said, "not now"); n != 2 {
			t.Errorf("it was said %d times why, in %q", n, texts(said))
		}
	})
}
