package drain_test

import (
	"testing"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
)

// A pod behind a finalizer, or on a volume that hangs, must not keep the name service on a node that has to be empty.
func TestCriticalPodsDoNotWaitForAPodThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.AddPod(pod("dns", critical), 0)
	s.AddPod(pod("web"), apitest.Never)
	s.AddPod(pod("going", ending(1)), apitest.Never)
	r := begin(t, s, drain.Options{})
	r.await(drain.Overdue, "default/going")
	r.await(drain.Gone, "default/dns")
	for _, name := range []string{"default/web", "default/going"} {
		if told := r.of(drain.Overdue, name); len(told) != 1 {
			t.Errorf("that %s is overdue is told as %+v", name, told)
		}
	}
	r.cancel()
	result, _ := r.wait()
	if result.HeldBy["default/web"] != "it does not end" || result.HeldBy["default/going"] != "it does not end" {
		t.Errorf("the result is %+v", result)
	}
}

// What a disruption budget holds still runs, and may need them.
func TestCriticalPodsWaitForAPodThatIsHeld(t *testing.T) {
	t.Parallel()
	s := apitest.New(t)
	s.AddPod(pod("dns", critical), 0)
	free := addHeld(s, pod("web"))
	s.AddPod(pod("stuck"), apitest.Never)
	r := begin(t, s, drain.Options{})
	r.await(drain.Overdue, "default/stuck")
	if n := count(s, "evict default/dns"); n != 0 {
		t.Errorf("%d evictions of the critical pod", n)
	}
	free()
	r.await(drain.Gone, "default/dns")
}
