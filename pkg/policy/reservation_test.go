package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// ends is the end of a reservation, from which on EC2 takes the instance.
func ends(id string, deadline time.Duration) event.Event {
	return event.Event{ID: id, Kind: event.ReservationEnd, Code: "capacity-block", State: event.Pending, Deadline: at(deadline)}
}

func TestTheEndOfAReservationIsDrainedForALeadBeforeIt(t *testing.T) {
	t.Parallel()
	rules := with(event.ReservationEnd, func(r *policy.Rule) {
		*r = policy.Rule{Action: policy.Drain, Hard: true, Lead: 10 * time.Minute, Budget: 2 * time.Minute, WithdrawnAfter: 15 * time.Minute}
	})
	atOnce := with(event.ReservationEnd, func(r *policy.Rule) { *r = policy.Rule{Action: policy.Drain, Hard: true} })
	end, moved, near := ends("a", 24*time.Hour), ends("a", 48*time.Hour), ends("a", 8*time.Minute)
	reclaimed := timeless(end)
	lost := func(t time.Duration) detail { return func(e *state.Entry) { e.Timeless = at(t) } }
	decide(t, []decision{
		{name: "not while it is far", rules: rules, known: known(end), past: past(entry(end, state.Seen)), want: "wait; again at 23h50m0s"},
		{
			name: "but then, by the time at which EC2 takes it", rules: rules, known: known(end), now: 23*time.Hour + 50*time.Minute,
			past: past(entry(end, state.Seen)), want: "drain a by 24h0m0s hard; again at 24h0m0s",
		},
		{
			name: "at once where it is nearer than that", rules: rules, known: known(near), past: past(entry(near, state.Seen)),
			want: "drain a by 8m0s hard; again at 8m0s",
		},
		{
			name: "what is drained is not drained again", rules: rules, known: known(end), now: 24*time.Hour - time.Minute,
			past: past(entry(end, state.Drained, actedFor(23*time.Hour+50*time.Minute))), want: "drain a by 24h0m0s hard",
		},
		{
			name: "a block that is extended is opened again until its new end", rules: rules, known: known(moved), now: 24 * time.Hour,
			past: past(entry(moved, state.Drained, actedFor(23*time.Hour+50*time.Minute))), want: "uncordon a (); again at 47h50m0s",
		},
		{
			name: "what is being taken back without a time has two minutes", rules: rules, known: known(reclaimed),
			past: past(entry(reclaimed, state.Seen)), want: "drain a by 2m0s hard; again at 2m0s",
		},
		{
			name: "also if it was known for long, with its end", rules: rules, known: known(reclaimed), now: 5 * time.Hour,
			past: past(entry(end, state.Seen)), want: "drain a by 5h2m0s hard; again at 5h2m0s",
		},
		{
			name: "and if it was being drained for that", rules: rules, known: known(reclaimed), now: 23*time.Hour + 55*time.Minute,
			past: past(entry(end, state.Draining, actedFor(23*time.Hour+50*time.Minute))), want: "drain a by 23h57m0s hard; again at 23h57m0s",
		},
		{
			name: "and no more than those", rules: rules, known: known(reclaimed), now: 5*time.Hour + time.Minute,
			past: past(entry(reclaimed, state.Draining, lost(5*time.Hour))), want: "drain a by 5h2m0s hard; again at 5h2m0s",
		},
		{
			name: "an end that is named again holds again", rules: rules, known: known(end), now: 6 * time.Hour,
			past: past(entry(reclaimed, state.Draining, lost(5*time.Hour), actedFor(5*time.Hour))), want: "uncordon a (); again at 23h50m0s",
		},
		{
			name: "for nth-queue, which hears of it minutes before, it is due at once", rules: atOnce, known: known(end), past: past(entry(end, state.Seen)),
			want: "drain a by 24h0m0s hard; again at 24h0m0s",
		},
	})
}
