package policy

import (
	"slices"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// Recognize returns what a source says now, under the IDs that the record knows. A spot or rebalance notice of which only
// the time has moved is the one that it takes the place of: amazon-ec2-metadata-mock computes the time anew at each look.
// It keeps its time, then, unless the new one is nearer.
func Recognize(past []state.Entry, bootID string, said event.Snapshot) []event.Event {
	if said.Kind != event.SpotInterruption && said.Kind != event.RebalanceRecommendation {
		return said.Events
	}
	events := slices.Clone(said.Events)
	// Whose place has been taken is listed from then on, too: of two notices, one takes it.
	listed := func(id string) bool {
		return slices.ContainsFunc(events, func(ev event.Event) bool { return ev.ID == id })
	}
	for i, ev := range events {
		if _, met := Find(past, ev.ID); met {
			continue
		}
		for _, e := range past {
			open := e.Phase != state.Closed && e.ListedIn == bootID
			if open && e.Event.Kind == ev.Kind && e.Event.Code == ev.Code && !listed(e.Event.ID) {
				ev.ID, ev.Noticed, ev.Deadline = e.Event.ID, e.Event.Noticed, soonest(e.Event.Deadline, ev.Deadline)
				events[i] = ev
				break
			}
		}
	}
	return events
}

// Find returns the entry of an event.
func Find(entries []state.Entry, id string) (e state.Entry, met bool) {
	i := slices.IndexFunc(entries, func(e state.Entry) bool { return e.Event.ID == id })
	if i < 0 {
		return state.Entry{}, false
	}
	return entries[i], true
}

// Same tells whether two entries of one event say the same, as far as Fold can change it.
func Same(a, b state.Entry) bool {
	return SameNews(a, b) && a.BootID == b.BootID && a.ListedIn == b.ListedIn && a.ClosedIn == b.ClosedIn && a.OnNode == b.OnNode && a.LeftAlone == b.LeftAlone &&
		a.FirstSeen.Equal(b.FirstSeen) && a.Timeless.Equal(b.Timeless) && a.Changed.Equal(b.Changed) && a.CordonedAt.Equal(b.CordonedAt)
}

// SameNews tells whether two entries of one event say the same to those who follow what happens to it. What else Fold
// changes is bookkeeping.
func SameNews(a, b state.Entry) bool {
	return sameEvent(a.Event, b.Event) && a.Phase == b.Phase && a.Missing.Equal(b.Missing) && a.Ending == b.Ending
}

// sameEvent compares events by what they say; a time is the same in every zone.
func sameEvent(a, b event.Event) bool {
	times := a.Noticed.Equal(b.Noticed) && a.Deadline.Equal(b.Deadline) && a.Until.Equal(b.Until)
	a.Noticed, a.Deadline, a.Until = b.Noticed, b.Deadline, b.Until
	return times && a == b
}
