package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

func TestAWithdrawnEventIsUndoneWhenThatIsSure(t *testing.T) {
	t.Parallel()
	notice := spot("a", 10*time.Minute)
	gone := entry(notice, record.Drained, missing(0))
	draining := entry(notice, record.Draining, missing(0))
	decide(t, []decision{
		{name: "not before it has been missing long enough", known: known(), now: 29 * time.Second, past: past(gone), want: "wait; again at 30s"},
		{name: "but then at once", known: known(), now: 30 * time.Second, past: past(gone), want: "uncordon a (withdrawn)"},
		{
			name: "a drain under way goes on until it is sure", known: known(), now: 29 * time.Second, past: past(draining),
			want: "drain a until 10m0s hard; again at 30s",
		},
		{name: "and no longer", known: known(), now: 30 * time.Second, past: past(draining), want: "uncordon a (withdrawn)"},
		{
			name: "nothing is begun for what is missing", known: known(), now: time.Second,
			past: past(entry(notice, record.Seen, missing(0))), want: "wait; again at 30s",
		},
		{
			name: "nor tried again", known: known(), now: time.Second,
			past: past(entry(notice, record.Incomplete, missing(0))), want: "wait; again at 30s",
		},
		{
			name: "after a restart nothing is sure before the first look", now: time.Hour,
			past: past(gone), want: "wait",
		},
		{
			name: "nor is a drain resumed of which the last look said that it is for nothing", now: time.Minute,
			past: past(draining), want: "wait",
		},
		{
			name: "time that passes while looks fail proves nothing", known: known(), failing: failing(at(10 * time.Second)),
			now: time.Hour, past: past(gone), want: "wait",
		},
		{
			name: "unless there was a good look late enough", known: known(), failing: failing(at(30 * time.Second)),
			now: time.Hour, past: past(gone), want: "uncordon a (withdrawn)",
		},
		{
			name: "a cordon that was somebody else's is left", known: known(), now: time.Hour,
			past: past(entry(notice, record.Drained, missing(0), foreign)), want: "wait",
		},
		{
			name: "an uncordon that has begun goes on", known: known(), now: time.Minute,
			past: past(entry(notice, record.Undoing, missing(0))), want: "uncordon a (withdrawn)",
		},
		{
			name: "a clock that was set back makes it wait, and undoes nothing", known: known(), now: -time.Hour,
			past: past(gone), want: "wait; again at 30s",
		},
	})
}

func TestACanceledOrCompletedEventIsUndoneAtOnce(t *testing.T) {
	t.Parallel()
	stop := maintenance("a", "instance-stop", time.Hour)
	canceled, completed := inState(stop, event.Canceled), inState(stop, event.Completed)
	decide(t, []decision{
		{name: "canceled", known: known(canceled), past: past(entry(canceled, record.Drained)), want: "uncordon a (canceled)"},
		{name: "completed", known: known(completed), past: past(entry(completed, record.Incomplete)), want: "uncordon a (completed)"},
		{name: "during a drain", known: known(canceled), past: past(entry(canceled, record.Draining)), want: "uncordon a (canceled)"},
		{name: "while a cordon may have been set", known: known(canceled), past: past(entry(canceled, record.Cordoning)), want: "uncordon a (canceled)"},
		{name: "without a look, from the record", past: past(entry(canceled, record.Undoing)), want: "uncordon a (canceled)"},
		{name: "before anything was done", known: known(canceled), past: past(entry(canceled, record.Seen)), want: "wait"},
		{
			name: "in another boot, the node must be ready first", known: known(canceled),
			past: past(entry(canceled, record.Drained, before)), want: "uncordon a (canceled) when ready",
		},
	})
}

func TestACordonStaysWhileAnotherEventHoldsIt(t *testing.T) {
	t.Parallel()
	canceled := inState(maintenance("a", "instance-stop", time.Hour), event.Canceled)
	over, notice := entry(canceled, record.Drained), spot("b", time.Hour)
	held := func(name, want string, now time.Duration, other record.Entry) decision {
		return decision{name: name, known: known(canceled, notice), now: now, past: past(over, other), want: want}
	}
	decide(t, []decision{
		held("one that is drained", "wait", 0, entry(notice, record.Drained)),
		held("one that is being drained", "drain b until 1h0m0s hard", 0, entry(notice, record.Draining)),
		held("one that was called back and goes on", "drain b until 1h0m0s hard", 0, entry(notice, record.Incomplete)),
		held("not one that nothing was done for", "uncordon a (canceled)", 0, entry(notice, record.Drained, foreign)),
		held("not one that is closed", "uncordon a (canceled)", 0, entry(notice, record.Closed, closed(record.Rebooted))),
		{
			name: "not one that has ended, too", known: known(canceled), now: time.Minute, want: "uncordon b (withdrawn)",
			past: past(over, entry(notice, record.Drained, missing(0))),
		},
		{
			name: "nor one that was only moved", known: known(canceled, maintenance("c", "system-reboot", 48*time.Hour)),
			past: past(over, entry(maintenance("c", "system-reboot", 48*time.Hour), record.Drained, actedFor(time.Minute))),
			want: "uncordon a (canceled)",
		},
		{
			name: "one that is missing, until that is sure", known: known(canceled), now: time.Second, want: "wait; again at 30s",
			past: past(over, entry(notice, record.Drained, missing(0))),
		},
	})
}

func TestAReboot(t *testing.T) {
	t.Parallel()
	reboot, systemReboot := maintenance("a", "instance-reboot", time.Hour), maintenance("a", "system-reboot", time.Hour)
	stop, notice := maintenance("a", "instance-stop", time.Hour), spot("a", 2*time.Minute)
	down := shutdown("a", 5*time.Second)
	drained := func(ev event.Event) []record.Entry { return past(entry(ev, record.Drained, before)) }
	decide(t, []decision{
		{name: "ends the reboot it was announced as", known: known(), now: time.Hour, past: drained(reboot), want: "uncordon a (rebooted) when ready"},
		{name: "of the host, too", known: known(), now: time.Hour, past: drained(systemReboot), want: "uncordon a (rebooted) when ready"},
		{name: "although it is still listed", known: known(reboot), now: time.Hour, past: drained(reboot), want: "uncordon a (rebooted) when ready"},
		{name: "without the metadata service", now: time.Hour, past: drained(reboot), want: "uncordon a (rebooted) when ready"},
		{
			name: "also if the drain had not ended", known: known(reboot), now: time.Hour,
			past: past(entry(reboot, record.Draining, before)), want: "uncordon a (rebooted) when ready",
		},
		{
			name: "is not the announced one before anything was done for that", known: known(reboot), now: 0,
			past: past(entry(reboot, record.Seen, before)), want: "wait; again at 50m0s",
		},
		{name: "ends every shutdown", known: known(), past: past(entry(down, record.Draining, before)), want: "uncordon a (rebooted) when ready"},
		{name: "without any look", past: drained(down), want: "uncordon a (rebooted) when ready"},
		{name: "after its time ends a stop that is no longer listed", known: known(), now: 2 * time.Hour, past: drained(stop), want: "uncordon a (rebooted) when ready"},
		{name: "but not one that still is", known: known(stop), now: 2 * time.Hour, past: drained(stop), want: "wait"},
		{name: "nor one whose time is still to come", known: known(stop), now: time.Minute, past: drained(stop), want: "wait"},
		{name: "nor before the document has been looked at", now: 2 * time.Hour, past: drained(stop), want: "wait"},
		{
			name: "but a document that cannot be read keeps no node cordoned", failing: failing(time.Time{}), now: 2 * time.Hour,
			past: drained(stop), want: "uncordon a (rebooted) when ready",
		},
		{
			name: "unless it has listed the event since the reboot", failing: failing(time.Time{}), now: 2 * time.Hour,
			past: past(entry(stop, record.Drained, before, listedHere)), want: "wait",
		},
		{
			name: "and has not left it out since", failing: failing(time.Time{}), now: 2 * time.Hour, want: "uncordon a (rebooted) when ready",
			past: past(entry(stop, record.Drained, before, listedHere, missing(time.Hour))),
		},
		{name: "after its time ends a spot interruption", known: known(), now: time.Hour, past: drained(notice), want: "uncordon a (rebooted) when ready"},
		{name: "leaves what has no time to its document", known: known(rebalance("a")), past: drained(rebalance("a")), want: "wait"},
		{
			name: "that may have been the announced one is not drained for before a look", now: time.Hour,
			past: past(entry(notice, record.Seen, before)), want: "wait",
		},
		{
			name: "nor after one, if it is not listed any more", known: known(), now: time.Hour,
			past: past(entry(notice, record.Seen, before, missing(59*time.Minute))), want: "wait",
		},
		{
			name: "leaves a drain to be resumed before its deadline", now: time.Minute,
			past: past(entry(notice, record.Draining, before)), want: "drain a until 2m0s hard",
		},
		{
			name: "of what is no longer listed resumes nothing", known: known(), now: time.Minute, want: "wait; again at 1m20s",
			past: past(entry(notice, record.Draining, before, missing(50*time.Second))),
		},
		{
			name: "leaves a termination of the earlier boot alone", now: time.Minute,
			past: past(entry(termination("a"), record.Draining, before)), want: "wait",
		},
	})
}

func TestARestart(t *testing.T) {
	t.Parallel()
	notice, reboot := spot("a", 2*time.Minute), maintenance("b", "system-reboot", time.Hour)
	decide(t, []decision{
		{name: "resumes a drain before any look", past: past(entry(notice, record.Draining)), want: "drain a until 2m0s hard"},
		{name: "does not repeat one", past: past(entry(notice, record.Drained)), want: "wait"},
		{name: "does not uncordon", past: past(entry(notice, record.Cordoned), entry(reboot, record.Drained)), want: "drain a until 2m0s hard"},
		{name: "knows what is planned before any look", past: past(entry(reboot, record.Seen)), want: "wait; again at 50m0s"},
		{name: "and acts upon it in time", now: 50 * time.Minute, past: past(entry(reboot, record.Seen)), want: "drain b until 1h0m0s"},
		{name: "leaves alone what a claim on the node alone tells of", past: past(entry(notice, record.Cordoned, adopted)), want: "wait; again at 30s"},
		{
			name: "until it is announced, too", known: known(notice), now: time.Second, want: "drain a until 2m0s hard",
			past: past(entry(notice, record.Cordoned)),
		},
		{
			name: "or is sure not to be", known: known(), now: 30 * time.Second, want: "uncordon a (withdrawn)",
			past: past(entry(notice, record.Cordoned, adopted)),
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
			past: past(entry(advice, record.Cordoned)), want: "wait; again at 1h0m0s",
		},
		{
			name: "and no longer", rules: settings, known: known(advice), now: time.Hour,
			past: past(entry(advice, record.Cordoned)), want: "uncordon a (expired)",
		},
		{
			name: "ends it without a look", rules: settings, now: time.Hour,
			past: past(entry(advice, record.Cordoned)), want: "uncordon a (expired)",
		},
		{
			name: "does not matter if the advice is withdrawn before", rules: settings, known: known(), now: time.Minute,
			past: past(entry(advice, record.Cordoned, missing(0))), want: "uncordon a (withdrawn)",
		},
		{
			name: "is not for drains", rules: withAction(event.RebalanceRecommendation, policy.Drain), known: known(advice), now: 2 * time.Hour,
			past: past(entry(advice, record.Drained)), want: "wait",
		},
		{
			name: "can be for ever", now: 1000 * time.Hour, known: known(advice), want: "wait",
			rules: with(event.RebalanceRecommendation, func(r *policy.Rule) { r.Action, r.CordonFor = policy.Cordon, 0 }),
			past:  past(entry(advice, record.Cordoned)),
		},
	})
}

func TestAnEventThatChangesItsTime(t *testing.T) {
	t.Parallel()
	const lead = 10 * time.Minute
	reboot := maintenance("a", "system-reboot", 48*time.Hour)
	moved := entry(reboot, record.Drained, actedFor(lead))
	decide(t, []decision{
		{name: "to far later is undone for now", known: known(reboot), past: past(moved), want: "uncordon a ()"},
		{
			name: "is acted upon when its new time comes", known: known(reboot), past: past(entry(reboot, record.Seen)),
			want: "wait; again at 47h50m0s",
		},
		{
			name: "to a little later stays as it is", known: known(maintenance("a", "system-reboot", lead)),
			past: past(entry(maintenance("a", "system-reboot", lead), record.Drained, actedFor(5*time.Minute))), want: "wait",
		},
		{
			name: "to later is drained until then", known: known(maintenance("a", "system-reboot", lead)),
			past: past(entry(maintenance("a", "system-reboot", lead), record.Draining, actedFor(5*time.Minute))), want: "drain a until 10m0s",
		},
		{
			name: "to earlier is acted upon earlier", known: known(maintenance("a", "system-reboot", time.Minute)),
			past: past(entry(maintenance("a", "system-reboot", time.Minute), record.Seen)), want: "drain a until 1m0s",
		},
		{
			name: "does not matter if it is acted upon at once", known: known(maintenance("a", "instance-stop", 48*time.Hour)),
			past: past(entry(maintenance("a", "instance-stop", 48*time.Hour), record.Drained, actedFor(lead))), want: "wait",
		},
		{
			name: "to far later keeps a cordon that another event needs", known: known(reboot, spot("b", time.Hour)),
			past: past(moved, entry(spot("b", time.Hour), record.Drained)), want: "wait",
		},
		{
			name: "is something else than a clock that was set back", known: known(maintenance("a", "system-reboot", lead)), now: -24 * time.Hour,
			past: past(entry(maintenance("a", "system-reboot", lead), record.Drained)), want: "wait",
		},
	})
}

func TestAClockThatWasSetBack(t *testing.T) {
	t.Parallel()
	notice := spot("a", time.Minute)
	decide(t, []decision{
		{
			name: "stops no drain that is to be at once", known: known(notice), now: -time.Hour,
			past: past(entry(notice, record.Draining)), want: "drain a until 1m0s hard",
		},
		{
			name: "keeps none from beginning", known: known(notice), now: -time.Hour,
			past: past(entry(notice, record.Seen, seenAt(time.Hour))), want: "drain a until 1m0s hard",
		},
		{name: "undoes nothing", known: known(notice), now: -time.Hour, past: past(entry(notice, record.Drained)), want: "wait"},
	})
}
