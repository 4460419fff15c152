package agent

import (
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// now returns the time by the loop's clock (Config.Now), without a monotonic reading. All times of the record, the policy and the loop are read from
// this clock, so that they stay comparable if somebody sets the machine's clock.
func (a *Agent) now() time.Time { return a.cfg.Now().Round(0) }

// sink is the event.Sink of all sources. Sources call it from their goroutines; it notes the time, and posts the rest to the loop.
type sink struct{ *Agent }

// Snapshot implements event.Sink: the events replace those of the last snapshot.
func (a sink) Snapshot(s event.Snapshot) {
	d := delivery{s, a.now(), time.Now()}
	a.post(func() { a.lastGood[s.Kind], a.known[s.Kind] = d.at, a.credibleEvents(d) })
}

// Trouble implements event.Sink: a look for a kind has failed.
func (a sink) Trouble(kind event.Kind, err error) {
	at := a.now()
	a.post(func() { a.handleFailedLook(kind, err, at) })
}

// delivery is a snapshot, and when it came: by the loop's clock (at), and by the monotonic clock.
type delivery struct {
	event.Snapshot
	at, monotonic time.Time
}

// credibleEvents returns the events of a snapshot, with their times by the loop's clock. A time that is not credible becomes zero.
func (a *Agent) credibleEvents(d delivery) []event.Event {
	a.compareClocks(d)
	// Sources of these kinds give a deadline by the monotonic clock. The other kinds come from documents, dated by the source's clock.
	monotonic := d.Kind.Local() || d.Kind == event.ASGTermination || d.Kind == event.Manual
	events := slices.Clone(d.Events)
	for i, ev := range events {
		ev = ev.Credible()
		if monotonic {
			ev.Deadline = a.fromMonotonic(ev, d)
		} else if !d.Clock.IsZero() {
			ev.Noticed, ev.Deadline, ev.Until = a.fromDocument(ev.Noticed), a.fromDocument(ev.Deadline), a.fromDocument(ev.Until)
		}
		events[i] = ev
	}
	return events
}

// clockTolerance is by how much the difference of the clocks may be wrong before compareClocks corrects it: sources date their documents in whole
// seconds.
const clockTolerance = 2 * time.Second

// compareClocks updates a.ahead from a snapshot: by how much the loop's clock is ahead of the source's clock. A snapshot bounds that difference.
//
// A difference within the bounds stays as it is, so that no deadline moves from one look to the next. Otherwise the lower bound replaces it, so that
// no deadline becomes later than it is.
func (a *Agent) compareClocks(d delivery) {
	if d.Clock.IsZero() { // The source does not say what its clock reads.
		return
	}
	most := d.at.Sub(d.Clock)
	least := most - d.Within
	if a.ahead < least-clockTolerance || a.ahead > most+clockTolerance {
		a.ahead = least
	}
}

// fromDocument converts a time in a document to the loop's clock. Zero stays zero.
func (a *Agent) fromDocument(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(a.ahead)
}

// fromMonotonic returns the deadline, by the loop's clock, of an event whose source gives it by the monotonic clock: a shutdown or hibernation, a
// lifecycle hook, or "nth drain". The deadline that is known already stays if it is the same but for rounding, so that it does not move at each look.
func (a *Agent) fromMonotonic(ev event.Event, d delivery) time.Time {
	if ev.Deadline.IsZero() {
		return ev.Deadline
	}
	deadline := d.at.Add(ev.Deadline.Sub(d.monotonic))
	for _, known := range a.known[ev.Kind] {
		if known.ID == ev.ID && deadline.Sub(known.Deadline).Abs() < tick {
			return known.Deadline
		}
	}
	return deadline
}

// outage is a time in which looks for a kind fail, perhaps not all of them.
type outage struct {
	since, last time.Time // when its first look and its last look failed
	err         string    // why a look failed
}

// handleFailedLook notes that a look for a kind failed at a time, and why. The first failure of an outage is logged.
func (a *Agent) handleFailedLook(kind event.Kind, err error, at time.Time) {
	o, inOutage := a.outages[kind]
	if !inOutage {
		o.since = at
		a.aboutKind(systemd.SourceTrouble, kind).Warnf("cannot read events of kind %s: %s; keeping last known state", kind, err)
	}
	if !kube.EqualIgnoringDigits(err.Error(), o.err) { // The status shows o.err, and must not change with each port and time.
		o.err = err.Error()
	}
	o.last = at
	a.outages[kind] = o
}

// lastLookFailed reports whether the last look for a kind failed: no snapshot has come since.
func (a *Agent) lastLookFailed(kind event.Kind) bool {
	o, inOutage := a.outages[kind]
	return inOutage && !a.lastGood[kind].After(o.last)
}

// recoveredAfter is how long after the last failed look an outage is over, if looks succeed again. A source that fails every few seconds has one
// outage, not many.
const recoveredAfter = 10 * time.Second

// endOutages ends and logs the outages that are over.
func (a *Agent) endOutages() {
	for kind, o := range a.outages {
		if !a.lastLookFailed(kind) && a.now().Sub(o.last) >= recoveredAfter {
			delete(a.outages, kind)
			a.aboutKind(systemd.SourceRecovered, kind).Infof("events of kind %s can be read again", kind)
		}
	}
}

// aboutKind returns a logger for a message about a kind of events.
func (a *Agent) aboutKind(id string, kind event.Kind) *logrus.Entry {
	return a.logger(id, state.Entry{Event: event.Event{Kind: kind}})
}

// handleIdentity handles what the Identity reports: the node's name, or why there is no credential. It logs only what is new.
func (a *Agent) handleIdentity(node string, err error) {
	before := a.noCredential
	a.noCredential = err
	if err != nil {
		if before == nil || !kube.EqualIgnoringDigits(before.Error(), err.Error()) {
			a.logger(systemd.IdentityWaiting, state.Entry{}).Warnf("waiting for the kubelet's credential: %s", err)
		}
		return
	}
	isNew := before != nil || a.node != node
	a.node = node
	if isNew && a.cfg.Service != nil { // Without a Service, the caller has named the node.
		a.logger(systemd.IdentityFound, state.Entry{}).Infof("acting for node %s", node)
	}
}
