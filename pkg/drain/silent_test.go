package drain_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// silently accepts a watch that tells nothing, and ends in its time, as any: the API server's own watch of etcd may hang.
func silently(w http.ResponseWriter, r *http.Request) bool {
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	return apitest.Silence()(w, r.WithContext(ctx))
}

func TestWatch_SilentWhileAPodTerminates(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"hard": true, "soft": false} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", grace(30)), apitest.Ending(20*time.Second))
			r := beginWithin(t, s, drain.Options{}, hard, 2*time.Minute)
			r.await(state.PodEvicted)
			time.Sleep(time.Second)
			s.Always("watch", silently)
			s.DropWatches()
			time.Sleep(time.Minute)
			if result := r.guard.Result(); !r.last().State.Drained || result.Evicted != 1 {
				t.Errorf("the pod ended 40 s ago, and the result is %+v", result)
			}
			s.Always("watch", nil)
		})
	}
}

// Lists that show what the watch does not are not made less often: the last pod would be missed for minutes.
func TestWatch_SilentWhileABudgetYields(t *testing.T) {
	t.Parallel()
	for pods := 6; pods <= 18; pods += 3 {
		run(t, fmt.Sprint(pods, " pods"), func(t *testing.T) {
			s := apitest.New(t)
			for i := range pods {
				s.AddPod(pod(fmt.Sprint("web-", i)), 0)
			}
			s.Always("evict", apitest.OneAtATime("budget", time.Minute))
			r := beginWithin(t, s, drain.Options{}, false, 0)
			time.Sleep(time.Second)
			s.Always("watch", silently)
			s.DropWatches()
			r.succeed()
			if after := r.drainedAt().Sub(s.LastRemoval()); after > 30*time.Second {
				t.Errorf("drained %s after the last pod", after)
			}
		})
	}
}

// A pod that does not end is listed for ever less often.
func TestWatch_ListsSeldomForAPodThatStays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		s.AddPod(pod("a", grace(30)), apitest.Never)
		begin(t, s, drain.Options{})
		time.Sleep(2 * time.Minute)
		lists := count(s, "list pods")
		time.Sleep(50 * time.Minute)
		if n := count(s, "list pods") - lists; n < 4 || n > 20 {
			t.Errorf("%d lists in 50 minutes", n)
		}
	})
}
