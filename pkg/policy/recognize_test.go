package policy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// amazon-ec2-metadata-mock computes the time of its notice anew at each look, so that each has another ID.
func TestRecognize_AMovingNoticeIsOneInterruption(t *testing.T) {
	t.Parallel()
	moving := func(now time.Duration) event.Event { return spot(fmt.Sprint("at-", now), now+2*time.Minute) }
	sit := policy.Situation{BootID: thisBoot}
	look := func(now time.Duration) []state.Entry {
		said := event.Snapshot{Kind: event.SpotInterruption, Events: []event.Event{moving(now)}}
		sit.Now, sit.Known = at(now), known(policy.Recognize(sit.Past, thisBoot, said)...)
		changed := twoMinutes().Fold(sit)
		sit = brought(t, twoMinutes(), sit)
		return changed
	}
	look(0)
	for now := 500 * time.Millisecond; now < 10*time.Second; now += 500 * time.Millisecond {
		if changed := look(now); len(changed) > 0 {
			t.Fatalf("at %s, the record is written: %s", now, describeEntries(changed))
		}
	}
	if got, want := describeGoal(twoMinutes().Decide(sit)), "drain at-0s by 2m0s hard; again at 2m0s"; got != want {
		t.Errorf("Decide: %s\n   want: %s", got, want)
	}
	sit.Node = emptyNode
	look(20 * time.Second)
	look(20 * time.Minute)
	if got, want := describeEntries(sit.Past), "at-0s drained on node"; got != want {
		t.Errorf("the record says %s, want %s", got, want)
	}
}

func TestRecognize_WhichNotices(t *testing.T) {
	t.Parallel()
	notice, advice := spot("a", 2*time.Minute), rebalance("r")
	advice.Noticed = noon
	newer := rebalance("r2")
	newer.Noticed = at(time.Minute)
	for _, row := range []struct {
		name string
		past []state.Entry
		said []event.Event
		want string
	}{
		{name: "a recommendation keeps its time", past: past(entry(advice, state.Seen)), said: []event.Event{newer}, want: "r noticed 0s"},
		{name: "what has been missing for a moment", past: past(entry(notice, state.Drained, missing(0))), said: []event.Event{spot("b", 3*time.Minute)}, want: "a 2m0s"},
		{name: "not what is in the record", past: past(entry(notice, state.Draining), entry(spot("b", 3*time.Minute), state.Seen)), said: []event.Event{spot("b", 3*time.Minute)}, want: "b 3m0s"},
		{name: "not what is closed in the record", past: past(entry(notice, state.Draining), entry(spot("b", 3*time.Minute), state.Closed)), said: []event.Event{spot("b", 3*time.Minute)}, want: "b 3m0s"},
		{name: "not what is closed", past: past(entry(notice, state.Closed, closed(state.Withdrawn))), said: []event.Event{spot("b", 3*time.Minute)}, want: "b 3m0s"},
		{
			name: "not what has an identity of its own", past: past(entry(maintenance("m", "instance-stop", time.Hour), state.Drained)),
			said: []event.Event{maintenance("n", "instance-stop", 2*time.Hour)}, want: "n 2h0m0s",
		},
		{name: "of two, one takes its place", past: past(entry(notice, state.Draining)), said: []event.Event{spot("b", 3*time.Minute), spot("c", 4*time.Minute)}, want: "a 2m0s, c 4m0s"},
		{
			name: "two take the places of two", past: past(entry(notice, state.Draining), entry(spot("b", 3*time.Minute), state.Draining)),
			said: []event.Event{spot("c", 4*time.Minute), spot("d", 5*time.Minute)}, want: "a 2m0s, b 3m0s",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			kind := event.SpotInterruption
			if len(row.said) > 0 {
				kind = row.said[0].Kind
			}
			said := describeEvents(row.said)
			got := describeEvents(policy.Recognize(row.past, thisBoot, event.Snapshot{Kind: kind, Events: row.said}))
			if got != row.want {
				t.Errorf("Recognize: %s, want %s", got, row.want)
			}
			if describeEvents(row.said) != said {
				t.Error("Recognize has changed what the source said")
			}
		})
	}
}

func describeEvents(events []event.Event) string {
	var all []string
	for _, ev := range events {
		text := ev.ID
		if !ev.Deadline.IsZero() {
			text += " " + ev.Deadline.Sub(noon).String()
		}
		if !ev.Noticed.IsZero() {
			text += " noticed " + ev.Noticed.Sub(noon).String()
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// What ended and is announced again is another event, with time of its own, unless a cordon for it has expired: it never ceased to be announced.
func TestRecognize_WhatIsNewAfterAnEnd(t *testing.T) {
	t.Parallel()
	cordoning := withAction(event.RebalanceRecommendation, policy.Cordon)
	undoing := []detail{listedHere, missing(-7 * time.Minute), seenAt(-20 * time.Minute), cordoned(-20 * time.Minute), begun(-6 * time.Minute)}
	expired := entry(rebalance("old"), state.Closed, closed(state.Expired), listedHere, seenAt(-time.Hour), begun(-time.Second))
	for name, row := range map[string]struct {
		rules    policy.Settings
		old      state.Entry
		vanishes bool // There is a look without it in between.
		said     event.Event
		want     string
	}{
		"a notice while the one before is undone":      {twoMinutes(), entry(spot("old", -8*time.Minute), state.Undoing, undoing...), false, spot("new", 2*time.Minute), "drain new by 2m0s hard; again at 2m0s"},
		"a termination while the one before is undone": {rules(), entry(termination("asg"), state.Undoing, undoing...), false, termination("asg"), "drain asg by 15m0s hard; again at 15m0s"},
		"a termination after one that was undone": {
			rules(), entry(termination("asg"), state.Closed, closed(state.Withdrawn), listedHere, seenAt(-20*time.Minute)), false, termination("asg"), "drain asg by 15m0s hard; again at 15m0s",
		},
		"not a recommendation that moves":       {cordoning, expired, false, rebalance("new"), "wait"},
		"a recommendation after an expired one": {cordoning, expired, true, rebalance("new"), "cordon new"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sit := policy.Situation{Now: noon, BootID: thisBoot, Up: time.Hour, Past: past(row.old)}
			if row.vanishes {
				sit.Known = known()
				sit = brought(t, row.rules, sit)
			}
			said := event.Snapshot{Kind: row.said.Kind, Events: []event.Event{row.said}}
			sit.Known = map[event.Kind][]event.Event{row.said.Kind: policy.Recognize(sit.Past, thisBoot, said)}
			if got := describeGoal(row.rules.Decide(brought(t, row.rules, sit))); got != row.want {
				t.Errorf("Decide: %s\n   want: %s", got, row.want)
			}
		})
	}
}
