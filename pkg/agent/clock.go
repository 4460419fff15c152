package agent

import (
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// clock is the wall clock as the loop knows it. Between two looks it goes on with the monotonic clock, so that whatever
// hangs on it can be moved in one piece when somebody has set it.
//
// A time in a document is wall time, and what is left until then changes with the clock. A span, such as the time an
// event has been missing or a cordon's time to live, is as long as it is: where it began moves with the clock.
type clock struct {
	read  func() time.Time
	wall  time.Time // as it was read last, without a monotonic reading
	at    time.Time // when that was; only its monotonic reading counts
	since time.Time // when this process began, by the clock as it is set now
}

func newClock(read func() time.Time) *clock {
	if read == nil {
		read = time.Now
	}
	wall := read().Round(0)
	return &clock{read: read, wall: wall, at: time.Now(), since: wall}
}

func (c *clock) now() time.Time { return c.wall.Add(time.Since(c.at)) }

// look reads the clock again and returns by how much it was set meanwhile.
func (c *clock) look() time.Duration {
	wall, expected := c.read().Round(0), c.now()
	c.wall, c.at = wall, time.Now()
	return wall.Sub(expected)
}

// now is the wall clock without a monotonic reading, to be compared with documents and with the record. It belongs to
// the loop.
func (a *Agent) now() time.Time { return a.clock.now() }

// clockTolerance is how far the clock may be set without anybody noticing.
const clockTolerance = 2 * time.Second

// compareClocks looks whether somebody has set the clock.
func (a *Agent) compareClocks() {
	before := a.clock.now()
	if by := a.clock.look(); by.Abs() > clockTolerance {
		a.clock.since = a.clock.since.Add(by)
		a.note(state.Transition{Kind: state.ClockStepped, Took: by.Round(time.Second)})
		a.moveSpans(before, by)
	}
}

// moveSpans moves where spans began with the clock, which said before and was set by so much.
func (a *Agent) moveSpans(before time.Time, by time.Duration) {
	for _, e := range a.cfg.Record.Entries() {
		if e.Phase == state.Closed {
			continue
		}
		if moved := a.movedEntry(e, before, by); moved != e {
			a.put(moved)
		}
	}
	for kind, at := range a.looked {
		a.looked[kind] = at.Add(by)
	}
	for kind, known := range a.known {
		for i := range known {
			if deadlineIsSpan(kind) {
				shift(&known[i].Deadline, by)
			}
		}
	}
}

// deadlineIsSpan tells whether the deadline of such an event is a span that is left, told as a time: what the machine itself announces, and how
// long Auto Scaling waits, for which no time is announced.
func deadlineIsSpan(kind event.Kind) bool { return kind.Local() || kind == event.ASGTermination }

// movedEntry is an entry with its spans moved. Only times that were read off the clock as it was set before are meant: those
// of this boot, and among those of an earlier one what this process has added.
func (a *Agent) movedEntry(e state.Entry, before time.Time, by time.Duration) state.Entry {
	here := e.BootID == a.cfg.BootID
	began := a.clock.since.Add(-by)
	for _, t := range []*time.Time{&e.FirstSeen, &e.Timeless, &e.Changed, &e.Missing, &e.CordonedAt} {
		if !t.After(before) && (here || !t.Before(began)) {
			shift(t, by)
		}
	}
	if here && deadlineIsSpan(e.Event.Kind) {
		shift(&e.Event.Deadline, by)
	}
	return e
}

// credibleEvents is what a source says, under the IDs that the record knows. A time that no record can hold is none.
func (a *Agent) credibleEvents(s event.Snapshot) []event.Event {
	s.Events = slices.Clone(s.Events)
	for i, ev := range s.Events {
		s.Events[i] = ev.Credible()
	}
	events := policy.Recognize(a.cfg.Record.Entries(), a.cfg.BootID, s)
	for i := range events {
		if s.Kind.Local() {
			events[i].Deadline = a.heldUntil(events[i])
		}
	}
	return events
}

// heldUntil is until when what the machine has announced can be held, by the clock as it is set now. A deadline that was told
// before has moved with the clock, and stands unless the one that is told now is nearer: it never gets farther.
func (a *Agent) heldUntil(ev event.Event) time.Time {
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
