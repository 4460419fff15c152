package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

func TestUndo_AWithdrawnEventWhenThatIsSure(t *testing.T) {
	t.Parallel()
	notice := spot("a", 10*time.Minute)
	gone := entry(notice, state.Drained, missing(0))
	draining := entry(notice, state.Draining, missing(0))
	decide(t, []decision{
		{name: "not before it has been missing long enough: the guard stands", known: known(), now: 29 * time.Second, past: past(gone), want: "drain a by 10m0s hard"},
		{
			name: "what is under way goes on also after its time", known: known(), now: time.Second,
			past: past(entry(notice, state.Incomplete, missing(0))), want: "drain a by 10m0s hard",
		},
		{
			name: "after a restart nothing is sure before the first look", now: time.Hour,
			past: past(gone), want: "drain a by 10m0s hard",
		},
		{
			name: "what was under way continues until then", now: time.Minute,
			past: past(draining), want: "drain a by 10m0s hard; again at 10m0s",
		},
		{
			name: "time that passes while looks fail proves nothing", known: known(), failing: failing(at(10 * time.Second)),
			now: time.Hour, past: past(gone), want: "drain a by 10m0s hard",
		},
		{
			name: "a clock that was set back makes it wait, and undoes nothing", known: known(), now: -time.Hour,
			past: past(gone), want: "drain a by 10m0s hard",
		},
	})
}

func TestUndo_NotWhileAnotherEventNeedsTheCordon(t *testing.T) {
	t.Parallel()
	canceled := inState(maintenance("a", "instance-stop", time.Hour), event.Canceled)
	over, notice := entry(canceled, state.Drained), spot("b", time.Hour)
	held := func(name, want string, now time.Duration, other state.Entry) decision {
		return decision{name: name, known: known(canceled, notice), now: now, past: past(over, other), want: want}
	}
	decide(t, []decision{
		held("one that is being drained", "drain b by 1h0m0s hard; again at 1h0m0s", 0, entry(notice, state.Draining)),
		{
			name: "one of before a reboot that is not looked for yet", known: without(event.ASGTermination, canceled), want: "wait",
			past: past(over, entry(termination("b"), state.Drained, before)),
		},
		{
			name: "none that has ended, too: all is undone at once", known: known(canceled), now: time.Minute, want: "uncordon b, a",
			past: past(over, entry(notice, state.Drained, missing(0))),
		},
		{
			name: "none that was only moved", known: known(canceled, maintenance("c", "system-reboot", 48*time.Hour)),
			past: past(over, entry(maintenance("c", "system-reboot", 48*time.Hour), state.Drained, actedAt(time.Minute))),
			want: "uncordon a, c; again at 47h50m0s",
		},
	})
}

func TestReboot_WhatItEnds(t *testing.T) {
	t.Parallel()
	reboot := maintenance("a", "instance-reboot", time.Hour)
	stop, notice := maintenance("a", "instance-stop", time.Hour), spot("a", 2*time.Minute)
	down := shutdown("a", 5*time.Second)
	drained := func(ev event.Event) []state.Entry { return past(entry(ev, state.Drained, before)) }
	decide(t, []decision{
		{name: "ends the reboot it was announced as", known: known(), past: drained(reboot), want: "uncordon a"},
		{name: "ends it although it is still listed", known: known(reboot), now: time.Hour, past: drained(reboot), want: "uncordon a"},
		{name: "ends it without the metadata service", failing: failing(time.Time{}), now: time.Hour, past: drained(reboot), want: "uncordon a"},
		{name: "ends nothing before the first look", now: time.Hour, past: drained(reboot), want: "wait"},
		{
			name: "keeps no cordon for what was over before", known: map[event.Kind][]event.Event{event.SpotInterruption: nil}, want: "uncordon a",
			past: past(entry(notice, state.Drained, before, missing(-time.Hour)), entry(maintenance("c", "instance-stop", time.Hour), state.Closed, before, closed(state.Withdrawn))),
		},
		{
			name: "is not the announced one before anything was done for that", known: known(reboot), now: 0,
			past: past(entry(reboot, state.Seen, before)), want: "wait; again at 50m0s",
		},
		{name: "ends every shutdown", known: known(), past: past(entry(down, state.Draining, before)), want: "uncordon a"},
		{name: "ends every shutdown without any look", past: drained(down), want: "uncordon a"},
		{name: "does not end a stop that is still listed", known: known(stop), now: 2 * time.Hour, past: drained(stop), want: "drain a by 1h0m0s soft"},
		{name: "ends a stop that the first look does not find", known: known(), now: 2 * time.Hour, past: drained(stop), want: "uncordon a"},
		{name: "ends no stop before the document has been looked at", now: 2 * time.Hour, past: drained(stop), want: "wait"},
		{
			name: "leaves what has no time to its document", rules: withAction(event.RebalanceRecommendation, policy.Drain),
			known: known(rebalance("a")), past: drained(rebalance("a")), want: "drain a",
		},
		{
			name: "leaves what has no time to its document, also where it is listed no more", rules: withAction(event.RebalanceRecommendation, policy.Drain),
			known: known(), past: drained(rebalance("a")), want: "wait",
		},
		{
			name: "leaves a drain to be resumed before its deadline", now: time.Minute,
			past: past(entry(notice, state.Draining, before)), want: "drain a by 2m0s hard; again at 2m0s",
		},
		{
			name: "of what is no longer listed resumes nothing", known: known(), now: time.Minute, want: "wait; again at 2m0s",
			past: past(entry(notice, state.Draining, before, missing(50*time.Second))),
		},
	})
}

func TestRestart_WhatItContinues(t *testing.T) {
	t.Parallel()
	notice, reboot := spot("a", 2*time.Minute), maintenance("b", "system-reboot", time.Hour)
	decide(t, []decision{
		{name: "does not uncordon", past: past(entry(notice, state.Cordoned), entry(reboot, state.Drained)), want: "drain a, b by 2m0s hard by 1h0m0s soft; again at 2m0s"},
		{name: "waits for a look when the time of an event comes", now: 50 * time.Minute, past: past(entry(reboot, state.Seen)), want: "wait"},
		{name: "keeps what a claim on the node alone tells of, and begins no more for it", past: past(entry(notice, state.Cordoned, adopted)), want: "cordon a"},
		{
			name: "keeps what a claim tells of that does not say the code", want: "cordon a",
			past: past(entry(event.Event{ID: "a", Kind: event.ScheduledMaintenance}, state.Cordoned, adopted)),
		},
	})
}
