package main_test

import (
	"testing"
	"time"

	queue "github.com/nth-project/nth/cmd/nth-queue"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// SQS keeps a message for fourteen days at most, and a message that waits comes back each half day.
func TestAPlannedChangeBeginsBeforeItsMessageIsForgotten(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	noticed := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		code             string
		ahead            time.Duration
		earliest, latest time.Duration // after it was announced
	}{
		{"instance-retirement", 30 * day, 13*day - 20*time.Minute, 13 * day},
		{"system-reboot", 14 * day, 13*day - 20*time.Minute, 13 * day},
		{"instance-retirement", 10 * day, 9 * day, 9*day + 20*time.Minute},
		{"system-reboot", 10 * day, 10*day - 30*time.Minute, 10*day - 10*time.Minute},
	} {
		ev := event.Event{
			ID: "a", Kind: event.ScheduledMaintenance, Code: row.code, State: event.Pending,
			Noticed: noticed, Deadline: noticed.Add(row.ahead), Instance: "i-0123456789abcdef0",
		}
		goal := queue.PolicyOf(config.DefaultQueue().Events).Decide(policy.Situation{
			Now: noticed, Known: map[event.Kind][]event.Event{ev.Kind: {ev}}, Past: []state.Entry{{Event: ev, Phase: state.Seen}},
		})
		if begins := goal.Revisit.Sub(noticed); goal.Action != policy.Wait || begins < row.earliest || begins >= row.latest {
			t.Errorf("%s %s ahead begins after %s (%s), want between %s and %s", row.code, row.ahead, begins, goal.Action, row.earliest, row.latest)
		}
	}
}
