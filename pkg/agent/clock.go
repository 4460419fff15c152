package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// clock is the wall clock as the loop knows it. Between two readings it advances with the monotonic clock, so that the loop notices
// when somebody sets the wall clock, and can adapt all times at once.
//
// A time in a document is wall time: how much is left until then changes with the clock. A span, such as the time that an event has
// been missing or a cordon's time to live, keeps its length: its beginning moves with the clock.
type clock struct {
	read  func() time.Time
	wall  time.Time // the last reading, without its monotonic part
	at    time.Time // when that was, by the monotonic clock
	since time.Time // when this process began, or this boot if that is known, in wall time as the clock is set now
}

func newClock(read func() time.Time) *clock {
	if read == nil {
		read = time.Now
	}
	wall := read().Round(0)
	return &clock{read: read, wall: wall, at: time.Now(), since: wall}
}

func (c *clock) now() time.Time { return c.wall.Add(time.Since(c.at)) }

// sync reads the wall clock and returns by how much it has been set since the last reading.
func (c *clock) sync() time.Duration {
	wall, expected := c.read().Round(0), c.now()
	c.wall, c.at = wall, time.Now()
	return wall.Sub(expected)
}

// now is the wall time without a monotonic reading, to be compared with documents and the record. Only the loop may call it.
func (a *Agent) now() time.Time { return a.clock.now() }

// clockTolerance is by how much the wall clock may be set without consequences.
const clockTolerance = 2 * time.Second

// compareClocks moves all spans if somebody has set the wall clock.
func (a *Agent) compareClocks() {
	before := a.clock.now()
	if by := a.clock.sync(); by.Abs() > clockTolerance {
		a.handleStep(before, by)
	}
}

// compareBoots moves all spans if somebody has set the wall clock while nth did not run: by that clock, this boot began at another time
// then.
func (a *Agent) compareBoots() {
	if a.cfg.BootClock == nil {
		return
	}
	booted := a.now().Add(-a.cfg.BootClock.Uptime())
	known := cmp.Or(a.cfg.BootClock.Booted(), booted)
	a.cfg.BootClock.SetBooted(known)
	a.clock.since = known
	if by := booted.Sub(known); by.Abs() > clockTolerance {
		a.handleStep(a.now().Add(-by), by)
	}
}

// handleStep takes in by how much somebody has set the wall clock; before is the wall time just before that.
func (a *Agent) handleStep(before time.Time, by time.Duration) {
	a.clock.since = a.clock.since.Add(by)
	if a.cfg.BootClock != nil {
		a.cfg.BootClock.SetBooted(a.clock.since)
	}
	a.log(state.Transition{Kind: state.ClockStepped, Took: by.Round(time.Second)})
	a.moveSpans(before, by)
}

// moveSpans moves the beginnings of all spans.
func (a *Agent) moveSpans(before time.Time, by time.Duration) {
	var moved []state.Entry
	for _, e := range a.cfg.Record.Entries() {
		if m := a.movedEntry(e, before, by); e.Phase != state.Closed && m != e {
			moved = append(moved, m)
		}
	}
	a.put(moved...)
	for kind, at := range a.looked {
		a.looked[kind] = at.Add(by)
	}
	for kind, t := range a.trouble {
		shift(&t.since, by)
		shift(&t.over, by)
		a.trouble[kind] = t
	}
	for kind, known := range a.known {
		for i := range known {
			if deadlineIsSpan(kind) {
				shift(&known[i].Deadline, by)
			}
		}
	}
}

// deadlineIsSpan reports whether the deadline of such an event is derived from the time that is left: for events that the machine
// itself announces, and for the timeout of an Auto Scaling lifecycle hook.
func deadlineIsSpan(kind event.Kind) bool { return kind.Local() || kind == event.ASGTermination }

// movedEntry returns an entry with its spans moved. Only times that were read from the clock as it was set before are moved: in an
// entry of this boot all, and in one of an earlier boot those that were added since this boot began, as far as it is known.
func (a *Agent) movedEntry(e state.Entry, before time.Time, by time.Duration) state.Entry {
	here := e.BootID == a.cfg.BootID
	began := a.clock.since.Add(-by)
	for _, t := range e.ClockTimes() {
		if !t.After(before) && (here || !t.Before(began)) {
			shift(t, by)
		}
	}
	if here && deadlineIsSpan(e.Event.Kind) {
		shift(&e.Event.Deadline, by)
	}
	return e
}

// credibleEvents returns the events of a snapshot, with the IDs that the record knows them by and without times that cannot be
// recorded.
func (a *Agent) credibleEvents(s event.Snapshot) []event.Event {
	s.Events = slices.Clone(s.Events)
	for i, ev := range s.Events {
		s.Events[i] = ev.Credible()
	}
	events := policy.Recognize(a.cfg.Record.Entries(), a.cfg.BootID, s)
	for i := range events {
		if s.Kind.Local() {
			events[i].Deadline = a.localDeadline(events[i])
		}
	}
	return events
}

// localDeadline is the deadline of an event that the machine itself announces, by the wall clock as it is set now. A known deadline
// has moved with the clock, and is kept unless the new one is nearer.
func (a *Agent) localDeadline(ev event.Event) time.Time {
	deadline := ev.Deadline
	if !deadline.IsZero() {
		deadline = a.now().Add(time.Until(deadline))
	}
	for _, known := range a.known[ev.Kind] {
		nearer := !deadline.IsZero() && deadline.Before(known.Deadline)
		if known.ID == ev.ID && !known.Deadline.IsZero() && !nearer {
			return known.Deadline
		}
	}
	return deadline
}

func shift(t *time.Time, by time.Duration) {
	if !t.IsZero() {
		*t = t.Add(by)
	}
}
