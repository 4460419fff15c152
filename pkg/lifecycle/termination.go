package lifecycle

import (
	"context"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// termination is one announced end of the instance: what the source, the agent and the watch tell each other about it.
type termination struct {
	event     event.Event
	firstSeen time.Time // with a monotonic reading
	cancel    context.CancelFunc
	settled   chan struct{} // closed when the hooks can be completed

	mu    sync.Mutex
	limit time.Time // when Auto Scaling takes the machine, whatever is done; with a monotonic reading, zero if unknown
	told  time.Time // the limit as it was last told, in wall time
	done  bool
}

func newTermination(ev event.Event, firstSeen time.Time, cancel context.CancelFunc) *termination {
	return &termination{event: ev, firstSeen: firstSeen, cancel: cancel, settled: make(chan struct{})}
}

// settle lets the hooks be completed.
func (t *termination) settle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.done {
		t.done = true
		close(t.settled)
	}
}

// isSettled tells whether the hooks can be completed.
func (t *termination) isSettled() bool {
	select {
	case <-t.settled:
		return true
	default:
		return false
	}
}

// limited takes in when Auto Scaling takes the machine.
func (t *termination) limited(limit time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = limit
}

// steady is how far a deadline must move to be told anew: a change begins the drain anew, and clocks are nudged all the
// time.
const steady = 2 * time.Second

// deadline is the limit by the wall clock, which says now; zero if there is none before the budget's end.
func (t *termination) deadline(budget time.Duration, now time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.limit.IsZero() || !t.limit.Before(t.firstSeen.Add(budget)) {
		t.told = time.Time{}
		return t.told
	}
	wall := now.Round(0).Add(time.Until(t.limit))
	if t.told.IsZero() || wall.Sub(t.told).Abs() > steady {
		t.told = wall
	}
	return t.told
}
