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

// Fold brings the record up to date with what is announced and what is known of the node, and returns the entries that
// change. It takes an entry at most one phase further: call it until nothing changes.
func (s Settings) Fold(sit Situation) []state.Entry {
	before := sit.Past
	var changed []state.Entry
	sit.Past, changed = s.update(sit) // changed begins with the entries of new events.
	after := slices.Clone(sit.Past)
	// An event that wants nothing any more has left what was set on the node for it (OnNode) to the others.
	handedOver := false
	for i, e := range sit.Past {
		if before[i].Phase != state.Closed {
			after[i] = s.next(sit, e)
		}
		handedOver = handedOver || e.OnNode && !after[i].OnNode && s.want(sit, e) == nothing
	}
	for i, e := range sit.Past {
		if handedOver && s.holds(sit, e) {
			after[i].OnNode = true // This event needs it: what was set for the other one is taken back with this one.
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
	e.Result, e.CordonedAt, e.CordonStamp, e.ReleasedAt, e.OnNode = nil, time.Time{}, time.Time{}, time.Time{}, false
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
		e.CordonedAt, e.CordonStamp = sit.Now, node.CordonStamp
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
// cordoned: CordonedAt is set, or the claim on the Node, which was written at since, names the event (claimed). A claim from before an uncordon
// that is on record does not count, because its events may have been announced again since.
func Release(sit Situation, claimed func(event string) bool, since time.Time) []state.Entry {
	claimIsOld := slices.ContainsFunc(sit.Past, func(e state.Entry) bool { return e.ReleasedAt.After(since) })
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
		before, all = latest(before, cmp.Or(e.CordonStamp, latest(e.FirstSeen, e.CordonedAt))), all && e.Released()
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
