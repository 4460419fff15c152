package policy

import (
	"slices"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// Recognize returns the events of a snapshot under the IDs that the record knows them by. A spot or rebalance notice that differs from a recorded
// one in nothing but its time is the same notice: amazon-ec2-metadata-mock computes the time again at each look. The notice keeps the recorded
// time, unless the new one is nearer. A notice that was withdrawn is over, even while its cordon is being lifted: the next one is another notice.
func Recognize(past []state.Entry, bootID string, now event.Snapshot) []event.Event {
	if now.Kind != event.SpotInterruption && now.Kind != event.RebalanceRecommendation {
		return now.Events
	}
	events := slices.Clone(now.Events)
	// It looks at events as they are renamed, so that two notices do not get the same ID.
	listed := func(id string) bool {
		return slices.ContainsFunc(events, func(ev event.Event) bool { return ev.ID == id })
	}
	for i, ev := range events {
		if _, met := Find(past, ev.ID); met { // Its time has not changed.
			continue
		}
		for _, e := range past {
			if stands(e, bootID) && e.Event.Kind == ev.Kind && e.Event.Code == ev.Code && !listed(e.Event.ID) {
				ev.ID, ev.Noticed, ev.Deadline = e.Event.ID, e.Event.Noticed, soonest(e.Event.Deadline, ev.Deadline)
				events[i] = ev
				break
			}
		}
	}
	return events
}

// stands reports whether an entry's notice may still be announced, with another time. A notice whose cordon has expired may be, too.
func stands(e state.Entry, bootID string) bool {
	over := e.Phase == state.Undoing && !e.Missing.IsZero() || e.Phase == state.Closed && e.Ending != state.Expired
	return e.ListedIn == bootID && !over
}

// Find returns the entry of the event with that ID. met is false if the record has none.
func Find(entries []state.Entry, id string) (e state.Entry, met bool) {
	if i := index(entries, id); i >= 0 {
		return entries[i], true
	}
	return state.Entry{}, false
}

// index returns where the entry of the event with that ID is; -1 if there is none.
func index(entries []state.Entry, id string) int {
	return slices.IndexFunc(entries, func(e state.Entry) bool { return e.Event.ID == id })
}

// Same reports whether two entries of one event are equal in all that Fold changes by itself.
func Same(a, b state.Entry) bool {
	return SameNews(a, b) && a.BootID == b.BootID && a.ListedIn == b.ListedIn && a.ClosedIn == b.ClosedIn && a.OnNode == b.OnNode && a.LeftAlone == b.LeftAlone &&
		a.FirstSeen.Equal(b.FirstSeen) && a.Timeless.Equal(b.Timeless) && a.Changed.Equal(b.Changed) && a.CordonedAt.Equal(b.CordonedAt) &&
		a.CordonStamp.Equal(b.CordonStamp) && a.ReleasedAt.Equal(b.ReleasedAt)
}

// SameNews reports whether two entries of one event differ in nothing that operators get to see. The rest is bookkeeping.
func SameNews(a, b state.Entry) bool {
	return sameEvent(a.Event, b.Event) && a.Phase == b.Phase && a.Missing.Equal(b.Missing) && a.Ending == b.Ending
}

// sameEvent compares events; a time is the same in every zone.
func sameEvent(a, b event.Event) bool {
	times := a.Noticed.Equal(b.Noticed) && a.Deadline.Equal(b.Deadline) && a.Until.Equal(b.Until)
	a.Noticed, a.Deadline, a.Until = b.Noticed, b.Deadline, b.Until
	return times && a == b
}
