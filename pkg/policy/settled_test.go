package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

func TestSettled_Outcomes(t *testing.T) {
	t.Parallel()
	ev := termination("a")
	cordons := withAction(event.ASGTermination, policy.Cordon)
	for _, row := range []struct {
		name  string
		rules policy.Settings // nil: the defaults
		now   time.Duration
		event event.Event // zero: the termination
		past  []state.Entry
		look  string // what a look at the Node has shown since the event came: "free", "limited", or "" for none
		want  event.Outcome
	}{
		{name: "it was drained for", past: past(entry(ev, state.Drained)), want: event.Drained},
		{name: "operators limit it before anything is begun", past: past(entry(ev, state.Seen)), look: "limited", want: event.LeftAlone},
		{name: "operators limit it when it is drained", past: past(entry(ev, state.Drained)), look: "limited", want: event.LeftAlone},
		{name: "operators limit it when its time is over", past: past(entry(ev, state.Draining)), look: "limited", now: time.Hour, want: event.LeftAlone},
		{name: "operators limit it no longer, after its time", past: past(entry(ev, state.Draining, leftAlone)), look: "free", now: time.Hour, want: ""},
		{name: "operators limit it no longer, and it had been out of time", past: past(entry(ev, state.Incomplete, leftAlone)), look: "free", now: time.Hour, want: ""},
		{name: "operators limit it, and no more than a cordon is wanted", rules: cordons, past: past(entry(ev, state.Draining, leftAlone)), look: "limited", want: ""},
		{name: "operators limit it, and it is nobody's business any more", rules: withAction(event.ASGTermination, policy.Notify), past: past(entry(ev, state.Draining, leftAlone)), look: "limited", want: event.NoDrain},
		{name: "its time was too short", past: past(entry(ev, state.Incomplete)), want: event.OutOfTime},
		{name: "the node was cordoned, and it is to be drained", past: past(entry(ev, state.Cordoned)), want: ""},
		{name: "the node was cordoned, as it should be", rules: cordons, past: past(entry(ev, state.Cordoned)), want: event.NoDrain},
		{name: "it was over before it was met", event: inState(maintenance("m", "system-reboot", 0), event.Canceled), want: event.Drained},
		{name: "that is over, too", now: time.Hour + 30*time.Second, past: past(entry(ev, state.Draining, begun(time.Hour))), want: event.OutOfTime},
		{name: "it is to be cordoned, and the node cannot be for longer than its time", rules: cordons, now: 15 * time.Minute, past: past(entry(ev, state.Cordoning)), want: event.NoDrain},
		{name: "it is to be cordoned too late, and has half a minute", rules: cordons, now: time.Hour, past: past(entry(ev, state.Seen)), want: ""},
		{name: "its cordon was lifted", past: past(entry(ev, state.Cordoned, reopened)), want: event.LeftAlone},
		{name: "its cordon was lifted, and rules that asked for less are the former ones again", past: past(entry(ev, state.Seen, reopened)), want: event.LeftAlone},
		{name: "its cordon was lifted when it was drained", past: past(entry(ev, state.Drained, reopened)), want: event.Drained},
		{name: "its cordon was lifted, and its time was too short", past: past(entry(ev, state.Incomplete, reopened)), want: event.OutOfTime},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			settings, of := row.rules, row.event
			if settings == nil {
				settings = rules()
			}
			if of.ID == "" {
				of = ev
			}
			sit := policy.Situation{
				Now: at(row.now), BootID: thisBoot, Known: known(of), Past: row.past, Node: policy.Node{Looked: row.look != "", MayNotEvict: row.look == "limited"},
			}
			sit = brought(t, settings, sit)
			if got := settings.Settled(sit, of); got != row.want {
				t.Errorf("Settled: %q, want %q; %s", got, row.want, describeEntries(sit.Past))
			}
		})
	}
}

func TestAgain_WhenAndWhetherBusy(t *testing.T) {
	t.Parallel()
	ev := termination("a")
	cordons := withAction(event.ASGTermination, policy.Cordon)
	for _, row := range []struct {
		decision
		event event.Event
	}{
		{decision{name: "never met", rules: withAction(ev.Kind, policy.Ignore), want: "never"}, ev},
		{decision{name: "a cordon, too", rules: cordons, past: past(entry(ev, state.Cordoning)), want: "at 0s, busy"}, ev},
		{decision{name: "now, but it could not be done", past: past(entry(ev, state.Draining, failed(0))), want: "at 0s"}, ev},
		{decision{name: "now, as something is left", past: past(entry(ev, state.Incomplete)), want: "at 0s"}, ev},
		{decision{name: "nothing more", past: past(entry(ev, state.Drained)), want: "never"}, ev},
		{decision{name: "never of itself, and its time is not over", past: past(entry(ev, state.Draining, leftAlone)), want: "never, busy"}, ev},
		{decision{name: "never of itself, and its time is over", now: 15 * time.Minute, past: past(entry(ev, state.Draining, leftAlone)), want: "never"}, ev},
		{decision{name: "never of itself, whatever was left", now: time.Hour, past: past(entry(ev, state.Incomplete, leftAlone)), want: "never"}, ev},
		{decision{name: "when a cordon ends", rules: withAction(event.RebalanceRecommendation, policy.Cordon), past: past(entry(rebalance("a"), state.Cordoned)), want: "at 1h0m0s"}, rebalance("a")},
		{decision{name: "never, if the cordon was lifted", past: past(entry(ev, state.Undoing, reopened)), want: "never"}, ev},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			row.known = known(row.event)
			again, busy := row.settings().Again(brought(t, row.settings(), row.situation()), row.event)
			got := "never"
			if !again.IsZero() {
				got = "at " + again.Sub(noon).String()
			}
			if busy {
				got += ", busy"
			}
			if got != row.want {
				t.Errorf("Again: %s, want %s", got, row.want)
			}
		})
	}
}

func TestReason_OfAnUncordon(t *testing.T) {
	t.Parallel()
	stop := maintenance("a", "instance-stop", time.Hour)
	canceled, completed := inState(stop, event.Canceled), inState(stop, event.Completed)
	moved, soon := maintenance("a", "system-reboot", 48*time.Hour), maintenance("a", "system-reboot", time.Minute)
	settings := with(event.SpotInterruption, func(r *policy.Rule) { r.CordonFor = time.Minute })
	for want, row := range map[string]struct {
		known map[event.Kind][]event.Event
		entry state.Entry
	}{
		"the event was canceled":                     {known(canceled), entry(canceled, state.Drained)},
		"the event is over":                          {known(completed), entry(completed, state.Drained)},
		"the event was withdrawn":                    {known(), entry(spot("a", time.Hour), state.Drained, missing(-time.Hour))},
		"the time in the setting cordon_for is over": {known(hibernation("a", time.Hour)), entry(hibernation("a", time.Hour), state.Cordoned, cordoned(-time.Minute))},
		"the machine is back after its reboot":       {known(), entry(shutdown("a", 0), state.Drained, before)},
		"the event was moved to a later time":        {known(moved), entry(moved, state.Drained, actedAt(0))},
		"someone has already uncordoned the node, so only the rest, such as the annotation, is removed":     {known(soon), entry(soon, state.Drained, reopened, rebootAt(-time.Hour))},
		`the settings have changed: the action for rebalance-recommendation, now "notify", needs no cordon`: {known(rebalance("a")), entry(rebalance("a"), state.Drained)},
		"the settings now ignore this kind of event":                                                        {known(), entry(event.Event{ID: "a", Kind: event.StateChange}, state.Cordoned, adopted)},
	} {
		sit := brought(t, settings, policy.Situation{Now: noon, BootID: thisBoot, Known: row.known, Past: past(row.entry)})
		if got := settings.Decide(sit).Reason; got != want {
			t.Errorf("the reason is %q, want %q", got, want)
		}
	}
}

func ofKind(kind event.Kind, code string) event.Event {
	ev := event.Event{ID: "a", Kind: kind, Code: code, State: event.Pending}
	if kind == event.ReservationEnd {
		ev.Deadline = at(time.Hour)
	}
	return ev
}

func TestDescribe_WhatWillBeDone(t *testing.T) {
	t.Parallel()
	canceledStop := inState(maintenance("a", "instance-stop", time.Hour), event.Canceled)
	for _, row := range []struct {
		entry state.Entry
		want  string
	}{
		{entry(spot("a", time.Minute), state.Seen), "EC2 will terminate this spot instance at 12:01:00 UTC on 1 Mar 2026; plan: drain now"},
		{entry(spot("a", time.Minute), state.Drained), "EC2 will terminate this spot instance at 12:01:00 UTC on 1 Mar 2026; the node is drained, and nothing more will be done"},
		{entry(spot("a", time.Minute), state.Incomplete), "EC2 will terminate this spot instance at 12:01:00 UTC on 1 Mar 2026; plan: drain now"},
		{entry(hibernation("a", time.Minute), state.Cordoned), "EC2 will hibernate this spot instance at 12:01:00 UTC on 1 Mar 2026; the node is cordoned, and nothing more will be done"},
		{entry(hibernation("a", time.Minute), state.Cordoning), "EC2 will hibernate this spot instance at 12:01:00 UTC on 1 Mar 2026; plan: cordon now"},
		{entry(spot("a", time.Minute), state.Cordoned, missing(0)), "EC2 will terminate this spot instance at 12:01:00 UTC on 1 Mar 2026; it is not announced at present, so that nothing more is done"},
		{entry(spot("a", time.Minute), state.Cordoned, uncordoned), "EC2 will terminate this spot instance at 12:01:00 UTC on 1 Mar 2026; plan: drain now"},
		{entry(spot("a", time.Minute), state.Draining, reopened), "EC2 will terminate this spot instance at 12:01:00 UTC on 1 Mar 2026; plan: drain now"},
		{entry(spot("a", time.Minute), state.Incomplete, reopened), "EC2 will terminate this spot instance at 12:01:00 UTC on 1 Mar 2026; nothing more will be done"},
		{entry(canceledStop, state.Undoing), "EC2 has scheduled instance-stop at 13:00:00 UTC on 1 Mar 2026; the node is being uncordoned"},
		{entry(canceledStop, state.Closed), "EC2 has scheduled instance-stop at 13:00:00 UTC on 1 Mar 2026; nothing more will be done"},
		{entry(maintenance("a", "system-reboot", 5*time.Minute), state.Cordoning), "EC2 has scheduled system-reboot at 12:05:00 UTC on 1 Mar 2026; plan: drain now"},
		{entry(maintenance("a", "system-reboot", 35*time.Minute), state.Draining), "EC2 has scheduled system-reboot at 12:35:00 UTC on 1 Mar 2026; plan: drain now"},
		{entry(event.Event{ID: "a", Kind: event.SpotInterruption}, state.Cordoned, adopted), "EC2 will interrupt this spot instance; it is not announced at present, so that nothing more is done"},
		{entry(event.Event{ID: "a", Kind: event.ScheduledMaintenance}, state.Cordoned, adopted), "EC2 has scheduled maintenance; it is not announced at present, so that nothing more is done"},
		{
			entry(termination("a"), state.Draining, leftAlone),
			"the Auto Scaling group takes this instance out of service (target state Terminated); the node is left alone because of its annotation",
		},
		{entry(ofKind(event.StateChange, "stopping"), state.Seen), "EC2 says that the instance is stopping; nothing will be done"},
		{
			entry(ofKind(event.ReservationEnd, "capacity-block"), state.Seen),
			"the capacity-block reservation of this instance ends at 13:00:00 UTC on 1 Mar 2026; nothing will be done",
		},
		{entry(ofKind(event.Hibernation, ""), state.Seen), "the system is going to sleep; nothing will be done"},
		{entry(ofKind(event.StatusCheck, "instance"), state.Seen), "EC2's instance status check of this instance fails; nothing will be done"},
		{
			entry(ofKind(event.ASGTermination, "Standby"), state.Seen),
			"the Auto Scaling group takes this instance out of service (target state Standby); plan: drain now",
		},
		{entry(rebalance("a"), state.Seen), "EC2 recommends rebalancing: this spot instance is at elevated risk of interruption; nothing will be done"},
		{
			entry(maintenance("a", "system-reboot", time.Hour), state.Seen),
			"EC2 has scheduled system-reboot at 13:00:00 UTC on 1 Mar 2026; plan: drain begins at 12:50:00 UTC on 1 Mar 2026",
		},
	} {
		if got := rules().Describe(row.entry); got != row.want {
			t.Errorf("described as %q\n        want %q", got, row.want)
		}
	}
}
