package asg

import (
	"errors"
	"time"

	"github.com/nth-project/nth/pkg/role"
)

// action is one hook that waits, or will wait, for this instance. Times have a monotonic reading.
type action struct {
	hook
	// until is when Auto Scaling stops to wait unless it hears a heartbeat, and end when it stops whatever it hears. They
	// are zero before the waiting has begun.
	until, end time.Time
	// next is when a heartbeat is due; zero if none is.
	next time.Time
	// active tells that Auto Scaling has confirmed the waiting; strange counts its answers in a row that nothing waits.
	active  bool
	strange int
	// refused tells that heartbeats are not allowed, and over that nothing is left to be done for the hook.
	refused, over bool
	failures      int
}

// believed is how many times Auto Scaling must say that nothing waits before that is believed of a hook which it has
// never confirmed: what the instance's state says and what a hook waits for need not become true at once.
const believed = 3

// interval is the time between two heartbeats: two may get lost without harm.
func (a *action) interval() time.Duration { return a.timeout / 3 }

// begin takes in that the waiting has begun, at since or later. A heartbeat is due at once: from then on it is known
// how long Auto Scaling waits.
func (a *action) begin(since, now time.Time) {
	a.until, a.end, a.next = since.Add(a.timeout), since.Add(a.global), now
}

// learn takes in the hook of an action that began then, of which only the name was known. What was heard of it last still counts.
func (a *action) learn(h hook, began, now time.Time) {
	last := a.until.Add(-a.timeout)
	a.hook, a.until, a.end = h, last.Add(h.timeout), began.Add(h.global)
	if !a.refused {
		a.next = latest(last.Add(a.interval()), now)
	}
}

// beaten takes in what became of a heartbeat.
func (a *action) beaten(now time.Time, err error) {
	var refused refusedError
	switch {
	case err == nil:
		a.active, a.strange, a.failures = true, 0, 0
		a.until, a.next = now.Add(a.timeout), now.Add(a.interval())
		if !a.end.After(now) { // It waits all the same: when the waiting began was told by a clock that is wrong.
			a.end = now.Add(a.global)
		}
	case errors.Is(err, errNothingWaits):
		a.nothing(now)
	case errors.As(err, &refused):
		a.refused, a.next = true, time.Time{}
	default:
		a.failures++
		a.next = now.Add(min(pause(a.failures), a.interval()))
	}
	if !a.next.Before(a.end) {
		a.next = time.Time{}
	}
}

// release makes the completion due.
func (a *action) release(now time.Time) { a.strange, a.failures, a.next = 0, 0, now }

// completed takes in what became of a completion.
func (a *action) completed(now time.Time, err error) {
	var refused refusedError
	switch {
	case err == nil:
		a.over = true
	case errors.Is(err, errNothingWaits):
		a.nothing(now)
	case errors.As(err, &refused):
		a.next = now.Add(role.Spread(longestPause))
	default:
		a.failures++
		a.next = now.Add(pause(a.failures))
	}
}

// nothing takes in that Auto Scaling says that nothing waits.
func (a *action) nothing(now time.Time) {
	a.strange++
	a.over = a.active || a.strange >= believed
	a.next = now.Add(pause(a.strange + 1))
}

// limit is when Auto Scaling takes the machine: at its end where heartbeats get through, sooner where they do not. Zero
// if that is unknown.
func (a *action) limit(now time.Time) time.Time {
	switch {
	case a.over || a.end.IsZero():
		return time.Time{}
	case a.until.Before(now): // It waits longer than is known here: an earlier process has heard of it since.
	case a.until.Before(a.end) && (a.refused || a.until.Sub(now) < a.interval()):
		return a.until
	}
	return a.end
}

// The pauses before what failed is tried again: they grow from the first to the longest.
const (
	firstPause   = time.Second
	longestPause = time.Minute
)

func pause(failures int) time.Duration {
	return role.Pause(failures, firstPause, longestPause)
}
