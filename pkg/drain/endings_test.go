package drain_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// Only the list before the end is refused.
func TestARefusedListIsToldOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		r := begin(t, s, drain.Options{})
		r.await(state.PodsFound)
		s.Always("list", apitest.Forbidden("no lists here"))
		time.Sleep(10 * time.Minute)
		if n := len(r.of(state.PodRefused)); n > 20 {
			t.Errorf("one refusal was told %d times in ten minutes", n)
		}
	})
}

// What ended before the drain says nothing of who comes back to the closed node.
func TestPodsThatWereEndingBeforeAreNotTakenForOnesThatCameBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		for i := range 3 {
			s.AddPod(pod(fmt.Sprintf("web-%d", i)), 0)
		}
		// Five pods of the same ReplicaSet have been ending for long, one after another: a finalizer holds them.
		for i := range 5 {
			s.AddPod(pod(fmt.Sprintf("a-%d", i), func(p *corev1.Pod) {
				p.CreationTimestamp.Time = time.Now().Add(time.Duration(i-20) * time.Minute)
				ending(1)(p)
				p.DeletionTimestamp.Time = time.Now().Add(time.Duration(i-20)*time.Minute + 30*time.Second)
			}), apitest.Never)
		}
		r := begin(t, s, drain.Options{})
		time.Sleep(time.Minute)
		for i := range 3 {
			if s.HasPod(fmt.Sprintf("default/web-%d", i)) {
				t.Errorf("web-%d was not evicted: %+v", i, r.of(state.PodsLeftToReturn))
			}
		}
		if told := r.of(state.PodsReturning); len(told) != 0 {
			t.Errorf("told %+v", told)
		}
	})
}
