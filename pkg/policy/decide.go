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
	// released: somebody has lifted its cordon. Nothing is taken back for it, and it keeps no other event from doing so.
	released
	// unchanged: what was done stays, and nothing new begins.
	unchanged
	cordoned
	drained
)

// Fold brings the record up to date with what is announced and what is known of the node, and returns the entries that
// change. It takes an entry at most one phase further: call it until nothing changes.
func (s Settings) Fold(sit Situation) []state.Entry {
	before := sit.Past
	var changed []state.Entry
	sit.Past, changed = s.update(sit) // changed begins with the entries of new events.
	for i, e := range sit.Past {
		if before[i].Phase != state.Closed {
			e = s.next(sit, e)
		}
		if e != before[i] {
			changed = append(changed, e)
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
		_, known := sit.Known[e.Event.Kind] // Before the first good look for its kind, no event is missing.
		if known && e.Phase != state.Closed && !sit.listed(e.Event) && (e.Missing.IsZero() || e.Missing.After(sit.Now)) {
			past[i].Missing = sit.Now // Never in the future: the clock of an earlier boot may have been ahead.
		}
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
	return state.Entry{Event: ev, Phase: state.Seen, BootID: sit.BootID, FirstSeen: sit.Now, Changed: sit.Now}
}

// updateEntry returns an entry with what its event's source reports now. An event that was given up and is announced again is another one.
func (s Settings) updateEntry(sit Situation, e state.Entry, ev event.Event) state.Entry {
	if e.Phase == state.Closed {
		if s.givenUp(e) && s.worthRecording(ev) {
			return newEntry(sit, ev)
		}
		return e
	}
	if e.Acted() || ev.Instance == "" { // When the action began depends on the instance as it was known then.
		ev.Instance = e.Event.Instance
	}
	if e.Event.Kind == event.SpotInterruption || e.Event.Kind == event.RebalanceRecommendation {
		// amazon-ec2-metadata-mock computes the time again at each look. Only a nearer one is news.
		ev.Noticed, ev.Deadline = e.Event.Noticed, soonest(e.Event.Deadline, ev.Deadline)
	}
	e.Missing = time.Time{}
	if !sameEvent(e.Event, ev) {
		e.Event = ev
	}
	return e
}

// givenUp reports whether a closed entry's event counts as another event when it is announced again.
func (s Settings) givenUp(e state.Entry) bool {
	switch e.Ending {
	case state.Rebooted: // EC2's lists of maintenance lag behind.
		return e.Event.Kind != event.ScheduledMaintenance
	case state.Expired: // CordonFor limits cordons only.
		return s.plan(e).action == Drain
	case state.Withdrawn, state.Canceled, state.Completed, state.Ignored:
	}
	return true
}

// next takes an entry that is not closed one phase further, if that is what the situation says.
func (s Settings) next(sit Situation, e state.Entry) state.Entry {
	switch s.want(sit, e) {
	case nothing:
		return s.release(sit, e)
	case cordoned:
		return s.advance(sit, e, state.Cordoning)
	case drained:
		return s.advance(sit, e, state.Draining)
	case released:
		if e.UnderWay() || e.Phase == state.Undoing {
			return enter(sit, state.Cordoned, e) // Its part is over: operators decided about the cordon.
		}
	case unchanged: // Nothing new begins.
	}
	return e
}

// advance takes an entry that wants the node closed further: it begins the work, or takes in how far the guard has come with it. Work is recorded
// before it begins, with OnNode, so that the next process knows of it.
//
// A node that operators want left alone is neither drained nor out of time. When they no longer want that, the work begins again.
func (s Settings) advance(sit Situation, e state.Entry, work state.Phase) state.Entry {
	node := sit.node(e)
	alone := sit.leftAlone(e, work)
	again := e.LeftAlone && !alone
	e = noteCordon(sit, e)
	draining := e.Phase == state.Draining || e.Phase == state.Drained || e.Phase == state.Incomplete
	cordoning := e.Phase == state.Cordoning || e.Phase == state.Cordoned
	switch {
	case work == state.Draining && !draining, work == state.Cordoning && !cordoning, again && e.Phase != work:
		e = enter(sit, work, e)
		e.OnNode, e.BootID, e.ActedFor = true, sit.BootID, cmp.Or(s.plan(e).start, sit.Now)
	case alone: // It stays.
	case again: // An event whose time is over gets its overtime from now on.
		e.Changed = sit.Now
	case e.Phase == state.Cordoning && node.Closed:
		e = enter(sit, state.Cordoned, e)
	case e.Phase == state.Draining || e.Phase == state.Incomplete:
		if node.Drained {
			e = enter(sit, state.Drained, e)
		} else if e.Phase == state.Draining && s.timeIsOver(sit, e) {
			e = enter(sit, state.Incomplete, e)
		}
	}
	e.LeftAlone = alone
	return e
}

// noteCordon sets in an entry since when the node is cordoned for it. If operators lifted the cordon for this event, the node may still be closed for
// others; that does not count.
func noteCordon(sit Situation, e state.Entry) state.Entry {
	node := sit.node(e)
	if node.Closed && e.CordonedAt.IsZero() && e.Acted() && e.Phase != state.Undoing && !e.Released() {
		e.CordonedAt, e.CordonStamp = sit.Now, node.CordonStamp
	}
	return e
}

// release closes an entry that wants nothing of the node, or puts it back to its beginning if its event still stands. Before
// that, what is on the node for it has to be taken back, unless another event needs it.
func (s Settings) release(sit Situation, e state.Entry) state.Entry {
	ending := s.ending(sit, e)
	switch {
	case e.OnNode && !s.heldByOther(sit, e):
		return enter(sit, state.Undoing, e)
	case ending != "":
		e = enter(sit, state.Closed, e)
		e.Ending, e.OnNode, e.Result = ending, false, nil
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

// enter sets an entry's phase, and clears what belonged to the one before.
func enter(sit Situation, phase state.Phase, e state.Entry) state.Entry {
	if e.Phase == phase {
		return e
	}
	e.Phase, e.LeftAlone, e.Error, e.Changed = phase, false, "", sit.Now
	return e
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
	return !e.Released() && s.want(sit, e) >= unchanged
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
		ending, want := s.ending(sit, e), s.want(sit, e)
		switch {
		case ending != "":
			e = enter(sit, state.Closed, e)
			e.Ending, e.Result = ending, nil
		case e.Released() && want >= released:
		case overruled && want >= cordoned && !e.CordonedAt.IsZero():
			e.ReleasedAt = sit.Now
		default:
			e = reset(sit, e)
		}
		changed = append(changed, e)
	}
	return changed
}

// Release returns the entries that change when an operator has uncordoned the node. These are the entries of the events for which the node was
// cordoned: CordonedAt is set, or the claim on the Node names the event (inClaim). A claim that is older than a recorded uncordon does not
// count: its events may have been announced again.
func Release(sit Situation, inClaim func(event string) bool, claimedAt time.Time) []state.Entry {
	claimIsOld := slices.ContainsFunc(sit.Past, func(e state.Entry) bool { return e.ReleasedAt.After(claimedAt) })
	var changed []state.Entry
	for _, e := range sit.Past {
		if e.Acted() && !e.Released() && (!e.CordonedAt.IsZero() || inClaim(e.Event.ID) && !claimIsOld) {
			e.ReleasedAt = sit.Now
			changed = append(changed, e)
		}
	}
	return changed
}

// Decide returns the goal for the node. The record must be up to date: see Fold.
func (s Settings) Decide(sit Situation) Goal {
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
	goal := Goal{Action: Wait}
	if len(undoing) > 0 {
		goal = s.opening(sit, undoing)
	}
	// If operators have lifted the cordon for all events that are drained for, the one on the node is that of an event that is over.
	lifts := goal.Action == Uncordon && !slices.ContainsFunc(wanting, func(e state.Entry) bool { return !e.Released() })
	if len(wanting) > 0 && !lifts {
		goal = s.closing(sit, wanting)
	}
	goal.Revisit = revisit
	return goal
}

// closing is the goal of the entries that want the node closed: those in wanting, at least one.
func (s Settings) closing(sit Situation, wanting []state.Entry) Goal {
	slices.SortFunc(wanting, s.Urgency)
	// The annotation on the Node names an event whose cordon nobody has lifted, if there is one.
	first := wanting[max(slices.IndexFunc(wanting, func(e state.Entry) bool { return !e.Released() }), 0)]
	goal := Goal{Action: Cordon, Event: first.Event, Close: !first.Released(), Reason: first.Event.Summary()}
	var hard, hardEnds, softEnds []time.Time
	before, all := time.Time{}, true
	for _, e := range wanting {
		goal.Events = append(goal.Events, e.Event.ID)
		if s.want(sit, e) != drained { // The rest concerns drains only.
			continue
		}
		goal.Action = Drain
		before, all = latest(before, cmp.Or(e.CordonStamp, latest(e.FirstSeen, e.CordonedAt))), all && e.Released()
		if p := s.plan(e); p.hard {
			hard, hardEnds = append(hard, p.deadline), append(hardEnds, s.timeEnds(e))
		} else {
			goal.Soft, softEnds = soonest(goal.Soft, p.deadline), append(softEnds, s.timeEnds(e))
		}
	}
	if all { // Operators have uncordoned the node for all. Without an entry to drain for, before is zero.
		goal.Before = before
	}
	goal.Hard = nearest(sit.Now, hard)
	if goal.Hard.IsZero() {
		hardEnds = append(hardEnds, softEnds...)
	}
	goal.TimeEnds = nearest(sit.Now, hardEnds)
	return goal
}

// nearest returns which of some deadlines counts: the nearest, or of those that are still to come the nearest, as the machine has survived the
// others. Zero means none.
func nearest(now time.Time, deadlines []time.Time) time.Time {
	var first, ahead time.Time
	for _, d := range deadlines {
		first = soonest(first, d)
		if d.After(now) {
			ahead = soonest(ahead, d)
		}
	}
	return cmp.Or(ahead, first)
}

// opening is the goal of the entries for which the node is to be opened: Uncordon, or Wait during the pause after an attempt that failed.
func (s Settings) opening(sit Situation, undoing []state.Entry) Goal {
	slices.SortFunc(undoing, s.Urgency)
	first := undoing[0]
	goal := Goal{Action: Uncordon, Event: first.Event, Reason: s.undoReason(first, s.ending(sit, first))}
	for _, e := range undoing {
		goal.Events = append(goal.Events, e.Event.ID)
		if e.Error != "" && e.Changed.Add(uncordonPause).After(sit.Now) {
			return Goal{Action: Wait}
		}
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
	if s.ending(sit, e) != "" || s.rescheduled(sit, e) {
		return nothing
	}
	p := s.plan(e)
	level := map[Action]want{Cordon: cordoned, Drain: drained}[p.action] // nothing for all other actions
	switch {
	case level == nothing, !e.Acted() && p.start.After(sit.Now):
		return nothing
	case e.Released() && (e.Phase != state.Draining || level != drained): // A drain under way continues with the pods from before.
		return released
	case sit.attested(e):
		return level
	// From here on it is uncertain whether the event is still to come.
	case !e.Acted():
		return nothing
	case e.BootID != sit.BootID || e.Phase == state.Undoing: // It may be over.
		return unchanged
	case e.Phase == state.Cordoning || e.Phase == state.Cordoned: // No drain begins.
		return cordoned
	}
	return level // The drain continues until the event counts as withdrawn.
}

// attested reports whether there is enough evidence that an entry's event is still to come, so that work may begin for it: the last good look at
// its source found it. Before the first good look since the start, the record is enough for work that was begun, unless the event was missing, or
// is from before a reboot that may have been what was announced.
func (sit Situation) attested(e state.Entry) bool {
	if _, known := sit.Known[e.Event.Kind]; known {
		return sit.listed(e.Event)
	}
	return e.Missing.IsZero() && e.Acted() && (e.BootID == sit.BootID || e.Event.Deadline.After(sit.Now))
}

// ending says why an entry's event no longer stands; empty if it stands.
func (s Settings) ending(sit Situation, e state.Entry) state.Ending {
	switch {
	case e.Phase == state.Closed:
		return e.Ending
	case e.Event.State == event.Canceled:
		return state.Canceled
	case e.Event.State == event.Completed:
		return state.Completed
	case sit.survived(e):
		return state.Rebooted
	case s.Ignores(e):
		return state.Ignored
	}
	if expires := s.expires(e); !expires.IsZero() && !sit.Now.Before(expires) {
		return state.Expired
	}
	// While looks fail, the event is not withdrawn: only what a good look has said counts.
	if !e.Missing.IsZero() && !sit.knownUntil(e.Event.Kind).Before(e.Missing.Add(s[e.Event.Kind].WithdrawnAfter)) {
		return state.Withdrawn
	}
	return ""
}

// expires is when an entry's cordon has been set for as long as the rule's CordonFor; zero is never. A cordon keeps its age while it is being
// lifted. One that was never set has none.
func (s Settings) expires(e state.Entry) time.Time {
	rule := s[e.Event.Kind]
	limited := (e.Phase == state.Cordoned || e.Phase == state.Undoing) && !e.CordonedAt.IsZero()
	if !limited || rule.CordonFor <= 0 || s.plan(e).action != Cordon {
		return time.Time{}
	}
	return e.CordonedAt.Add(rule.CordonFor)
}

// revisit is when the policy may decide otherwise about an entry without news; zero is never.
func (s Settings) revisit(sit Situation, e state.Entry) time.Time {
	if s.ending(sit, e) != "" { // That stays so.
		return time.Time{}
	}
	p := s.plan(e)
	times := []time.Time{s.expires(e)}
	if p.action == Cordon || p.action == Drain {
		times = append(times, p.start)
	}
	if e.UnderWay() {
		times = append(times, s.timeEnds(e))
	}
	var next time.Time
	for _, t := range times {
		if t.After(sit.Now) {
			next = soonest(next, t)
		}
	}
	return next
}

// knownUntil is the time until which what a kind's source reported last is known to hold: now or, while looks fail, the last
// good look. It is zero before the first good look.
func (sit Situation) knownUntil(kind event.Kind) time.Time {
	if good, failing := sit.Failing[kind]; failing {
		return good
	}
	if _, known := sit.Known[kind]; known {
		return sit.Now
	}
	return time.Time{}
}

// survived reports whether the machine is back from what the entry's event announced. The boot ID proves that there was a
// reboot; whether it was the announced one depends on the kind.
func (sit Situation) survived(e state.Entry) bool {
	if e.BootID == sit.BootID {
		return false
	}
	if e.Event.Kind.Local() { // It announced this reboot itself.
		return true
	}
	_, known := sit.Known[e.Event.Kind]
	reboots := e.Event.Kind == event.ScheduledMaintenance && (e.Event.Code == "system-reboot" || e.Event.Code == "instance-reboot")
	over := !e.Event.Deadline.IsZero() && sit.Now.After(e.Event.Deadline) && known && !sit.listed(e.Event)
	return e.Acted() && (reboots || over) // A reboot ends even if it is still listed: EC2's list lags behind.
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
