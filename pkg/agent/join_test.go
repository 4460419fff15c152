package agent_test

import (
	"context"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// The guard says that the node is drained, and at the same time another event joins. From then on the API server is away.
func TestAnEventIsDrainedForAlsoIfAnotherJoinsAtThatMoment(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		spotted, stop := r.spot("a", 2*time.Minute), r.stopping("b", time.Hour)
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			rest(ctx, 10*time.Second)
			r.service.set(func() { r.service.slow = time.Second })
			g.say(drain.Progress{Kind: state.PodGone, Pod: "default/web"}) // The loop is busy for a second with this.
			rest(ctx, 100*time.Millisecond)
			g.drain()
			r.source.sink.Snapshot(event.Snapshot{Kind: event.ScheduledMaintenance, Events: []event.Event{stop}})
			r.service.set(func() { r.service.slow = 0 })
		})
		r.run()
		r.announce(spotted)
		r.pass(3 * time.Minute)
		if e := r.entry("a"); e.Phase != state.Drained {
			t.Errorf("the guard said that the node was drained when a was its only event, and a is %s", e.Phase)
		}
	})
}
