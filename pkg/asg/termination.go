package asg

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
	changed   chan struct{} // has an element when the outcome or the settings have changed

	mu       sync.Mutex
	settings Settings
	outcome  event.Outcome
	limit    time.Time // when Auto Scaling takes the machine, whatever is done; with a monotonic reading, zero if unknown
	lost     bool      // once it is out of time, the machine is, although people want it kept
	told     time.Time // the limit as it was last told, in wall time
}

func newTermination(ev event.Event, firstSeen time.Time, cancel context.CancelFunc, settings Settings) *termination {
	return &termination{event: ev, firstSeen: firstSeen, cancel: cancel, settings: settings, changed: make(chan struct{}, 1)}
}

// settle takes in what has come of the event so far. The last word counts.
func (t *termination) settle(outcome event.Outcome) {
	t.change(func() bool {
		other := t.outcome != outcome
		t.outcome = outcome
		return other
	})
}

// use replaces the settings.
func (t *termination) use(s Settings) {
	t.change(func() bool { t.settings = s; return true })
}

// change changes something, and wakes the watch if that matters.
func (t *termination) change(do func() (matters bool)) {
	t.mu.Lock()
	matters := do()
	t.mu.Unlock()
	if !matters {
		return
	}
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// now is what has come of the event so far, and what the settings are.
func (t *termination) now() (event.Outcome, Settings) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.outcome, t.settings
}

// limited takes in when Auto Scaling takes the machine; zero if that is unknown.
func (t *termination) limited(limit time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = limit
}

// lose takes in whether the machine is lost once it is out of time, although people want it kept.
func (t *termination) lose(lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = lost
}

// inherit takes over what was known of the same event under other settings, until it has been found out anew.
func (t *termination) inherit(before *termination) {
	before.mu.Lock()
	defer before.mu.Unlock()
	t.outcome, t.limit, t.lost, t.told = before.outcome, before.limit, before.lost, before.told
}

// steady is how far a deadline must move to be told anew: a change begins the drain anew, and clocks are nudged all the
// time.
const steady = 2 * time.Second

// deadline is the limit by the wall clock, which says now; zero if there is none before the budget's end. That end is one where the
// machine is lost then although people want it kept.
func (t *termination) deadline(budget time.Duration, now time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	limit, end := t.limit, t.firstSeen.Add(budget)
	if limit.IsZero() || !limit.Before(end) {
		if !t.settings.Abandon || !t.lost {
			t.told = time.Time{}
			return t.told
		}
		limit = end
	}
	wall := now.Round(0).Add(time.Until(limit))
	if t.told.IsZero() || wall.Sub(t.told).Abs() > steady {
		t.told = wall
	}
	return t.told
}
