package shutdown

import (
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
)

// A stop job is the only warning where logind was passed by. Its time is the unit's, which is shortened here: of the 20 s
// nth uses 10, and without asking it would be killed after 20.
func TestAnAPIServerThatHangsDoesNotHoldTheStopJob(t *testing.T) {
	withAControlPlaneOfItsOwn(t, func(t *testing.T, cp *lab.ControlPlane, h *host.Host) {
		h.Write(t, "/etc/systemd/system/nth.service.d/50-test.conf", "[Service]\nTimeoutStopSec=20s\n")
		h.Run(t, "systemctl", "daemon-reload")
		h.Node.AddPods(t, "web", 3)
		cp.FreezeAPIServer(t)
		h.Try(t, "systemctl", "start", "--no-block", "poweroff.target")
		h.WaitOff(t)
		if said := h.Logged(t, systemd.DrainIncomplete); len(said) != 1 {
			t.Errorf("it was said %d times that the time of the drain is over, want once", len(said))
		}
		for _, e := range h.Journal(t, "--boot", "_PID=1", "UNIT=nth.service") {
			if strings.Contains(e.Message(), "timed out") {
				t.Errorf("systemd says %q", e.Message())
			}
		}
	})
}
