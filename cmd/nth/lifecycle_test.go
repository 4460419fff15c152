package main_test

import (
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"

	nth "github.com/nth-project/nth/cmd/nth"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/lifecycle"
	"github.com/nth-project/nth/pkg/systemd"
)

func TestHooksAreLookedAfterOnlyWhereTerminationsAreDrainedFor(t *testing.T) {
	for _, row := range []struct {
		action   string
		complete bool
		want     bool
	}{
		{"drain", true, true}, {"drain", false, false}, {"cordon", true, false}, {"notify", true, false}, {"ignore", true, false},
	} {
		c := config.Default().Events.ASGTermination
		c.Action, c.CompleteHook, c.Hooks = row.action, row.complete, []string{"a"}
		got := nth.HookSettings(c)
		if got.Complete != row.want || got.Budget != c.Budget || len(got.Hooks) != 1 {
			t.Errorf("%s, %t: %+v", row.action, row.complete, got)
		}
	}
}

func TestTheBudgetOfATerminationIsSoftWhereMachinesMayBeKept(t *testing.T) {
	for _, row := range []struct {
		incomplete string
		complete   bool
		want       bool
	}{{"abandon", true, true}, {"continue", true, false}, {"abandon", false, false}} {
		c := config.Default().Events
		c.ASGTermination.OnIncomplete, c.ASGTermination.CompleteHook = row.incomplete, row.complete
		if rule := nth.PolicyOf(c)[event.ASGTermination]; rule.SoftBudget != row.want || !rule.Hard {
			t.Errorf("%s, %t: %+v", row.incomplete, row.complete, rule)
		}
	}
}

func TestNewsOfHooksHaveAMessageOfTheirOwn(t *testing.T) {
	for what, id := range map[lifecycle.What]string{
		lifecycle.Found: systemd.HookFound, lifecycle.Trouble: systemd.HookTrouble,
		lifecycle.Refused: systemd.HookRefused, lifecycle.Completed: systemd.HookCompleted,
	} {
		logger, hook := logtest.NewNullLogger()
		nth.TellHook(logger.WithField("a", "b"), lifecycle.News{What: what, Event: event.Event{ID: "e", Kind: event.ASGTermination}, Text: "so it is"})
		entry := hook.LastEntry()
		if entry == nil || entry.Message != "so it is" || entry.Data[systemd.FieldMessageID] != id ||
			entry.Data[systemd.FieldEventID] != "e" || entry.Data[systemd.FieldEventKind] != "asg-termination" {
			t.Errorf("%s was told as %+v", what, entry)
		}
	}
}
