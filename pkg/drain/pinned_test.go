package drain_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/state"
)

// A Node that is pinned by its UID goes, and another machine's takes its name.
func TestGuard_LeavesTheNextNodeOfThatNameAlone(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"with a hard deadline": true, "without": false} {
		run(t, name, func(t *testing.T) {
			s := apitest.New(t)
			free := addHeld(s, pod("held"))
			r := beginWithin(t, s, drain.Options{UID: s.CurrentNode().UID}, hard, plenty)
			r.await(state.PodHeld)
			s.RegisterNode()
			s.AddPod(pod("innocent"), 0)
			r.await(state.NodeMissing)
			free()
			time.Sleep(time.Minute)
			if evicted := count(s, "evict default/innocent"); s.CurrentNode().Spec.Unschedulable || evicted > 0 {
				t.Errorf("the other Node is cordoned: %t, and its pod was asked to go %d times", s.CurrentNode().Spec.Unschedulable, evicted)
			}
		})
	}
}
