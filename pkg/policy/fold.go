package policy

import (
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// Fold brings the record up to date with what is announced and what is known of the node, and returns the entries that
// change. It takes an entry at most one phase further: call it until nothing changes.
func (s Settings) Fold(sit Situation) []state.Entry {
	before := sit.Past
	var changed []state.Entry
	sit.Past, changed = s.update(sit) // changed has the new entries.
	after := slices.Clone(sit.Past)
	handedOver := false // An event no longer needs what is on the node, and its entry says so no more.
	for i, e := range sit.Past {
		if before[i].Phase != state.Closed {
			after[i] = s.next(sit, e)
		}
		handedOver = handedOver || e.OnNode && !after[i].OnNode && s.want(sit, e) == nothing
	}
	for i, e := range sit.Past {
		if handedOver && s.holds(sit, e) {
			after[i].OnNode = true // Now what was set for the other event is taken back with this one.
		}
		if !Same(before[i], after[i]) {
			changed = append(changed, after[i])
		}
	}
	return changed
}

// update returns the recorded entries with what the sources report now, and new entries for events that are not in the record.
func (s Settings) update(sit Situation) (past, added []state.Entry) {
	past = slices.Clone(sit.Past)
	for _, kind := range event.AllKinds() {
		for _, ev := range sit.Known[kind] {
			if i := index(past, ev.ID); i >= 0 {
				past[i] = s.updateEntry(sit, past[i], ev)
			} else if s.worthRecording(ev) {
				added = append(added, newEntry(sit, ev))
			}
		}
	}
	for i, e := range past {
		past[i] = noteMissing(sit, clamp(sit, forNode(sit, e)))
	}
	return past, added
}

// worthRecording reports whether an event that is not in the record belongs there: one that is over already, or that the rules
// ignore, does not.
func (s Settings) worthRecording(ev event.Event) bool {
	return ev.State != event.Canceled && ev.State != event.Completed && !s.Ignores(state.Entry{Event: ev})
}

// newEntry returns the entry of an event that is announced for the first time.
func newEntry(sit Situation, ev event.Event) state.Entry {
	return state.Entry{Event: ev, Phase: state.Seen, BootID: sit.BootID, ListedIn: sit.BootID, FirstSeen: sit.Now, Changed: sit.Now}
}

// updateEntry returns an entry with what its event's source reports now. If the event was given up and is announced again, it counts as another
// one: it gets a new entry, or at least a time of its own while its cordon is still being lifted.
func (s Settings) updateEntry(sit Situation, e state.Entry, ev event.Event) state.Entry {
	if e.Phase == state.Closed {
		if s.givenUp(e, e.Ending) && s.worthRecording(ev) {
			e = newEntry(sit, ev)
		} else if e.Ending == state.Expired { // Recognize has to know it while it is announced.
			e.ListedIn = sit.BootID
		}
		return e
	}
	if ending, _ := s.ending(sit, e); e.Phase == state.Undoing && s.givenUp(e, ending) && s.worthRecording(ev) {
		e.FirstSeen, e.Event.Deadline = sit.Now, time.Time{} // Its time begins now, though what was set is still on the node.
	}
	if e.Acted() || ev.Instance == "" { // When the action began depends on the instance as it was known then.
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

// givenUp reports whether an event with that ending counts as another event when it is announced again.
func (s Settings) givenUp(e state.Entry, ending state.Ending) bool {
	if ending == state.Expired {
		return s.plan(e).action == Drain // CordonFor limits cordons only.
	}
	return slices.Contains([]state.Ending{state.Withdrawn, state.Canceled, state.Completed, state.Ignored}, ending)
}

// forNode forgets an operator's uncordon if it was of another Node, which this one has replaced.
func forNode(sit Situation, e state.Entry) state.Entry {
	if sit.NodeUID != "" && e.ReleasedOn != "" && e.ReleasedOn != sit.NodeUID {
		e.ReleasedAt, e.ReleasedOn = time.Time{}, ""
	}
	return e
}

// clamp brings times in the future back to now. They were read in an earlier boot, whose clock was ahead, and spans that are counted from
// them would become as much longer.
func clamp(sit Situation, e state.Entry) state.Entry {
	if e.Phase == state.Closed {
		return e
	}
	for _, t := range e.ClockTimes() {
		if t.After(sit.Now) {
			*t = sit.Now
		}
	}
	return e
}

// noteMissing sets in an entry since when its event is no longer announced. Before the first good look for its kind, no event is missing.
func noteMissing(sit Situation, e state.Entry) state.Entry {
	_, known := sit.Known[e.Event.Kind]
	missing := (known || sit.Unwatched[e.Event.Kind]) && !sit.listed(e.Event)
	switch {
	case !missing: // updateEntry has cleared Missing if its source lists it.
	case e.Ending == state.Expired: // The next recommendation is another one; see Recognize.
		e.ListedIn = ""
	case e.Missing.IsZero() && e.Phase != state.Closed:
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
		return s.act(sit, cordonPhase(sit, e), e)
	case drained:
		return s.act(sit, s.drainPhase(sit, e), noteLeftAlone(sit, e))
	case left:
		if e.UnderWay() || e.Phase == state.Undoing {
			return enter(sit, state.Cordoned, e) // Its part is over: operators decided about the cordon.
		}
	case kept: // Nothing new begins.
	}
	return e
}

// release closes an entry that wants nothing of the node, or puts it back to its beginning if its event still stands. Before
// that, what is on the node for it has to be taken back, unless another event needs it.
func (s Settings) release(sit Situation, e state.Entry) state.Entry {
	ending, _ := s.ending(sit, e)
	switch {
	case e.OnNode && !s.heldByOther(sit, e):
		return enter(sit, state.Undoing, e)
	case ending != "":
		e = enter(sit, state.Closed, e)
		e.Ending, e.OnNode = ending, false
	case e.Acted():
		e = reset(sit, e)
	}
	return e
}

// reset puts an entry back to its beginning: the node is acted upon again when its time comes, and a reboot before that is not the
// announced one.
func reset(sit Situation, e state.Entry) state.Entry {
	e = enter(sit, state.Seen, e)
	e.Result, e.CordonedAt, e.ReleasedAt, e.OnNode = nil, time.Time{}, time.Time{}, false
	return e
}

// act gives an entry that wants the node closed its next phase. When work begins, it sets OnNode: something on the node may be ours. That is
// recorded before the node is acted upon, so that the next process knows it if this one ends.
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

// noteLeftAlone sets in an entry whether operators want the node's pods left alone. When that changes, it sets Changed, too: once they want it
// no more, an event whose time is over gets its overtime from then on.
func noteLeftAlone(sit Situation, e state.Entry) state.Entry {
	if left := sit.leftAlone(e); left != e.LeftAlone {
		e.LeftAlone, e.Changed = left, sit.Now
	}
	return e
}

// enter sets an entry's phase, and clears the error of the one before.
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

// noteBoot sets the present boot in an entry whose event is still announced for a later time. So the last reboot was not the announced one, and
// survived must not take it for that later, when a look does not find the event.
func noteBoot(sit Situation, e state.Entry) state.Entry {
	if e.Acted() && e.Event.Deadline.After(sit.Now) && sit.attested(e) {
		e.BootID = sit.BootID
	}
	return e
}

// noteNode takes into an entry what the guard reports of the node: whether something of ours is on it, and since when it is cordoned. If operators
// lifted the cordon for this event, the node may still be closed for others; that does not count.
func noteNode(sit Situation, e state.Entry) state.Entry {
	node := sit.node(e)
	if !node.Closed && !node.Left || !e.Acted() || e.Phase == state.Undoing || e.Released() {
		return e
	}
	e.OnNode = node.Ours
	if !node.Closed { // Operators want nothing done to it.
		return e
	}
	e.ClosedIn = sit.BootID
	if e.CordonedAt.IsZero() {
		e.CordonedAt = sit.Now
	}
	return e
}

// cordonPhase is the next phase of an entry that wants the node cordoned.
func cordonPhase(sit Situation, e state.Entry) state.Phase {
	switch {
	case e.Phase == state.Cordoned: // It stays.
	case e.Phase != state.Cordoning:
		return state.Cordoning
	case sit.node(e).Closed || sit.node(e).Left:
		return state.Cordoned
	}
	return e.Phase
}

// drainPhase is the next phase of an entry that wants the node drained. A node that operators want left alone is neither drained nor out
// of time; when they no longer want it, it is drained again.
func (s Settings) drainPhase(sit Situation, e state.Entry) state.Phase {
	switch e.Phase {
	case state.Draining, state.Drained, state.Incomplete:
		switch {
		case sit.leftAlone(e): // It stays.
		case e.LeftAlone: // Operators no longer want that.
			return state.Draining
		case e.Phase == state.Drained: // It stays, even if pods come later.
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

// heldByOther reports whether an event other than the entry's needs what is on the node.
func (s Settings) heldByOther(sit Situation, e state.Entry) bool {
	return slices.ContainsFunc(sit.Past, func(other state.Entry) bool {
		return other.Event.ID != e.Event.ID && s.holds(sit, other)
	})
}

// holds reports whether an entry's event needs what is on the node. It does not once its cordon was lifted, even if its drain
// continues.
func (s Settings) holds(sit Situation, e state.Entry) bool {
	return !e.Released() && s.want(sit, e) >= kept
}

// Undone returns the entries that change when an uncordon has taken everything of ours off the node. overruled: the uncordon found that an
// operator had lifted our cordon. That counts for each event that the node was closed for, even one that came back meanwhile.
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
		case e.Released() && want >= left:
		case overruled && want >= cordoned && !e.CordonedAt.IsZero():
			e.ReleasedAt, e.ReleasedOn = sit.Now, sit.NodeUID
		default:
			e = reset(sit, e)
		}
		changed = append(changed, e)
	}
	return changed
}

// Release returns the entries that change when an operator has uncordoned the node. These are the entries of the events for which the node was
// cordoned: CordonedAt is set, or the claim on the Node names the event (claimed). A claim that names an event released before is that of an
// earlier uncordon. It does not count, because its other events may have been announced again since.
func Release(sit Situation, claimed func(event string) bool) []state.Entry {
	claimIsOld := slices.ContainsFunc(sit.Past, func(e state.Entry) bool { return e.Released() && claimed(e.Event.ID) })
	var changed []state.Entry
	for _, e := range sit.Past {
		concerned := !e.CordonedAt.IsZero() || claimed(e.Event.ID) && !claimIsOld
		if e.Acted() && !e.Released() && concerned {
			e.ReleasedAt, e.ReleasedOn = sit.Now, sit.NodeUID
			changed = append(changed, e)
		}
	}
	return changed
}
