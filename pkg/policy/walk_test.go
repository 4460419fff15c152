package policy_test

import (
	"flag"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "walk from this seed only")
	walksFlag = flag.Uint64("walks", 30, "how many seeds to walk from")
)

// TestWhateverHappensTheRulesHold walks through random announcements, withdrawals, reboots, crashes, outages, settings and
// admins, and looks at every decision on the way. A walk that fails names its seed and tells its story.
func TestWhateverHappensTheRulesHold(t *testing.T) {
	t.Parallel()
	first, last := uint64(1), *walksFlag
	if *seedFlag != 0 {
		first, last = *seedFlag, *seedFlag
	}
	for seed := first; seed <= last; seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, seed)
			defer func() {
				if t.Failed() {
					t.Logf("seed %d\n%s", seed, strings.Join(w.log[max(0, len(w.log)-60):], "\n"))
				}
			}()
			for range 150 {
				w.happen()
				w.rest()
				if w.poll(); t.Failed() {
					return
				}
				w.rest()
				w.checkRest()
				w.forget()
			}
			w.finish()
		})
	}
}

// checkFold looks that Fold comes to an end if nothing else happens, and soon.
func (w *world) checkFold() {
	sit, book, rounds := w.situation(), newBook(w.record.entries()), 0
	for changed := w.rules.Fold(sit); len(changed) > 0; changed = w.rules.Fold(sit) {
		book.put(changed...)
		sit.Past = book.entries()
		if rounds++; rounds > 6 {
			w.t.Errorf("Fold finds no end: %s", describeEntries(changed))
			return
		}
	}
}

// next are the phases that one Fold may take an entry to.
var next = map[state.Phase][]state.Phase{
	state.Seen:       {state.Cordoning, state.Draining, state.Closed},
	state.Cordoning:  {state.Cordoned, state.Draining, state.Undoing, state.Seen, state.Closed},
	state.Cordoned:   {state.Cordoning, state.Draining, state.Undoing, state.Seen, state.Closed},
	state.Draining:   {state.Drained, state.Incomplete, state.Cordoned, state.Cordoning, state.Undoing, state.Seen, state.Closed},
	state.Drained:    {state.Cordoning, state.Undoing, state.Seen, state.Closed},
	state.Incomplete: {state.Drained, state.Cordoning, state.Undoing, state.Seen, state.Closed},
	state.Undoing:    {state.Cordoning, state.Cordoned, state.Draining, state.Seen, state.Closed},
	state.Closed:     {state.Seen},
}

// checkChange looks at what Fold makes of an entry.
func (w *world) checkChange(e state.Entry) {
	before, met := w.record.byID[e.Event.ID]
	freed := before.LeftAlone && !e.LeftAlone
	switch {
	case e.LeftAlone && (e.Phase == state.Seen || e.Phase == state.Closed || e.Phase == state.Cordoning || e.Phase == state.Cordoned):
		w.t.Errorf("%s is left alone, and is %s", e.Event.ID, e.Phase)
	case met && e.LeftAlone && before.LeftAlone && e.Phase != before.Phase:
		w.t.Errorf("%s is left alone, and goes from %s to %s", e.Event.ID, before.Phase, e.Phase)
	case !met && e.Phase != state.Seen:
		w.t.Errorf("%s is met as %s", e.Event.ID, e.Phase)
	case met && e.Phase != before.Phase && !slices.Contains(next[before.Phase], e.Phase) && !(freed && e.Phase == state.Draining):
		w.t.Errorf("%s goes from %s to %s", e.Event.ID, before.Phase, e.Phase)
	case met && before.Phase == state.Draining && e.Phase == state.Cordoned && !e.Reopened:
		w.t.Errorf("%s is cordoned, and was to be drained", e.Event.ID)
	case met && e.Phase == state.Drained && e.Phase != before.Phase && (!w.node.Drained || !slices.Contains(w.told, e.Event.ID)):
		w.t.Errorf("%s is drained, and no guard has said so", e.Event.ID)
	case met && e.Phase == state.Drained && e.Phase != before.Phase && !e.Reopened && !w.cordoned && !w.refused && !w.ours:
		w.t.Errorf("%s is drained, and the node is open", e.Event.ID)
	}
	if underWay := e.Phase == state.Cordoning || e.Phase == state.Draining; underWay && (e.Phase != before.Phase || freed) {
		w.begun[e.Event.ID] = w.now
	}
	w.checkEnding(e, e.Ending)
}

// checkEnding looks that nothing is over by a reboot that the last good look since then has still found announced, but
// for what a reboot ends in any case.
func (w *world) checkEnding(e state.Entry, ending state.Ending) {
	ends := e.Event.Kind == event.Shutdown || e.Event.Code == "system-reboot" || e.Event.Code == "instance-reboot"
	if ending == state.Rebooted && w.attested[e.Event.ID] && !ends && w.record.byID[e.Event.ID].Phase != state.Closed {
		w.t.Errorf("%s is over by a reboot, since which it was found announced", e.Event.ID)
	}
}

func (w *world) listed(ev event.Event) bool {
	return slices.ContainsFunc(w.known[ev.Kind], func(k event.Event) bool { return k.ID == ev.ID })
}

// action is what is to be done for an event, by the rules of the tests.
func (w *world) action(ev event.Event) policy.Action {
	action := w.rules[ev.Kind].Action
	switch {
	case action == policy.Drain && ev.Code == "hibernate":
		return policy.Cordon
	case ev.Code == "system-maintenance" || ev.Code == "other":
		return policy.Notify
	}
	return action
}

// deadline is when an event's time is over, by the rules of the tests.
func (w *world) deadline(e state.Entry) time.Time {
	switch e.Event.Kind {
	case event.SpotInterruption:
		return earlier(e.Event.Deadline, e.FirstSeen.Add(2*time.Minute))
	case event.ASGTermination:
		return e.FirstSeen.Add(15 * time.Minute)
	}
	return e.Event.Deadline
}

// wants tells, without asking the policy, of an entry that certainly wants the node closed: it is announced and due, no
// cordon of it was lifted, and none has a time to live.
func (w *world) wants(e state.Entry) bool {
	action := w.action(e.Event)
	later := e.Event.Code == "system-reboot" || e.Event.Code == "instance-reboot" || e.Event.Code == "instance-retirement"
	limited := e.Event.Kind == event.RebalanceRecommendation && action == policy.Cordon
	return e.Phase != state.Closed && !e.Reopened && w.listed(e.Event) && e.Event.State == event.Pending && !later && !limited &&
		(action == policy.Cordon || action == policy.Drain)
}

func (w *world) checkGoal(goal policy.Goal) {
	if !goal.Revisit.IsZero() && !goal.Revisit.After(w.now) {
		w.t.Errorf("%s: to be decided again in the past", describeGoal(goal))
	}
	if goal.Action == policy.Drain || goal.Action == policy.Cordon {
		standing := slices.DeleteFunc(slices.Clone(goal.Events), func(id string) bool { return w.record.byID[id].Reopened })
		if first := append(standing, goal.Events...)[0]; first != goal.Event.ID {
			w.t.Errorf("%s: the first event is %s, and not %s", describeGoal(goal), goal.Event.ID, first)
		}
	}
	shuffled := w.situation()
	w.random.Shuffle(len(shuffled.Past), func(i, j int) { shuffled.Past[i], shuffled.Past[j] = shuffled.Past[j], shuffled.Past[i] })
	if other := w.rules.Decide(shuffled); !reflect.DeepEqual(other, goal) {
		w.t.Errorf("in another order, the goal is not %s but %s", describeGoal(goal), describeGoal(other))
	}
	for _, e := range w.record.entries() {
		switch wanted := slices.Contains(goal.Events, e.Event.ID); {
		case goal.Action == policy.Uncordon && wanted:
			if e.Event.ID == goal.Event.ID {
				w.checkEnding(e, goal.Ending)
			}
		case wanted:
			w.checkWanting(goal, e)
		case w.wants(e):
			w.t.Errorf("%s: %s (%s) wants the node closed", describeGoal(goal), e.Event.ID, e.Phase)
		}
	}
}

// checkWanting looks at an event for which the node is to be closed.
func (w *world) checkWanting(goal policy.Goal, e state.Entry) {
	dl := w.deadline(e)
	hard := e.Event.Kind != event.ScheduledMaintenance && e.Event.Kind != event.RebalanceRecommendation
	sameBoot := e.BootID == w.bootID()
	switch {
	case e.Phase == state.Closed || e.Event.State == event.Canceled || e.Event.State == event.Completed:
		w.t.Errorf("%s: %s is over", describeGoal(goal), e.Event.ID)
	case e.Reopened && e.Phase != state.Draining:
		w.t.Errorf("%s: someone uncordoned the node of %s (%s)", describeGoal(goal), e.Event.ID, e.Phase)
	case !e.Reopened && goal.Open, !e.Reopened && !goal.Reopened.IsZero() && w.action(e.Event) == policy.Drain && e.Phase == state.Draining:
		w.t.Errorf("%s: nobody has lifted the cordon of %s", describeGoal(goal), e.Event.ID)
	case !e.Acted() && w.mayBegin(e.Event, 0).After(w.now):
		w.t.Errorf("%s: %s is due at %s at the earliest", describeGoal(goal), e.Event.ID, w.mayBegin(e.Event, 0).Sub(noon))
	case w.known != nil && !w.unwatched[e.Event.Kind] && !w.listed(e.Event) && !(e.Acted() && sameBoot):
		w.t.Errorf("%s: %s (%s) is not announced", describeGoal(goal), e.Event.ID, e.Phase)
	case w.action(e.Event) != policy.Drain || e.Phase == state.Cordoned || e.Phase == state.Cordoning:
	case goal.Action != policy.Drain:
		w.t.Errorf("%s: %s is to be drained for", describeGoal(goal), e.Event.ID)
	case hard && !dl.IsZero() && (goal.Hard.IsZero() || dl.After(w.now) && goal.Hard.After(dl)):
		w.t.Errorf("%s: %s is lost at %s", describeGoal(goal), e.Event.ID, dl.Sub(noon))
	case !hard && !dl.IsZero() && (goal.Soft.IsZero() || goal.Soft.After(dl)):
		w.t.Errorf("%s: %s ends at %s", describeGoal(goal), e.Event.ID, dl.Sub(noon))
	}
}

// checkUncordon looks that no event is robbed of its cordon, and that there is something to take back.
func (w *world) checkUncordon(goal policy.Goal) {
	for _, e := range w.record.entries() {
		if w.wants(e) {
			w.t.Errorf("%s, while %s wants the node closed", describeGoal(goal), e.Event.ID)
		}
		if slices.Contains(goal.Events, e.Event.ID) && (!e.OnNode || e.Phase != state.Undoing) {
			w.t.Errorf("%s: %s has nothing on the node", describeGoal(goal), e.Event.ID)
		}
	}
}

// mayBegin is when something may be begun for an event by the rules of the tests, for the one of a fleet that has this share.
func (w *world) mayBegin(ev event.Event, share time.Duration) time.Time {
	rule := w.rules[ev.Kind]
	switch ev.Code {
	case "system-reboot", "instance-reboot":
		return ev.Deadline.Add(-rule.Lead - rule.Spread + share)
	case "instance-retirement":
		return ev.Deadline.Add(-max(rule.Window, rule.Lead+rule.Spread) + share)
	}
	return time.Time{}
}

// checkUndone looks that an order is not forgotten, and that none is made up.
func (w *world) checkUndone(e state.Entry) {
	before := w.record.byID[e.Event.ID]
	if e.Reopened && before.CordonedAt.IsZero() && !before.Reopened {
		w.t.Errorf("%s, for which no cordon was set, takes a lifted one for an order", e.Event.ID)
	}
	moved := w.mayBegin(e.Event, w.rules[e.Event.Kind].Spread).After(e.ActedFor)
	if before.Reopened && !e.Reopened && e.Phase != state.Closed && w.action(e.Event) == policy.Drain && w.listed(e.Event) && !moved {
		w.t.Errorf("%s forgets an order", e.Event.ID)
	}
}
