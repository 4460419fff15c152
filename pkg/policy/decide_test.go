package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// decision is a row: in this situation, this is the step.
type decision struct {
	name    string
	rules   policy.Settings // nil: the defaults
	now     time.Duration
	known   map[event.Kind][]event.Event // nil: nothing has been looked at yet
	failing map[event.Kind]time.Time
	past    []record.Entry
	want    string
}

func decide(t *testing.T, table []decision) {
	t.Helper()
	for _, row := range table {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			settings := row.rules
			if settings == nil {
				settings = rules()
			}
			sit := policy.Situation{
				Now: at(row.now), BootID: thisBoot, Known: row.known, Failing: row.failing, Past: row.past,
			}
			if got := describeStep(settings.Decide(sit)); got != row.want {
				t.Errorf("Decide: %s\n   want: %s", got, row.want)
			}
		})
	}
}

func TestWhatIsDoneForEachKindAndAction(t *testing.T) {
	t.Parallel()
	stop, reboot := maintenance("a", "instance-stop", time.Hour), maintenance("a", "system-reboot", time.Hour)
	newcomer := func(ev event.Event, action policy.Action, want string) decision {
		return decision{
			name: string(ev.Kind) + " " + ev.Code + " with " + string(action), rules: withAction(ev.Kind, action),
			known: known(ev), past: past(entry(ev, record.Seen)), want: want,
		}
	}
	decide(t, []decision{
		newcomer(spot("a", 2*time.Minute), policy.Drain, "drain a until 2m0s hard"),
		newcomer(spot("a", 2*time.Minute), policy.Cordon, "cordon a hard"),
		newcomer(spot("a", 2*time.Minute), policy.Notify, "wait"),
		newcomer(spot("a", 2*time.Minute), policy.Ignore, "wait"),
		newcomer(hibernation("a", 2*time.Minute), policy.Drain, "cordon a hard"),
		newcomer(hibernation("a", 2*time.Minute), policy.Cordon, "cordon a hard"),
		newcomer(hibernation("a", 2*time.Minute), policy.Notify, "wait"),
		newcomer(rebalance("a"), policy.Drain, "drain a"),
		newcomer(rebalance("a"), policy.Cordon, "cordon a"),
		newcomer(rebalance("a"), policy.Notify, "wait"),
		newcomer(rebalance("a"), policy.Ignore, "wait"),
		newcomer(stop, policy.Drain, "drain a until 1h0m0s"),
		newcomer(stop, policy.Cordon, "cordon a"),
		newcomer(stop, policy.Notify, "wait"),
		newcomer(stop, policy.Ignore, "wait"),
		newcomer(reboot, policy.Drain, "wait; again at 50m0s"),
		newcomer(reboot, policy.Cordon, "wait; again at 50m0s"),
		newcomer(reboot, policy.Notify, "wait"),
		newcomer(termination("a"), policy.Drain, "drain a until 15m0s hard"),
		newcomer(termination("a"), policy.Cordon, "cordon a hard"),
		newcomer(termination("a"), policy.Notify, "wait"),
		newcomer(termination("a"), policy.Ignore, "wait"),
		newcomer(shutdown("a", 5*time.Second), policy.Drain, "drain a until 5s hard"),
		newcomer(shutdown("a", 5*time.Second), policy.Cordon, "cordon a hard"),
		newcomer(shutdown("a", 5*time.Second), policy.Notify, "wait"),
		newcomer(shutdown("a", 5*time.Second), policy.Ignore, "wait"),
		{
			name: "a kind without a rule is ignored", rules: policy.Settings{}, known: known(spot("a", time.Minute)),
			past: past(entry(spot("a", time.Minute), record.Seen)), want: "wait",
		},
	})
}

func TestMaintenanceWaitsForItsTime(t *testing.T) {
	t.Parallel()
	seen := func(name string, ev event.Event, now time.Duration, want string) decision {
		return decision{name: name, known: known(ev), past: past(entry(ev, record.Seen)), now: now, want: want}
	}
	reboot := maintenance("a", "instance-reboot", time.Hour)
	decide(t, []decision{
		seen("a reboot is acted upon its lead before the window", reboot, 50*time.Minute, "drain a until 1h0m0s"),
		seen("and not a moment sooner", reboot, 50*time.Minute-1, "wait; again at 50m0s"),
		seen("a retirement is acted upon at once", maintenance("a", "instance-retirement", 240*time.Hour), 0, "drain a until 240h0m0s"),
		seen("system maintenance is only told", maintenance("a", "system-maintenance", time.Hour), time.Hour, "wait"),
		seen("a code that nobody knows is only told", maintenance("a", "volume-migration", time.Hour), time.Hour, "wait"),
		seen("without a time there is nothing to wait for", timeless(reboot), 0, "drain a"),
		{
			name:  "codes that are not named do what the other codes do",
			rules: with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Codes[policy.OtherCodes] = policy.Lead }),
			known: known(maintenance("a", "volume-migration", time.Hour)),
			past:  past(entry(maintenance("a", "volume-migration", time.Hour), record.Seen)),
			want:  "wait; again at 50m0s",
		},
		{
			name:  "a code can be ignored",
			rules: with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Codes["instance-stop"] = policy.Never }),
			known: known(maintenance("a", "instance-stop", time.Hour)),
			past:  past(entry(maintenance("a", "instance-stop", time.Hour), record.Seen)),
			want:  "wait",
		},
		{
			name:  "a code can only weaken what is done for the kind",
			rules: withAction(event.ScheduledMaintenance, policy.Notify),
			known: known(reboot), past: past(entry(reboot, record.Seen)), now: 55 * time.Minute, want: "wait",
		},
		{
			name:  "a hard deadline can be asked for",
			rules: with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Hard = true }),
			known: known(reboot), past: past(entry(reboot, record.Seen)), now: 55 * time.Minute, want: "drain a until 1h0m0s hard",
		},
		{
			name: "the soonest of two times is when to decide again", known: known(reboot, maintenance("b", "system-reboot", 2*time.Hour)),
			past: past(entry(maintenance("b", "system-reboot", 2*time.Hour), record.Seen), entry(reboot, record.Seen)),
			want: "wait; again at 50m0s",
		},
	})
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	notice := spot("a", 2*time.Minute)
	decide(t, []decision{
		{
			name: "a deadline that is over leaves half a minute", known: known(notice), now: 10 * time.Minute,
			past: past(entry(notice, record.Seen)), want: "drain a until 10m30s hard",
		},
		{
			name: "so does one that is over this moment", known: known(notice), now: 2 * time.Minute,
			past: past(entry(notice, record.Draining)), want: "drain a until 2m30s hard",
		},
		{
			name: "a budget counts from when the event was met", known: known(termination("a")), now: 5 * time.Minute,
			past: past(entry(termination("a"), record.Draining)), want: "drain a until 15m0s hard",
		},
		{
			name: "a budget that is used up leaves half a minute", known: known(termination("a")), now: 16 * time.Minute,
			past: past(entry(termination("a"), record.Draining)), want: "drain a until 16m30s hard",
		},
		{
			name: "a budget does not replace a deadline", rules: with(event.SpotInterruption, func(r *policy.Rule) { r.Budget = time.Hour }),
			known: known(notice), past: past(entry(notice, record.Seen)), want: "drain a until 2m0s hard",
		},
		{
			name: "an event without a deadline or a budget has all the time it stands", known: known(timeless(notice)),
			past: past(entry(timeless(notice), record.Seen)), want: "drain a hard",
		},
	})
}

func TestOfSeveralStepsTheMostUrgentIsTaken(t *testing.T) {
	t.Parallel()
	soon, later := spot("soon", 2*time.Minute), maintenance("later", "instance-stop", 72*time.Hour)
	cordoning := with(event.RebalanceRecommendation, func(r *policy.Rule) { r.Action = policy.Cordon })
	canceled := entry(inState(maintenance("over", "instance-stop", time.Hour), event.Canceled), record.Drained)
	decide(t, []decision{
		{
			name: "the nearest deadline comes first", known: known(soon, later),
			past: past(entry(later, record.Seen), entry(soon, record.Seen)), want: "drain soon until 2m0s hard",
		},
		{
			name: "also when the other drain is under way", known: known(soon, later),
			past: past(entry(later, record.Draining), entry(soon, record.Seen)), want: "drain soon until 2m0s hard",
		},
		{
			name: "the slower drain goes on when the nearer is done", known: known(soon, later),
			past: past(entry(later, record.Draining), entry(soon, record.Drained)), want: "drain later until 72h0m0s",
		},
		{
			name: "a budget is a deadline like one that was announced", known: known(termination("a"), later),
			past: past(entry(later, record.Draining), entry(termination("a"), record.Seen)), want: "drain a until 15m0s hard",
		},
		{
			name: "a deadline comes before none", known: known(rebalance("r"), later),
			rules: withAction(event.RebalanceRecommendation, policy.Drain),
			past:  past(entry(rebalance("r"), record.Draining), entry(later, record.Seen)), want: "drain later until 72h0m0s",
		},
		{
			name: "what is overdue comes before what has minutes", known: known(soon, maintenance("due", "instance-stop", -time.Hour)),
			past: past(entry(soon, record.Draining), entry(maintenance("due", "instance-stop", -time.Hour), record.Seen)),
			want: "drain due until 30s",
		},
		{
			name: "of the same deadline, the kind named first comes first", known: known(shutdown("a", time.Minute), spot("b", time.Minute)),
			past: past(entry(shutdown("a", time.Minute), record.Seen), entry(spot("b", time.Minute), record.Seen)),
			want: "drain b until 1m0s hard",
		},
		{
			name: "draining comes before cordoning", rules: cordoning, known: known(rebalance("r"), later),
			past: past(entry(rebalance("r"), record.Seen), entry(later, record.Seen)), want: "drain later until 72h0m0s",
		},
		{
			name: "cordoning comes before uncordoning", rules: cordoning, known: known(rebalance("r"), canceled.Event),
			past: past(canceled, entry(rebalance("r"), record.Seen)), want: "cordon r",
		},
		{
			name: "draining comes before uncordoning", known: known(soon, canceled.Event),
			past: past(canceled, entry(soon, record.Seen)), want: "drain soon until 2m0s hard",
		},
		{
			name: "a step due now still knows when to look again", known: known(soon, maintenance("b", "system-reboot", time.Hour)),
			past: past(entry(maintenance("b", "system-reboot", time.Hour), record.Seen), entry(soon, record.Seen)),
			want: "drain soon until 2m0s hard; again at 50m0s",
		},
	})
}

func TestWhatIsDoneIsNotDoneAgain(t *testing.T) {
	t.Parallel()
	notice, hibernate := spot("a", 2*time.Minute), hibernation("a", 2*time.Minute)
	still := func(name string, ev event.Event, phase record.Phase, want string, details ...detail) decision {
		return decision{name: name, known: known(ev), past: past(entry(ev, phase, details...)), want: want}
	}
	decide(t, []decision{
		still("a drain that has begun goes on", notice, record.Draining, "drain a until 2m0s hard"),
		still("a drain that is over is over", notice, record.Drained, "wait"),
		still("even if somebody has uncordoned the node", notice, record.Drained, "wait", foreign),
		still("a drain that ran out of time is tried again", notice, record.Incomplete, "drain a until 2m0s hard"),
		still("a cordon that may have been set is set again", hibernate, record.Cordoning, "cordon a hard"),
		still("a cordon that is set is set", hibernate, record.Cordoned, "wait"),
		still("a cordon is set if a drain may not have come so far", hibernate, record.Draining, "cordon a hard"),
		still("a drained node needs no cordon", hibernate, record.Drained, "wait"),
		still("nor does one of which pods were left", hibernate, record.Incomplete, "wait"),
		still("a cordoned node is drained if that is wanted now", notice, record.Cordoned, "drain a until 2m0s hard"),
		still("an event that came back during its undoing is acted upon", notice, record.Undoing, "drain a until 2m0s hard"),
		still("a closed entry asks for nothing", notice, record.Closed, "wait", closed(record.Withdrawn)),
	})
}

func TestAfterAFailureThereIsAPauseThatGrows(t *testing.T) {
	t.Parallel()
	notice := spot("a", time.Hour)
	after := func(name string, failures int, now time.Duration, want string) decision {
		return decision{
			name: name, known: known(notice), now: now, want: want,
			past: past(entry(notice, record.Draining, failed(failures, 0))),
		}
	}
	canceled := inState(notice, event.Canceled)
	decide(t, []decision{
		after("two seconds after the first", 1, 0, "wait; again at 2s"),
		after("to the moment", 1, 2*time.Second, "drain a until 1h0m0s hard"),
		after("twice as long after the second", 2, time.Second, "wait; again at 4s"),
		after("sixteen seconds after the fourth", 4, time.Second, "wait; again at 16s"),
		after("a minute at most", 6, time.Second, "wait; again at 1m0s"),
		after("however many there were", 1000, time.Second, "wait; again at 1m0s"),
		after("and none if the clock was set back", 6, -time.Hour, "drain a until 1h0m0s hard"),
		{
			name: "an uncordon waits, too", known: known(canceled), now: time.Second,
			past: past(entry(canceled, record.Undoing, failed(1, 0))), want: "wait; again at 2s",
		},
		{
			name: "another event's step does not", known: known(notice, spot("b", 2*time.Hour)), now: time.Second,
			past: past(entry(notice, record.Draining, failed(1, 0)), entry(spot("b", 2*time.Hour), record.Seen)),
			want: "drain b until 2h0m0s hard; again at 2s",
		},
	})
}
