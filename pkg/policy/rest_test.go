package policy_test

import (
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// checkRest compares the node with the record and with what is announced, once nth has come to rest.
func (w *world) checkRest() {
	holders := 0
	for _, e := range w.record.entries() {
		if e.OnNode {
			holders++
		}
		if e.OnNode && !e.Acted() {
			w.t.Errorf("%s is %s and has something on the node", e.Event.ID, e.Phase)
		}
		w.checkSettled(e)
	}
	if w.cordoned && w.ours && holders == 0 {
		w.t.Errorf("the node bears a cordon of ours that nobody takes back")
	}
}

// checkSettled looks that an event is settled by its own time, whatever else is due.
func (w *world) checkSettled(e state.Entry) {
	end, listed := w.deadline(e), w.listed(e.Event)
	if began, ok := w.begun[e.Event.ID]; ok && !began.Before(end) {
		end = began.Add(30 * time.Second)
	}
	if again := w.up.Add(30 * time.Second); e.Phase == state.Drained && end.Before(again) {
		end = again // By then it would have been found drained again.
	}
	settled := w.rules.Settled(w.situation(), e.Event)
	if listed && settled == "" && !w.deadline(e).IsZero() && !w.now.Before(end) {
		w.t.Errorf("%s (%s) is not settled at its time", e.Event.ID, e.Phase)
	}
	if settled != "" && e.Phase == state.Seen && w.wants(e) {
		w.t.Errorf("%s is settled, and nothing was done", e.Event.ID)
	}
	if looked := slices.Contains(w.looked, e.Event.ID); listed && looked && w.goal.Action == policy.Drain && e.LeftAlone != w.limited &&
		(e.LeftAlone || e.Phase == state.Drained || e.UnderWay()) && e.Phase != state.Cordoning {
		w.t.Errorf("%s (%s) is left alone: %t, by people's word: %t", e.Event.ID, e.Phase, e.LeftAlone, w.limited)
	}
}

// finish withdraws everything and lets time pass: nothing may be left.
func (w *world) finish() {
	w.truth, w.reachable, w.refused, w.calm = nil, true, false, true
	for range 4 {
		w.poll()
		w.rest()
		w.now = w.now.Add(2 * time.Hour)
	}
	for _, e := range w.record.entries() {
		if e.Phase != state.Closed || e.OnNode || e.Ending == "" {
			w.t.Errorf("in the end: %s", describeEntries([]state.Entry{e}))
		}
	}
	if w.cordoned && w.ours {
		w.t.Error("in the end, the node bears our cordon")
	}
	if goal := w.rules.Decide(w.situation()); goal.Action != policy.Wait || !goal.Revisit.IsZero() {
		w.t.Errorf("in the end there is still %s", describeGoal(goal))
	}
}
