package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

func TestSeveral_TheMostUrgentComesFirst(t *testing.T) {
	t.Parallel()
	soon, later := spot("soon", 2*time.Minute), maintenance("later", "instance-stop", 72*time.Hour)
	canceled := entry(inState(maintenance("over", "instance-stop", time.Hour), event.Canceled), state.Drained)
	decide(t, []decision{
		{
			name: "a budget is a deadline like one that was announced", known: known(termination("a"), later),
			past: past(entry(later, state.Draining), entry(termination("a"), state.Seen)), want: "drain a, later by 15m0s hard by 72h0m0s soft; again at 15m0s",
		},
		{
			name: "a deadline comes before none", known: known(rebalance("r"), later),
			rules: withAction(event.RebalanceRecommendation, policy.Drain),
			past:  past(entry(rebalance("r"), state.Draining), entry(later, state.Seen)), want: "drain later, r by 72h0m0s soft; again at 72h0m0s",
		},
		{
			name: "what is overdue does not come before a machine that is lost", known: known(soon, maintenance("due", "instance-stop", -time.Hour)),
			past: past(entry(soon, state.Draining), entry(maintenance("due", "instance-stop", -time.Hour), state.Seen)),
			want: "drain soon, due by 2m0s hard by -1h0m0s soft; again at 30s",
		},
		{
			name: "of the same deadline, the kind named first comes first", known: known(shutdown("a", time.Minute), spot("b", time.Minute)),
			past: past(entry(shutdown("a", time.Minute), state.Seen), entry(spot("b", time.Minute), state.Seen)),
			want: "drain b, a by 1m0s hard; again at 1m0s",
		},
		{
			name: "of the same deadline and kind, the ID decides", known: known(spot("a", time.Minute), spot("b", time.Minute)),
			past: past(entry(spot("b", time.Minute), state.Seen), entry(spot("a", time.Minute), state.Seen)),
			want: "drain a, b by 1m0s hard; again at 1m0s",
		},
		{
			name: "draining comes before uncordoning", known: known(soon, canceled.Event),
			past: past(canceled, entry(soon, state.Seen)), want: "drain soon by 2m0s hard; again at 2m0s",
		},
	})
}

// What is waited for once no pod is left ends before that.
func TestGoal_WhenTheNextEventRunsOutOfTime(t *testing.T) {
	t.Parallel()
	soft := func(id string, deadline time.Duration) event.Event { return maintenance(id, "instance-stop", deadline) }
	endless := with(event.ASGTermination, func(r *policy.Rule) { r.Budget = 0 })
	for name, row := range map[string]struct {
		rules policy.Settings // nil: the defaults
		past  []state.Entry
		want  time.Duration // 0: none does
	}{
		"one that is to come, beside an overdue one":   {past: past(entry(soft("s", -time.Hour), state.Incomplete), entry(soft("t", time.Hour), state.Draining)), want: time.Hour},
		"one that is to come before the while is over": {past: past(entry(soft("s", -time.Hour), state.Seen), entry(soft("t", 10*time.Second), state.Draining)), want: 10 * time.Second},
		"a machine that is lost":                       {past: past(entry(soft("s", 2*time.Minute), state.Draining), entry(spot("l", time.Hour), state.Draining)), want: time.Hour},
		"one that was to be lost, and another":         {past: past(entry(spot("k", -time.Hour), state.Seen), entry(spot("l", time.Hour), state.Draining)), want: 30 * time.Second},
		"a soft one, beside what may last for ever":    {rules: endless, past: past(entry(soft("s", time.Hour), state.Draining), entry(termination("l"), state.Draining)), want: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sit := policy.Situation{Now: noon, BootID: thisBoot, Past: row.past}
			var events []event.Event
			for _, e := range row.past {
				events = append(events, e.Event)
			}
			sit.Known = known(events...)
			if row.rules == nil {
				row.rules = rules()
			}
			sit = brought(t, row.rules, sit)
			var want time.Time
			if row.want != 0 {
				want = at(row.want)
			}
			if goal := row.rules.Decide(sit); !goal.TimeEnds.Equal(want) {
				t.Errorf("%s: the next runs out of time at %s, want %s", describeGoal(goal), goal.TimeEnds, want)
			}
		})
	}
}

// What the guard has told was true for those that it knew of.
func TestFold_AReportHoldsForItsEventsOnly(t *testing.T) {
	t.Parallel()
	stop, end := maintenance("s", "instance-stop", 72*time.Hour), termination("t")
	for name, row := range map[string]struct {
		told []string
		want string
	}{
		"for one of them": {[]string{"s"}, "s drained on node, t draining on node"},
		"for the other":   {[]string{"t"}, "s draining on node, t drained on node"},
		"for both":        {[]string{"t", "s"}, "s drained on node, t drained on node"},
		"for none":        {[]string{}, "s draining on node, t draining on node"},
		"for all":         {nil, "s drained on node, t drained on node"},
	} {
		sit := brought(t, rules(), policy.Situation{
			Now: noon, BootID: thisBoot, Known: known(stop, end), Past: past(entry(stop, state.Draining), entry(end, state.Draining)),
			Node: emptyNode, NodeFor: row.told,
		})
		if got := describeEntries(sit.Past); got != row.want {
			t.Errorf("%s: the record says %s, want %s", name, got, row.want)
		}
	}
}

// A node that never empties must not hold the hook of a termination for as long as a retirement is away.
func TestSettled_EachEventByItsOwnTime(t *testing.T) {
	t.Parallel()
	end, retirement, reboot := termination("t"), maintenance("w", "instance-retirement", 168*time.Hour), maintenance("r", "system-reboot", time.Hour)
	sit := policy.Situation{BootID: thisBoot, Known: known(end, retirement, reboot), Node: closedNode}
	for _, look := range []struct {
		now  time.Duration
		want string
	}{
		{0, "r"},
		{15*time.Minute - 1, "r"},
		{15 * time.Minute, "r t"},
		{50 * time.Minute, "t"},
		{time.Hour, "r t"},
		{168*time.Hour - 1, "r t"},
		{168 * time.Hour, "r t w"},
	} {
		sit.Now = at(look.now)
		sit = brought(t, rules(), sit)
		var settled []string
		for _, ev := range []event.Event{reboot, end, retirement} {
			if rules().Settled(sit, ev) != "" {
				settled = append(settled, ev.ID)
			}
		}
		if got := strings.Join(settled, " "); got != look.want {
			t.Errorf("at %s, settled: %q, want %q", look.now, got, look.want)
		}
		if again := rules().Decide(sit).Revisit; !again.IsZero() && !again.After(sit.Now) {
			t.Errorf("at %s, to be decided again in the past", look.now)
		}
	}
}
