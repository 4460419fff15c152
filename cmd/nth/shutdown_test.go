package main_test

import (
	"testing"
	"time"

	main "github.com/nth-project/nth/cmd/nth"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// A drop-in with TimeoutStopSec=infinity does not make EC2 wait.
func TestTheStopJobDrainsForNoLongerThanEC2Leaves(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		20 * time.Second: 10 * time.Second, 90 * time.Second: 55 * time.Second, 180 * time.Second: 145 * time.Second,
		10 * time.Minute: 145 * time.Second, 24 * time.Hour: 145 * time.Second,
	} {
		if got := main.StopWithin(timeout); got != want {
			t.Errorf("of %s it drains for %s, want %s", timeout, got, want)
		}
	}
}

func TestAShutdownIsUnderWayIfItWasLeftSoInThisBoot(t *testing.T) {
	deadline := time.Now()
	for name, c := range map[string]struct {
		kind  event.Kind
		phase state.Phase
		boot  string
		want  bool
	}{
		"being drained":      {event.Shutdown, state.Draining, "now", true},
		"drained":            {event.Shutdown, state.Drained, "now", true},
		"called off":         {event.Shutdown, state.Undoing, "now", false},
		"over":               {event.Shutdown, state.Closed, "now", false},
		"before the reboot":  {event.Shutdown, state.Drained, "before", false},
		"of another sort":    {event.SpotInterruption, state.Draining, "now", false},
		"the machine sleeps": {event.Hibernation, state.Draining, "now", false},
	} {
		t.Run(name, func(t *testing.T) {
			e := state.Entry{Event: event.Event{ID: "a", Kind: c.kind, Deadline: deadline}, Phase: c.phase, BootID: c.boot}
			if got := main.Underway([]state.Entry{{}, e}, "now"); got.Equal(deadline) != c.want {
				t.Errorf("it is for %s", got)
			}
		})
	}
}
