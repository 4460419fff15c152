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

// now is the time by the loop's clock (Config.Now). All times of the record, the policy and the loop are read from it, so that a span keeps its
// length whatever becomes of the machine's clock.
func (a *Agent) now() time.Time { return a.cfg.Now().Round(0) }

// sink is the event.Sink of all sources. It dates what comes.
type sink struct{ *Agent }

// Snapshot implements event.Sink.
func (a sink) Snapshot(s event.Snapshot) {
	f := found{s, a.now(), time.Now()}
	a.post(func() { a.looked[s.Kind], a.known[s.Kind] = f.at, a.credibleEvents(f) })
}

// Trouble implements event.Sink.
func (a sink) Trouble(kind event.Kind, err error) {
	at := a.now()
	a.post(func() { a.handleFailedLook(kind, err, at) })
}

// found is a snapshot, and when it came by the loop's clock and by the monotonic one.
type found struct {
	event.Snapshot
	at, since time.Time
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

// clockTolerance is by how much the loop's clock may differ from a source's without consequences: a source dates its documents
// in whole seconds, and no event is changed for less.
const clockTolerance = 2 * time.Second

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

// trouble is an outage of a source: since when looks fail, and when and why the last one did.
type trouble struct {
	since, last time.Time
	err         string
}

// handleFailedLook notes since when and why looks for a kind fail. The first failure of an outage is logged.
func (a *Agent) handleFailedLook(kind event.Kind, err error, at time.Time) {
	t, lasts := a.trouble[kind]
	if !lasts {
		t.since = at
		a.aboutKind(systemd.SourceTrouble, kind).Warnf("cannot read %s: %s; keeping last known state", kind, err)
	}
	if !kube.EqualIgnoringDigits(err.Error(), t.err) { // The status shows it.
		t.err = err.Error()
	}
	t.last = at
	a.trouble[kind] = t
}

// failing reports whether the last look for a kind failed.
func (a *Agent) failing(kind event.Kind) bool {
	t, lasts := a.trouble[kind]
	return lasts && !a.looked[kind].After(t.last)
}

// recoveredAfter is how long after the last failed look an outage is over, if looks succeed: a source that fails every few seconds has one outage.
const recoveredAfter = 10 * time.Second

// endOutages ends the outages that are over.
func (a *Agent) endOutages() {
	for kind, t := range a.trouble {
		if !a.failing(kind) && a.now().Sub(t.last) >= recoveredAfter {
			delete(a.trouble, kind)
			a.aboutKind(systemd.SourceRecovered, kind).Infof("%s is readable again after %s", kind, a.looked[kind].Sub(t.since).Round(time.Second))
		}
	}
}

// aboutKind returns a logger for a message about a kind of events.
func (a *Agent) aboutKind(id string, kind event.Kind) *logrus.Entry {
	return a.logger(id, state.Entry{Event: event.Event{Kind: kind}})
}

// handleIdentity handles what the identity reports: it keeps the node's name, and logs when the credential comes, goes or changes.
func (a *Agent) handleIdentity(node string, err error) {
	switch {
	case err == nil && (a.waiting != nil || a.node != node):
		a.node = node
		if a.cfg.Service != nil { // Otherwise the caller has named the node.
			a.logger(systemd.IdentityFound, state.Entry{}).Infof("acting for node %s", node)
		}
	case err != nil && (a.waiting == nil || !kube.EqualIgnoringDigits(a.waiting.Error(), err.Error())):
		a.logger(systemd.IdentityWaiting, state.Entry{}).Warnf("waiting for the kubelet's credential: %s", err)
	}
	a.waiting = err
}
