package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/hours"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// week is a week after noon of Sunday, 1 March 2026, where the tests begin.
const week = 7 * 24 * time.Hour

// inHours returns rules with hours in which maintenance may begin, and a window of a day for an instance-stop.
func inHours(t *testing.T, text string, change func(*policy.Rule)) policy.Settings {
	t.Helper()
	h, ok := hours.Parse(text)
	if !ok {
		t.Fatalf("%q is refused", text)
	}
	return with(event.ScheduledMaintenance, func(r *policy.Rule) {
		r.Hours, r.Window, r.Codes["instance-stop"] = []hours.Hours{h}, 24*time.Hour, policy.Window
		change(r)
	})
}

func waits(*policy.Rule)              {}
func reboots(r *policy.Rule)          { r.Reboot = []string{"system-reboot"} }
func rebootAt(t time.Duration) detail { return func(e *state.Entry) { e.RebootAt = at(t) } }

func TestHours_WhenAnInstanceBegins(t *testing.T) {
	t.Parallel()
	const second = "i-1234567890abcdef0"
	days := func(n int, hour time.Duration) time.Duration {
		return time.Duration(n)*24*time.Hour + hour - 12*time.Hour
	}
	reboot := maintenance("a", "system-reboot", week) // next Sunday, at noon
	for name, row := range map[string]struct {
		rules policy.Settings
		ev    event.Event
		want  time.Duration // after noon of this Sunday
	}{
		"a reboot begins in the last hours":            {inHours(t, "Wed-Thu 02:00-05:00 UTC", reboots), reboot, days(4, 2*time.Hour)},
		"and later by the instance's share":            {inHours(t, "Wed-Thu 02:00-05:00 UTC", reboots), on(second, reboot), days(4, 3*time.Hour+10*time.Minute+15*time.Second)},
		"which is within short hours":                  {inHours(t, "Thu 02:00-02:01 UTC", reboots), on(second, reboot), days(4, 2*time.Hour+15*time.Second)},
		"hours that leave no lead are cut":             {inHours(t, "Sun 11:00-13:00 UTC", reboots), reboot, days(7, 11*time.Hour)},
		"EC2's reboot is not waited for for days":      {inHours(t, "Thu 02:00-05:00 UTC", waits), reboot, week - 10*time.Minute},
		"but for hours":                                {inHours(t, "Sun 02:00-05:00 UTC", waits), reboot, days(7, 2*time.Hour)},
		"a stop begins in hours within its window":     {inHours(t, "Mon-Sun 02:00-05:00 UTC", reboots), maintenance("a", "instance-stop", week), days(7, 2*time.Hour)},
		"and at its beginning without":                 {inHours(t, "Thu 02:00-05:00 UTC", reboots), maintenance("a", "instance-stop", week), week - 24*time.Hour},
		"an instance-reboot waits for EC2":             {inHours(t, "Thu 02:00-05:00 UTC", reboots), maintenance("a", "instance-reboot", week), week - 10*time.Minute},
		"what is to begin now is not put off to hours": {inHours(t, "Thu 02:00-05:00 UTC", func(r *policy.Rule) { r.Codes["system-reboot"] = policy.Now }), reboot, -1000 * time.Hour},
	} {
		if got := begins(row.rules, row.ev).Sub(noon); got != row.want {
			t.Errorf("%s: begins at %s, want %s", name, got, row.want)
		}
	}
}

func TestReboot_OnlyOfADrainedNode(t *testing.T) {
	t.Parallel()
	rules := with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Reboot, r.Codes["instance-reboot"] = []string{"system-reboot"}, policy.Now })
	reboot, inPlace := maintenance("a", "system-reboot", 5*time.Minute), maintenance("b", "instance-reboot", time.Hour)
	drained := func(details ...detail) []state.Entry { return past(entry(reboot, state.Drained, details...)) }
	for name, row := range map[string]struct {
		rules   policy.Settings
		known   map[event.Kind][]event.Event
		failing map[event.Kind]time.Time
		past    []state.Entry
		node    policy.Node
		now     time.Duration
		want    bool
	}{
		"drained":                            {past: drained(), node: emptyNode, want: true},
		"not drained yet":                    {past: past(entry(reboot, state.Draining)), node: closedNode},
		"not known to be drained now":        {past: drained(), node: closedNode},
		"open":                               {past: drained(), node: policy.Node{Drained: true}},
		"uncordoned":                         {past: drained(reopened), node: emptyNode},
		"opted out":                          {past: drained(), node: policy.Node{Cordoned: true, Drained: true, Looked: true, MayNotEvict: true}},
		"requested before":                   {past: drained(rebootAt(-time.Minute)), node: emptyNode},
		"not listed":                         {known: known(), past: drained(), node: emptyNode},
		"not readable":                       {failing: failing(noon), past: drained(), node: emptyNode},
		"at EC2's time":                      {past: drained(), node: emptyNode, now: 5 * time.Minute},
		"drained in an earlier boot":         {past: drained(before), node: emptyNode},
		"by the rules":                       {rules: with(event.ScheduledMaintenance, waits), past: drained(), node: emptyNode},
		"with another event":                 {known: known(reboot, spot("s", time.Minute)), past: append(drained(), entry(spot("s", time.Minute), state.Drained)), node: emptyNode},
		"with an event that is uncertain":    {failing: failing(noon), past: append(drained(), entry(termination("t"), state.Drained, before)), node: emptyNode},
		"with a reboot that EC2 does itself": {known: known(reboot, inPlace), past: append(drained(), entry(inPlace, state.Drained)), node: emptyNode},
	} {
		if row.rules == nil {
			row.rules = rules
		}
		if row.known == nil {
			row.known = known(reboot)
		}
		sit := policy.Situation{Now: at(row.now), BootID: thisBoot, Known: row.known, Failing: row.failing, Past: row.past, Node: row.node}
		if got := row.rules.Decide(brought(t, row.rules, sit)).Reboot; got != row.want {
			t.Errorf("%s: the machine is to be rebooted is %t", name, got)
		}
	}
	if said := rules.Describe(entry(reboot, state.Drained)); !strings.HasSuffix(said, "; the node is drained, and next comes nth's early reboot of the machine") {
		t.Errorf("it is described as %q", said)
	}
}

func TestReboot_WhatFollows(t *testing.T) {
	t.Parallel()
	settings := inHours(t, "Mon 02:00-05:00 UTC", reboots)
	reboot := maintenance("a", "system-reboot", week)
	begun := 14 * time.Hour // at two on Monday
	asked := func(phase state.Phase, details ...detail) []state.Entry {
		return past(entry(reboot, phase, append(details, actedAt(begun), rebootAt(begun+time.Minute))...))
	}
	done, inWindow := reboot, with(event.ScheduledMaintenance, func(r *policy.Rule) {
		r.Reboot, r.Codes["system-reboot"], r.Window = []string{"system-reboot"}, policy.Window, 2*week
	})
	done.State = event.Completed
	atOnce := with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Reboot, r.Codes["system-reboot"] = []string{"system-reboot"}, policy.Now })
	spread := with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Spread = 20 * time.Minute })
	soon, second := maintenance("a", "system-reboot", 24*time.Hour), maintenance("b", "system-reboot", week+20*time.Minute)
	const usual = "; again at 167h50m0s"
	decide(t, []decision{
		{
			name: "the machine goes down", rules: settings, known: known(reboot), now: begun + 2*time.Minute, node: emptyNode,
			past: asked(state.Drained), want: "drain a by 168h0m0s soft; again at 14h11m0s",
		},
		{
			name: "operators allow the drain again before that", rules: atOnce, known: known(reboot), now: begun + 2*time.Minute,
			node: policy.Node{Cordoned: true, Looked: true}, past: asked(state.Drained, leftAlone), want: "drain a by 168h0m0s soft; again at 14h11m0s",
		},
		{
			name: "EC2 completes the event before that", rules: settings, known: known(done), now: begun + 2*time.Minute, node: emptyNode,
			past: asked(state.Drained), want: "wait; again at 14h11m0s",
		},
		{
			name: "and the machine does not go down", rules: settings, known: known(done), now: begun + 11*time.Minute, node: emptyNode,
			past: asked(state.Drained), want: "uncordon a",
		},
		{
			name: "it does not", rules: settings, known: known(reboot), now: begun + 11*time.Minute, node: emptyNode,
			past: asked(state.Drained), want: "uncordon a" + usual,
		},
		{name: "it is back, before the first look", rules: settings, now: begun + 2*time.Minute, past: asked(state.Drained, before), want: "wait" + usual},
		{
			name: "it is back, and EC2 does not answer", rules: settings, failing: failing(time.Time{}), now: begun + 2*time.Minute,
			past: asked(state.Drained, before), want: "uncordon a" + usual,
		},
		{
			name: "it is back, and EC2 does not list the event", rules: settings, known: known(), now: begun + 2*time.Minute,
			past: asked(state.Drained, before), want: "uncordon a",
		},
		{
			name: "it is back, and EC2 lists the event", rules: settings, known: known(reboot), now: begun + 2*time.Minute,
			past: asked(state.Drained, before), want: "uncordon a" + usual,
		},
		{
			name: "it is back, and EC2 lists the event in its window", rules: inWindow, known: known(reboot), now: begun + 2*time.Minute,
			past: asked(state.Drained, before), want: "uncordon a" + usual,
		},
		{
			name: "it is back from a reboot by others, hours before EC2's time", rules: inHours(t, "Mon 02:00-05:00 UTC", waits), known: known(soon),
			now: begun + 2*time.Minute, past: past(entry(soon, state.Drained, before, actedAt(begun))), node: emptyNode, want: "drain a by 24h0m0s soft",
		},
		{
			name: "it is back from a reboot by others, after the hours", rules: inHours(t, "Mon 02:00-05:00 UTC", waits), known: known(soon),
			now: begun + 4*time.Hour, past: past(entry(soon, state.Drained, before, actedAt(begun))), node: emptyNode, want: "drain a by 24h0m0s soft",
		},
		{
			name: "the rule asks for a drain after the hours", rules: inHours(t, "Mon 02:00-05:00 UTC", waits), known: known(soon),
			now: begun + 4*time.Hour, past: past(entry(soon, state.Cordoned, actedAt(begun))), node: emptyNode, want: "drain a by 24h0m0s soft",
		},
		{
			name: "it is back within the lead, and EC2 lists the event", rules: settings, known: known(reboot), now: week - 5*time.Minute, node: emptyNode,
			past: past(entry(reboot, state.Drained, before, actedAt(week-12*time.Minute), rebootAt(week-8*time.Minute))), want: "drain a by 168h0m0s soft",
		},
		{
			name: "EC2 has rebooted it for another event", rules: spread, known: known(reboot, second), now: week + time.Minute, node: emptyNode,
			past: past(
				entry(reboot, state.Drained, before, actedAt(week-10*time.Minute)), entry(second, state.Drained, before, actedAt(week-10*time.Minute)),
			),
			want: "drain b by 168h20m0s soft",
		},
		{name: "EC2's own time is waited for", rules: settings, known: known(reboot), now: begun + time.Hour, past: asked(state.Seen), want: "wait" + usual},
		{
			name: "EC2's own time comes", rules: settings, known: known(reboot), now: week - 10*time.Minute, node: emptyNode,
			past: asked(state.Seen, before), want: "drain a by 168h0m0s soft",
		},
		{
			name: "it is drained again, and the event is over", rules: settings, known: known(done), now: begun + 3*time.Minute, node: emptyNode,
			past: past(entry(done, state.Drained, actedAt(begun+2*time.Minute), rebootAt(begun+time.Minute))), want: "uncordon a",
		},
		{
			name: "EC2 has rebooted the machine", rules: settings, known: known(reboot), now: week + time.Minute,
			past: past(entry(reboot, state.Drained, before, actedAt(week-10*time.Minute), rebootAt(begun))), want: "uncordon a",
		},
	})
}

func TestReboot_IsOfTheEventThatIsAnnouncedAgain(t *testing.T) {
	t.Parallel()
	reboot, stop := maintenance("a", "system-reboot", week), maintenance("a", "instance-stop", week)
	soon := week - 5*time.Minute
	for name, row := range map[string]struct {
		ev     event.Event
		ending state.Ending
		now    time.Duration
		want   state.Phase
	}{
		"it was withdrawn": {reboot, state.Withdrawn, soon, state.Draining},
		"it was not listed once after nth's own reboot":     {reboot, state.Rebooted, time.Hour, state.Seen},
		"it is still listed at the time of EC2's reboot":    {reboot, state.Rebooted, soon, state.Closed},
		"it is a stop that was missing for a while":         {stop, state.Rebooted, soon, state.Draining},
		"it is a stop that EC2 lists long after its date":   {stop, state.Rebooted, 2 * week, state.Draining},
		"it is a reboot that EC2 lists long after its date": {reboot, state.Rebooted, 2 * week, state.Closed},
	} {
		e := entry(row.ev, state.Closed, closed(row.ending), rebootAt(time.Minute))
		again := brought(t, rules(), policy.Situation{Now: at(row.now), BootID: thisBoot, Known: known(row.ev), Past: past(e)}).Past[0]
		if again.Phase != row.want || again.RebootAt.IsZero() {
			t.Errorf("%s: it is %s, and its reboot was at %s", name, again.Phase, again.RebootAt)
		}
	}
}

// The hours of this morning are over for an event that is announced at noon.
func TestHours_AnEventThatMovesWhileItIsActedUpon(t *testing.T) {
	t.Parallel()
	settings, sooner := inHours(t, "Mon-Sun 02:00-05:00 UTC", waits), maintenance("a", "system-reboot", 6*time.Hour)
	sit := policy.Situation{Now: at(6*time.Hour - 10*time.Minute), BootID: thisBoot, Known: known(sooner), Past: past(entry(sooner, state.Seen)), Node: emptyNode}
	sit = brought(t, settings, sit)
	sit.Known = known(maintenance("a", "system-reboot", 12*time.Hour))
	if got, want := describeGoal(settings.Decide(brought(t, settings, sit))), "uncordon a; again at 11h50m0s"; got != want {
		t.Errorf("Decide: %s, want: %s", got, want)
	}
}
