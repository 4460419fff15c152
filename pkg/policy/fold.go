package policy

import (
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// Fold brings the record up to date with what is announced and with what is known of the node, and returns the entries
// that changed. It takes an entry one phase further at most: call it until nothing changes.
func (s Settings) Fold(sit Situation) []record.Entry {
	before := sit.Past
	var changed []record.Entry
	sit.Past, changed = s.refreshed(sit)
	after := make([]record.Entry, len(before))
	handedOver := false
	for i, e := range sit.Past {
		if after[i] = e; before[i].Phase != record.Closed { // What is back is met, and no more yet.
			after[i] = s.next(sit, e)
		}
		handedOver = handedOver || e.OnNode && !after[i].OnNode && s.want(sit, e) == nothing
	}
	for i, e := range sit.Past {
		if handedOver && s.holds(sit, e) {
			after[i].OnNode = true // What the other has set on the node is this one's to take back.
		}
		if !Same(before[i], after[i]) {
			changed = append(changed, after[i])
		}
	}
	return changed
}

// refreshed is the record with what the sources say now, and the entries of events that are met for the first time.
func (s Settings) refreshed(sit Situation) (past, met []record.Entry) {
	at := make(map[string]int, len(sit.Past))
	past = slices.Clone(sit.Past)
	for i, e := range past {
		at[e.Event.ID] = i
	}
	for _, kind := range event.AllKinds() {
		for _, ev := range sit.Known[kind] {
			if i, there := at[ev.ID]; there {
				past[i] = s.refresh(sit, past[i], ev)
			} else if s.worthMeeting(ev) {
				met = append(met, meet(sit, ev))
			}
		}
	}
	for i, e := range past {
		past[i] = miss(sit, clamp(sit, e))
	}
	return past, met
}

// worthMeeting tells whether an event that is not in the record belongs there. What is over before it was met, and what
// is to be ignored, does not.
func (s Settings) worthMeeting(ev event.Event) bool {
	return ev.State != event.Canceled && ev.State != event.Completed && !s.Ignores(record.Entry{Event: ev})
}

func meet(sit Situation, ev event.Event) record.Entry {
	return record.Entry{Event: ev, Phase: record.Seen, BootID: sit.BootID, ListedIn: sit.BootID, FirstSeen: sit.Now, Changed: sit.Now}
}

// refresh takes over what the source says now. An event that was given up and is back is met anew: nothing of what was
// done for it is left.
func (s Settings) refresh(sit Situation, e record.Entry, ev event.Event) record.Entry {
	if e.Phase == record.Closed {
		givenUp := []record.Ending{record.Withdrawn, record.Canceled, record.Completed, record.Ignored}
		if s.plan(e).action == Drain { // A cordon's time to live is no reason against what is asked for now.
			givenUp = append(givenUp, record.Expired)
		}
		if slices.Contains(givenUp, e.Ending) && s.worthMeeting(ev) {
			e = meet(sit, ev)
			e.Anew = true
		}
		return e
	}
	if e.Acted() || ev.Instance == "" { // It was begun for the instance as it was known then.
		ev.Instance = e.Event.Instance
	}
	switch {
	case !ev.Deadline.IsZero():
		e.Timeless = time.Time{}
	case !e.Event.Deadline.IsZero():
		e.Timeless = sit.Now
	}
	e.Event, e.Missing, e.ListedIn = ev, time.Time{}, sit.BootID
	return e
}

// clamp brings times that lie in the future back to now. They were read before the clock was set back, and what is
// counted from them would take as much longer.
func clamp(sit Situation, e record.Entry) record.Entry {
	if e.Phase == record.Closed {
		return e
	}
	for _, t := range []*time.Time{&e.FirstSeen, &e.Timeless, &e.Changed, &e.CordonedAt, &e.Missing} {
		if t.After(sit.Now) {
			*t = sit.Now
		}
	}
	return e
}

// miss notes since when an event is no longer announced. Kinds that have not been looked at yet miss nothing.
func miss(sit Situation, e record.Entry) record.Entry {
	_, known := sit.Known[e.Event.Kind]
	if !known && !sit.Unwatched[e.Event.Kind] || e.Phase == record.Closed || sit.listed(e.Event) {
		return e
	}
	if e.Missing.IsZero() {
		e.Missing = sit.Now
	}
	return e
}

// next takes an entry that is not closed one phase further, if that is what the situation says.
func (s Settings) next(sit Situation, e record.Entry) record.Entry {
	switch s.want(sit, e) {
	case nothing:
		return s.release(sit, e)
	case cordoned:
		return s.act(sit, s.cordonPhase(sit, e), e)
	case drained:
		return s.act(sit, s.drainPhase(sit, e), heed(sit, e))
	case left:
		if e.UnderWay() || e.Phase == record.Undoing { // A drain that the rules still ask for is not left.
			return enter(sit, record.Cordoned, e) // Others have seen to what becomes of it.
		}
	case kept:
	}
	return e
}

// release takes an entry, for which nothing is to be done to the node any more or yet, towards its end or back to its
// beginning. What is on the node for it has to be taken back before, unless another event holds it.
func (s Settings) release(sit Situation, e record.Entry) record.Entry {
	ending, _ := s.ending(sit, e)
	switch {
	case e.OnNode && !s.heldByOther(sit, e):
		return enter(sit, record.Undoing, e)
	case ending != "":
		e = enter(sit, record.Closed, e)
		e.Ending, e.OnNode = ending, false
	case e.Acted():
		e = again(sit, e)
	}
	return e
}

// again puts an entry back to its beginning: it is acted upon anew when its time comes, and a reboot before that is not
// the announced one.
func again(sit Situation, e record.Entry) record.Entry {
	e = enter(sit, record.Seen, e)
	e.Result, e.CordonedAt, e.OnNode, e.Reopened, e.Anew = nil, time.Time{}, false, false, true
	return e
}

// act gives an entry that wants the node closed a phase. Before the node is acted upon for an event, the record says so: from
// then on something on the node may be ours, whatever happens to this process.
func (s Settings) act(sit Situation, phase record.Phase, e record.Entry) record.Entry {
	begins := e.Phase != phase && (phase == record.Cordoning || phase == record.Draining)
	e = enter(sit, phase, noteNode(sit, noteBoot(sit, e)))
	if !begins {
		return e
	}
	e.OnNode, e.ActedFor, e.BootID = true, s.plan(e).start, sit.BootID
	if e.ActedFor.IsZero() {
		e.ActedFor = sit.Now
	}
	return e
}

// heed takes over whether people want the node left alone. From when they do not any more, an event that is overdue has half a minute.
func heed(sit Situation, e record.Entry) record.Entry {
	if left := sit.leftAlone(e); left != e.LeftAlone {
		e.LeftAlone, e.Changed = left, sit.Now
	}
	return e
}

// enter gives an entry a phase.
func enter(sit Situation, phase record.Phase, e record.Entry) record.Entry {
	if e.Phase == phase {
		return e
	}
	e.LeftAlone = e.LeftAlone && slices.Contains([]record.Phase{record.Draining, record.Drained, record.Incomplete}, phase)
	e.Phase, e.Error, e.Failures, e.Changed = phase, "", 0, sit.Now
	if phase == record.Incomplete {
		e.Error, e.Failures = "the deadline came first", 1
	}
	return e
}

// noteBoot takes over the boot for an entry that is acted upon in it and whose time is still to come: the reboot before
// was not the announced one, and a look that does not find the event must not take it for that later.
func noteBoot(sit Situation, e record.Entry) record.Entry {
	if e.Acted() && e.Event.Deadline.After(sit.Now) && sit.attested(e) {
		e.BootID = sit.BootID
	}
	return e
}

// noteNode takes over what is known of the node for an entry that wants it closed and has been acted upon. Where its
// cordon was lifted, the node has been closed for others.
func noteNode(sit Situation, e record.Entry) record.Entry {
	node := sit.node(e)
	if !node.Closed && !node.Left || !e.Acted() || e.Phase == record.Undoing || e.Reopened {
		return e
	}
	e.OnNode = node.Ours
	if !node.Closed {
		return e
	}
	e.ClosedIn = sit.BootID
	if e.CordonedAt.IsZero() {
		e.CordonedAt = sit.Now
	}
	return e
}

// cordonPhase is the next phase of an entry that wants the node cordoned.
func (s Settings) cordonPhase(sit Situation, e record.Entry) record.Phase {
	switch {
	case e.Phase == record.Cordoned:
	case e.Phase != record.Cordoning:
		return record.Cordoning
	case sit.node(e).Closed || sit.node(e).Left:
		return record.Cordoned
	}
	return e.Phase
}

// drainPhase is the next phase of an entry that wants the node drained. While people want it left alone, it is neither drained nor out
// of time; what they give free again is drained anew.
func (s Settings) drainPhase(sit Situation, e record.Entry) record.Phase {
	switch e.Phase {
	case record.Draining, record.Drained, record.Incomplete:
		switch {
		case sit.leftAlone(e):
		case e.LeftAlone:
			return record.Draining
		case e.Phase == record.Drained:
		case sit.node(e).Drained:
			return record.Drained
		case s.timeIsOver(sit, e):
			return record.Incomplete
		}
	case record.Seen, record.Cordoning, record.Cordoned, record.Undoing, record.Closed:
		return record.Draining
	}
	return e.Phase
}

// heldByOther tells whether another event that still stands holds what is on the node, too.
func (s Settings) heldByOther(sit Situation, e record.Entry) bool {
	return slices.ContainsFunc(sit.Past, func(other record.Entry) bool {
		return other.Event.ID != e.Event.ID && s.holds(sit, other)
	})
}

// holds tells whether an entry's event needs what is on the node. One whose cordon was lifted needs none, also while its
// drain goes on.
func (s Settings) holds(sit Situation, e record.Entry) bool {
	return !e.Reopened && s.want(sit, e) >= kept
}

// Undone is what the record should say of all that was on the node once it has been taken back; the entries that change.
// Where somebody else had lifted our cordon (overruled), that is an order also for an event that came back meanwhile. It is
// none for an event that the node was not closed for yet.
func (s Settings) Undone(sit Situation, overruled bool) []record.Entry {
	var changed []record.Entry
	for _, e := range sit.Past {
		if !e.OnNode || e.Phase == record.Closed {
			continue
		}
		e.OnNode = false
		ending, _ := s.ending(sit, e)
		want := s.want(sit, e)
		switch {
		case ending != "":
			e = enter(sit, record.Closed, e)
			e.Ending = ending
		case e.Reopened && want >= left, overruled && want >= cordoned && !e.CordonedAt.IsZero():
			e.Reopened = true
		default:
			e = again(sit, e)
		}
		changed = append(changed, e)
	}
	return changed
}
