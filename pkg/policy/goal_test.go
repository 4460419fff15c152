package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// decision is a row: in this situation, once the record has been brought up to date, this is the goal.
type decision struct {
	name      string
	rules     policy.Settings // nil: the defaults
	now       time.Duration
	known     map[event.Kind][]event.Event // nil: nothing has been looked at yet
	failing   map[event.Kind]time.Time
	unwatched map[event.Kind]bool
	past      []state.Entry
	node      policy.Node
	drained   []string // the events for which the node was said to be drained in this process
	ready     bool
	want      string
}

func (d decision) settings() policy.Settings {
	if d.rules == nil {
		return rules()
	}
	return d.rules
}

func (d decision) situation() policy.Situation {
	return policy.Situation{
		Now: at(d.now), BootID: thisBoot, Known: d.known, Failing: d.failing, Unwatched: d.unwatched, Past: d.past, Node: d.node, DrainedFor: d.drained, Ready: d.ready,
	}
}

func decide(t *testing.T, table []decision) {
	t.Helper()
	for _, row := range table {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			sit := brought(t, row.settings(), row.situation())
			if got := describeGoal(row.settings().Decide(sit)); got != row.want {
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
			known: known(ev), past: past(entry(ev, state.Seen)), want: want,
		}
	}
	decide(t, []decision{
		newcomer(spot("a", 2*time.Minute), policy.Drain, "drain a by 2m0s hard; again at 2m0s"),
		newcomer(spot("a", 2*time.Minute), policy.Cordon, "cordon a; again at 2m0s"),
		newcomer(spot("a", 2*time.Minute), policy.Notify, "wait"),
		newcomer(spot("a", 2*time.Minute), policy.Ignore, "wait"),
		newcomer(hibernation("a", 2*time.Minute), policy.Drain, "cordon a; again at 2m0s"),
		newcomer(hibernation("a", 2*time.Minute), policy.Cordon, "cordon a; again at 2m0s"),
		newcomer(hibernation("a", 2*time.Minute), policy.Notify, "wait"),
		newcomer(rebalance("a"), policy.Drain, "drain a"),
		newcomer(rebalance("a"), policy.Cordon, "cordon a"),
		newcomer(rebalance("a"), policy.Notify, "wait"),
		newcomer(rebalance("a"), policy.Ignore, "wait"),
		newcomer(stop, policy.Drain, "drain a by 1h0m0s soft; again at 1h0m0s"),
		newcomer(stop, policy.Cordon, "cordon a; again at 1h0m0s"),
		newcomer(stop, policy.Notify, "wait"),
		newcomer(stop, policy.Ignore, "wait"),
		newcomer(reboot, policy.Drain, "wait; again at 50m0s"),
		newcomer(reboot, policy.Cordon, "wait; again at 50m0s"),
		newcomer(reboot, policy.Notify, "wait"),
		newcomer(termination("a"), policy.Drain, "drain a by 15m0s hard; again at 15m0s"),
		newcomer(termination("a"), policy.Cordon, "cordon a; again at 15m0s"),
		newcomer(termination("a"), policy.Notify, "wait"),
		newcomer(termination("a"), policy.Ignore, "wait"),
		newcomer(shutdown("a", 5*time.Second), policy.Drain, "drain a by 5s hard; again at 5s"),
		newcomer(shutdown("a", 5*time.Second), policy.Cordon, "cordon a; again at 5s"),
		newcomer(shutdown("a", 5*time.Second), policy.Notify, "wait"),
		newcomer(shutdown("a", 5*time.Second), policy.Ignore, "wait"),
		{
			name: "a kind without a rule is ignored", rules: policy.Settings{}, known: known(spot("a", time.Minute)),
			past: past(entry(spot("a", time.Minute), state.Seen)), want: "wait",
		},
	})
}

func TestAnActionExceedsThoseThatDoLess(t *testing.T) {
	t.Parallel()
	order := []policy.Action{"", policy.Ignore, policy.Notify, policy.Cordon, policy.Drain}
	for i, a := range order {
		for j, b := range order {
			if got := a.Exceeds(b); got != (i > j) {
				t.Errorf("%q exceeds %q: %v", a, b, got)
			}
		}
	}
}

func TestMaintenanceWaitsForItsTime(t *testing.T) {
	t.Parallel()
	seen := func(name string, ev event.Event, now time.Duration, want string) decision {
		return decision{name: name, known: known(ev), past: past(entry(ev, state.Seen)), now: now, want: want}
	}
	reboot := maintenance("a", "instance-reboot", time.Hour)
	decide(t, []decision{
		seen("a reboot is acted upon its lead before the window", reboot, 50*time.Minute, "drain a by 1h0m0s soft; again at 1h0m0s"),
		seen("and not a moment sooner", reboot, 50*time.Minute-1, "wait; again at 50m0s"),
		seen("a retirement is acted upon at once", maintenance("a", "instance-retirement", 240*time.Hour), 0, "drain a by 240h0m0s soft; again at 240h0m0s"),
		seen("system maintenance is only told", maintenance("a", "system-maintenance", time.Hour), time.Hour, "wait"),
		seen("a code that nobody knows is only told", maintenance("a", "volume-migration", time.Hour), time.Hour, "wait"),
		seen("without a time there is nothing to wait for", timeless(reboot), 0, "drain a"),
		{
			name:  "codes that are not named do what the other codes do",
			rules: with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Codes[policy.OtherCodes] = policy.Lead }),
			known: known(maintenance("a", "volume-migration", time.Hour)),
			past:  past(entry(maintenance("a", "volume-migration", time.Hour), state.Seen)),
			want:  "wait; again at 50m0s",
		},
		{
			name:  "a code can be ignored",
			rules: with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Codes["instance-stop"] = policy.Never }),
			known: known(maintenance("a", "instance-stop", time.Hour)),
			past:  past(entry(maintenance("a", "instance-stop", time.Hour), state.Seen)),
			want:  "wait",
		},
		{
			name:  "a code can only weaken what is done for the kind",
			rules: withAction(event.ScheduledMaintenance, policy.Notify),
			known: known(reboot), past: past(entry(reboot, state.Seen)), now: 55 * time.Minute, want: "wait",
		},
		{
			name:  "also where that is to cordon",
			rules: withAction(event.ScheduledMaintenance, policy.Cordon),
			known: known(maintenance("a", "system-maintenance", time.Hour)),
			past:  past(entry(maintenance("a", "system-maintenance", time.Hour), state.Seen)), want: "wait",
		},
		{
			name:  "a hard deadline can be asked for",
			rules: with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Hard = true }),
			known: known(reboot), past: past(entry(reboot, state.Seen)), now: 55 * time.Minute, want: "drain a by 1h0m0s hard; again at 1h0m0s",
		},
		{
			name: "the soonest of two times is when to decide again", known: known(reboot, maintenance("b", "system-reboot", 2*time.Hour)),
			past: past(entry(maintenance("b", "system-reboot", 2*time.Hour), state.Seen), entry(reboot, state.Seen)),
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
			past: past(entry(notice, state.Seen)), want: "drain a by 2m0s hard; again at 10m30s",
		},
		{
			name: "so does one that is over this moment", known: known(notice), now: 2 * time.Minute,
			past: past(entry(notice, state.Seen)), want: "drain a by 2m0s hard; again at 2m30s",
		},
		{
			name: "a budget counts from when the event was met", known: known(termination("a")), now: 5 * time.Minute,
			past: past(entry(termination("a"), state.Draining)), want: "drain a by 15m0s hard; again at 15m0s",
		},
		{
			name: "a budget that is used up leaves half a minute", known: known(termination("a")), now: 16 * time.Minute,
			past: past(entry(termination("a"), state.Seen)), want: "drain a by 15m0s hard; again at 16m30s",
		},
		{
			name: "what was begun in time has no more", known: known(termination("a")), now: 16 * time.Minute,
			past: past(entry(termination("a"), state.Draining)), want: "drain a by 15m0s hard",
		},
		{
			name: "a budget does not replace a nearer deadline", rules: with(event.SpotInterruption, func(r *policy.Rule) { r.Budget = time.Hour }),
			known: known(notice), past: past(entry(notice, state.Seen)), want: "drain a by 2m0s hard; again at 2m0s",
		},
		{
			name: "nor, for other kinds, any that was announced", rules: with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Budget = time.Minute }),
			known: known(maintenance("a", "instance-stop", time.Hour)), past: past(entry(maintenance("a", "instance-stop", time.Hour), state.Seen)),
			want: "drain a by 1h0m0s soft; again at 1h0m0s",
		},
		{
			name: "but it stands where there is none", known: known(rebalance("a")), past: past(entry(rebalance("a"), state.Seen)),
			rules: with(event.RebalanceRecommendation, func(r *policy.Rule) { r.Action, r.Budget = policy.Drain, time.Minute }),
			want:  "drain a by 1m0s soft; again at 1m0s",
		},
		{
			name: "an event without a deadline or a budget has all the time it stands", known: known(timeless(notice)),
			past: past(entry(timeless(notice), state.Seen)), want: "drain a",
		},
		{
			name: "no spot instance has more than its budget, with a clock ten minutes behind", rules: twoMinutes(),
			known: known(spot("a", 12*time.Minute)), past: past(entry(spot("a", 12*time.Minute), state.Seen)),
			want: "drain a by 2m0s hard; again at 2m0s",
		},
		{
			name: "nor less than it is told, if that is less", rules: twoMinutes(),
			known: known(spot("a", time.Minute)), past: past(entry(spot("a", time.Minute), state.Seen)),
			want: "drain a by 1m0s hard; again at 1m0s",
		},
		{
			name: "from when it was first seen, also after a restart", rules: twoMinutes(), now: time.Minute,
			past: past(entry(spot("a", 12*time.Minute), state.Draining)), want: "drain a by 2m0s hard; again at 2m0s",
		},
		{
			name: "a notice without a time has its budget", rules: twoMinutes(),
			known: known(timeless(notice)), past: past(entry(timeless(notice), state.Seen)), want: "drain a by 2m0s hard; again at 2m0s",
		},
	})
}

func TestTheTimeOfAnEventIsToldWithWhetherTheMachineIsGoneThen(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		event event.Event
		want  time.Duration
		hard  bool
	}{
		{spot("a", 2*time.Minute), 2 * time.Minute, true},
		{termination("a"), 15 * time.Minute, true},
		{maintenance("a", "instance-stop", time.Hour), time.Hour, false},
	} {
		if deadline, hard := rules().Deadline(entry(row.event, state.Seen)); !deadline.Equal(at(row.want)) || hard != row.hard {
			t.Errorf("%s: %s, hard: %t; want %s, hard: %t", row.event.Kind, deadline.Sub(noon), hard, row.want, row.hard)
		}
	}
	if deadline, hard := rules().Deadline(entry(rebalance("a"), state.Seen)); !deadline.IsZero() || hard {
		t.Errorf("a recommendation has a time: %s, hard: %t", deadline, hard)
	}
}

func TestWhatIsDoneStaysSo(t *testing.T) {
	t.Parallel()
	notice, hibernate := spot("a", 2*time.Minute), hibernation("a", 2*time.Minute)
	still := func(name string, ev event.Event, phase state.Phase, want string, details ...detail) decision {
		return decision{name: name, known: known(ev), past: past(entry(ev, phase, details...)), want: want}
	}
	decide(t, []decision{
		still("a drain that has begun goes on", notice, state.Draining, "drain a by 2m0s hard; again at 2m0s"),
		still("a node that is drained stays closed", notice, state.Drained, "drain a by 2m0s hard"),
		still("also behind the cordon of somebody else", notice, state.Drained, "drain a by 2m0s hard", foreign),
		still("what ran out of time goes on", notice, state.Incomplete, "drain a by 2m0s hard"),
		still("a cordon that may have been set is set again", hibernate, state.Cordoning, "cordon a; again at 2m0s"),
		still("a cordon that is set is watched", hibernate, state.Cordoned, "cordon a"),
		still("a cordon is set if a drain may not have come so far", hibernate, state.Draining, "cordon a; again at 2m0s"),
		still("a drained node is kept cordoned if no more is wanted now", hibernate, state.Drained, "cordon a; again at 2m0s"),
		still("so is one of which pods were left", hibernate, state.Incomplete, "cordon a; again at 2m0s"),
		still("a cordoned node is drained if that is wanted now", notice, state.Cordoned, "drain a by 2m0s hard; again at 2m0s"),
		still("an event that came back during its undoing is acted upon", notice, state.Undoing, "drain a by 2m0s hard; again at 2m0s"),
		still("a closed entry asks for nothing", notice, state.Closed, "wait", closed(state.Rebooted)),
	})
}

func TestAfterAFailureThereIsAPauseThatGrows(t *testing.T) {
	t.Parallel()
	canceled, notice := inState(maintenance("a", "instance-stop", time.Hour), event.Canceled), spot("b", 2*time.Hour)
	after := func(name string, failures int, now time.Duration, want string) decision {
		return decision{
			name: name, known: known(canceled), now: now, want: want,
			past: past(entry(canceled, state.Undoing, failed(failures, 0))),
		}
	}
	decide(t, []decision{
		after("two seconds after the first", 1, 0, "wait; again at 2s"),
		after("to the moment", 1, 2*time.Second, "uncordon a (canceled)"),
		after("twice as long after the second", 2, time.Second, "wait; again at 4s"),
		after("sixteen seconds after the fourth", 4, time.Second, "wait; again at 16s"),
		after("a minute at most", 6, time.Second, "wait; again at 1m0s"),
		after("however many there were", 1000, time.Second, "wait; again at 1m0s"),
		after("and no longer if the clock was set back", 6, -time.Hour, "wait; again at -59m0s"),
		{
			name: "the undoing for another event waits with it", known: known(canceled), now: time.Second, want: "wait; again at 2s",
			past: past(entry(canceled, state.Undoing, failed(1, 0)), entry(notice, state.Undoing, missing(-time.Hour))),
		},
		{
			name: "what is due does not", known: known(canceled, notice), now: time.Second, want: "drain b by 2h0m0s hard; again at 2h0m0s",
			past: past(entry(canceled, state.Undoing, failed(1, 0)), entry(notice, state.Seen)),
		},
	})
}

func TestATerminationHasItsBudgetOrLessIfAutoScalingDoesNotWaitThatLong(t *testing.T) {
	t.Parallel()
	limited := func(limit time.Duration) event.Event {
		ev := termination("a")
		ev.Deadline = at(limit)
		return ev
	}
	outlives := with(event.ASGTermination, func(r *policy.Rule) { r.SoftBudget = true })
	decide(t, []decision{
		{
			name: "no limit is known", known: known(termination("a")), past: past(entry(termination("a"), state.Seen)),
			want: "drain a by 15m0s hard; again at 15m0s",
		},
		{name: "the limit is nearer", known: known(limited(5 * time.Minute)), past: past(entry(limited(5*time.Minute), state.Seen)), want: "drain a by 5m0s hard; again at 5m0s"},
		{name: "the limit is farther", known: known(limited(48 * time.Hour)), past: past(entry(limited(48*time.Hour), state.Seen)), want: "drain a by 15m0s hard; again at 15m0s"},
		{
			name: "the machine outlives it", rules: outlives, known: known(termination("a")), past: past(entry(termination("a"), state.Seen)),
			want: "drain a by 15m0s soft; again at 15m0s",
		},
		{
			name: "the machine has outlived it", rules: outlives, known: known(termination("a")), past: past(entry(termination("a"), state.Incomplete)),
			now: time.Hour, want: "drain a by 15m0s soft",
		},
		{
			name: "it turns out not to", rules: outlives, known: known(limited(15 * time.Minute)), past: past(entry(termination("a"), state.Draining)),
			want: "drain a by 15m0s hard; again at 15m0s",
		},
		{
			name: "it would, but the limit is nearer", rules: outlives, known: known(limited(5 * time.Minute)),
			past: past(entry(limited(5*time.Minute), state.Seen)), want: "drain a by 5m0s hard; again at 5m0s",
		},
		{
			name: "and so has a spot notice", rules: with(event.SpotInterruption, func(r *policy.Rule) { r.Budget = time.Minute }),
			known: known(spot("a", 2*time.Minute)), past: past(entry(spot("a", 2*time.Minute), state.Seen)), want: "drain a by 1m0s hard; again at 1m0s",
		},
	})
}

func TestAClockThatWasSetBack(t *testing.T) {
	t.Parallel()
	notice := spot("a", time.Minute)
	decide(t, []decision{
		{
			name: "stops no drain that is to be at once", known: known(notice), now: -time.Hour,
			past: past(entry(notice, state.Draining)), want: "drain a by 1m0s hard; again at 1m0s",
		},
		{
			name: "keeps none from beginning", known: known(notice), now: -time.Hour,
			past: past(entry(notice, state.Seen, seenAt(time.Hour))), want: "drain a by 1m0s hard; again at 1m0s",
		},
		{name: "undoes nothing", known: known(notice), now: -time.Hour, past: past(entry(notice, state.Drained)), want: "drain a by 1m0s hard"},
	})
}
