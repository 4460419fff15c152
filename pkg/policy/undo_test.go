package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

func TestAWithdrawnEventIsUndoneWhenThatIsSure(t *testing.T) {
	t.Parallel()
	notice := spot("a", 10*time.Minute)
	gone := entry(notice, state.Drained, missing(0))
	draining := entry(notice, state.Draining, missing(0))
	decide(t, []decision{
		{name: "not before it has been missing long enough: the guard stands", known: known(), now: 29 * time.Second, past: past(gone), want: "drain a by 10m0s hard; again at 30s"},
		{name: "but then at once", known: known(), now: 30 * time.Second, past: past(gone), want: "uncordon a (withdrawn)"},
		{
			name: "a drain under way goes on until it is sure", known: known(), now: 29 * time.Second, past: past(draining),
			want: "drain a by 10m0s hard; again at 30s",
		},
		{name: "and no longer", known: known(), now: 30 * time.Second, past: past(draining), want: "uncordon a (withdrawn)"},
		{
			name: "nothing is begun for what is missing", known: known(), now: time.Second,
			past: past(entry(notice, state.Seen, missing(0))), want: "wait; again at 30s",
		},
		{
			name: "what is under way goes on also after its time", known: known(), now: time.Second,
			past: past(entry(notice, state.Incomplete, missing(0))), want: "drain a by 10m0s hard; again at 30s",
		},
		{
			name: "after a restart nothing is sure before the first look", now: time.Hour,
			past: past(gone), want: "drain a by 10m0s hard",
		},
		{
			name: "and what was under way goes on until then", now: time.Minute,
			past: past(draining), want: "drain a by 10m0s hard; again at 10m0s",
		},
		{
			name: "time that passes while looks fail proves nothing", known: known(), failing: failing(at(10 * time.Second)),
			now: time.Hour, past: past(gone), want: "drain a by 10m0s hard",
		},
		{
			name: "unless there was a good look late enough", known: known(), failing: failing(at(30 * time.Second)),
			now: time.Hour, past: past(gone), want: "uncordon a (withdrawn)",
		},
		{
			name: "a cordon that was somebody else's is left", known: known(), now: time.Hour,
			past: past(entry(notice, state.Drained, missing(0), foreign)), want: "wait",
		},
		{
			name: "an uncordon that has begun goes on", known: known(), now: time.Minute,
			past: past(entry(notice, state.Undoing, missing(0))), want: "uncordon a (withdrawn)",
		},
		{
			name: "a clock that was set back makes it wait, and undoes nothing", known: known(), now: -time.Hour,
			past: past(gone), want: "drain a by 10m0s hard; again at -59m30s",
		},
	})
}

func TestACanceledOrCompletedEventIsUndoneAtOnce(t *testing.T) {
	t.Parallel()
	stop := maintenance("a", "instance-stop", time.Hour)
	canceled, completed := inState(stop, event.Canceled), inState(stop, event.Completed)
	decide(t, []decision{
		{name: "canceled", known: known(canceled), past: past(entry(canceled, state.Drained)), want: "uncordon a (canceled)"},
		{name: "completed", known: known(completed), past: past(entry(completed, state.Incomplete)), want: "uncordon a (completed)"},
		{name: "during a drain", known: known(canceled), past: past(entry(canceled, state.Draining)), want: "uncordon a (canceled)"},
		{name: "while a cordon may have been set", known: known(canceled), past: past(entry(canceled, state.Cordoning)), want: "uncordon a (canceled)"},
		{name: "without a look, from the record", past: past(entry(canceled, state.Undoing)), want: "uncordon a (canceled)"},
		{name: "before anything was done", known: known(canceled), past: past(entry(canceled, state.Seen)), want: "wait"},
		{
			name: "in another boot, the node must be ready first", known: known(canceled),
			past: past(entry(canceled, state.Drained, before)), want: "uncordon a (canceled) when ready",
		},
	})
}

func TestACordonStaysWhileAnotherEventHoldsIt(t *testing.T) {
	t.Parallel()
	canceled := inState(maintenance("a", "instance-stop", time.Hour), event.Canceled)
	over, notice := entry(canceled, state.Drained), spot("b", time.Hour)
	held := func(name, want string, now time.Duration, other state.Entry) decision {
		return decision{name: name, known: known(canceled, notice), now: now, past: past(over, other), want: want}
	}
	decide(t, []decision{
		held("one that is drained", "drain b by 1h0m0s hard", 0, entry(notice, state.Drained)),
		held("one that is being drained", "drain b by 1h0m0s hard; again at 1h0m0s", 0, entry(notice, state.Draining)),
		held("one whose time was too short", "drain b by 1h0m0s hard", 0, entry(notice, state.Incomplete)),
		held("one that came to a node that was cordoned already", "drain b by 1h0m0s hard", 0, entry(notice, state.Drained, foreign)),
		{
			name: "one of before a reboot that is not looked for yet", known: without(event.ASGTermination, canceled), want: "wait",
			past: past(over, entry(termination("b"), state.Drained, before)),
		},
		held("not one that is closed", "uncordon a (canceled)", 0, entry(notice, state.Closed, closed(state.Rebooted))),
		{
			name: "not one that has ended, too: all is undone at once", known: known(canceled), now: time.Minute, want: "uncordon b, a (withdrawn)",
			past: past(over, entry(notice, state.Drained, missing(0))),
		},
		{
			name: "nor one that was only moved", known: known(canceled, maintenance("c", "system-reboot", 48*time.Hour)),
			past: past(over, entry(maintenance("c", "system-reboot", 48*time.Hour), state.Drained, actedFor(time.Minute))),
			want: "uncordon a, c (canceled); again at 47h50m0s",
		},
		{
			name: "one that is missing, until that is sure", known: known(canceled), now: time.Second, want: "drain b by 1h0m0s hard; again at 30s",
			past: past(over, entry(notice, state.Drained, missing(0))),
		},
	})
}

func TestAReboot(t *testing.T) {
	t.Parallel()
	reboot, systemReboot := maintenance("a", "instance-reboot", time.Hour), maintenance("a", "system-reboot", time.Hour)
	stop, notice := maintenance("a", "instance-stop", time.Hour), spot("a", 2*time.Minute)
	down := shutdown("a", 5*time.Second)
	drained := func(ev event.Event) []state.Entry { return past(entry(ev, state.Drained, before)) }
	decide(t, []decision{
		{name: "ends the reboot it was announced as", known: known(), now: time.Hour, past: drained(reboot), want: "uncordon a (rebooted) when ready"},
		{name: "of the host, too", known: known(), now: time.Hour, past: drained(systemReboot), want: "uncordon a (rebooted) when ready"},
		{name: "although it is still listed", known: known(reboot), now: time.Hour, past: drained(reboot), want: "uncordon a (rebooted) when ready"},
		{name: "without the metadata service", now: time.Hour, past: drained(reboot), want: "uncordon a (rebooted) when ready"},
		{
			name: "also if the drain had not ended", known: known(reboot), now: time.Hour,
			past: past(entry(reboot, state.Draining, before)), want: "uncordon a (rebooted) when ready",
		},
		{
			name: "is not the announced one before anything was done for that", known: known(reboot), now: 0,
			past: past(entry(reboot, state.Seen, before)), want: "wait; again at 50m0s",
		},
		{name: "ends every shutdown", known: known(), past: past(entry(down, state.Draining, before)), want: "uncordon a (rebooted) when ready"},
		{name: "without any look", past: drained(down), want: "uncordon a (rebooted) when ready"},
		{name: "after its time ends a stop that is no longer listed", known: known(), now: 2 * time.Hour, past: drained(stop), want: "uncordon a (rebooted) when ready"},
		{name: "but not one that still is: the guard stands again", known: known(stop), now: 2 * time.Hour, past: drained(stop), want: "drain a by 1h0m0s soft"},
		{name: "nor one whose time is still to come", known: known(stop), now: time.Minute, past: drained(stop), want: "drain a by 1h0m0s soft"},
		{name: "nor before the document has been looked at", now: 2 * time.Hour, past: drained(stop), want: "wait"},
		{
			name: "but a document that cannot be read keeps no node cordoned", failing: failing(time.Time{}), now: 2 * time.Hour,
			past: drained(stop), want: "uncordon a (rebooted) when ready",
		},
		{
			name: "unless it has listed the event since the reboot", failing: failing(time.Time{}), now: 2 * time.Hour,
			past: past(entry(stop, state.Drained, before, listedHere)), want: "wait",
		},
		{
			name: "and has not left it out since", failing: failing(time.Time{}), now: 2 * time.Hour, want: "uncordon a (rebooted) when ready",
			past: past(entry(stop, state.Drained, before, listedHere, missing(time.Hour))),
		},
		{name: "after its time ends a spot interruption", known: known(), now: time.Hour, past: drained(notice), want: "uncordon a (rebooted) when ready"},
		{
			name: "leaves what has no time to its document", rules: withAction(event.RebalanceRecommendation, policy.Drain),
			known: known(rebalance("a")), past: drained(rebalance("a")), want: "drain a",
		},
		{
			name: "also where it is listed no more", rules: withAction(event.RebalanceRecommendation, policy.Drain),
			known: known(), past: drained(rebalance("a")), want: "wait; again at 30s",
		},
		{
			name: "that may have been the announced one is not drained for before a look", now: time.Hour,
			past: past(entry(notice, state.Seen, before)), want: "wait",
		},
		{
			name: "nor after one, if it is not listed any more", known: known(), now: time.Hour,
			past: past(entry(notice, state.Seen, before, missing(59*time.Minute))), want: "wait",
		},
		{
			name: "leaves a drain to be resumed before its deadline", now: time.Minute,
			past: past(entry(notice, state.Draining, before)), want: "drain a by 2m0s hard; again at 2m0s",
		},
		{
			name: "of what is no longer listed resumes nothing", known: known(), now: time.Minute, want: "wait; again at 1m20s",
			past: past(entry(notice, state.Draining, before, missing(50*time.Second))),
		},
		{
			name: "leaves a termination of the earlier boot alone", now: time.Minute,
			past: past(entry(termination("a"), state.Draining, before)), want: "wait; again at 15m0s",
		},
	})
}

func TestARestart(t *testing.T) {
	t.Parallel()
	notice, reboot := spot("a", 2*time.Minute), maintenance("b", "system-reboot", time.Hour)
	decide(t, []decision{
		{name: "resumes a drain before any look", past: past(entry(notice, state.Draining)), want: "drain a by 2m0s hard; again at 2m0s"},
		{name: "keeps a drained node closed", past: past(entry(notice, state.Drained)), want: "drain a by 2m0s hard"},
		{name: "does not uncordon", past: past(entry(notice, state.Cordoned), entry(reboot, state.Drained)), want: "drain a, b by 2m0s hard by 1h0m0s soft; again at 2m0s"},
		{name: "knows what is planned before any look", past: past(entry(reboot, state.Seen)), want: "wait; again at 50m0s"},
		{name: "and waits for one when its time comes: it may be over", now: 50 * time.Minute, past: past(entry(reboot, state.Seen)), want: "wait"},
		{
			name: "but not for a good one", now: 50 * time.Minute, failing: failing(time.Time{}),
			past: past(entry(reboot, state.Seen)), want: "drain b by 1h0m0s soft; again at 1h0m0s",
		},
		{name: "keeps what a claim on the node alone tells of, and begins no more for it", past: past(entry(notice, state.Cordoned, adopted)), want: "cordon a; again at 30s"},
		{
			name: "also if that does not say the code", want: "cordon a; again at 1h0m0s",
			past: past(entry(event.Event{ID: "a", Kind: event.ScheduledMaintenance}, state.Cordoned, adopted)),
		},
		{
			name: "until it is announced, too", known: known(notice), now: time.Second, want: "drain a by 2m0s hard; again at 2m0s",
			past: past(entry(notice, state.Cordoned)),
		},
		{
			name: "or is sure not to be", known: known(), now: 30 * time.Second, want: "uncordon a (withdrawn)",
			past: past(entry(notice, state.Cordoned, adopted)),
		},
	})
}

func TestACordonsTimeToLive(t *testing.T) {
	t.Parallel()
	settings := withAction(event.RebalanceRecommendation, policy.Cordon)
	advice := rebalance("a")
	decide(t, []decision{
		{
			name: "keeps it for so long", rules: settings, known: known(advice), now: time.Hour - 1,
			past: past(entry(advice, state.Cordoned)), want: "cordon a; again at 1h0m0s",
		},
		{
			name: "and no longer", rules: settings, known: known(advice), now: time.Hour,
			past: past(entry(advice, state.Cordoned)), want: "uncordon a (expired)",
		},
		{
			name: "ends it without a look", rules: settings, now: time.Hour,
			past: past(entry(advice, state.Cordoned)), want: "uncordon a (expired)",
		},
		{
			name: "does not matter if the advice is withdrawn before", rules: settings, known: known(), now: time.Minute,
			past: past(entry(advice, state.Cordoned, missing(0))), want: "uncordon a (withdrawn)",
		},
		{
			name: "begins when it is set, not when that is tried", rules: settings, known: known(), now: time.Minute,
			past: past(entry(advice, state.Cordoning, uncordoned, missing(0))), want: "uncordon a (withdrawn)",
		},
		{
			name: "is not for drains", rules: withAction(event.RebalanceRecommendation, policy.Drain), known: known(advice), now: 2 * time.Hour,
			past: past(entry(advice, state.Drained)), want: "drain a",
		},
		{
			name: "can be for ever", now: 1000 * time.Hour, known: known(advice), want: "cordon a",
			rules: with(event.RebalanceRecommendation, func(r *policy.Rule) { r.Action, r.CordonFor = policy.Cordon, 0 }),
			past:  past(entry(advice, state.Cordoned)),
		},
	})
}

func TestAnEventThatChangesItsTime(t *testing.T) {
	t.Parallel()
	const lead = 10 * time.Minute
	reboot := maintenance("a", "system-reboot", 48*time.Hour)
	moved := entry(reboot, state.Drained, actedFor(lead))
	decide(t, []decision{
		{name: "to far later is undone for now", known: known(reboot), past: past(moved), want: "uncordon a (); again at 47h50m0s"},
		{
			name: "is acted upon when its new time comes", known: known(reboot), past: past(entry(reboot, state.Seen)),
			want: "wait; again at 47h50m0s",
		},
		{
			name: "to a little later stays as it is", known: known(maintenance("a", "system-reboot", lead)),
			past: past(entry(maintenance("a", "system-reboot", lead), state.Drained, actedFor(5*time.Minute))), want: "drain a by 10m0s soft",
		},
		{
			name: "to later is drained until then", known: known(maintenance("a", "system-reboot", lead)),
			past: past(entry(maintenance("a", "system-reboot", lead), state.Draining, actedFor(5*time.Minute))), want: "drain a by 10m0s soft; again at 10m0s",
		},
		{
			name: "to earlier is acted upon earlier", known: known(maintenance("a", "system-reboot", time.Minute)),
			past: past(entry(maintenance("a", "system-reboot", time.Minute), state.Seen)), want: "drain a by 1m0s soft; again at 1m0s",
		},
		{
			name: "does not matter if it is acted upon at once", known: known(maintenance("a", "instance-stop", 48*time.Hour)),
			past: past(entry(maintenance("a", "instance-stop", 48*time.Hour), state.Drained, actedFor(lead))), want: "drain a by 48h0m0s soft",
		},
		{
			name: "to far later keeps a cordon that another event needs", known: known(reboot, spot("b", time.Hour)),
			past: past(moved, entry(spot("b", time.Hour), state.Drained)), want: "drain b by 1h0m0s hard; again at 47h50m0s",
		},
		{
			name: "by a shorter lead is undone until then", known: known(reboot), past: past(entry(reboot, state.Drained, actedFor(0))),
			rules: with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Lead = time.Hour }), want: "uncordon a (); again at 47h0m0s",
		},
		{
			name: "by a longer lead stays as it is", known: known(maintenance("a", "system-reboot", lead)),
			rules: with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Lead = time.Hour }),
			past:  past(entry(maintenance("a", "system-reboot", lead), state.Drained, actedFor(0))), want: "drain a by 10m0s soft",
		},
		{
			name: "may be one of which only the Node knew", known: known(reboot), past: past(entry(reboot, state.Cordoned, adopted)),
			want: "uncordon a (); again at 47h50m0s",
		},
		{
			name: "by a lead where it was due at once is undone until then", known: known(maintenance("a", "instance-stop", 48*time.Hour)),
			rules: with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Codes = map[string]policy.When{"instance-stop": policy.Lead} }),
			past:  past(entry(maintenance("a", "instance-stop", 48*time.Hour), state.Drained, actedFor(0))), want: "uncordon a (); again at 47h50m0s",
		},
		{
			name: "is something else than a clock that was set back", known: known(maintenance("a", "system-reboot", lead)), now: -24 * time.Hour,
			past: past(entry(maintenance("a", "system-reboot", lead), state.Drained)), want: "drain a by 10m0s soft; again at 0s",
		},
	})
}

// What is late is late. The machine is started again after its time, and the list is slow to say so.
func TestAfterARebootAnEventIsOverWithTheFirstLookThatDoesNotFindIt(t *testing.T) {
	t.Parallel()
	stop := maintenance("a", "instance-stop", time.Hour)
	sit := policy.Situation{BootID: thisBoot, Past: past(entry(stop, state.Drained, before))}
	for _, look := range []struct {
		now   time.Duration
		known map[event.Kind][]event.Event
		want  string
	}{
		{2 * time.Hour, known(stop), "drain a by 1h0m0s soft"},
		{2*time.Hour + time.Minute, known(), "uncordon a (rebooted) when ready"},
	} {
		sit.Now, sit.Known = at(look.now), look.known
		sit = brought(t, rules(), sit)
		if got := describeGoal(rules().Decide(sit)); got != look.want {
			t.Errorf("at %s, Decide: %s\n   want: %s", look.now, got, look.want)
		}
	}
}

// Somebody reboots the machine a day before EC2 stops it. EC2 is late, and the list has a gap: the stop is still to come.
func TestARebootBeforeItsTimeIsNotTheAnnouncedOne(t *testing.T) {
	t.Parallel()
	stop := maintenance("a", "instance-stop", 24*time.Hour)
	for _, phase := range []state.Phase{state.Drained, state.Draining, state.Incomplete} {
		sit := policy.Situation{Now: noon, BootID: thisBoot, Past: past(entry(stop, phase, before))}
		for _, look := range []struct {
			now   time.Duration
			known map[event.Kind][]event.Event
			want  policy.Action
		}{
			{0, nil, policy.Drain},
			{time.Minute, known(stop), policy.Drain},
			{25 * time.Hour, known(stop), policy.Drain},
			{26 * time.Hour, known(), policy.Drain},
			{26*time.Hour + time.Minute, known(stop), policy.Drain},
			{27 * time.Hour, known(), policy.Drain},
			{28 * time.Hour, known(), policy.Uncordon},
		} {
			sit.Now, sit.Known = at(look.now), look.known
			sit = brought(t, rules(), sit)
			if goal := rules().Decide(sit); goal.Action != look.want {
				t.Errorf("%s, at %s: %s, want %s", phase, look.now, describeGoal(goal), look.want)
			}
		}
	}
}
