package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

func TestWhenAnEventHasGotWhatItIsDue(t *testing.T) {
	t.Parallel()
	ev := termination("a")
	cordons := withAction(event.ASGTermination, policy.Cordon)
	for _, row := range []struct {
		name  string
		rules policy.Settings // nil: the defaults
		now   time.Duration
		event event.Event // zero: the termination
		past  []record.Entry
		want  bool
	}{
		{name: "it was drained for", past: past(entry(ev, record.Drained)), want: true},
		{name: "its time was too short", past: past(entry(ev, record.Incomplete)), want: true},
		{name: "nothing has been done yet", past: past(entry(ev, record.Seen)), want: false},
		{name: "the drain was stopped by a crash", past: past(entry(ev, record.Draining)), want: false},
		{name: "an attempt failed, and there is time", now: time.Minute, past: past(entry(ev, record.Draining, failed(1, 0))), want: false},
		{name: "an attempt failed, and its time is over", now: 15 * time.Minute, past: past(entry(ev, record.Draining, failed(3, 0))), want: true},
		{name: "the node was cordoned, and it is to be drained", past: past(entry(ev, record.Cordoned)), want: false},
		{name: "the node was cordoned, as it should be", rules: cordons, past: past(entry(ev, record.Cordoned)), want: true},
		{name: "it is to be cordoned", rules: cordons, past: past(entry(ev, record.Seen)), want: false},
		{name: "it is only to be told", rules: withAction(event.ASGTermination, policy.Notify), past: past(entry(ev, record.Seen)), want: true},
		{name: "it is nobody's business", past: past(entry(termination("b"), record.Draining)), want: true},
		{
			name: "its time has not come", event: maintenance("m", "system-reboot", time.Hour),
			past: past(entry(maintenance("m", "system-reboot", time.Hour), record.Seen)), want: true,
		},
		{
			name: "its time has come", event: maintenance("m", "system-reboot", time.Hour), now: 50 * time.Minute,
			past: past(entry(maintenance("m", "system-reboot", time.Hour), record.Seen)), want: false,
		},
		{name: "it is over", past: past(entry(ev, record.Closed)), want: true},
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
			sit := policy.Situation{Now: at(row.now), BootID: thisBoot, Known: known(of), Past: row.past}
			if got := settings.Settled(sit, of); got != row.want {
				t.Errorf("Settled: %t, want %t", got, row.want)
			}
		})
	}
}

func TestATerminationHasItsBudgetOrLessIfAutoScalingDoesNotWaitThatLong(t *testing.T) {
	t.Parallel()
	limited := func(limit time.Duration) event.Event {
		ev := termination("a")
		ev.Deadline = at(limit)
		return ev
	}
	decide(t, []decision{
		{
			name: "no limit is known", known: known(termination("a")), past: past(entry(termination("a"), record.Seen)),
			want: "drain a until 15m0s hard",
		},
		{name: "the limit is nearer", known: known(limited(5 * time.Minute)), past: past(entry(limited(5*time.Minute), record.Seen)), want: "drain a until 5m0s hard"},
		{name: "the limit is farther", known: known(limited(48 * time.Hour)), past: past(entry(limited(48*time.Hour), record.Seen)), want: "drain a until 15m0s hard"},
		{
			name: "a spot notice has its own time", rules: with(event.SpotInterruption, func(r *policy.Rule) { r.Budget = time.Minute }),
			known: known(spot("a", 2*time.Minute)), past: past(entry(spot("a", 2*time.Minute), record.Seen)), want: "drain a until 2m0s hard",
		},
	})
}
