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
	// wantNothing: what was done for the event is taken back.
	wantNothing want = iota
	// wantReleased: an operator has uncordoned the node during the event. Nothing is taken back for this event, and another event may have the
	// node uncordoned.
	wantReleased
	// wantUnchanged: what was done stays, and nothing new begins.
	wantUnchanged
	// wantCordoned and wantDrained: the node is to be cordoned, or cordoned and drained.
	wantCordoned
	wantDrained
)

// Fold compares the record with what is announced and what is known of the node. It returns the entries that have to change, as they should be.
// It takes an entry at most one phase further: the caller records the entries, and calls Fold again until it returns none.
func (s Settings) Fold(sit Situation) []state.Entry {
	before := sit.Past
	var changed []state.Entry
	sit.Past, changed = s.update(sit) // changed begins with the entries of new events.
	for i, e := range sit.Past {      // It has the entries of before, in the same sequence.
		switch want := s.want(sit, e); {
		case before[i].Phase == state.Closed: // A closed entry stays as it is, or update has replaced it by a new one.
		case want == wantNothing:
			e = s.takeBack(sit, e)
		case want == wantCordoned:
			e = s.advance(sit, e, state.Cordoning)
		case want == wantDrained:
			e = s.advance(sit, e, state.Draining)
		case want == wantReleased && sit.isAheadAfterReboot(e): // The reboot was another than the announced one.
			e.BootID = sit.BootID
		case want == wantReleased && (e.UnderWay() || e.Phase == state.Undoing):
			// Nothing more is done for the event. Its phase is Cordoned even if operators have left the node open.
			e = enter(sit, state.Cordoned, e)
		}
		if e != before[i] {
			changed = append(changed, e)
		}
	}
	return changed
}

// update returns the recorded entries with what the sources report now (past), and entries for the events that the record lacks (added).
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
		switch {
		case !sit.missing(e.Event):
			continue
		case e.Phase == state.Closed:
			if e.Ending == state.Expired { // The next one that is announced counts as another event.
				past[i].Ending = state.Withdrawn
			}
			continue
		}
		// A time in the future is from an earlier boot, whose clock was ahead.
		if e.Missing.IsZero() || e.Missing.After(sit.Now) {
			past[i].Missing = sit.Now
		}
	}
	return past, added
}

// worthRecording reports whether an announced event gets an entry: not if the event is over already, or if the rules ignore it.
func (s Settings) worthRecording(ev event.Event) bool {
	return ev.State != event.Canceled && ev.State != event.Completed && !s.Ignores(state.Entry{Event: ev})
}

// newEntry returns the entry of an event that is announced for the first time.
func newEntry(sit Situation, ev event.Event) state.Entry {
	return state.Entry{Event: ev, Phase: state.Seen, BootID: sit.BootID, FirstSeen: sit.Now, Changed: sit.Now}
}

// updateEntry returns an entry with its event as the source reports the event now, which is ev. A closed entry stays as it is, or is replaced by a
// new entry if ev counts as another event.
func (s Settings) updateEntry(sit Situation, e state.Entry, ev event.Event) state.Entry {
	if e.Phase == state.Closed {
		if s.beginsAgain(sit, e, ev) && s.worthRecording(ev) {
			again := newEntry(sit, ev)
			again.RebootAt = e.RebootAt // No event causes two reboots.
			return again
		}
		return e
	}
	if e.Acted() || ev.Instance == "" { // The time to act depends on the instance: after the action began it must not change.
		ev.Instance = e.Event.Instance
	}
	if comesBack := e.Phase == state.Undoing && s.ending(sit, e) == state.Withdrawn; comesBack { // Its Budget and its deadline begin afresh.
		e.FirstSeen, e.Event.Deadline = sit.Now, ev.Deadline
	}
	sameNotice := e.Event.Kind == event.RebalanceRecommendation || e.Event.Kind == event.SpotInterruption && e.BootID == sit.BootID
	if sameNotice {
		// amazon-ec2-metadata-mock reports a later deadline at each look. Only a nearer deadline counts. A spot notice in a later boot is a new one.
		ev.Noticed, ev.Deadline = e.Event.Noticed, soonest(e.Event.Deadline, ev.Deadline)
	}
	if e.OnlyClaimed() && !s.Reboots(ev) { // As the code was not known, a reboot may have been assumed: see agent.mayHaveRebooted.
		e.RebootAt = time.Time{}
	}
	ev.Noticed, ev.Deadline, ev.Until = steady(e.Event.Noticed, ev.Noticed), steady(e.Event.Deadline, ev.Deadline), steady(e.Event.Until, ev.Until)
	if moved := !ev.Deadline.Equal(e.Event.Deadline); moved && e.Phase == state.Seen {
		e.Changed = sit.Now // Describe says for that time when the action begins.
	}
	e.Event, e.Missing = ev, time.Time{}
	return e
}

// steady returns the time of an event that a source reports now, or the time before if the two differ by no more than clocks do: a source dates its
// documents in whole seconds, and each process of nth compares the clocks again.
func steady(before, now time.Time) time.Time {
	if now.Sub(before).Abs() < 2*time.Second {
		return before
	}
	return now
}

// beginsAgain reports whether a closed entry's event counts as another event if it is announced now.
func (s Settings) beginsAgain(sit Situation, e state.Entry, ev event.Event) bool {
	switch e.Ending {
	case state.Rebooted: // EC2 still lists a reboot for a while after it. But by the date that EC2 lists now, the machine may have rebooted too early.
		return !isReboot(ev) || s.isEarly(sit, ev)
	case state.Expired: // The cordon is not set a second time. But if the rules now ask for a drain, that has no time to live.
		return s.plan(e).action == Drain
	case state.Withdrawn, state.Canceled, state.Completed, state.Ignored: // The source has announced the event again.
	}
	return true
}

// phasesOf has, for each work, the phases of an entry whose work has begun or is over.
var phasesOf = map[state.Phase][]state.Phase{
	state.Cordoning: {state.Cordoning, state.Cordoned},
	state.Draining:  {state.Draining, state.Drained, state.Incomplete},
}

// advance takes an entry that wants work, which is Cordoning or Draining, one phase further. It begins the work, or takes over from the guard's
// report that the node is cordoned or drained, or ends the work when its time is over.
//
// The beginning is recorded with OnNode before anything is done, so that the next process knows of it. That is so even if the node is left alone;
// after it, the phase stays until operators allow the work again, which then begins again.
func (s Settings) advance(sit Situation, e state.Entry, work state.Phase) state.Entry {
	node := sit.nodeFor(e)
	leftAlone := sit.leftAlone(e, work)
	allowedAgain := e.LeftAlone && !leftAlone
	begun := slices.Contains(phasesOf[work], e.Phase) && !sit.isAheadAfterReboot(e)
	e = noteCordon(sit, e) // It judges the phase of before.
	switch {
	case !begun:
		e = beginWork(sit, e, work)
	case allowedAgain && e.Phase != work:
		e = enter(sit, work, e)
	case leftAlone: // The phase stays.
	case allowedAgain: // The work counts as begun now, so that an event whose time is over gets its overtime.
		e.Changed = sit.Now
	case e.Phase == state.Cordoning && node.Cordoned:
		e = enter(sit, state.Cordoned, e)
	case (e.Phase == state.Draining || e.Phase == state.Incomplete) && node.Drained:
		e = enter(sit, state.Drained, e)
	case e.Phase == state.Draining && s.timeIsOver(sit, e):
		e = enter(sit, state.Incomplete, e)
	}
	e.LeftAlone = leftAlone
	return e
}

// isAheadAfterReboot reports whether an entry was last acted upon in an earlier boot for an event that is still to come. The reboot since then was not the
// announced one, so the work for it begins again.
func (sit Situation) isAheadAfterReboot(e state.Entry) bool {
	return e.Acted() && e.BootID != sit.BootID && sit.listed(e.Event) && e.Event.Deadline.After(sit.Now)
}

// beginWork returns an entry for which work begins in this boot.
func beginWork(sit Situation, e state.Entry, work state.Phase) state.Entry {
	staysDue := e.Acted() && e.Phase != state.Undoing && !sit.rebootIsOver(e)
	if !staysDue { // Otherwise ActedAt stays: start judges the hours at that time, and after them the event would be due later.
		e.ActedAt = sit.Now
	}
	if e.Event.Kind == event.SpotInterruption && e.BootID != sit.BootID { // It is another notice, with its own two minutes.
		e.FirstSeen = sit.Now
	}
	e = enter(sit, work, e)
	e.OnNode, e.BootID = true, sit.BootID
	return e
}

// noteCordon returns an entry with the time since when the node is cordoned for it, if the guard reports the cordon for the first time. A
// released entry gets none: the node is cordoned for other events then.
func noteCordon(sit Situation, e state.Entry) state.Entry {
	node := sit.nodeFor(e)
	wantsCordon := e.Acted() && e.Phase != state.Undoing && !e.Released()
	if node.Cordoned && wantsCordon && e.CordonedAt.IsZero() {
		e.CordonedAt, e.CordonStamp = sit.Now, node.CordonStamp
	}
	return e
}

// takeBack takes an entry that wants nothing of the node one phase further. First the node is uncordoned, unless another event needs the cordon.
// Then the entry is closed if its event has an ending, or else reset.
func (s Settings) takeBack(sit Situation, e state.Entry) state.Entry {
	ending := s.ending(sit, e)
	switch {
	case e.OnNode && !s.neededByOther(sit, e):
		return enter(sit, state.Undoing, e)
	case ending != "":
		return closeEntry(sit, e, ending)
	case e.Acted(): // The event still stands, and is due later or asks for less.
		return reset(sit, e)
	}
	return e // Nothing has been done for the event yet.
}

// closeEntry closes an entry whose event has an ending. Nothing is left to take back for it: the node was uncordoned, or another event needs the
// cordon, and the entry of that event has OnNode.
func closeEntry(sit Situation, e state.Entry, ending state.Ending) state.Entry {
	e = enter(sit, state.Closed, e)
	e.Ending, e.OnNode, e.Result = ending, false, nil
	return e
}

// reset puts an entry back to Seen: the node is acted upon again when the time for that comes, unless the entry is released. Until that time, a
// reboot does not count as the announced one, since survived needs an entry that was acted upon.
func reset(sit Situation, e state.Entry) state.Entry {
	e = enter(sit, state.Seen, e)
	e.Result, e.CordonedAt, e.CordonStamp, e.OnNode = nil, time.Time{}, time.Time{}, false
	return e
}

// enter sets an entry's phase, and clears what belonged to the phase before.
func enter(sit Situation, phase state.Phase, e state.Entry) state.Entry {
	if e.Phase == phase {
		return e
	}
	e.Phase, e.LeftAlone, e.Error, e.Changed = phase, false, "", sit.Now
	return e
}

// neededByOther reports whether an event other than the entry's needs the cordon.
func (s Settings) neededByOther(sit Situation, e state.Entry) bool {
	return slices.ContainsFunc(sit.Past, func(other state.Entry) bool {
		return other.Event.ID != e.Event.ID && s.needsCordon(sit, other)
	})
}

// needsCordon reports whether an entry's event needs the cordon. A released entry does not, even if its drain continues.
func (s Settings) needsCordon(sit Situation, e state.Entry) bool {
	return !e.Released() && s.want(sit, e) >= wantUnchanged
}

// Undone returns the entries that change, as they should be, once an uncordon has taken everything that nth set off the node.
//
// overruled: the uncordon found that an operator had uncordoned the node. That releases each event that the node was cordoned for, even one that
// was announced again meanwhile, or that has moved to a later time.
func (s Settings) Undone(sit Situation, overruled bool) []state.Entry {
	var changed []state.Entry
	for _, e := range sit.Past {
		if !e.OnNode || e.Phase == state.Closed {
			continue
		}
		e.Error = ""
		ending, want := s.ending(sit, e), s.want(sit, e)
		if overruled && ending == "" && !e.Released() && !e.CordonedAt.IsZero() {
			e.ReleasedAt = sit.Now
		}
		switch {
		case ending != "":
			e = closeEntry(sit, e, ending)
		case e.Released() && want >= wantReleased: // The event still stands and is due, so the entry stays released.
			e.OnNode = false
		case e.UnderWay() && want >= wantCordoned: // It has come during the uncordon. The guard cordons the node for it.
			e.CordonedAt, e.CordonStamp = time.Time{}, time.Time{}
		default:
			e = reset(sit, e)
		}
		changed = append(changed, e)
	}
	return changed
}

// Release returns the entries that change, as they should be, when an operator has uncordoned the node: those of the events that the node was
// cordoned for. An entry shows that by CordonedAt. The claim on the Node shows it for an event if inClaim reports true.
//
// The claim does not count if the record knows of that cordon, which it gets a moment after claimedAt, or of a later uncordon: its events may have been
// announced again since.
func Release(sit Situation, inClaim func(event string) bool, claimedAt time.Time) []state.Entry {
	claimIsOld := slices.ContainsFunc(sit.Past, func(e state.Entry) bool { return latest(e.CordonedAt, e.ReleasedAt).After(claimedAt) })
	var changed []state.Entry
	for _, e := range sit.Past {
		if !e.Acted() || e.Released() {
			continue
		}
		cordoned := !e.CordonedAt.IsZero() || inClaim(e.Event.ID) && !claimIsOld
		if cordoned {
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
		case want >= wantCordoned:
			wanting = append(wanting, e)
		case e.Phase == state.Undoing && want == wantNothing:
			undoing = append(undoing, e)
		case want == wantReleased && e.OnNode && !s.neededByOther(sit, e): // The claim or the label is left from the cordon.
			undoing = append(undoing, e)
		}
	}
	goal := Goal{Action: Wait}
	if len(undoing) > 0 {
		goal = s.uncordonGoal(sit, undoing)
	}
	// If all events in wanting are released, the cordon on the node is that of an event that is over. It is taken back first.
	uncordonFirst := goal.Action == Uncordon && allReleased(wanting)
	if len(wanting) > 0 && !uncordonFirst {
		goal = s.cordonGoal(sit, wanting)
	}
	goal.Revisit = revisit
	return goal
}

// allReleased reports whether operators have uncordoned the node for all of some entries.
func allReleased(entries []state.Entry) bool {
	return !slices.ContainsFunc(entries, func(e state.Entry) bool { return !e.Released() })
}

// cordonGoal returns the goal Cordon or Drain for the entries in wanting, which want the node cordoned. There is at least one. One that is released is
// among them only while its drain continues for the pods from before the uncordon.
func (s Settings) cordonGoal(sit Situation, wanting []state.Entry) Goal {
	slices.SortFunc(wanting, s.Urgency)
	notReleased := slices.IndexFunc(wanting, func(e state.Entry) bool { return !e.Released() })
	first := wanting[max(notReleased, 0)] // The most urgent entry of all, if all are released.
	goal := Goal{Action: Cordon, Event: first.Event, Cordon: !first.Released(), Reason: first.Event.Summary()}
	var draining []state.Entry
	for _, e := range wanting {
		goal.Events = append(goal.Events, e.Event.ID)
		if s.want(sit, e) == wantDrained {
			draining = append(draining, e)
		}
	}
	if len(draining) == 0 {
		return goal
	}
	goal.Action = Drain
	forbidsReboot := func(e state.Entry) bool { return s.want(sit, e) >= wantUnchanged && !s.rebootIsDue(sit, e) }
	goal.Reboot = !slices.ContainsFunc(sit.Past, forbidsReboot)
	goal.Hard, goal.Soft, goal.TimeEnds = s.deadlines(sit.Now, draining)
	if onlyEarlierPods := allReleased(draining); onlyEarlierPods {
		for _, e := range draining { // Without a stamp, the record's times count. CordonedAt is zero if only the claim shows the cordon (Release).
			cordoned := cmp.Or(e.CordonStamp, latest(e.FirstSeen, e.CordonedAt))
			goal.Before = latest(goal.Before, cordoned)
		}
	}
	return goal
}

// rebootIsDue reports whether the machine is to be rebooted now, as far as an entry is concerned. The node is drained for its event in this boot, and
// no operator has uncordoned the node or limited what nth may do. The event was listed at the last look, and EC2's own time for it has not come.
func (s Settings) rebootIsDue(sit Situation, e state.Entry) bool {
	node := sit.nodeFor(e)
	drained := e.Phase == state.Drained && e.BootID == sit.BootID && !e.Released() && !e.LeftAlone && node.Cordoned && node.Drained
	return s.rebootsNext(e) && drained &&
		sit.listed(e.Event) && !sit.fails(e.Event.Kind) && sit.Now.Before(e.Event.Deadline)
}

// deadlines returns Goal.Hard, Goal.Soft and Goal.TimeEnds for the entries that the node is drained for.
func (s Settings) deadlines(now time.Time, draining []state.Entry) (hard, soft, timeEnds time.Time) {
	var hardDeadlines, hardEnds, softEnds []time.Time
	for _, e := range draining {
		if p := s.plan(e); p.hard {
			hardDeadlines, hardEnds = append(hardDeadlines, p.deadline), append(hardEnds, s.timeEnds(e))
		} else {
			soft, softEnds = soonest(soft, p.deadline), append(softEnds, s.timeEnds(e))
		}
	}
	hard = nearest(now, hardDeadlines)
	if hard.IsZero() {
		return hard, soft, nearest(now, softEnds)
	}
	return hard, soft, nearest(now, hardEnds) // The machine is gone then, whatever time the soft deadlines leave.
}

// nearest returns the nearest of the deadlines that are still to come, as the machine has survived the others. If all have passed, it returns the
// first one. Zero means no deadline.
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

// uncordonGoal returns the goal Uncordon for the entries in undoing, or Wait during the pause after an attempt to uncordon that failed.
func (s Settings) uncordonGoal(sit Situation, undoing []state.Entry) Goal {
	slices.SortFunc(undoing, s.Urgency)
	first := undoing[0]
	goal := Goal{Action: Uncordon, Event: first.Event, Reason: s.undoReason(first, s.ending(sit, first))}
	for _, e := range undoing {
		goal.Events = append(goal.Events, e.Event.ID)
		failedLately := e.Error != "" && e.Changed.Add(uncordonPause).After(sit.Now) && !e.Changed.After(sit.Now) // The clock of an earlier boot may have been ahead.
		if failedLately {
			return Goal{Action: Wait}
		}
	}
	return goal
}

// Urgency compares entries for sorting, the most urgent first: drains before other actions, hard deadlines before soft ones, then the nearest
// deadline. The event's kind and ID decide between entries that are equally urgent.
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

// byDeadline compares deadlines for sorting: the nearest comes first, and zero, which is no deadline, last.
func byDeadline(a, b time.Time) int {
	if a.Equal(b) {
		return 0
	} else if a.Equal(soonest(a, b)) {
		return -1
	}
	return 1
}

// want returns what an entry's event wants of the node now. If the event stands and is due, that is what the rules ask for. It is less if operators
// have uncordoned the node, or if it is uncertain whether the event is still to come.
func (s Settings) want(sit Situation, e state.Entry) want {
	if s.ending(sit, e) != "" || s.rescheduled(sit, e) {
		if sit.rebootIsUnderWay(e) || s.looksFirst(sit, e) { // EC2 may end the event before the machine is down.
			return wantUnchanged
		}
		return wantNothing
	}
	p := s.plan(e)
	level := map[Action]want{Cordon: wantCordoned, Drain: wantDrained}[p.action] // wantNothing for all other actions
	notDue := !e.Acted() && s.start(sit, e).After(sit.Now)
	drainContinues := e.Phase == state.Draining && level == wantDrained // If operators uncordon the node, only earlier pods are evicted.
	switch {
	case level == wantNothing || notDue:
		return wantNothing
	case e.Released() && !drainContinues:
		return wantReleased
	case sit.confirmed(e):
		return level
	// In the cases that follow, it is uncertain whether the event is still to come.
	case !e.Acted(): // Nothing begins.
		return wantNothing
	case e.BootID != sit.BootID || e.Phase == state.Undoing: // The event may be over.
		return wantUnchanged
	case e.Phase == state.Cordoning || e.Phase == state.Cordoned: // No drain begins.
		return wantCordoned
	}
	return level // A drain continues until the event counts as withdrawn.
}

// looksFirst reports whether nothing is taken back for an entry of an earlier boot before the first look at its source, which may fail. That look says
// whether the reboot was the announced one, and compares the clock of this boot with EC2's.
func (s Settings) looksFirst(sit Situation, e state.Entry) bool {
	stands := e.Phase != state.Closed && !e.Event.Kind.Local() && !s.Ignores(e)
	return stands && e.BootID != sit.BootID && sit.knownUntil(e.Event.Kind).IsZero() && !sit.fails(e.Event.Kind)
}

// confirmed reports whether there is enough evidence that an entry's event is still to come, so that work for it may begin. After a good look
// at its source, that look decides. Before the first good look since the start, the record decides.
func (sit Situation) confirmed(e state.Entry) bool {
	if _, known := sit.Known[e.Event.Kind]; known {
		return sit.listed(e.Event)
	}
	// A reboot since the work began may have been what was announced, unless the deadline is still to come.
	stillToCome := e.BootID == sit.BootID || e.Event.Deadline.After(sit.Now)
	return e.Acted() && e.Missing.IsZero() && stillToCome
}

// ending returns why an entry's event no longer stands; "" if it stands.
func (s Settings) ending(sit Situation, e state.Entry) state.Ending {
	switch {
	case e.Phase == state.Closed:
		return e.Ending
	case e.Event.State == event.Canceled:
		return state.Canceled
	case e.Event.State == event.Completed:
		return state.Completed
	case s.survived(sit, e):
		return state.Rebooted
	case s.Ignores(e):
		return state.Ignored
	}
	if expires := s.expires(e); !expires.IsZero() && !sit.Now.Before(expires) {
		return state.Expired
	}
	if e.Missing.IsZero() {
		return ""
	}
	// While looks fail, the event is not withdrawn: only the time until the last good look counts.
	withdrawn := e.Missing.Add(s[e.Event.Kind].WithdrawnAfter)
	if sit.knownUntil(e.Event.Kind).Before(withdrawn) {
		return ""
	}
	return state.Withdrawn
}

// expires returns when an entry's cordon has been set for as long as the rule's CordonFor; zero means never. The time does not change while the
// cordon is being taken back (Undoing), so that the event keeps its ending.
func (s Settings) expires(e state.Entry) time.Time {
	rule := s[e.Event.Kind]
	cordoned := (e.Phase == state.Cordoned || e.Phase == state.Undoing) && !e.CordonedAt.IsZero()
	limited := s.plan(e).action == Cordon && rule.CordonFor > 0
	if !cordoned || !limited || e.Released() { // What operators uncordoned has no cordon that could expire.
		return time.Time{}
	}
	return e.CordonedAt.Add(rule.CordonFor)
}

// revisit returns when the policy may decide otherwise about an entry only because time has passed; zero means never. Only nth-queue waits for
// it, while no agent works for the node. So it leaves out WithdrawnAfter, as no event of nth-queue's is ever missing, and the pauses of an agent.
func (s Settings) revisit(sit Situation, e state.Entry) time.Time {
	rebootIsUnderWay := sit.rebootIsUnderWay(e)
	if s.ending(sit, e) != "" && !rebootIsUnderWay { // Time does not change an ending.
		return time.Time{}
	}
	p := s.plan(e)
	times := []time.Time{s.expires(e)} // The cordon is taken back.
	if p.action == Cordon || p.action == Drain {
		times = append(times, s.start(sit, e)) // Work begins.
	}
	if rebootIsUnderWay {
		times = append(times, e.RebootAt.Add(rebootTime)) // The request counts as without effect.
	}
	if e.UnderWay() {
		times = append(times, s.timeEnds(e)) // The drain has run out of time.
	}
	var next time.Time
	for _, t := range times {
		if t.After(sit.Now) {
			next = soonest(next, t)
		}
	}
	return next
}

// knownUntil returns until when Known is known to hold for a kind: now or, while looks fail, the time of the last good look. It is zero before the
// first good look.
func (sit Situation) knownUntil(kind event.Kind) time.Time {
	if good, failing := sit.Failing[kind]; failing {
		return good
	}
	if _, known := sit.Known[kind]; known {
		return sit.Now
	}
	return time.Time{}
}

// fails reports whether the last look for a kind failed.
func (sit Situation) fails(kind event.Kind) bool {
	_, failing := sit.Failing[kind]
	return failing
}

// survived reports whether the machine is back from what the entry's event announced. The boot ID proves a reboot. Whether that was the announced
// one depends on the kind.
func (s Settings) survived(sit Situation, e state.Entry) bool {
	if e.BootID == sit.BootID {
		return false
	}
	if e.Event.Kind.Local() { // The machine itself announced this reboot.
		return true
	}
	if !e.Acted() {
		return false
	}
	if !e.RebootAt.IsZero() || isReboot(e.Event) {
		// Even if the reboot is still listed: EC2's list lags behind. But EC2 may do its own, later: after a reboot by anybody that came more than the
		// rule's Lead before its date, or after the one that nth has requested for the present drain.
		ec2MayFollow := s.isEarly(sit, e.Event) || rebootWasRequested(e) && sit.Now.Before(e.Event.Deadline)
		return sit.missing(e.Event) || !ec2MayFollow
	}
	deadlinePassed := !e.Event.Deadline.IsZero() && sit.Now.After(e.Event.Deadline)
	return deadlinePassed && sit.missing(e.Event)
}

// isReboot reports whether an event is a reboot that EC2 has scheduled.
func isReboot(ev event.Event) bool {
	return ev.Kind == event.ScheduledMaintenance && (ev.Code == "system-reboot" || ev.Code == "instance-reboot")
}

// isEarly reports whether a reboot now is too early to be the announced one: it is more than the rule's Lead before EC2's date.
func (s Settings) isEarly(sit Situation, ev event.Event) bool {
	return sit.Now.Before(ev.Deadline.Add(-s[ev.Kind].Lead))
}

// listed reports whether the last good look found the event; false before the first good look.
func (sit Situation) listed(ev event.Event) bool {
	return slices.ContainsFunc(sit.Known[ev.Kind], func(known event.Event) bool { return known.ID == ev.ID })
}

// missing reports whether the last good look did not find the event; false before the first good look.
func (sit Situation) missing(ev event.Event) bool {
	_, known := sit.Known[ev.Kind]
	return known && !sit.listed(ev)
}

// rescheduled reports whether the node was acted upon for an entry's event that is now due at a later time, which is still to come. Its source has
// moved the event, or the settings have another lead.
func (s Settings) rescheduled(sit Situation, e state.Entry) bool {
	start := s.start(sit, e)
	return e.Acted() && start.After(e.ActedAt) && start.After(sit.Now)
}
