package main_test

import (
	"testing"
	"time"

	nth "github.com/nth-project/nth/cmd/nth"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
)

func TestTheBudgetOfATerminationIsSoftWhereMachinesMayBeKept(t *testing.T) {
	for _, row := range []struct {
		incomplete string
		complete   bool
		want       bool
	}{{"abandon", true, true}, {"continue", true, false}, {"abandon", false, false}} {
		c := config.Default()
		c.Events.ASGTermination.OnIncomplete, c.Events.ASGTermination.CompleteHook = row.incomplete, row.complete
		if rule := nth.PolicyOf(c)[event.ASGTermination]; rule.SoftBudget != row.want || !rule.Hard {
			t.Errorf("%s, %t: %+v", row.incomplete, row.complete, rule)
		}
	}
}

// An instance may leave its group's service, return, and leave again within one boot, under the same ID: what is over must not take
// from the time of what begins.
func TestADepartureThatIsOverWasNotTheFirstOfTheNext(t *testing.T) {
	at := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		phase state.Phase
		want  time.Time
	}{
		{state.Closed, time.Time{}}, {state.Seen, at}, {state.Draining, at}, {state.Incomplete, at}, {state.Undoing, at},
	} {
		book, err := record.Open(t.TempDir(), "boot-1", time.Now().Add(-record.Uptime()))
		if err != nil {
			t.Fatal(err)
		}
		book.Put(func(error) {}, state.Entry{Event: event.Event{ID: "a", Kind: event.ASGTermination}, Phase: row.phase, FirstSeen: at, Changed: at})
		if got := nth.FirstSeen(book, "a"); got.Sub(row.want).Abs() > time.Minute {
			t.Errorf("one that is %s was first seen at %s, want %s", row.phase, got, row.want)
		}
		if err := book.Flush(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
