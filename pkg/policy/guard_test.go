package policy_test

import (
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/policy"
)

// The world's guard and agent, perfect or not, under the rules of pkg/drain and pkg/agent.

// rest brings the record up to date and pursues the goal until there is nothing to do for now.
func (w *world) rest() {
	for range 60 {
		w.fold()
		goal := w.rules.Decide(w.situation())
		w.checkGoal(goal)
		if w.t.Failed() || !w.pursue(goal) {
			return
		}
	}
	w.t.Errorf("there is no end to it")
}

// fold brings the record up to date: first with what is announced, then with what the guard has told, if the goal is still
// the one that it has told of. Where the goal is another one, it is not known yet what the node is under that.
func (w *world) fold() {
	for range 3 {
		node, looked := w.node, w.looked
		w.node, w.trouble, w.looked = policy.Node{}, "", nil
		w.foldOn()
		goal := w.rules.Decide(w.situation())
		other := goal.Action != w.goal.Action || !slices.Equal(goal.Events, w.goal.Events)
		if w.goal = goal; other {
			w.empty = w.now.Add(time.Duration(w.random.IntN(30)) * time.Minute)
			w.note("%s", describeGoal(goal))
			return
		}
		w.node, w.told, w.looked = node, goal.Events, looked
		if node.Closed || node.Drained { // It has been looked at.
			w.looked = goal.Events
		}
		if !w.foldOn() {
			return
		}
	}
	w.t.Errorf("the record does not come to rest")
}

// foldOn folds until nothing changes, and tells whether anything did.
func (w *world) foldOn() bool {
	w.checkFold()
	for rounds := 0; ; rounds++ {
		changed := w.rules.Fold(w.situation())
		if len(changed) == 0 || rounds > 6 {
			return rounds > 0
		}
		for _, e := range changed {
			w.checkChange(e)
		}
		w.record.put(changed...)
	}
}

// pursue does the next thing for a goal, and tells whether it did any.
func (w *world) pursue(goal policy.Goal) bool {
	if !w.calm && w.chance(3) {
		w.restart() // killed before
		return true
	}
	switch goal.Action {
	case policy.Drain, policy.Cordon:
		before := w.node
		w.guard(goal)
		return w.node != before
	case policy.Uncordon:
		w.uncordon(goal)
		return true
	case policy.Wait, policy.Ignore, policy.Notify:
	}
	return false
}

// guard closes the node and tells of it. A cordon that is gone, where the claim of it is not, was lifted by somebody; that
// is an order if it was for all that the node was not closed for yet.
func (w *world) guard(goal policy.Goal) {
	named := func(id string) bool { return slices.Contains(w.claims, id) && !slices.Contains(goal.Anew, id) }
	lifted := w.ours && !w.cordoned && !slices.ContainsFunc(goal.Unclosed, func(id string) bool { return !named(id) })
	switch {
	case goal.Open || w.cordoned:
	case lifted:
		w.note("the cordon was lifted for %v", goal.Events)
		for _, id := range goal.Events {
			e := w.record.byID[id]
			e.Reopened = true
			w.record.put(e)
		}
		w.node.Closed = false
		w.trouble = "lifted"
		return
	case w.refused:
		w.trouble = "refused"
	default:
		w.cordoned, w.ours, w.claim, w.claims, w.claimed, w.claimBoot = true, true, goal.Event, goal.Events, w.now, w.bootID()
	}
	w.node.Closed, w.node.Ours = w.cordoned, w.ours
	if w.cordoned {
		w.trouble = ""
	}
	open := w.trouble != "" || goal.Open
	if goal.Action == policy.Drain && (w.cordoned || open) && !w.now.Before(w.empty) && !w.limited {
		w.node.Drained = true
	}
}

// uncordon takes back what is ours, and tells the record. Meanwhile an event may come.
func (w *world) uncordon(goal policy.Goal) {
	if !w.calm && w.chance(20) {
		for _, id := range goal.Events {
			e := w.record.byID[id]
			e.Error, e.Failures, e.Changed = "refused", e.Failures+1, w.now
			w.record.put(e)
		}
		w.note("could not be taken back")
		return
	}
	w.checkUncordon(goal)
	overruled := !w.ours || !w.cordoned
	if w.ours {
		w.cordoned, w.ours = false, false
	}
	if !w.calm && w.chance(10) {
		w.restart() // killed after
		return
	}
	if !w.calm && w.chance(20) {
		w.announce()
		w.poll()
		w.fold()
	}
	changed := w.rules.Undone(w.situation(), overruled)
	w.note("taken back, overruled %t: %s", overruled, describeEntries(changed))
	for _, e := range changed {
		w.checkUndone(e)
	}
	w.record.put(changed...)
}
