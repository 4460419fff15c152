package agent

import (
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
)

// now is the time by the loop's clock, which nobody can set (Config.Now). All times of the record, the policy and the loop are
// read from it, so that a span keeps its length whatever becomes of the machine's clock.
func (a *Agent) now() time.Time { return a.cfg.Now().Round(0) }

// unsettable returns a clock that says what the machine's clock says now, and continues from there.
func unsettable() func() time.Time {
	start := time.Now()
	return func() time.Time { return start.Add(time.Since(start)) }
}

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
// can be, which gives nothing more time than it has. One answer may be dated wrongly, so a change has to be found twice in a row.
func (a *Agent) compareClocks(f found) {
	if f.Clock.IsZero() { // The source does not say.
		return
	}
	most := f.at.Sub(f.Clock)
	least := most - f.Within
	canBe := func(ahead time.Duration) bool { return ahead >= least-clockTolerance && ahead <= most+clockTolerance }
	if !canBe(a.ahead) && (!a.compared || canBe(a.aheadLast)) {
		a.ahead = least
	}
	a.compared, a.aheadLast = true, least
}

// credibleEvents returns the events of a snapshot by the loop's clock, with the IDs that the record knows them by and without times
// that cannot be recorded.
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
	f.Events = events
	return policy.Recognize(a.cfg.Record.Entries(), a.cfg.BootID, f.Snapshot)
}

// moved converts a time in a document to the loop's clock.
func (a *Agent) moved(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(a.ahead)
}

// deadlineLeft returns the deadline, by the loop's clock, of an event whose source gives it by the monotonic clock: a shutdown or hibernation, a
// lifecycle hook, or "nth drain". It returns the deadline that is known already if both mean the same moment. A deadline that the machine itself
// announced never becomes later.
func (a *Agent) deadlineLeft(ev event.Event, f found) time.Time {
	deadline := ev.Deadline
	if !deadline.IsZero() {
		deadline = f.at.Add(deadline.Sub(f.since))
	}
	for _, known := range a.known[ev.Kind] {
		later := deadline.IsZero() || deadline.After(known.Deadline)
		same := deadline.Sub(known.Deadline).Abs() < tick
		if known.ID == ev.ID && !known.Deadline.IsZero() && (same || later && ev.Kind.Local()) {
			return known.Deadline
		}
	}
	return deadline
}
