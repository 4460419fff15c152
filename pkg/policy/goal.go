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
	// nothing: what was done for it is taken back.
	nothing want = iota
	// left: somebody has lifted its cordon; what is on the node stays, and holds nobody else up.
	left
	// kept: what was done stays, and nothing is begun.
	kept
	cordoned
	drained
)

// Decide names the goal for the node. It expects a record that Fold has brought up to date.
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
		revisit = soonest(revisit, goal.Revisit) // What failed is taken back once its pause is over.
		goal = s.closing(sit, wanting)
	}
	goal.Revisit = soonest(revisit, goal.Revisit)
	return goal
}

// precedes tells whether the goal is to open the node before what those entries want: all their cordons were lifted by people, so
// that what is on the node is not theirs, and pods need not wait for their drains to be let in. One that waits for the rebooted
// machine to be Ready must not hold a drain up for so long.
func (g Goal) precedes(wanting []state.Entry, ready bool) bool {
	closes := func(e state.Entry) bool { return !e.Reopened }
	return g.Action == Uncordon && (ready || !g.AfterReboot) && !slices.ContainsFunc(wanting, closes)
}

// closing is the goal that entries make which want the node closed.
func (s Settings) closing(sit Situation, wanting []state.Entry) Goal {
	slices.SortFunc(wanting, s.urgency)
	// The node is closed for one whose cordon nobody has lifted, if there is one, and what is on the node says so.
	first := wanting[max(slices.IndexFunc(wanting, func(e state.Entry) bool { return !e.Reopened }), 0)]
	goal := Goal{Action: Cordon, Event: first.Event, Open: first.Reopened, Reason: reason(first.Event)}
	var hard, ends []time.Time
	reopened, all := time.Time{}, true
	for _, e := range wanting {
		goal.Events = append(goal.Events, e.Event.ID)
		if e.CordonedAt.IsZero() {
			goal.Unclosed = append(goal.Unclosed, e.Event.ID)
			if e.Anew {
				goal.Anew = append(goal.Anew, e.Event.ID)
			}
		}
		if s.want(sit, e) != drained {
			continue
		}
		goal.Action = Drain
		reopened, all = latest(reopened, e.FirstSeen, e.CordonedAt), all && e.Reopened
		p := s.plan(e)
		if p.hard {
			hard = append(hard, p.deadline)
		} else {
			goal.Soft = soonest(goal.Soft, p.deadline)
		}
		if p.hard || len(hard) == 0 || hard[0].IsZero() { // Hard ones come first, and those with a deadline before the others.
			ends = append(ends, s.timeEnds(sit, e))
		}
	}
	if all { // Where none is drained for, there is no time either.
		goal.Reopened = reopened
	}
	goal.Hard, goal.Revisit = governing(sit.Now, hard)
	slices.SortFunc(ends, time.Time.Compare)
	goal.TimeEnds, _ = governing(sit.Now, ends)
	return goal
}

// governing is which of some deadlines, in order, counts: the nearest. One that is over, where the machine has survived it, gives way
// to those that are still to come. until is when another one will; zero if none.
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

// opening is the goal that entries make of which all that is on the node is to be taken back. An attempt that failed is
// repeated after a pause.
func (s Settings) opening(sit Situation, undoing []state.Entry) Goal {
	slices.SortFunc(undoing, s.urgency)
	first := undoing[0]
	for _, e := range undoing {
		if e.Error == "" || e.Changed.After(sit.Now) {
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
		goal.AfterReboot = goal.AfterReboot || e.BootID != sit.BootID
	}
	return goal
}

// urgency orders entries, the one that comes first first: what is drained for before what is not, a machine that is lost
// before one that is not, the nearest deadline before the others.
func (s Settings) urgency(a, b state.Entry) int {
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

// Deadline is when the time of an entry's event is over, zero if never, and whether the machine is gone then.
func (s Settings) Deadline(e state.Entry) (deadline time.Time, hard bool) {
	p := s.plan(e)
	return p.deadline, p.hard
}

// byDeadline puts the nearer deadline first, and none last.
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
	level := map[Action]want{Cordon: cordoned, Drain: drained}[p.action]
	switch {
	case level == nothing, !e.Acted() && p.start.After(sit.Now):
		return nothing
	case e.Reopened && (e.Phase != state.Draining || level != drained):
		return left
	case sit.attested(e):
		return level
	case !e.Acted():
		return nothing
	case e.BootID != sit.BootID || e.Phase == state.Undoing:
		return kept
	case e.Phase == state.Cordoning || e.Phase == state.Cordoned:
		return cordoned
	}
	return level // It is under way, and goes on until it counts as withdrawn.
}

// attested tells whether an entry's event is well enough attested to begin anything for it. What has disappeared is not.
// Before the first good look, the record's word is good enough, unless the machine has been rebooted and the announced time is
// over: then it may have been that reboot. What has not been begun waits for a look, good or failed: it may be over.
func (sit Situation) attested(e state.Entry) bool {
	if _, known := sit.Known[e.Event.Kind]; known || sit.Unwatched[e.Event.Kind] {
		return sit.listed(e.Event)
	}
	return e.Missing.IsZero() && (e.Acted() || sit.asked(e.Event.Kind)) && (e.BootID == sit.BootID || e.Event.Deadline.After(sit.Now))
}

// ending says why an entry's event holds no more; empty if it does.
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
	// While it is being lifted, the cordon is as old as it was. One that was never set has no age.
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

// withdrawn tells whether an event has been missing for so long that it counts as withdrawn, and when it does; zero if it is not
// missing.
func (s Settings) withdrawn(sit Situation, e state.Entry) (over bool, at time.Time) {
	if e.Missing.IsZero() {
		return false, time.Time{}
	}
	after := s[e.Event.Kind].WithdrawnAfter
	if sit.Unwatched[e.Event.Kind] {
		after = max(after, unwatchedAfter)
	}
	at = e.Missing.Add(after)
	return !sit.lastWord(e.Event.Kind).Before(at), at
}

// revisit is when an entry may change without news; zero means never.
func (s Settings) revisit(sit Situation, e state.Entry) time.Time {
	ending, again := s.ending(sit, e)
	if ending != "" {
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

// lastWord is until when a kind's source has answered for what it last said: now, unless it cannot be asked. It is zero
// while nothing has been heard of it.
func (sit Situation) lastWord(kind event.Kind) time.Time {
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

// asked tells whether a kind has been looked at since the start, with or without success.
func (sit Situation) asked(kind event.Kind) bool {
	_, known := sit.Known[kind]
	_, failing := sit.Failing[kind]
	return known || failing
}

// survived tells whether the machine has been through what the entry's event announced, and is back. The boot ID proves
// the reboot; whether it was the announced one depends on the kind.
func (sit Situation) survived(e state.Entry) bool {
	if e.BootID == sit.BootID {
		return false
	}
	switch {
	case e.Event.Kind.Local():
		return true
	case !e.Acted():
		return false
	case e.Event.Kind == event.ScheduledMaintenance && (e.Event.Code == "system-reboot" || e.Event.Code == "instance-reboot"):
		return true // It was for that reboot: also if the event is still listed, since EC2's list lags behind.
	case e.Event.Deadline.IsZero():
		return false
	}
	// A stop, a retirement or a spot interruption ends with the machine started again after its time. While the
	// document still lists it, it is not over. A document that cannot be read does not keep the node cordoned, unless it
	// has listed the event since the reboot: what was known then stands.
	return sit.Now.After(e.Event.Deadline) && sit.asked(e.Event.Kind) && !sit.stillListed(e)
}

// stillListed tells whether the last good look of this boot, which may have been an earlier process's, found the event.
func (sit Situation) stillListed(e state.Entry) bool {
	if _, known := sit.Known[e.Event.Kind]; known {
		return sit.listed(e.Event)
	}
	return e.ListedIn == sit.BootID && e.Missing.IsZero()
}

func (sit Situation) listed(ev event.Event) bool {
	return slices.ContainsFunc(sit.Known[ev.Kind], func(known event.Event) bool { return known.ID == ev.ID })
}

// rescheduled tells whether an entry's event is due later than it was when the node was acted upon, and not yet: its document
// has moved it, or the settings give it another lead. A clock that was set back does not count.
func (s Settings) rescheduled(sit Situation, e state.Entry) bool {
	start := s.plan(e).start
	return e.Acted() && start.After(e.ActedFor) && start.After(sit.Now)
}
