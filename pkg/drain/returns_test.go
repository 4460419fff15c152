package drain_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
)

// replace puts a new pod on the node whenever the last one is gone, as the controller of a pod does that names its node
// or tolerates the cordon, until the test ends.
func replace(t *testing.T, s *apitest.Server, name string, changes ...func(*corev1.Pod)) {
	t.Helper()
	s.AddPod(pod(name+"-0", changes...), 0)
	stop, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-done })
	go func() {
		defer close(done)
		for i := 0; ; {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			if !s.HasPod(fmt.Sprintf("default/%s-%d", name, i)) {
				i++
				s.AddPod(pod(fmt.Sprintf("%s-%d", name, i), changes...), 0)
			}
		}
	}()
}

func TestPodsThatKeepComingBackAreLeftThereWithoutADeadline(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	replace(t, s, "static")
	// The drain must be well under way when the first comes back.
	free := addHeld(s, pod("held", ownedBy("StatefulSet", "apps/v1")))
	r := beginWithin(t, s, drain.Options{EvictAfter: 1500 * time.Millisecond}, false, 0)
	r.await(drain.LeftToReturn)
	free()
	result := r.succeed()
	if result.Skipped != 1 || result.Evicted != 6 {
		t.Errorf("the result is %+v; want the first, four that came back and the one that was held evicted, and one left", result)
	}
	for what, want := range map[drain.What]string{drain.Returning: "ReplicaSet default/owner", drain.LeftToReturn: "ReplicaSet default/owner"} {
		if told := r.of(what); len(told) != 1 || told[0].Detail != want {
			t.Errorf("%s is told as %+v, want %q once", what, told, want)
		}
	}
}

func TestPodsThatKeepComingBackAreEvictedEverMoreSlowlyBeforeADeadline(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	replace(t, s, "static")
	s.AddPod(pod("stuck", ownedBy("StatefulSet", "apps/v1")), apitest.Never)
	const limit = 12 * time.Second
	r := beginWithin(t, s, drain.Options{EvictAfter: 1500 * time.Millisecond, Margin: time.Second}, true, limit)
	result, err := r.wait()
	if err == nil || len(r.of(drain.LeftToReturn)) > 0 || len(r.of(drain.Returning)) != 1 {
		t.Errorf("the result is %+v, %v", result, err)
	}
	// At once, at once, after 2 s and after 4 s; the next pause ends when the grace just fits, and those that come then
	// have theirs in full.
	if n := result.Evicted + result.Deleted; n < 4 || n > 7 {
		t.Errorf("%d pods were evicted in %s", n, limit)
	}
}

// A pod that comes back once may have been bound before the scheduler heard of the cordon.
func TestManyPodsOfOneControllerThatComeBackTogetherAreOneRound(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	const pods = 20
	for i := range pods {
		s.AddPod(pod(fmt.Sprintf("web-%d", i)), 0)
	}
	free := addHeld(s, pod("held", ownedBy("StatefulSet", "apps/v1")))
	r := begin(t, s, drain.Options{EvictAfter: 1500 * time.Millisecond})
	await(t, "the first pods' end", func() bool { return len(r.of(drain.Gone)) == pods })
	for i := range pods {
		s.AddPod(pod(fmt.Sprintf("again-%d", i)), 0)
	}
	await(t, "the others' end", func() bool { return len(r.of(drain.Gone)) == 2*pods })
	free()
	r.succeed()
	if told := r.of(drain.Returning); len(told) != 0 {
		t.Errorf("told %+v", told)
	}
}
