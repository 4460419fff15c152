package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/identity"
)

// A machine that is no node, an image that is being baked on a spot instance, is interrupted: the notice comes first, and the
// power button two minutes later.
func TestGuard_ShutdownOfAMachineThatIsNoNodeProceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLocalNode(identity.New(identity.Options{Kubeconfig: "/nowhere"}), config.Default(), nil, nil)
		drained := map[int]bool{}
		goal := drain.Goal{Generation: 1, Claim: drain.Claim{Event: "s", Kind: string(event.SpotInterruption)}, Cordon: true, Evict: true}
		task := drain.NewTask(goal)
		ctx, stop := context.WithCancel(t.Context())
		go s.Guard(ctx, task, func(p drain.Progress) { drained[p.Generation] = drained[p.Generation] || p.State.Drained })
		time.Sleep(time.Minute)
		goal.Generation, goal.Shutdown = 2, true // The spot interruption still comes first.
		task.Adjust(goal)
		time.Sleep(time.Minute)
		stop()
		synctest.Wait()
		if drained[1] || !drained[2] {
			t.Errorf("drained for are %v, want only the shutdown: the machine never was a node", drained)
		}
	})
}
