package fleet_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
)

// consumer is a pod of nth-queue's on a node, which is ready.
func consumer(node, name string) *corev1.Pod {
	pod := podOn(node, name)
	pod.Labels = map[string]string{"app.kubernetes.io/name": "nth-queue", "app.kubernetes.io/instance": "blue"}
	pod.Spec.PriorityClassName = "system-cluster-critical"
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return pod
}

// inPod makes a fleet that of a consumer on a node, and drain for every event.
func inPod(node, name string) func(*fleet.Options) {
	return func(o *fleet.Options) {
		draining(o)
		o.Own = fleet.OwnPod{Node: node, Namespace: "shop", Pod: name}
	}
}

func TestTheNodeBelowAProcessIsDrainedByAnotherOne(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), nodeOf("b", "i-0fedcba9876543210", nil),
			podOn("a", "web"), consumer("a", "queue-a"), consumer("b", "queue-b"))
		below, other := c.run(inPod("a", "queue-a")), c.run(inPod("b", "queue-b"))
		m := newParcel()
		below.Take(interruption(instance, event.SpotInterruption), 1, m)
		if became := m.want(t, "returned"); became.after != time.Second {
			t.Errorf("the message went back for %s, want a second", became.after)
		}
		c.untouched("a")

		c.before("evict", func(times int) error {
			if times > 1 {
				return nil
			}
			duplicate := newParcel() // It is where the other one can join it to its drain.
			below.Take(interruption(instance, event.SpotInterruption), 2, duplicate)
			duplicate.want(t, "returned")
			return nil
		})
		m = newParcel()
		other.Take(interruption(instance, event.SpotInterruption), 2, m)
		m.want(t, "done")
		if n := c.times("evict"); n != 2 || !c.node("a").Spec.Unschedulable {
			t.Errorf("%d pods were evicted, and the node is %+v", n, c.node("a").Spec)
		}
	})
}

func TestAProcessThatNobodyCanRelieveDrainsTheNodeBelowItAndItsOwnPodLast(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(c *cluster){
		"there is no other": func(*cluster) {},
		"the other is not ready": func(c *cluster) {
			pod := consumer("b", "queue-b")
			pod.Status.Conditions[0].Status = corev1.ConditionFalse
			c.add(pod)
		},
		"the other is going to end": func(c *cluster) {
			pod := consumer("b", "queue-b")
			pod.DeletionTimestamp, pod.Finalizers = &metav1.Time{Time: time.Now()}, []string{"example.com/slow"}
			c.add(pod)
		},
		"the other reads another queue": func(c *cluster) {
			pod := consumer("b", "queue-b")
			pod.Labels["app.kubernetes.io/instance"] = "green"
			c.add(pod)
		},
		"the other is on the same node": func(c *cluster) { c.add(consumer("a", "queue-b")) },
		"nobody can say": func(c *cluster) {
			c.add(consumer("b", "queue-b"))
			c.before("peers", func(int) error { return apierrors.NewInternalError(errors.New("broken")) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				dns := podOn("a", "dns")
				dns.Spec.PriorityClassName = "system-cluster-critical"
				c.add(nodeOf("a", instance, nil), nodeOf("b", "i-0fedcba9876543210", nil), podOn("a", "web"), dns, consumer("a", "queue-a"))
				prepare(c)
				var last []string
				c.before("evict", func(int) error {
					last = c.podsOn("a")
					return nil
				})
				m := newParcel()
				c.run(inPod("a", "queue-a")).Take(interruption(instance, event.SpotInterruption), 1, m)
				m.want(t, "done")
				if !slices.Equal(last, []string{"queue-a"}) {
					t.Errorf("with the last eviction, there were %q on the node, want queue-a alone", last)
				}
			})
		})
	}
}

// podsOn are the names of the pods on a node, in order.
func (c *cluster) podsOn(node string) []string {
	pods, err := c.store.CoreV1().Pods("").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Error(err)
		return nil
	}
	var names []string
	for _, pod := range pods.Items {
		if pod.Spec.NodeName == node {
			names = append(names, pod.Name)
		}
	}
	slices.Sort(names)
	return names
}

// The other one seems to be ready, and takes nothing.
func TestAProcessThatNobodyRelievesInTimeDrainsTheNodeBelowIt(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), nodeOf("b", "i-0fedcba9876543210", nil), consumer("a", "queue-a"), consumer("b", "queue-b"))
		r, began := c.run(inPod("a", "queue-a")), time.Now()
		returns := 0
		for receives := 1; ; receives++ {
			m := newParcel()
			r.Take(interruption(instance, event.SpotInterruption), receives, m)
			became := <-m.became
			if became.what == "done" {
				break
			}
			returns++
			time.Sleep(became.after)
		}
		if waited := time.Since(began); waited < 15*time.Second || waited > 30*time.Second || returns > 20 {
			t.Errorf("it was drained after %s, and the message went back %d times", waited, returns)
		}
	})
}

// What came of one event a while ago says nothing of whoever is ready now.
func TestOthersHaveTheirChanceForEachEventOfTheNodeBelowAProcess(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), nodeOf("b", "i-0fedcba9876543210", nil), consumer("a", "queue-a"), consumer("b", "queue-b"))
		r := c.run(inPod("a", "queue-a"))
		for _, kind := range []event.Kind{event.RebalanceRecommendation, event.StateChange, event.SpotInterruption} {
			m := newParcel()
			r.Take(interruption(instance, kind), 1, m)
			m.want(t, "returned") // The other one receives it.
			time.Sleep(20 * time.Second)
		}
		c.untouched("a")
	})
}

func TestTheNodeBelowAProcessIsAnothersAsLongAsThatDrainsIt(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil), consumer("a", "queue-a"))
		c.change("a", func(n *corev1.Node) { n.Annotations = claimed("host/space/2", time.Now().Add(30*time.Second)) })
		m := newParcel()
		c.run(inPod("a", "queue-a")).Take(interruption(instance, event.SpotInterruption), 1, m)
		if became := m.want(t, "returned"); became.after != 5*time.Second {
			t.Errorf("the message went back for %s, want 5s", became.after)
		}
		synctest.Wait()
		c.untouched("a")
	})
}
