package event_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

func TestCredibleTime_WithinReach(t *testing.T) {
	t.Parallel()
	now := time.Now()
	east := time.FixedZone("", 24*60*60)
	for name, row := range map[string]struct{ from, want time.Time }{
		"none":                       {time.Time{}, time.Time{}},
		"one in UTC":                 {now.UTC(), now.UTC()},
		"one in a zone":              {time.Date(2026, 3, 1, 12, 0, 0, 0, east), time.Date(2026, 2, 28, 12, 0, 0, 0, time.UTC)},
		"one by the monotonic clock": {now, now},
		"in the last year":           {time.Date(2199, 12, 31, 23, 59, 59, 0, time.UTC), time.Date(2199, 12, 31, 23, 59, 59, 0, time.UTC)},
		"after that":                 {time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC), time.Time{}},
		"in the first year":          {time.Date(1970, 6, 1, 0, 0, 0, 0, time.UTC), time.Date(1970, 6, 1, 0, 0, 0, 0, time.UTC)},
		"before the first year":      {time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC), time.Time{}},
	} {
		if got := event.CredibleTime(row.from); got != row.want {
			t.Errorf("%s: %s becomes %s, want %s", name, row.from, got, row.want)
		}
	}
}

func TestWhoHearsOfWhichKinds(t *testing.T) {
	t.Parallel()
	polled := []event.Kind{event.SpotInterruption, event.RebalanceRecommendation, event.ScheduledMaintenance, event.ASGTermination}
	for who, row := range map[string]struct{ got, want []event.Kind }{
		"the metadata service tells of": {event.PolledKinds(), polled},
		"a machine hears of":            {event.Kinds(), slices.Concat(polled, []event.Kind{event.Shutdown, event.Hibernation})},
		"a queue's reader hears of":     {event.QueuedKinds(), slices.Concat(polled, []event.Kind{event.ReservationEnd, event.StateChange, event.StatusCheck})},
		"there are":                     {event.AllKinds(), slices.Concat(event.Kinds(), []event.Kind{event.ReservationEnd, event.StateChange, event.StatusCheck, event.Manual})},
	} {
		if !slices.Equal(row.got, row.want) {
			t.Errorf("%s %q, want %q", who, row.got, row.want)
		}
	}
}

func TestEachKindHasAllItsNames(t *testing.T) {
	t.Parallel()
	reasons := map[string]event.Kind{}
	for i, kind := range event.AllKinds() {
		info := kind.Info()
		if other, known := reasons[info.EventReason]; known {
			t.Errorf("%s and %s have one reason, %s", kind, other, info.EventReason)
		}
		reasons[info.EventReason] = kind
		if info.Kind != kind || info.Reason == "" || info.EventReason == "" || info.Says == "" || info.Handler.Event == "" {
			t.Errorf("%s has a gap in the table: %+v", kind, info)
		}
		if polled := slices.Contains(event.PolledKinds(), kind); polled != (info.Handler.Taint != "") {
			t.Errorf("%s: aws-node-termination-handler taints with %q", kind, info.Handler.Taint)
		}
		if kind.Precedence() != i {
			t.Errorf("%s goes before others as number %d, want %d", kind, kind.Precedence(), i)
		}
		if local := kind == event.Shutdown || kind == event.Hibernation; kind.Local() != local {
			t.Errorf("the machine itself announces %s: %v", kind, kind.Local())
		}
	}
}

func TestAKindOfALaterVersionHasAReasonAllTheSame(t *testing.T) {
	t.Parallel()
	if later := event.Kind("moon-phase"); later.Info() != (event.KindInfo{Kind: later, Reason: "Other"}) || later.Precedence() != -1 {
		t.Errorf("it is %+v, number %d", later.Info(), later.Precedence())
	}
}

func TestAnEventIsCredibleInAllItsTimes(t *testing.T) {
	t.Parallel()
	late, now := time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), time.Now().UTC()
	want := event.Event{ID: "a", Deadline: now}
	for _, ev := range []event.Event{{ID: "a", Noticed: late, Deadline: now}, {ID: "a", Until: late, Deadline: now}} {
		if got := ev.Credible(); got != want {
			t.Errorf("%+v becomes %+v", ev, got)
		}
	}
	if got := (event.Event{Deadline: late}).Credible(); got != (event.Event{}) {
		t.Errorf("its deadline becomes %s", got.Deadline)
	}
}
