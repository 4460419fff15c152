package agent_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
)

// settling runs f with a rig that notes when each event was first said to be settled.
func settling(t *testing.T, f func(r *rig, settled func() []string)) {
	t.Helper()
	bubble(t, func(r *rig) {
		var mu sync.Mutex
		var order []string
		r.cfg.Settled = func(ev event.Event) {
			mu.Lock()
			defer mu.Unlock()
			if note := ev.ID + " after " + time.Since(r.start).String(); !slices.ContainsFunc(order, func(s string) bool { return s[:1] == ev.ID }) {
				order = append(order, note)
			}
		}
		f(r, func() []string {
			mu.Lock()
			defer mu.Unlock()
			taken := order
			order = nil
			return taken
		})
	})
}

// slowly is a drain that takes so long.
func slowly(d time.Duration) func(context.Context, drain.Plan) (drain.Result, error) {
	return func(ctx context.Context, _ drain.Plan) (drain.Result, error) {
		select {
		case <-ctx.Done():
			return drain.Result{}, ctx.Err()
		case <-time.After(d):
			return drain.Result{Cordon: drain.CordonSet}, nil
		}
	}
}

func (r *rig) wantSettled(got []string, want ...string) {
	r.t.Helper()
	if !slices.Equal(got, want) {
		r.t.Errorf("settled are %q, want %q", got, want)
	}
}

func TestAnEventIsSettledWhenItsDrainHasEnded(t *testing.T) {
	t.Parallel()
	settling(t, func(r *rig, settled func() []string) {
		r.node.toDrain(slowly(time.Minute))
		r.run()
		r.announce(terminated("a"))
		r.pass(59 * time.Second)
		r.wantSettled(settled())
		r.pass(time.Second)
		r.wantSettled(settled(), "a after 1m0s")
		r.end(nil)
		r.run()
		r.announce(terminated("a"))
		r.wantSettled(settled(), "a after 1m0s") // again, after a restart
	})
}

func TestATerminationOfASpotInstanceThatIsInterruptedIsSettledAfterTheDrain(t *testing.T) {
	t.Parallel()
	settling(t, func(r *rig, settled func() []string) {
		r.node.toDrain(slowly(time.Minute))
		r.run()
		r.announce(r.spot("s", 3*time.Minute), terminated("a"))
		r.pass(2*time.Minute - time.Second)
		r.wantSettled(settled()) // the second drain finds nothing to do, but is one
		r.pass(time.Second)
		got := settled()
		slices.Sort(got)
		r.wantSettled(got, "a after 2m0s", "s after 2m0s")
	})
}

func TestAnEventWhoseDrainFailsIsSettledWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	settling(t, func(r *rig, settled func() []string) {
		r.node.toDrain(fails)
		r.run()
		r.announce(terminated("a"))
		r.pass(14 * time.Minute)
		r.wantSettled(settled())
		r.pass(time.Minute)
		r.wantSettled(settled(), "a after 15m0s")
	})
}

func TestAnEventWhoseTimeIsTooShortIsSettled(t *testing.T) {
	t.Parallel()
	settling(t, func(r *rig, settled func() []string) {
		r.node.toDrain(stuck)
		r.run()
		r.announce(terminated("a"))
		r.pass(15*time.Minute - time.Second)
		r.wantSettled(settled())
		r.pass(time.Second)
		r.wantSettled(settled(), "a after 15m0s")
	})
}
