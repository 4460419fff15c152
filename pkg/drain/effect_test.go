package drain_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// A webhook may make each eviction a dry run.
func TestEvict_AcceptedWithoutEffect(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"hard": true, "soft": false} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", grace(30)), 0)
			s.Always("evict", accepted)
			r := beginWithin(t, s, drain.Options{}, hard, 10*time.Minute)
			time.Sleep(9 * time.Minute)
			result, told := r.guard.Result(), r.of(state.PodRefused)
			if result.Evicted != 0 || result.HeldBy["default/a"] != "accepted, but the pod is not terminating" || len(told) != 1 {
				t.Errorf("the result is %+v, told %+v", result, told)
			}
			if asked := count(s, "evict"); asked < 5 || asked > 30 || len(r.of(state.PodEvicted)) != 0 {
				t.Errorf("asked %d times, told %+v", asked, r.of(state.PodEvicted))
			}
			time.Sleep(2 * time.Minute)
			if result := r.guard.Result(); hard && (result.Deleted != 1 || result.Evicted != 0 || s.HasPod("default/a")) {
				t.Errorf("the result after the deadline is %+v", result)
			}
			s.Always("evict", nil)
			if !hard {
				r.await(state.PodGone)
				if result := r.guard.Result(); result.Evicted != 1 || len(result.HeldBy) != 0 {
					t.Errorf("the result without the webhook is %+v", result)
				}
			}
		})
	}
}
