package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// fleet is the rules of the tests for a fleet that begins over twenty minutes, and for a retirement a day before it.
func fleet() policy.Settings {
	return with(event.ScheduledMaintenance, func(r *policy.Rule) {
		r.Window, r.Spread, r.Codes["instance-retirement"] = 24*time.Hour, 20*time.Minute, policy.Window
	})
}

// on is an event for an instance.
func on(instance string, ev event.Event) event.Event {
	ev.Instance = instance
	return ev
}

// begins is when something is first done about an event, by the rules, if nothing else happens; before now if at once.
func begins(rules policy.Settings, ev event.Event) time.Time {
	sit := policy.Situation{Now: at(-1000 * time.Hour), BootID: thisBoot, Known: known(ev), Past: past(entry(ev, state.Seen))}
	goal := rules.Decide(sit)
	if goal.Action != policy.Wait {
		return sit.Now
	}
	return goal.Revisit
}

// What these instances' shares are is told here once and for all: nth, nth-queue, and both of another version, have to agree.
func TestSpread_WhenAnInstanceBegins(t *testing.T) {
	t.Parallel()
	const first, second, third = "i-0a1b2c3d4e5f60718", "i-1234567890abcdef0", "i-0000000000000000a"
	week := 7 * 24 * time.Hour
	for name, row := range map[string]struct {
		rules policy.Settings
		ev    event.Event
		want  time.Duration // before its time
	}{
		"a reboot":                                    {fleet(), on(first, maintenance("a", "system-reboot", week)), 19*time.Minute + time.Second},
		"the same for another instance":               {fleet(), on(second, maintenance("a", "system-reboot", week)), 19*time.Minute + 45*time.Second},
		"and a third one":                             {fleet(), on(third, maintenance("a", "system-reboot", week)), 23*time.Minute + 54*time.Second},
		"another event for the first":                 {fleet(), on(first, maintenance("b", "instance-reboot", week)), 19*time.Minute + time.Second},
		"one that is not known begins with the first": {fleet(), maintenance("a", "system-reboot", week), 30 * time.Minute},
		"a retirement begins a day before":            {fleet(), maintenance("a", "instance-retirement", week), 24 * time.Hour},
		"and as much later as the others":             {fleet(), on(second, maintenance("a", "instance-retirement", week)), 24*time.Hour - 10*time.Minute - 15*time.Second},
		"a window that leaves no lead begins sooner":  {windowed(5 * time.Minute), on(second, maintenance("a", "instance-retirement", week)), 19*time.Minute + 45*time.Second},
		"a stop that is to be drained for now is":     {fleet(), on(second, maintenance("a", "instance-stop", week)), 1000*time.Hour + week},
		"without a spread all begin as one":           {rules(), on(second, maintenance("a", "system-reboot", week)), 10 * time.Minute},
		"nor is there one of less than a second":      {spreading(time.Second - 1), on(second, maintenance("a", "system-reboot", week)), 10*time.Minute + time.Second - 1},
	} {
		if got := row.ev.Deadline.Sub(begins(row.rules, row.ev)); got != row.want {
			t.Errorf("%s: begins %s before its time, want %s", name, got, row.want)
		}
	}
}

func windowed(window time.Duration) policy.Settings {
	return changed(fleet(), func(r *policy.Rule) { r.Window = window })
}

func spreading(spread time.Duration) policy.Settings {
	return changed(fleet(), func(r *policy.Rule) { r.Spread = spread })
}

func changed(s policy.Settings, change func(*policy.Rule)) policy.Settings {
	rule := s[event.ScheduledMaintenance]
	change(&rule)
	s[event.ScheduledMaintenance] = rule
	return s
}

func TestSpread_ARetirementIsDrainedNearItsDate(t *testing.T) {
	t.Parallel()
	ev := on("i-1234567890abcdef0", maintenance("a", "instance-retirement", 48*time.Hour))
	unknown := ev
	unknown.Instance = ""
	nameless := unknown
	decide(t, []decision{
		{
			name: "it begins at once, where it is announced late", rules: fleet(), known: known(on(ev.Instance, maintenance("a", "instance-retirement", time.Hour))),
			past: past(entry(on(ev.Instance, maintenance("a", "instance-retirement", time.Hour)), state.Seen)), want: "drain a by 1h0m0s soft; again at 1h0m0s",
		},
		{
			name: "what was begun before the settings said so is taken back until then", rules: fleet(), known: known(ev), node: closedNode,
			past: past(entry(ev, state.Drained, actedAt(0))), want: "uncordon a; again at 24h10m15s",
		},
		{
			name: "what was begun while the instance was not known goes on", rules: fleet(), known: known(ev), now: 24*time.Hour + time.Minute,
			past: past(entry(unknown, state.Draining, actedAt(24*time.Hour))), want: "drain a by 48h0m0s soft; again at 48h0m0s",
		},
		{
			name: "an instance that is not told any more is the one that it was", rules: fleet(), known: known(nameless), now: 24*time.Hour + time.Minute,
			past: past(entry(ev, state.Seen)), want: "wait; again at 24h10m15s",
		},
	})
}
