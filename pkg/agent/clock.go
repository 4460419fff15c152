package agent

import (
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// now is the time by the loop's clock (Config.Now). All times of the record, the policy and the loop are read from it, so that a span keeps its
// length whatever becomes of the machine's clock.
func (a *Agent) now() time.Time { return a.cfg.Now().Round(0) }

// clockTolerance is by how much the loop's clock may differ from a source's without consequences: a source dates its documents
// in whole seconds, and no event is changed for less.
const clockTolerance = 2 * time.Second

// found is a snapshot, and when it came by the loop's clock and by the monotonic one.
type found struct {
	event.Snapshot
	at, since time.Time
}

// compareClocks updates a.ahead, the difference between the loop's clock and the source's, from a snapshot. Times in documents are moved by that
// difference. It stays as it is while it can be right, so that no time moves from one look to the next. Otherwise it becomes the least that it
// can be, which gives nothing more time than it has.
func (a *Agent) compareClocks(f found) {
	if f.Clock.IsZero() { // The source does not say.
		return
	}
	most := f.at.Sub(f.Clock)
	least := most - f.Within
	if a.ahead < least-clockTolerance || a.ahead > most+clockTolerance {
		a.ahead = least
	}
}

// credibleEvents returns the events of a snapshot by the loop's clock, without times that cannot be recorded.
func (a *Agent) credibleEvents(f found) []event.Event {
	a.compareClocks(f)
	events := slices.Clone(f.Events)
	for i, ev := range events {
		ev = ev.Credible()
		if f.Kind.Local() || f.Kind == event.ASGTermination || f.Kind == event.Manual {
			ev.Deadline = a.deadlineLeft(ev, f)
		} else if !f.Clock.IsZero() {
			ev.Noticed, ev.Deadline, ev.Until = a.moved(ev.Noticed), a.moved(ev.Deadline), a.moved(ev.Until)
		}
		events[i] = ev
	}
	return events
}

// moved converts a time in a document to the loop's clock.
func (a *Agent) moved(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(a.ahead)
}

// deadlineLeft returns the deadline, by the loop's clock, of an event whose source gives it by the monotonic clock: a shutdown or hibernation, a
// lifecycle hook, or "nth drain". It returns the deadline that is known already if both mean the same moment.
func (a *Agent) deadlineLeft(ev event.Event, f found) time.Time {
	if ev.Deadline.IsZero() {
		return ev.Deadline
	}
	deadline := f.at.Add(ev.Deadline.Sub(f.since))
	for _, known := range a.known[ev.Kind] {
		if known.ID == ev.ID && deadline.Sub(known.Deadline).Abs() < tick {
			return known.Deadline
		}
	}
	return deadline
}
