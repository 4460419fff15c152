package daemon_test

import (
	"testing"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
)

func TestRules_HooksAreCompletedOnlyWhereTerminationsDrain(t *testing.T) {
	for _, row := range []struct {
		action, incomplete string
		complete           bool
		want, soft         bool // nth completes hooks; the budget is soft, as machines may be kept
	}{
		{"drain", "continue", true, true, false}, {"drain", "abandon", true, true, true}, {"drain", "abandon", false, false, false},
		{"cordon", "continue", true, false, false}, {"notify", "continue", true, false, false}, {"ignore", "continue", true, false, false},
	} {
		c := config.Default().Events.Announced
		c.ASGTermination.Action, c.ASGTermination.CompleteHook, c.ASGTermination.OnIncomplete = row.action, row.complete, row.incomplete
		got, rule := daemon.Hooks(c.ASGTermination), daemon.Rules(c)[event.ASGTermination]
		if got.Complete != row.want || rule.SoftBudget != row.soft || !rule.Hard {
			t.Errorf("%+v: %+v and %+v", row, got, rule)
		}
	}
}
