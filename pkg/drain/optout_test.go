package drain_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

func TestOptOut_NodeAnnotation(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]struct {
		cordon             drain.CordonResult
		patches, evictions int
	}{
		"ignore": {drain.CordonOptedOut, 0, 0},
		"notify": {drain.CordonOptedOut, 0, 0},
		"cordon": {drain.CordonSet, 1, 0},
		"drain":  {drain.CordonSet, 1, 1},
		"dance":  {drain.CordonSet, 1, 1},
	} {
		run(t, action, func(t *testing.T, s *apitest.Server) {
			s.ChangeNode(asking(drain.ActionAnnotation, action))
			s.AddPod(pod("a"), 0)
			r := begin(t, s, drain.Options{})
			if want.evictions == 0 {
				r.result = r.leave()
				time.Sleep(time.Minute)
				if len(r.of(state.NodeEmpty)) > 0 {
					t.Errorf("it is said to be drained: %+v", r.reports)
				}
			} else {
				r.succeed()
			}
			if left := r.last().State.MayNotCordon; left != (want.cordon == drain.CordonOptedOut) {
				t.Errorf("reported is %+v", r.last().State)
			}
			if r.result.Cordon != want.cordon || r.result.MayNotEvict != (want.evictions == 0) {
				t.Errorf("the result is %+v", r.result)
			}
			if count(s, "patch") != want.patches || count(s, "evict") != want.evictions {
				t.Errorf("%d patches and %d evictions; want %d and %d", count(s, "patch"), count(s, "evict"), want.patches, want.evictions)
			}
		})
	}
}

// nth was restarted, and the API server does not answer when it asks for the Node. Operators's last word was to leave the pods alone.
func TestOptOut_NodeBeforeTheFirstLook(t *testing.T) {
	t.Parallel()
	limited := func(t *testing.T, s *apitest.Server, change func(*corev1.Node)) *trial {
		t.Helper()
		s.AddPod(pod("a"), 0)
		s.ChangeNode(change)
		s.Always("get node", apitest.Unavailable())
		goal := goalWithin(true, 2*time.Minute)
		goal.MayNotEvict = true
		r := start(t, s, drain.Options{}, goal)
		time.Sleep(time.Minute)
		s.Requested(t, 0, "evict", "delete")
		return r
	}
	run(t, "and go if it is so no more", func(t *testing.T, s *apitest.Server) {
		r := limited(t, s, func(*corev1.Node) {})
		s.Always("get node", nil)
		r.succeed()
	})
	run(t, "and stay if it is so still", func(t *testing.T, s *apitest.Server) {
		r := limited(t, s, asking(drain.ActionAnnotation, drain.OnlyCordon))
		s.Always("get node", nil)
		r.leave()
		time.Sleep(2 * time.Minute)
		s.Requested(t, 0, "evict", "delete")
	})
}
