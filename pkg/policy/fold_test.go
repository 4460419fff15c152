package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

func TestFold_WhatTheRecordShouldSay(t *testing.T) {
	t.Parallel()
	notice, stop := spot("a", 10*time.Minute), maintenance("b", "instance-stop", time.Hour)
	canceled, completed := inState(stop, event.Canceled), inState(stop, event.Completed)
	moved := maintenance("c", "system-reboot", 48*time.Hour)
	for _, row := range []decision{
		{
			name: "a code that is to be ignored is not met", known: known(stop), want: "",
			rules: with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Codes["instance-stop"] = policy.Never }),
		},
		{name: "what is known stays as it is", known: known(notice), past: past(entry(notice, state.Drained)), want: ""},
		{
			name: "a new time is taken over", known: known(spot("a", 6*time.Minute)),
			past: past(entry(notice, state.Draining)), want: "a draining on node",
		},
		{
			name: "a new time that is over already is taken over", known: known(spot("a", time.Minute)),
			past: past(entry(notice, state.Draining)), want: "a incomplete on node",
		},
		{name: "nothing is missing whose document has not been looked at", past: past(entry(notice, state.Drained)), want: ""},
		{name: "what is missing stays missing since the first time", known: known(), past: past(entry(notice, state.Drained, missing(5*time.Minute-1))), want: ""},
		{
			name: "it is missing since now, if that time is in the future", known: known(),
			past: past(entry(notice, state.Drained, missing(time.Hour))), want: "a drained missing since 5m0s on node",
		},
		{name: "what is back is not missing", known: known(notice), past: past(entry(notice, state.Drained, missing(0))), want: "a drained on node"},
		{name: "what is completed is closed", known: known(completed), past: past(entry(stop, state.Seen)), want: "b closed completed"},
		{
			name: "what is canceled is closed at once if another event holds the node", known: known(canceled, notice),
			past: past(entry(stop, state.Drained), entry(notice, state.Drained)), want: "b closed canceled",
		},
		{
			name: "what was withdrawn and is back is met anew", known: known(notice),
			past: past(entry(notice, state.Closed, closed(state.Withdrawn), missing(0))), want: "a seen",
		},
		{
			name: "what expired as a cordon is met again if it is to be drained for now", known: known(rebalance("a")),
			rules: withAction(event.RebalanceRecommendation, policy.Drain),
			past:  past(entry(rebalance("a"), state.Closed, closed(state.Expired))), want: "a seen",
		},
		{
			name: "what ends and is announced again has its old time while it is to be ignored", known: known(notice),
			rules: withAction(event.SpotInterruption, policy.Ignore),
			past:  past(entry(notice, state.Undoing)), want: "",
		},
		{
			name: "what was moved far begins again if nothing is on the node", known: known(moved),
			past: past(entry(moved, state.Drained, actedAt(0), foreign)), want: "c seen",
		},
		{
			name: "what was moved far begins again if another event holds the node", known: known(moved, notice),
			past: past(entry(moved, state.Drained, actedAt(0)), entry(notice, state.Drained)), want: "c seen",
		},
		{
			name: "a time that two clocks tell differently is the same time", known: known(spot("a", 10*time.Minute+time.Second)),
			past: past(entry(notice, state.Drained)), want: "",
		},
		{
			name: "what is expired and listed no more may come again", known: known(), rules: withAction(event.RebalanceRecommendation, policy.Cordon),
			past: past(entry(rebalance("r"), state.Closed, closed(state.Expired))), want: "r closed withdrawn",
		},
		{
			name: "a reboot was not for what nothing was done for, though its time is over", known: known(),
			past: past(entry(spot("a", time.Minute), state.Seen, before)), want: "a seen missing since 5m0s",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			row.now = 5 * time.Minute
			if got := describeEntries(row.settings().Fold(row.situation())); got != row.want {
				t.Errorf("Fold: %s\n want: %s", got, row.want)
			}
		})
	}
}

// What is noted when the node is about to be acted upon tells later whether the event was moved, and whether there was a Node.
func TestFold_WhenTheWorkBegan(t *testing.T) {
	t.Parallel()
	notice, reboot := spot("a", time.Hour), maintenance("b", "system-reboot", time.Hour)
	for name, row := range map[string]struct {
		from     state.Entry
		cordoned time.Time
	}{
		"one that is due at once":                 {entry(notice, state.Seen), time.Time{}},
		"one with a lead":                         {entry(reboot, state.Seen), time.Time{}},
		"a cordon of this boot stays what it was": {entry(notice, state.Undoing), noon},
		"one of an earlier boot, too":             {entry(notice, state.Undoing, before), noon},
	} {
		sit := policy.Situation{Now: at(55 * time.Minute), BootID: thisBoot, Known: known(row.from.Event), Past: past(row.from)}
		changed := rules().Fold(sit)
		if len(changed) != 1 {
			t.Fatalf("%s: Fold makes %s", name, describeEntries(changed))
		}
		e := changed[0]
		if e.Phase != state.Draining || !e.OnNode || e.BootID != thisBoot || !e.ActedAt.Equal(at(55*time.Minute)) || !e.CordonedAt.Equal(row.cordoned) {
			t.Errorf("%s: it is %+v", name, e)
		}
	}
}

func TestFold_OnePhaseAtATime(t *testing.T) {
	t.Parallel()
	notice, hibernate := spot("a", 2*time.Minute), hibernation("a", 2*time.Minute)
	late := entry(notice, state.Draining, begun(10*time.Minute))
	for name, row := range map[string]struct {
		now  time.Duration
		node policy.Node
		from state.Entry
		want string
	}{
		"it is drained when the guard says so":         {0, emptyNode, entry(notice, state.Draining), "a drained on node"},
		"also after its time":                          {3 * time.Minute, emptyNode, entry(notice, state.Incomplete), "a drained on node"},
		"its time is not over a moment sooner":         {2*time.Minute - 1, closedNode, entry(notice, state.Draining), ""},
		"its time is over":                             {2 * time.Minute, closedNode, entry(notice, state.Draining), "a incomplete on node"},
		"what was begun too late has half a minute":    {10*time.Minute + 30*time.Second - 1, closedNode, late, ""},
		"a cordon is on its way":                       {0, policy.Node{}, entry(hibernate, state.Seen), "a cordoning on node"},
		"it is set when the guard says so":             {0, closedNode, entry(hibernate, state.Cordoning), "a cordoned on node"},
		"a guard that reports nothing changes nothing": {0, policy.Node{}, entry(hibernate, state.Cordoned), ""},
	} {
		d := decision{now: row.now, known: known(row.from.Event), past: past(row.from), node: row.node}
		if got := describeEntries(rules().Fold(d.situation())); got != row.want {
			t.Errorf("%s: Fold: %s\n want: %s", name, got, row.want)
		}
	}
}

// A moving notice is taken over at each look, and must not be written at each.
func TestSameNews_BookkeepingIsNone(t *testing.T) {
	t.Parallel()
	e := entry(spot("a", time.Minute), state.Draining)
	same := func(change func(*state.Entry)) bool {
		other := e
		change(&other)
		return policy.SameNews(e, other)
	}
	if !same(func(e *state.Entry) { e.OnNode, e.CordonedAt, e.Ending = false, at(time.Hour), state.Withdrawn }) {
		t.Error("what is on the node, or has become of an event that is over, is news")
	}
	if !same(func(e *state.Entry) { e.Event.Deadline = e.Event.Deadline.In(time.FixedZone("elsewhere", 3600)) }) {
		t.Error("a time in another zone is news")
	}
	if same(func(e *state.Entry) { e.Phase = state.Drained }) || same(func(e *state.Entry) { e.Missing = noon }) ||
		same(func(e *state.Entry) { e.Event.Deadline = noon }) {
		t.Error("what those who follow an event wait for is no news")
	}
}

// amazon-ec2-metadata-mock computes the time of its notice again at each look.
func TestFold_ATimeThatMovesAwayIsNoNews(t *testing.T) {
	t.Parallel()
	sit := policy.Situation{Now: noon, BootID: thisBoot, Past: past(entry(spot("a", 2*time.Minute), state.Drained))}
	for look, want := range map[time.Duration]string{3 * time.Minute: "", time.Minute: "a drained on node"} {
		sit.Known = known(spot("a", look))
		if got := describeEntries(twoMinutes().Fold(sit)); got != want {
			t.Errorf("announced for %s: Fold: %s, want %s", look, got, want)
		}
	}
}
