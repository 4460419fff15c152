package agent_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/event"
)

// settling runs f with a rig that notes when each event was first said to be settled.
func settling(t *testing.T, f func(r *rig, settled func() []string)) {
	t.Helper()
	bubble(t, func(r *rig) {
		var mu sync.Mutex
		var order []string
		r.cfg.Settled = func(ev event.Event, outcome event.Outcome) {
			mu.Lock()
			defer mu.Unlock()
			if outcome == "" {
				return
			}
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

func (r *rig) wantSettled(got []string, want ...string) {
	r.t.Helper()
	if !slices.Equal(got, want) {
		r.t.Errorf("settled are %q, want %q", got, want)
	}
}

func TestAnEventIsSettledWhenItsDrainHasEnded(t *testing.T) {
	t.Parallel()
	settling(t, func(r *rig, settled func() []string) {
		r.node.toGuard(after(time.Minute))
		r.run()
		r.announce(terminated("a"))
		r.pass(59 * time.Second)
		r.wantSettled(settled())
		r.pass(time.Second)
		r.wantSettled(settled(), "a after 1m0s")
		r.end(nil)
		r.run()
		r.announce(terminated("a"))
		r.pass(59 * time.Second)
		r.wantSettled(settled()) // what people want of the node may have changed since
		r.pass(time.Second)
		r.wantSettled(settled(), "a after 2m0s")
	})
}

func TestATerminationOfASpotInstanceThatIsInterruptedIsSettledByTheSameDrain(t *testing.T) {
	t.Parallel()
	settling(t, func(r *rig, settled func() []string) {
		r.node.toGuard(after(time.Minute))
		r.run()
		r.announce(r.spot("s", 3*time.Minute), terminated("a"))
		r.pass(time.Minute - time.Second)
		r.wantSettled(settled())
		r.pass(time.Second)
		got := settled()
		slices.Sort(got)
		r.wantSettled(got, "a after 1m0s", "s after 1m0s")
	})
}

// EC2 retires the machine in a week, the group replaces it now, and a pod does not go.
func TestAnEventIsSettledWhenItsTimeIsOverThoughAnotherIsDrainedForStill(t *testing.T) {
	t.Parallel()
	settling(t, func(r *rig, settled func() []string) {
		heard := &ear{}
		r.cfg.Listeners = []agent.Listener{heard}
		r.node.toGuard(stuck)
		r.run()
		r.announce(r.stopping("m", 7*24*time.Hour), terminated("a"))
		r.pass(15*time.Minute - 1)
		r.wantSettled(settled())
		heard.take()
		r.pass(1)
		r.wantSettled(settled(), "a after 15m0s")
		heard.want(t, "deadline-exceeded a drain after 15m0s")
		r.pass(20 * time.Minute)
		r.wantSettled(settled(), "a after 15m1s") // as it is told ever again
		heard.want(t)
	})
}

func TestAnEventWhoseDrainComesToNothingIsSettledWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	settling(t, func(r *rig, settled func() []string) {
		r.node.toGuard(func(context.Context, *guard) {})
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
		r.node.toGuard(stuck)
		r.run()
		r.announce(terminated("a"))
		r.pass(15*time.Minute - time.Second)
		r.wantSettled(settled())
		r.pass(time.Second)
		r.wantSettled(settled(), "a after 15m0s")
	})
}
