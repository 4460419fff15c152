package drain_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// The watch tells nothing any more, and ends in its time, as any: the API server's own watch of etcd may hang.
func TestWatch_SilentWhileAPodTerminates(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"hard": true, "soft": false} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			s.AddPod(pod("a", grace(30)), apitest.Ending(20*time.Second))
			r := beginWithin(t, s, drain.Options{}, hard, 2*time.Minute)
			r.await(state.PodEvicted)
			time.Sleep(time.Second)
			s.Always("watch", func(w http.ResponseWriter, r *http.Request) bool {
				ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
				defer cancel()
				return apitest.Silence()(w, r.WithContext(ctx))
			})
			s.DropWatches()
			time.Sleep(time.Minute)
			if result := r.guard.Result(); !r.last().State.Drained || result.Evicted != 1 {
				t.Errorf("the pod ended 40 s ago, and the result is %+v", result)
			}
			s.Always("watch", nil)
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
