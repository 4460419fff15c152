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
	name    string
	rules   policy.Settings // nil: the defaults
	now     time.Duration
	known   map[event.Kind][]event.Event // nil: nothing has been looked at yet
	failing map[event.Kind]time.Time
	past    []state.Entry
	node    policy.Node
	want    string
}

func (d decision) settings() policy.Settings {
	if d.rules == nil {
		return rules()
	}
	return d.rules
}

func (d decision) situation() policy.Situation {
	return policy.Situation{
		Now: at(d.now), BootID: thisBoot, Known: d.known, Failing: d.failing, Past: d.past, Node: d.node,
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

func TestDecide_EachKindAndAction(t *testing.T) {
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
		newcomer(hibernation("a", 2*time.Minute), policy.Notify, "wait"),
		newcomer(rebalance("a"), policy.Drain, "drain a"),
		newcomer(rebalance("a"), policy.Cordon, "cordon a"),
		newcomer(stop, policy.Drain, "drain a by 1h0m0s soft; again at 1h0m0s"),
		newcomer(stop, policy.Cordon, "cordon a; again at 1h0m0s"),
		newcomer(reboot, policy.Drain, "wait; again at 50m0s"),
		newcomer(reboot, policy.Cordon, "wait; again at 50m0s"),
		newcomer(termination("a"), policy.Drain, "drain a by 15m0s hard; again at 15m0s"),
		newcomer(termination("a"), policy.Cordon, "cordon a; again at 15m0s"),
		newcomer(shutdown("a", 5*time.Second), policy.Drain, "drain a by 5s hard; again at 5s"),
	})
}

func TestDecide_MaintenanceWaitsForItsTime(t *testing.T) {
	t.Parallel()
	seen := func(name string, ev event.Event, now time.Duration, want string) decision {
		return decision{name: name, known: known(ev), past: past(entry(ev, state.Seen)), now: now, want: want}
	}
	reboot := maintenance("a", "instance-reboot", time.Hour)
	decide(t, []decision{
		seen("a reboot is acted upon its lead before the window", reboot, 50*time.Minute, "drain a by 1h0m0s soft; again at 1h0m0s"),
		seen("not a moment sooner", reboot, 50*time.Minute-1, "wait; again at 50m0s"),
		seen("a retirement is acted upon at once", maintenance("a", "instance-retirement", 240*time.Hour), 0, "drain a by 240h0m0s soft; again at 240h0m0s"),
		seen("system maintenance is only told", maintenance("a", "system-maintenance", time.Hour), time.Hour, "wait"),
		seen("a code that nobody knows is only told", maintenance("a", "volume-migration", time.Hour), time.Hour, "wait"),
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
	})
}

func TestDecide_Deadlines(t *testing.T) {
	t.Parallel()
	notice, limited := spot("a", 2*time.Minute), termination("a")
	limited.Deadline = at(15 * time.Minute)
	outlives := with(event.ASGTermination, func(r *policy.Rule) { r.SoftBudget = true })
	decide(t, []decision{
		{
			name: "a budget does not replace a nearer deadline", rules: with(event.SpotInterruption, func(r *policy.Rule) { r.Budget = time.Hour }),
			known: known(notice), past: past(entry(notice, state.Seen)), want: "drain a by 2m0s hard; again at 2m0s",
		},
		{
			name: "a budget replaces no announced deadline of other kinds", rules: with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Budget = time.Minute }),
			known: known(maintenance("a", "instance-stop", time.Hour)), past: past(entry(maintenance("a", "instance-stop", time.Hour), state.Seen)),
			want: "drain a by 1h0m0s soft; again at 1h0m0s",
		},
		{
			name: "a budget counts where there is no deadline", known: known(rebalance("a")), past: past(entry(rebalance("a"), state.Seen)),
			rules: with(event.RebalanceRecommendation, func(r *policy.Rule) { r.Action, r.Budget = policy.Drain, time.Minute }),
			want:  "drain a by 1m0s soft; again at 1m0s",
		},
		{
			name: "no spot instance has more than its budget, with a clock ten minutes behind", rules: twoMinutes(),
			known: known(spot("a", 12*time.Minute)), past: past(entry(spot("a", 12*time.Minute), state.Seen)),
			want: "drain a by 2m0s hard; again at 2m0s",
		},
		{
			name: "a notice without a time has its budget", rules: twoMinutes(),
			known: known(timeless(notice)), past: past(entry(timeless(notice), state.Seen)), want: "drain a by 2m0s hard; again at 2m0s",
		},
		{
			name: "what comes back before it is undone has a time of its own", known: known(termination("a")), now: time.Hour,
			past: past(entry(termination("a"), state.Undoing, missing(30*time.Minute))), want: "drain a by 1h15m0s hard; again at 1h15m0s",
		},
		{
			name: "a spot notice of another boot, too", known: known(spot("a", 2*time.Minute)),
			past: past(entry(spot("a", -time.Hour), state.Drained, before)), want: "drain a by 2m0s hard; again at 2m0s",
		},
		{
			name: "the machine outlives it", rules: outlives, known: known(termination("a")), past: past(entry(termination("a"), state.Seen)),
			want: "drain a by 15m0s soft; again at 15m0s",
		},
		{
			name: "the machine has outlived it", rules: outlives, known: known(termination("a")), past: past(entry(termination("a"), state.Incomplete)),
			now: time.Hour, want: "drain a by 15m0s soft",
		},
		{
			name: "it turns out not to", rules: outlives, known: known(limited), past: past(entry(termination("a"), state.Draining)),
			want: "drain a by 15m0s hard; again at 15m0s",
		},
	})
}
