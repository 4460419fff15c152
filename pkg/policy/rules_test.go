package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

func unwatched(kinds ...event.Kind) map[event.Kind]bool {
	all := map[event.Kind]bool{}
	for _, kind := range kinds {
		all[kind] = true
	}
	return all
}

// without is what is known if nobody looks for a kind.
func without(kind event.Kind, events ...event.Event) map[event.Kind][]event.Event {
	all := known(events...)
	delete(all, kind)
	return all
}

// A setting that is changed must not leave anything on the node for ever.
func TestRules_ThatChange(t *testing.T) {
	t.Parallel()
	advice, stop := rebalance("a"), maintenance("a", "instance-stop", time.Hour)
	as := func(action policy.Action) policy.Settings { return withAction(event.RebalanceRecommendation, action) }
	decide(t, []decision{
		{name: "cordon to notify", rules: as(policy.Notify), known: known(advice), past: past(entry(advice, state.Cordoned)), want: "uncordon a ()"},
		{name: "a code that is ignored now", rules: with(stop.Kind, func(r *policy.Rule) { r.Codes[stop.Code] = policy.Never }), known: known(stop), past: past(entry(stop, state.Drained)), want: "uncordon a (ignored)"},
		{name: "a code that is only told now", rules: with(stop.Kind, func(r *policy.Rule) { r.Codes[stop.Code] = policy.OnlyNotify }), known: known(stop), past: past(entry(stop, state.Drained)), want: "uncordon a ()"},
		{name: "drain to cordon", rules: as(policy.Cordon), known: known(advice), past: past(entry(advice, state.Drained)), want: "cordon a"},
		{name: "drain to cordon, on the way", rules: as(policy.Cordon), known: known(advice), past: past(entry(advice, state.Draining)), want: "cordon a"},
		{
			name: "drain to cordon, longer ago than cordons last", rules: as(policy.Cordon), known: known(advice), now: 2 * time.Hour, node: closedNode,
			past: past(entry(advice, state.Drained)), want: "uncordon a (expired)",
		},
		{name: "drain to notify", rules: as(policy.Notify), known: known(advice), past: past(entry(advice, state.Draining)), want: "uncordon a ()"},
		{name: "ignore to drain", rules: as(policy.Drain), known: known(advice), past: past(entry(advice, state.Closed, closed(state.Ignored))), want: "drain a"},
	})
}

// What stays for ever must not be what another event waits for.
func TestRules_WhatIsIgnoredHoldsNothing(t *testing.T) {
	t.Parallel()
	reboot, advice := maintenance("a", "system-reboot", time.Hour), rebalance("b")
	claim := entry(event.Event{ID: "b", Kind: event.StateChange}, state.Cordoned, adopted, before)
	over := entry(reboot, state.Drained, before)
	decide(t, []decision{
		{
			name: "an ignored kind", rules: withAction(advice.Kind, policy.Ignore), known: without(advice.Kind), unwatched: unwatched(advice.Kind),
			past: past(over, entry(advice, state.Cordoned)), want: "uncordon a, b (rebooted) when ready",
		},
		{
			name: "a kind that only notifies", rules: withAction(advice.Kind, policy.Notify), known: known(advice),
			past: past(over, entry(advice, state.Cordoned)), want: "uncordon a, b (rebooted) when ready",
		},
		{name: "a claim of a kind without a rule, alone", past: past(claim), want: "uncordon b (ignored) when ready"},
		{
			name: "a kind that nobody looks for, when its time is over", known: without(event.SpotInterruption), now: 10 * time.Minute,
			unwatched: unwatched(event.SpotInterruption), past: past(over, entry(spot("b", time.Hour), state.Drained, missing(0))),
			want: "uncordon b, a (withdrawn) when ready",
		},
	})
}

func TestRules_WhatNobodyLooksForEndsInTime(t *testing.T) {
	t.Parallel()
	notice, down, stop := spot("a", 2*time.Hour), shutdown("a", 2*time.Hour), maintenance("a", "instance-stop", 2*time.Hour)
	of := func(name string, ev event.Event, now time.Duration, want string, details ...detail) decision {
		return decision{
			name: name, known: without(ev.Kind), unwatched: unwatched(ev.Kind), now: now, want: want,
			past: past(entry(ev, state.Drained, append(details, missing(0))...)),
		}
	}
	decide(t, []decision{
		of("a notice not at once", notice, 10*time.Minute-1, "drain a by 2h0m0s hard; again at 10m0s"),
		of("a shutdown after ten minutes", down, 10*time.Minute, "uncordon a (withdrawn) when ready"),
		of("maintenance no longer than its hour", stop, time.Hour, "uncordon a (withdrawn)"),
		{
			name: "nothing is begun for it", known: without(notice.Kind), unwatched: unwatched(notice.Kind),
			past: past(entry(notice, state.Seen)), want: "wait; again at 10m0s",
		},
		{
			name: "what is under way goes on until then", known: without(notice.Kind), unwatched: unwatched(notice.Kind),
			past: past(entry(notice, state.Draining)), want: "drain a by 2h0m0s hard; again at 10m0s",
		},
	})
}
