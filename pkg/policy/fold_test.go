package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

func TestWhatTheRecordShouldSay(t *testing.T) {
	t.Parallel()
	notice, stop := spot("a", 10*time.Minute), maintenance("b", "instance-stop", time.Hour)
	canceled, completed := inState(stop, event.Canceled), inState(stop, event.Completed)
	moved := maintenance("c", "system-reboot", 48*time.Hour)
	for _, row := range []decision{
		{name: "nothing about nothing", known: known(), want: ""},
		{name: "an event is met", known: known(notice), want: "a seen"},
		{name: "so are several", known: known(stop, notice), want: "a seen, b seen"},
		{name: "an unknown code is met", known: known(maintenance("x", "new-thing", time.Hour)), want: "x seen"},
		{
			name: "what is to be ignored is not", known: known(notice), want: "",
			rules: withAction(event.SpotInterruption, policy.Ignore),
		},
		{
			name: "nor a code that is to be ignored", known: known(stop), want: "",
			rules: with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Codes["instance-stop"] = policy.Never }),
		},
		{name: "nor what is canceled already", known: known(canceled), want: ""},
		{name: "nor what is completed already", known: known(completed), want: ""},
		{name: "what is known stays as it is", known: known(notice), past: past(entry(notice, record.Drained)), want: ""},
		{
			name: "a new time is taken over", known: known(spot("a", time.Minute)),
			past: past(entry(notice, record.Draining)), want: "a draining cordoned",
		},
		{name: "what is no longer announced is missing", known: known(), past: past(entry(notice, record.Seen)), want: "a seen missing since 5m0s"},
		{name: "not if its document has not been looked at", past: past(entry(notice, record.Seen)), want: ""},
		{name: "since the first time", known: known(), past: past(entry(notice, record.Drained, missing(5*time.Minute-1))), want: ""},
		{
			name: "or since now, if that is in the future", known: known(),
			past: past(entry(notice, record.Drained, missing(time.Hour))), want: "a drained missing since 5m0s cordoned",
		},
		{name: "what is back is not missing", known: known(notice), past: past(entry(notice, record.Drained, missing(0))), want: "a drained cordoned"},
		{name: "what was missing long enough is closed", known: known(), past: past(entry(notice, record.Seen, missing(0))), want: "a closed withdrawn missing since 0s"},
		{name: "not before a cordon was lifted", known: known(), past: past(entry(notice, record.Drained, missing(0))), want: ""},
		{
			name: "but if the cordon was somebody else's", known: known(),
			past: past(entry(notice, record.Drained, missing(0), foreign)), want: "a closed withdrawn missing since 0s",
		},
		{name: "what is canceled is closed", known: known(canceled), past: past(entry(stop, record.Seen)), want: "b closed canceled"},
		{name: "what is completed is closed", known: known(completed), past: past(entry(stop, record.Seen)), want: "b closed completed"},
		{name: "what has a cordon to lift is not yet", known: known(canceled), past: past(entry(stop, record.Drained)), want: "b drained cordoned"},
		{
			name: "but if another event holds the cordon", known: known(canceled, notice),
			past: past(entry(stop, record.Drained), entry(notice, record.Drained)), want: "b closed canceled",
		},
		{
			name: "of two that end at once, neither leaves the cordon to the other", known: known(canceled, inState(notice, event.Canceled)),
			past: past(entry(stop, record.Drained), entry(notice, record.Drained)), want: "b drained cordoned, a drained cordoned",
		},
		{name: "a reboot's end is closed", known: known(), past: past(entry(shutdown("a", 0), record.Seen, before)), want: "a closed rebooted missing since 5m0s"},
		{
			name: "what was withdrawn and is back is met anew", known: known(notice),
			past: past(entry(notice, record.Closed, closed(record.Withdrawn), missing(0))), want: "a seen",
		},
		{name: "also what was canceled", known: known(stop), past: past(entry(stop, record.Closed, closed(record.Canceled))), want: "b seen"},
		{name: "not what is over still", known: known(canceled), past: past(entry(stop, record.Closed, closed(record.Withdrawn))), want: ""},
		{name: "not what ended with a reboot", known: known(notice), past: past(entry(notice, record.Closed, closed(record.Rebooted))), want: ""},
		{name: "not what has lived its time", known: known(rebalance("a")), past: past(entry(rebalance("a"), record.Closed, closed(record.Expired))), want: ""},
		{
			name: "not what is to be ignored now", known: known(notice), rules: withAction(event.SpotInterruption, policy.Ignore),
			past: past(entry(notice, record.Closed, closed(record.Withdrawn))), want: "",
		},
		{name: "what was moved far keeps its phase while there is a cordon to lift", known: known(moved), past: past(entry(moved, record.Drained, actedFor(0))), want: ""},
		{
			name: "and begins anew if there is none", known: known(moved),
			past: past(entry(moved, record.Drained, actedFor(0), foreign)), want: "c seen",
		},
		{
			name: "or another event holds it", known: known(moved, notice),
			past: past(entry(moved, record.Drained, actedFor(0)), entry(notice, record.Drained)), want: "c seen",
		},
		{
			name: "so that a reboot before its time is not the announced one", known: known(moved, notice),
			past: past(entry(moved, record.Seen, actedFor(0), before, listedHere), entry(notice, record.Drained, before, listedHere)), want: "",
		},
		{
			name: "a time in another zone is the same time", known: known(inZone(notice)),
			past: past(entry(notice, record.Drained)), want: "",
		},
		{
			name: "that an event is still announced after a reboot is remembered", known: known(notice),
			past: past(entry(notice, record.Drained, before)), want: "a drained cordoned",
		},
		{
			name: "a span that begins in the future begins now", known: known(notice),
			past: past(entry(notice, record.Drained, seenAt(time.Hour))), want: "a drained cordoned",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			settings := row.rules
			if settings == nil {
				settings = rules()
			}
			sit := policy.Situation{Now: at(5 * time.Minute), BootID: thisBoot, Known: row.known, Past: row.past}
			if got := describeEntries(settings.Fold(sit)); got != row.want {
				t.Errorf("Fold: %s\n want: %s", got, row.want)
			}
		})
	}
}

func inZone(ev event.Event) event.Event {
	ev.Deadline = ev.Deadline.In(time.FixedZone("elsewhere", 3600))
	return ev
}

func TestAnEventIsMetWithItsBootAndTime(t *testing.T) {
	t.Parallel()
	again := termination("b")
	sit := policy.Situation{
		Now: at(time.Hour), BootID: thisBoot, Known: known(spot("a", 2*time.Hour), again),
		Past: past(entry(again, record.Closed, closed(record.Withdrawn), before, failed(3, 0))),
	}
	for _, e := range rules().Fold(sit) {
		want := record.Entry{Event: e.Event, Phase: record.Seen, BootID: thisBoot, ListedIn: thisBoot, FirstSeen: sit.Now, Changed: sit.Now}
		if e != want {
			t.Errorf("met as %+v\n   want %+v", e, want)
		}
	}
}

// A budget that was used up when an event was withdrawn must not be missing when it comes back.
func TestABudgetBeginsAnewWithAnEventThatIsBack(t *testing.T) {
	t.Parallel()
	ev := termination("a")
	sit := policy.Situation{
		Now: at(time.Hour), BootID: thisBoot, Known: known(ev),
		Past: past(entry(ev, record.Closed, closed(record.Withdrawn))),
	}
	sit.Past = rules().Fold(sit)
	if got, want := describeStep(rules().Decide(sit)), "drain a until 1h15m0s hard"; got != want {
		t.Errorf("Decide: %s\n   want: %s", got, want)
	}
}

func TestFoldingTwiceChangesNothingMore(t *testing.T) {
	t.Parallel()
	notice, canceled := spot("a", time.Minute), inState(maintenance("b", "instance-stop", time.Hour), event.Canceled)
	sit := policy.Situation{
		Now: noon, BootID: thisBoot, Known: known(notice, canceled, maintenance("d", "system-reboot", time.Hour)),
		Past: past(entry(canceled, record.Seen), entry(termination("c"), record.Drained)),
	}
	record := newBook(sit.Past)
	record.put(rules().Fold(sit)...)
	sit.Past = record.entries()
	if changed := rules().Fold(sit); len(changed) > 0 {
		t.Errorf("the second Fold changed %s", describeEntries(changed))
	}
}

func TestWhatStands(t *testing.T) {
	t.Parallel()
	reboot := maintenance("a", "system-reboot", 48*time.Hour)
	for _, row := range []struct {
		name  string
		entry record.Entry
		want  bool
	}{
		{"what is announced", entry(spot("a", time.Minute), record.Drained), true},
		{"not what is canceled", entry(inState(reboot, event.Canceled), record.Drained), false},
		{"not what was moved to another time", entry(reboot, record.Drained, actedFor(0)), false},
		{"not what is closed", entry(reboot, record.Closed, closed(record.Rebooted)), false},
	} {
		sit := policy.Situation{Now: noon, BootID: thisBoot, Known: known(row.entry.Event), Past: past(row.entry)}
		if got := rules().Stands(sit, row.entry); got != row.want {
			t.Errorf("%s: Stands is %t", row.name, got)
		}
	}
}
