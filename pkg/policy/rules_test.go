package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

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
		{name: "cordon to notify", rules: as(policy.Notify), known: known(advice), past: past(entry(advice, state.Cordoned)), want: "uncordon a"},
		{name: "a code that is ignored now", rules: with(stop.Kind, func(r *policy.Rule) { r.Codes[stop.Code] = policy.Never }), known: known(stop), past: past(entry(stop, state.Drained)), want: "uncordon a"},
		{name: "a code that is only told now", rules: with(stop.Kind, func(r *policy.Rule) { r.Codes[stop.Code] = policy.OnlyNotify }), known: known(stop), past: past(entry(stop, state.Drained)), want: "uncordon a"},
		{name: "drain to cordon", rules: as(policy.Cordon), known: known(advice), past: past(entry(advice, state.Drained)), want: "cordon a"},
		{name: "drain to cordon, on the way", rules: as(policy.Cordon), known: known(advice), past: past(entry(advice, state.Draining)), want: "cordon a"},
		{
			name: "drain to cordon, longer ago than cordons last", rules: as(policy.Cordon), known: known(advice), now: 2 * time.Hour, node: closedNode,
			past: past(entry(advice, state.Drained)), want: "uncordon a",
		},
		{name: "drain to notify", rules: as(policy.Notify), known: known(advice), past: past(entry(advice, state.Draining)), want: "uncordon a"},
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
			name: "an ignored kind", rules: withAction(advice.Kind, policy.Ignore), known: without(advice.Kind),
			past: past(over, entry(advice, state.Cordoned)), want: "uncordon a, b",
		},
		{
			name: "a kind that only notifies", rules: withAction(advice.Kind, policy.Notify), known: known(advice),
			past: past(over, entry(advice, state.Cordoned)), want: "uncordon a, b",
		},
		{name: "a claim of a kind without a rule, alone", past: past(claim), want: "uncordon b"},
	})
}
