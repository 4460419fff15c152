package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// An uncordon by an operator counts for all events that wanted the node closed then, and for no other.
func TestReopened_IsRespected(t *testing.T) {
	t.Parallel()
	stop, notice := maintenance("a", "instance-stop", time.Hour), spot("n", 2*time.Minute)
	cordoning := withAction(event.RebalanceRecommendation, policy.Cordon)
	open := policy.Node{Drained: true}
	decide(t, []decision{
		{
			name: "a new event closes the node again", known: known(stop, notice),
			past: past(entry(stop, state.Draining, reopened), entry(notice, state.Seen)),
			want: "drain n, a by 2m0s hard by 1h0m0s soft; again at 2m0s",
		},
		{
			name: "a new event does not drain again for one that is drained", known: known(stop, notice),
			past: past(entry(stop, state.Drained, reopened), entry(notice, state.Seen)), want: "drain n by 2m0s hard; again at 2m0s",
		},
		{
			name: "a new one that is cordoned for does so too, and has no pods go that came since", known: known(stop, rebalance("r")), rules: cordoning,
			past: past(entry(stop, state.Draining, reopened, cordoned(time.Minute)), entry(rebalance("r"), state.Seen)), now: 2 * time.Minute,
			want: "drain a, r (first r) by 1h0m0s soft of what was there at 1m0s; again at 1h0m0s",
		},
		{
			name: "the API server's clock says when the cordon was set", known: known(stop, rebalance("r")), rules: cordoning,
			past: past(entry(stop, state.Draining, reopened, stamped(-time.Hour)), entry(rebalance("r"), state.Seen)),
			want: "drain a, r (first r) by 1h0m0s soft of what was there at -1h0m0s; again at 1h0m0s",
		},
		{
			name: "during a drain, the cordon of an event that is over is lifted", known: known(stop, inState(notice, event.Canceled)),
			past: past(entry(stop, state.Draining, reopened), entry(notice, state.Undoing)), want: "uncordon n; again at 1h0m0s",
		},
		{
			name: "what is drained meanwhile holds nothing up", known: known(stop, inState(notice, event.Canceled)), node: open,
			past: past(entry(stop, state.Draining, reopened), entry(notice, state.Drained)), want: "uncordon n, a",
		},
		{
			name: "after it came back it is met like a new one", known: known(stop),
			past: past(entry(stop, state.Closed, closed(state.Withdrawn), reopened)), want: "drain a by 1h0m0s soft; again at 1h0m0s",
		},
		{
			name: "a cordon that was lifted before it was seen has no age", known: known(rebalance("a")), rules: cordoning,
			past: past(entry(rebalance("a"), state.Cordoning, reopened, uncordoned)), want: "uncordon a",
		},
	})
}

func TestReopened_LastsAfterAnEarlyReboot(t *testing.T) {
	t.Parallel()
	reboot := maintenance("a", "system-reboot", time.Hour)
	sit := policy.Situation{Now: noon, BootID: thisBoot, Known: known(reboot), Past: past(entry(reboot, state.Cordoned, before, reopened))}
	sit = brought(t, rules(), sit)
	sit.Now = at(50 * time.Minute)
	if e := brought(t, rules(), sit).Past[0]; e.Phase != state.Cordoned || !e.Released() {
		t.Errorf("at its lead, the event is %s (%s)", e.Phase, e.Ending)
	}
}

func TestRelease_ForWhatTheNodeWasClosedFor(t *testing.T) {
	t.Parallel()
	stop, notice := maintenance("a", "instance-stop", time.Hour), spot("n", time.Hour)
	for name, row := range map[string]struct {
		past  []state.Entry
		claim string // the IDs in it
		want  string
	}{
		"what was cordoned, and no other":                    {past(entry(stop, state.Drained), entry(notice, state.Draining, uncordoned)), "a", "a drained on node reopened"},
		"what the claim names before the cordon is seen":     {past(entry(notice, state.Draining, uncordoned)), "n", "n draining on node reopened"},
		"not by a claim of before an uncordon":               {past(entry(stop, state.Drained, reopened), entry(notice, state.Draining, uncordoned)), "n", ""},
		"not by a claim of before a cordon that is recorded": {past(entry(stop, state.Drained), entry(notice, state.Draining, uncordoned)), "n", "a drained on node reopened"},
		"once":                            {past(entry(stop, state.Drained, reopened)), "", ""},
		"nothing that was only announced": {past(entry(notice, state.Seen)), "n", ""},
	} {
		sit := policy.Situation{Now: at(time.Minute), BootID: thisBoot, Past: row.past}
		changed := policy.Release(sit, func(id string) bool { return strings.Contains(row.claim, id) }, time.Time{})
		if got := describeEntries(changed); got != row.want {
			t.Errorf("%s: Release: %s\n want: %s", name, got, row.want)
		}
		for _, e := range changed {
			if !e.ReleasedAt.Equal(at(time.Minute)) {
				t.Errorf("%s: released at %s", name, e.ReleasedAt)
			}
		}
	}
}

// undone is what the record says after everything was taken back, and was folded on.
func undone(t *testing.T, d decision, overruled bool) policy.Situation {
	t.Helper()
	sit, book := d.situation(), newBook(d.past)
	book.put(d.settings().Undone(sit, overruled)...)
	sit.Past = book.entries()
	for _, e := range sit.Past {
		if e.OnNode && !e.UnderWay() {
			t.Errorf("after all was taken back: %s", describeEntries(past(e)))
		}
	}
	return brought(t, d.settings(), sit)
}

func TestUndone_WhatTheRecordSays(t *testing.T) {
	t.Parallel()
	stop, notice := maintenance("a", "instance-stop", time.Hour), spot("n", 2*time.Minute)
	canceled, hibernate := inState(stop, event.Canceled), hibernation("h", time.Hour)
	reboot := maintenance("a", "system-reboot", 48*time.Hour)
	over := entry(canceled, state.Undoing, failed(0))
	for _, row := range []struct {
		decision
		overruled bool
	}{
		{decision: decision{name: "what came back meanwhile is done again", known: known(stop), past: past(entry(stop, state.Draining)), want: "a draining on node"}},
		{
			overruled: true,
			decision:  decision{name: "unless somebody else had lifted it", known: known(stop), past: past(entry(stop, state.Drained)), want: "a drained reopened"},
		},
		{
			overruled: true,
			decision:  decision{name: "which holds also for what is being undone", known: known(stop), past: past(entry(stop, state.Undoing)), want: "a cordoned reopened"},
		},
		{
			overruled: true,
			decision:  decision{name: "an operator's uncordon holds for what only cordons", known: known(hibernate), past: past(entry(hibernate, state.Undoing)), want: "h cordoned reopened"},
		},
		{
			overruled: true,
			decision: decision{
				name: "and for what has moved to later", known: known(reboot), past: past(entry(reboot, state.Undoing, actedAt(time.Minute))),
				want: "a seen reopened",
			},
		},
		{
			overruled: true,
			decision: decision{
				name: "not for an event that the node was not closed for yet", known: known(canceled, notice),
				past: past(over, entry(notice, state.Draining, uncordoned)), want: "a closed canceled, n draining on node",
			},
		},
		{
			decision: decision{
				name: "an order that was given before stays one", known: known(canceled, notice),
				past: past(over, entry(notice, state.Drained, reopened)), want: "a closed canceled, n drained reopened",
			},
		},
		{
			decision: decision{
				name: "an operator's uncordon of before stays for one that is still drained for", known: known(canceled, notice), node: policy.Node{},
				past: past(over, entry(notice, state.Draining, reopened)), want: "a closed canceled, n draining reopened",
			},
		},
		{decision: decision{name: "what may be over begins anew if it is back", known: known(), past: past(over, entry(notice, state.Drained, before, missing(0))), want: "a closed canceled, n seen missing since 0s"}},
		{decision: decision{name: "what the last look did not find after a reboot is over", known: known(), now: 2 * time.Hour, past: past(entry(stop, state.Undoing, before)), want: "a closed rebooted"}},
		{decision: decision{name: "what has nothing on the node is not touched", known: known(stop), past: past(entry(stop, state.Drained, foreign)), want: "a drained"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if got := describeEntries(undone(t, row.decision, row.overruled).Past); got != row.want {
				t.Errorf("Undone: %s\n   want: %s", got, row.want)
			}
		})
	}
}
