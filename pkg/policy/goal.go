package policy

import (
	"cmp"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// want is what one event wants of the node, from the weakest to the strongest.
type want int

const (
	// nothing: what was done for the event is taken back.
	nothing want = iota
	// left: somebody has lifted its cordon. Nothing is taken back for it, and it keeps no other event from doing so.
	left
	// kept: what was done stays, and nothing new begins.
	kept
	cordoned
	drained
)

// Decide returns the goal for the node. The record must be up to date: see Fold.
func (s Settings) Decide(sit Situation) Goal {
	goal := Goal{Action: Wait}
	var wanting, undoing []state.Entry
	var revisit time.Time
	for _, e := range sit.Past {
		revisit = soonest(revisit, s.revisit(sit, e))
		switch want := s.want(sit, e); {
		case want >= cordoned:
			wanting = append(wanting, e)
		case e.Phase == state.Undoing && want == nothing:
			undoing = append(undoing, e)
		}
	}
	if len(undoing) > 0 {
		goal = s.opening(sit, undoing)
	}
	if len(wanting) > 0 && !goal.precedes(wanting, sit.Ready) {
		revisit = soonest(revisit, goal.Revisit) // An uncordon that failed is tried again after its pause.
		goal = s.closing(sit, wanting)
	}
	goal.Revisit = soonest(revisit, goal.Revisit)
	return goal
}

// precedes reports whether g, the goal of opening the node, comes before the goal of the entries that want the node closed. It does if operators
// have lifted the cordons of all these entries: the cordon that is on the node is then another event's, which is over. But an uncordon that has to
// wait until the rebooted machine is Ready must not hold up their drains.
func (g Goal) precedes(wanting []state.Entry, ready bool) bool {
	closes := func(e state.Entry) bool { return !e.Released() }
	return g.Action == Uncordon && (ready || !g.AfterReboot) && !slices.ContainsFunc(wanting, closes)
}

// closing is the goal of the entries that want the node closed: those in wanting, at least one.
func (s Settings) closing(sit Situation, wanting []state.Entry) Goal {
	slices.SortFunc(wanting, s.Urgency)
	// The annotation on the Node names an event whose cordon nobody has lifted, if there is one.
	first := wanting[max(slices.IndexFunc(wanting, func(e state.Entry) bool { return !e.Released() }), 0)]
	goal := Goal{Action: Cordon, Event: first.Event, Close: !first.Released(), Reason: reason(first.Event)}
	var hard, ends []time.Time
	before, all := time.Time{}, true
	for _, e := range wanting {
		goal.Events = append(goal.Events, e.Event.ID)
		if s.want(sit, e) != drained { // The rest concerns drains only.
			continue
		}
		goal.Action = Drain
		before, all = latest(before, e.FirstSeen, e.CordonedAt), all && e.Released()
		p := s.plan(e)
		if p.hard {
			hard = append(hard, p.deadline)
		} else {
			goal.Soft = soonest(goal.Soft, p.deadline)
		}
		// Soft events count only if there is no hard deadline. Entries with one come first: wanting is sorted by Urgency.
		if p.hard || len(hard) == 0 || hard[0].IsZero() {
			ends = append(ends, s.timeEnds(sit, e))
		}
	}
	if all { // Operators have uncordoned the node for all. Without an entry to drain for, before is zero.
		goal.Before = before
	}
	goal.Hard, goal.Revisit = governing(sit.Now, hard)
	slices.SortFunc(ends, time.Time.Compare)
	goal.TimeEnds, _ = governing(sit.Now, ends)
	return goal
}

// governing returns which of the sorted deadlines counts: the nearest. One that has passed gives way to one that is still to come, as the
// machine has survived the first. until is when the next deadline takes over; zero is never.
func governing(now time.Time, deadlines []time.Time) (governs, until time.Time) {
	for _, d := range deadlines {
		switch {
		case governs.IsZero(), !governs.After(now) && !d.IsZero():
			governs = d
		case d.After(governs):
			return governs, governs
		}
	}
	return governs, time.Time{}
}

// opening is the goal of the entries for which the node is to be opened: Uncordon, or Wait during the pause after an attempt that failed.
func (s Settings) opening(sit Situation, undoing []state.Entry) Goal {
	slices.SortFunc(undoing, s.Urgency)
	first := undoing[0]
	for _, e := range undoing {
		if e.Error == "" || e.Changed.After(sit.Now) { // It has not failed, or at a time of a clock that was ahead.
			continue
		}
		if again := e.Changed.Add(pause(e.Failures)); again.After(sit.Now) {
			return Goal{Action: Wait, Revisit: again}
		}
	}
	ending, _ := s.ending(sit, first)
	goal := Goal{Action: Uncordon, Event: first.Event, Ending: ending, Reason: s.undoReason(first, ending), AfterReboot: sit.Before}
	for _, e := range undoing {
		goal.Events = append(goal.Events, e.Event.ID)
		// A shutdown that an earlier process has seen may have been a soft reboot, which leaves the boot ID as it was.
		seenBefore := e.FirstSeen.Before(sit.Now.Add(-sit.Up))
		goal.AfterReboot = goal.AfterReboot || e.BootID != sit.BootID || e.Event.Kind == event.Shutdown && seenBefore
	}
	return goal
}

// Urgency compares entries, the most urgent first: drains before the others, hard deadlines before soft ones, then the nearest
// deadline.
func (s Settings) Urgency(a, b state.Entry) int {
	rank := func(e state.Entry) int {
		switch p := s.plan(e); {
		case p.action == Drain && p.hard:
			return 0
		case p.action == Drain:
			return 1
		}
		return 2
	}
	return cmp.Or(
		cmp.Compare(rank(a), rank(b)),
		byDeadline(s.plan(a).deadline, s.plan(b).deadline),
		cmp.Compare(a.Event.Kind.Precedence(), b.Event.Kind.Precedence()),
		cmp.Compare(a.Event.ID, b.Event.ID),
	)
}

// byDeadline compares deadlines: the nearest comes first, and zero, which is no deadline, last.
func byDeadline(a, b time.Time) int {
	if a.Equal(b) {
		return 0
	} else if a.Equal(soonest(a, b)) {
		return -1
	}
	return 1
}

// want is what an entry's event wants of the node now.
func (s Settings) want(sit Situation, e state.Entry) want {
	if ending, _ := s.ending(sit, e); ending != "" || s.rescheduled(sit, e) {
		return nothing
	}
	p := s.plan(e)
	level := map[Action]want{Cordon: cordoned, Drain: drained}[p.action] // nothing for all other actions
	switch {
	case level == nothing, !e.Acted() && p.start.After(sit.Now):
		return nothing
	case e.Released() && (e.Phase != state.Draining || level != drained): // A drain under way continues with the pods from before.
		return left
	case sit.attested(e):
		return level
	// From here on it is uncertain whether the event is still to come.
	case !e.Acted():
		return nothing
	case e.BootID != sit.BootID || e.Phase == state.Undoing: // It may be over.
		return kept
	case e.Phase == state.Cordoning || e.Phase == state.Cordoned: // No drain begins.
		return cordoned
	}
	return level // The drain continues until the event counts as withdrawn.
}

// attested reports whether there is enough evidence that an entry's event is still to come, so that work may begin for it. Once there was a
// good look at the event's source, that source has to list the event. Before the first good look, the record is enough, except for
//   - an event that was missing at the last good look of an earlier process,
//   - an event for which nothing has begun and whose source was not asked yet: the event may be over, so a look, even a failed one, comes first,
//   - an event from before a reboot whose announced time is over or unknown: the reboot may have been what was announced.
func (sit Situation) attested(e state.Entry) bool {
	if _, known := sit.Known[e.Event.Kind]; known || sit.Unwatched[e.Event.Kind] {
		return sit.listed(e.Event)
	}
	return e.Missing.IsZero() && (e.Acted() || sit.asked(e.Event.Kind)) && (e.BootID == sit.BootID || e.Event.Deadline.After(sit.Now))
}

// ending says why an entry's event no longer stands; empty if it stands. revisit is when that may change without news; zero is never.
func (s Settings) ending(sit Situation, e state.Entry) (ending state.Ending, revisit time.Time) {
	switch {
	case e.Phase == state.Closed:
		return e.Ending, time.Time{}
	case e.Event.State == event.Canceled:
		return state.Canceled, time.Time{}
	case e.Event.State == event.Completed:
		return state.Completed, time.Time{}
	case sit.survived(e):
		return state.Rebooted, time.Time{}
	case s.Ignores(e):
		return state.Ignored, time.Time{}
	}
	rule := s[e.Event.Kind]
	// A cordon keeps its age while it is being lifted. One that was never set has none.
	limited := (e.Phase == state.Cordoned || e.Phase == state.Undoing) && !e.CordonedAt.IsZero()
	if limited && rule.CordonFor > 0 && s.plan(e).action == Cordon {
		revisit = e.CordonedAt.Add(rule.CordonFor)
		if !sit.Now.Before(revisit) {
			return state.Expired, time.Time{}
		}
	}
	if over, at := s.withdrawn(sit, e); over {
		return state.Withdrawn, time.Time{}
	} else if at.After(sit.Now) {
		revisit = soonest(revisit, at)
	}
	return "", revisit
}

// withdrawn reports whether an entry's event has been missing for so long that it counts as withdrawn. at is when it counts as that at the
// earliest; zero if it is not missing. While looks fail, that time alone is not enough: see knownUntil.
func (s Settings) withdrawn(sit Situation, e state.Entry) (over bool, at time.Time) {
	if e.Missing.IsZero() {
		return false, time.Time{}
	}
	after := s[e.Event.Kind].WithdrawnAfter
	if sit.Unwatched[e.Event.Kind] {
		after = max(after, unwatchedAfter)
	}
	at = e.Missing.Add(after)
	return !sit.knownUntil(e.Event.Kind).Before(at), at
}

// revisit is when the policy may decide otherwise about an entry without news; zero is never.
func (s Settings) revisit(sit Situation, e state.Entry) time.Time {
	ending, again := s.ending(sit, e)
	if ending != "" { // That stays so.
		return time.Time{}
	}
	if p := s.plan(e); (p.action == Cordon || p.action == Drain) && p.start.After(sit.Now) {
		again = soonest(again, p.start)
	}
	if end := s.timeEnds(sit, e); e.UnderWay() && end.After(sit.Now) {
		again = soonest(again, end)
	}
	return again
}

// knownUntil is the time until which what a kind's source reported last is known to hold: now or, while looks fail, the last
// good look. It is zero before the first good look.
func (sit Situation) knownUntil(kind event.Kind) time.Time {
	if sit.Unwatched[kind] {
		return sit.Now
	}
	if good, failing := sit.Failing[kind]; failing {
		return good
	}
	if _, known := sit.Known[kind]; known {
		return sit.Now
	}
	return time.Time{}
}

// asked reports whether there has been a look for a kind since the start, good or failed.
func (sit Situation) asked(kind event.Kind) bool {
	_, known := sit.Known[kind]
	_, failing := sit.Failing[kind]
	return known || failing
}

// survived reports whether the machine is back from what the entry's event announced. The boot ID proves that there was a
// reboot; whether it was the announced one depends on the kind.
func (sit Situation) survived(e state.Entry) bool {
	if e.BootID == sit.BootID {
		return false
	}
	switch {
	case e.Event.Kind.Local(): // It announced this reboot itself.
		return true
	case !e.Acted(): // Nothing is to be undone, and its source says whether it still stands.
		return false
	case e.Event.Kind == event.ScheduledMaintenance && (e.Event.Code == "system-reboot" || e.Event.Code == "instance-reboot"):
		return true // Even if the event is still listed: EC2's list lags behind.
	case e.Event.Deadline.IsZero(): // Without a time, no reboot can be known to be the announced one.
		return false
	}
	// A stop, a retirement or a spot interruption is over when the machine has been started again after its time and the
	// document no longer lists it. A document that cannot be read does not keep the node cordoned, unless it has listed the
	// event since the reboot.
	return sit.Now.After(e.Event.Deadline) && sit.asked(e.Event.Kind) && !sit.stillListed(e)
}

// stillListed reports whether the last good look in this boot, by this process or an earlier one, found the event.
func (sit Situation) stillListed(e state.Entry) bool {
	if _, known := sit.Known[e.Event.Kind]; known {
		return sit.listed(e.Event)
	}
	return e.ListedIn == sit.BootID && e.Missing.IsZero()
}

// listed reports whether the last good look found the event.
func (sit Situation) listed(ev event.Event) bool {
	return slices.ContainsFunc(sit.Known[ev.Kind], func(known event.Event) bool { return known.ID == ev.ID })
}

// rescheduled reports whether an entry's event, for which the node has been acted upon, is now due at a later time that is still
// to come: its document has moved it, or the settings give it another lead.
func (s Settings) rescheduled(sit Situation, e state.Entry) bool {
	start := s.plan(e).start
	return e.Acted() && start.After(e.ActedFor) && start.After(sit.Now)
}
