package main

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/identity"
)

// A machine that is no node, an image that is being baked on a spot instance, is interrupted: the notice comes first, and the
// power button two minutes later.
func TestGuard_ShutdownOfAMachineThatIsNoNodeProceeds(t *testing.T) {
	t.Parallel()
	nothing := identity.New(identity.Options{Kubeconfig: "/nowhere"})
	s := newLocalNode(nothing, config.Default(), nil, nil)
	var mu sync.Mutex
	drained := map[int]bool{}
	spot := drain.Goal{Generation: 1, Claim: drain.Claim{Event: "s", Kind: string(event.SpotInterruption)}, Cordon: true, Evict: true}
	report := func(p drain.Progress) {
		mu.Lock()
		defer mu.Unlock()
		drained[p.Generation] = drained[p.Generation] || p.State.Drained
	}
	task := drain.NewTask(spot)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Guard(ctx, task, report) }()
	defer func() { stop(); <-ended }()
	time.Sleep(200 * time.Millisecond)
	down := spot // The spot interruption still comes first.
	down.Generation, down.Shutdown = 2, true
	task.Adjust(down)
	time.Sleep(3 * time.Second)
	mu.Lock()
	defer mu.Unlock()
	if !drained[2] {
		t.Error("the machine never was a node, and its shutdown is held")
	}
}
