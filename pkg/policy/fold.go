package policy

import (
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// Fold brings the record up to date with what is announced and with what is known of the node, and returns the entries
// that changed. It takes an entry one phase further at most: call it until nothing changes.
func (s Settings) Fold(sit Situation) []state.Entry {
	before := sit.Past
	var changed []state.Entry
	sit.Past, changed = s.refreshed(sit)
	after := make([]state.Entry, len(before))
	handedOver := false
	for i, e := range sit.Past {
		if after[i] = e; before[i].Phase != state.Closed { // What is back is met, and no more yet.
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
func (s Settings) refreshed(sit Situation) (past, met []state.Entry) {
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
	return ev.State != event.Canceled && ev.State != event.Completed && !s.Ignores(state.Entry{Event: ev})
}

func meet(sit Situation, ev event.Event) state.Entry {
	return state.Entry{Event: ev, Phase: state.Seen, BootID: sit.BootID, ListedIn: sit.BootID, FirstSeen: sit.Now, Changed: sit.Now}
}

// refresh takes over what the source says now. An event that was given up and is back is met anew: nothing of what was
// done for it is left.
func (s Settings) refresh(sit Situation, e state.Entry, ev event.Event) state.Entry {
	if e.Phase == state.Closed {
		givenUp := []state.Ending{state.Withdrawn, state.Canceled, state.Completed, state.Ignored}
		if s.plan(e).action == Drain { // A cordon's time to live is no reason against what is asked for now.
			givenUp = append(givenUp, state.Expired)
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
func clamp(sit Situation, e state.Entry) state.Entry {
	if e.Phase == state.Closed {
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
func miss(sit Situation, e state.Entry) state.Entry {
	_, known := sit.Known[e.Event.Kind]
	if !known && !sit.Unwatched[e.Event.Kind] || e.Phase == state.Closed || sit.listed(e.Event) {
		return e
	}
	if e.Missing.IsZero() {
		e.Missing = sit.Now
	}
	return e
}

// next takes an entry that is not closed one phase further, if that is what the situation says.
func (s Settings) next(sit Situation, e state.Entry) state.Entry {
	switch s.want(sit, e) {
	case nothing:
		return s.release(sit, e)
	case cordoned:
		return s.act(sit, s.cordonPhase(sit, e), e)
	case drained:
		return s.act(sit, s.drainPhase(sit, e), heed(sit, e))
	case left:
		if e.UnderWay() || e.Phase == state.Undoing { // A drain that the rules still ask for is not left.
			return enter(sit, state.Cordoned, e) // Others have seen to what becomes of it.
		}
	case kept:
	}
	return e
}

// release takes an entry, for which nothing is to be done to the node any more or yet, towards its end or back to its
// beginning. What is on the node for it has to be taken back before, unless another event holds it.
func (s Settings) release(sit Situation, e state.Entry) state.Entry {
	ending, _ := s.ending(sit, e)
	switch {
	case e.OnNode && !s.heldByOther(sit, e):
		return enter(sit, state.Undoing, e)
	case ending != "":
		e = enter(sit, state.Closed, e)
		e.Ending, e.OnNode = ending, false
	case e.Acted():
		e = again(sit, e)
	}
	return e
}

// again puts an entry back to its beginning: it is acted upon anew when its time comes, and a reboot before that is not
// the announced one.
func again(sit Situation, e state.Entry) state.Entry {
	e = enter(sit, state.Seen, e)
	e.Result, e.CordonedAt, e.OnNode, e.Reopened, e.Anew = nil, time.Time{}, false, false, true
	return e
}

// act gives an entry that wants the node closed a phase. Before the node is acted upon for an event, the record says so: from
// then on something on the node may be ours, whatever happens to this process.
func (s Settings) act(sit Situation, phase state.Phase, e state.Entry) state.Entry {
	begins := e.Phase != phase && (phase == state.Cordoning || phase == state.Draining)
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
func heed(sit Situation, e state.Entry) state.Entry {
	if left := sit.leftAlone(e); left != e.LeftAlone {
		e.LeftAlone, e.Changed = left, sit.Now
	}
	return e
}

// enter gives an entry a phase.
func enter(sit Situation, phase state.Phase, e state.Entry) state.Entry {
	if e.Phase == phase {
		return e
	}
	e.LeftAlone = e.LeftAlone && slices.Contains([]state.Phase{state.Draining, state.Drained, state.Incomplete}, phase)
	e.Phase, e.Error, e.Failures, e.Changed = phase, "", 0, sit.Now
	if phase == state.Incomplete {
		e.Error, e.Failures = "the deadline came first", 1
	}
	return e
}

// noteBoot takes over the boot for an entry that is acted upon in it and whose time is still to come: the reboot before
// was not the announced one, and a look that does not find the event must not take it for that later.
func noteBoot(sit Situation, e state.Entry) state.Entry {
	if e.Acted() && e.Event.Deadline.After(sit.Now) && sit.attested(e) {
		e.BootID = sit.BootID
	}
	return e
}

// noteNode takes over what is known of the node for an entry that wants it closed and has been acted upon. Where its
// cordon was lifted, the node has been closed for others.
func noteNode(sit Situation, e state.Entry) state.Entry {
	node := sit.node(e)
	if !node.Closed && !node.Left || !e.Acted() || e.Phase == state.Undoing || e.Reopened {
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
func (s Settings) cordonPhase(sit Situation, e state.Entry) state.Phase {
	switch {
	case e.Phase == state.Cordoned:
	case e.Phase != state.Cordoning:
		return state.Cordoning
	case sit.node(e).Closed || sit.node(e).Left:
		return state.Cordoned
	}
	return e.Phase
}

// drainPhase is the next phase of an entry that wants the node drained. While people want it left alone, it is neither drained nor out
// of time; what they give free again is drained anew.
func (s Settings) drainPhase(sit Situation, e state.Entry) state.Phase {
	switch e.Phase {
	case state.Draining, state.Drained, state.Incomplete:
		switch {
		case sit.leftAlone(e):
		case e.LeftAlone:
			return state.Draining
		case e.Phase == state.Drained:
		case sit.node(e).Drained:
			return state.Drained
		case s.timeIsOver(sit, e):
			return state.Incomplete
		}
	case state.Seen, state.Cordoning, state.Cordoned, state.Undoing, state.Closed:
		return state.Draining
	}
	return e.Phase
}

// heldByOther tells whether another event that still stands holds what is on the node, too.
func (s Settings) heldByOther(sit Situation, e state.Entry) bool {
	return slices.ContainsFunc(sit.Past, func(other state.Entry) bool {
		return other.Event.ID != e.Event.ID && s.holds(sit, other)
	})
}

// holds tells whether an entry's event needs what is on the node. One whose cordon was lifted needs none, also while its
// drain goes on.
func (s Settings) holds(sit Situation, e state.Entry) bool {
	return !e.Reopened && s.want(sit, e) >= kept
}

// Undone is what the record should say of all that was on the node once it has been taken back; the entries that change.
// Where somebody else had lifted our cordon (overruled), that is an order also for an event that came back meanwhile. It is
// none for an event that the node was not closed for yet.
func (s Settings) Undone(sit Situation, overruled bool) []state.Entry {
	var changed []state.Entry
	for _, e := range sit.Past {
		if !e.OnNode || e.Phase == state.Closed {
			continue
		}
		e.OnNode = false
		ending, _ := s.ending(sit, e)
		want := s.want(sit, e)
		switch {
		case ending != "":
			e = enter(sit, state.Closed, e)
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
