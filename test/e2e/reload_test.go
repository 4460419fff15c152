package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

// reload gives nth other settings, and returns when it has read them.
func (s *stage) reload(t *testing.T, settings string) {
	t.Helper()
	s.options.Settings = settings
	s.machine.Configure(t, s.options)
	s.nth.Reload(t)
}

// mustHaveSaid fails the test unless nth, which has stopped, has said just this about reloads.
func (s *stage) mustHaveSaid(t *testing.T, want ...string) {
	t.Helper()
	var said []string
	for _, e := range s.nth.Logged("") {
		if id := e.Fields["MESSAGE_ID"]; id == systemd.Reloaded || id == systemd.ConfigInvalid {
			said = append(said, e.Level+": "+e.Message)
		}
	}
	if !slices.Equal(said, want) {
		t.Errorf("nth said\n%s\nwant\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
	}
}

// The event is there all the time, so it is lost if anything is.
func TestAReloadLosesNoEventAndRestartsNoDrain(t *testing.T) {
	s := prepare(t, "")
	s.node.AddDeployment(t, "db", 1, lab.MinAvailable(1))
	s.node.AddSpare(t)
	s.start(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitLog(t, systemd.PodHeld)
	before := s.machine.RecordOf(t, event.SpotInterruption)
	for _, settings := range []string{
		"[imds]\nwithdrawn_after = \"10s\"\n[drain]\nprotect_unmanaged = true\n",
		"[events.spot-interruption]\naction = \"drian\"\n",
		"",
	} {
		s.reload(t, settings)
		s.looks(t, spotDocument, 3)
	}
	s.node.Scale(t, "db", 2) // the second one runs on the spare, and the first may go
	s.waitDrained(t)
	s.nth.Stop(t)
	const changed = "info: configuration reloaded; changed: imds.withdrawn_after, drain.protect_unmanaged"
	s.mustHaveSaid(t, changed,
		"error: "+s.machine.DropIn()+`: line 2: events.spot-interruption.action = "drian": must be one of "ignore", "notify", "cordon", "drain"`,
		"warning: invalid configuration; keeping the current one",
		changed)
	if begun := drainsBegun(s); begun != 1 {
		t.Errorf("the drain was begun %d times, want once", begun)
	}
	after := s.machine.RecordOf(t, event.SpotInterruption)
	if after.Phase != state.Drained || !after.FirstSeen.Equal(before.FirstSeen) {
		t.Errorf("nth remembers %+v, and before the reloads %+v", after, before)
	}
}

// drainsBegun counts the messages that a drain begins with.
func drainsBegun(s *stage) int {
	begun := 0
	for _, e := range s.nth.Logged(systemd.DrainStarted) {
		if strings.HasPrefix(e.Message, "draining the node") {
			begun++
		}
	}
	return begun
}
