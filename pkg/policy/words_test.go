package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// A drain under way whose event was moved goes on; people must not read that it will begin.
func TestDescribe_ADrainUnderWayDoesNotBegin(t *testing.T) {
	t.Parallel()
	settings := with(event.ScheduledMaintenance, func(r *policy.Rule) { r.Spread = 20 * time.Minute })
	for _, phase := range []state.Phase{state.Cordoning, state.Draining, state.Incomplete} {
		// Begun at noon; ten minutes later its document says a date from which it would have begun at 12:05.
		e := entry(maintenance("m", "system-reboot", 35*time.Minute), phase, begun(0))
		if said := settings.Describe(e); strings.Contains(said, "begins") {
			t.Errorf("%s: %q", phase, said)
		}
	}
}

func TestDescribe_AnUncordonIsNoDrainNow(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]state.Entry{
		"canceled":  entry(inState(maintenance("m", "instance-stop", time.Hour), event.Canceled), state.Undoing, begun(0)),
		"withdrawn": entry(spot("s", time.Minute), state.Undoing, missing(-time.Minute), begun(0)),
	} {
		if said := rules().Describe(e); strings.Contains(said, "now") {
			t.Errorf("%s: %q", name, said)
		}
	}
}

// The record was lost, and the claim on the Node does not say what is announced.
func TestDescribe_AClaimIsNoDrainNow(t *testing.T) {
	t.Parallel()
	for _, kind := range []event.Kind{event.SpotInterruption, event.ScheduledMaintenance} {
		e := entry(event.Event{ID: "a", Kind: kind}, state.Cordoned, adopted)
		if said := rules().Describe(e); strings.Contains(said, "drain now") || strings.Contains(said, "  ") || strings.Contains(said, " ;") {
			t.Errorf("%q", said)
		}
	}
}
