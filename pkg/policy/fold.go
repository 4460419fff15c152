package policy

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// Fold brings the record up to date with what is announced and returns the entries that changed: events met for the
// first time, changed, missing or back again, and those that are over and have left nothing on the node to undo.
func (s Settings) Fold(sit Situation) []record.Entry {
	past := make(map[string]record.Entry, len(sit.Past))
	for _, e := range sit.Past {
		past[e.Event.ID] = e
	}
	var changed []record.Entry
	for _, kind := range event.AllKinds() {
		for _, ev := range sit.Known[kind] {
			e, met := past[ev.ID]
			if !met && s.worthMeeting(ev) {
				changed = append(changed, meet(sit, ev))
			}
			if met {
				past[ev.ID] = s.refresh(sit, e, ev)
			}
		}
	}
	// What is over is judged by what all entries say now: of two that end at once, neither is the other's reason to
	// leave the cordon.
	before := sit.Past
	sit.Past = make([]record.Entry, len(before))
	for i, e := range before {
		sit.Past[i] = miss(sit, settle(sit, past[e.Event.ID]))
	}
	for i, e := range sit.Past {
		if after := s.postpone(sit, s.close(sit, e)); !same(before[i], after) {
			changed = append(changed, after)
		}
	}
	return changed
}

// worthMeeting tells whether an event that is not in the record belongs there. What is over before it was met, and what
// is to be ignored, does not.
func (s Settings) worthMeeting(ev event.Event) bool {
	return ev.State != event.Canceled && ev.State != event.Completed && s.plan(record.Entry{Event: ev}).action != Ignore
}

func meet(sit Situation, ev event.Event) record.Entry {
	return record.Entry{Event: ev, Phase: record.Seen, BootID: sit.BootID, ListedIn: sit.BootID, FirstSeen: sit.Now, Changed: sit.Now}
}

// refresh takes over what the source says now. An event that was given up and is back is met anew: nothing of what was
// done for it is left.
func (s Settings) refresh(sit Situation, e record.Entry, ev event.Event) record.Entry {
	if e.Phase == record.Closed {
		givenUp := e.Ending == record.Withdrawn || e.Ending == record.Canceled || e.Ending == record.Completed
		if givenUp && s.worthMeeting(ev) {
			return meet(sit, ev)
		}
		return e
	}
	e.Event, e.Missing, e.ListedIn = ev, time.Time{}, sit.BootID
	return e
}

// settle brings times that lie in the future back to now. They were read before the clock was set back, and what is
// counted from them would take as much longer.
func settle(sit Situation, e record.Entry) record.Entry {
	if e.Phase == record.Closed {
		return e
	}
	for _, t := range []*time.Time{&e.FirstSeen, &e.CordonedAt} {
		if t.After(sit.Now) {
			*t = sit.Now
		}
	}
	return e
}

// miss notes since when an event is no longer announced. Kinds that have not been looked at yet miss nothing.
func miss(sit Situation, e record.Entry) record.Entry {
	_, known := sit.Known[e.Event.Kind]
	if !known || e.Phase == record.Closed || sit.listed(e.Event) {
		return e
	}
	// A time in the future is from before the clock was set back.
	if e.Missing.IsZero() || e.Missing.After(sit.Now) {
		e.Missing = sit.Now
	}
	return e
}

// close ends an entry that is over, unless a cordon of ours has to be lifted for it first.
func (s Settings) close(sit Situation, e record.Entry) record.Entry {
	ending, _ := s.standing(sit, e)
	if ending == "" || e.Phase == record.Closed {
		return e
	}
	if e.Cordon && !s.neededByOther(sit, e) {
		return e
	}
	e.Phase, e.Ending, e.Cordon = record.Closed, ending, false
	e.Error, e.Failures, e.Changed = "", 0, sit.Now
	return e
}

// postpone puts an entry whose event was moved to a later time back to its beginning, unless a cordon of ours has to be
// lifted for it first: it is acted upon anew when its time comes, and a reboot before that is not the announced one.
func (s Settings) postpone(sit Situation, e record.Entry) record.Entry {
	if !s.rescheduled(sit, e) || e.Cordon && !s.neededByOther(sit, e) {
		return e
	}
	e.Phase, e.Result, e.CordonedAt, e.Cordon = record.Seen, nil, time.Time{}, false
	e.Error, e.Failures, e.Changed = "", 0, sit.Now
	return e
}

// neededByOther tells whether another event that still stands holds the node's cordon, too.
func (s Settings) neededByOther(sit Situation, e record.Entry) bool {
	for _, other := range sit.Past {
		if other.Event.ID != e.Event.ID && other.Acted() && other.Cordon && s.Stands(sit, other) {
			return true
		}
	}
	return false
}

// same compares what Fold can change.
func same(a, b record.Entry) bool {
	return SameNews(a, b) && a.ListedIn == b.ListedIn && a.FirstSeen.Equal(b.FirstSeen) && a.CordonedAt.Equal(b.CordonedAt)
}

// SameNews tells whether two entries of one event say the same to those who follow what happens to it. What else Fold
// changes is bookkeeping.
func SameNews(a, b record.Entry) bool {
	return sameEvent(a.Event, b.Event) && a.Phase == b.Phase && a.Missing.Equal(b.Missing) && a.Ending == b.Ending
}

// sameEvent compares events by what they say; a time is the same in every zone.
func sameEvent(a, b event.Event) bool {
	times := a.Noticed.Equal(b.Noticed) && a.Deadline.Equal(b.Deadline) && a.Until.Equal(b.Until)
	a.Noticed, a.Deadline, a.Until = b.Noticed, b.Deadline, b.Until
	return times && a == b
}
