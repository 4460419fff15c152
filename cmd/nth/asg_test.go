package main_test

import (
	"testing"

	nth "github.com/nth-project/nth/cmd/nth"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
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
