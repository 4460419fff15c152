package shutdown

import (
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
)

// A whole cluster that is powered off must not wait for itself. The delay is shortened: what is judged is that it ends.
func TestAnAPIServerThatIsGoneDoesNotHoldTheMachine(t *testing.T) {
	withAControlPlaneOfItsOwn(t, func(t *testing.T, cp *lab.ControlPlane, h *host.Host) {
		h.Write(t, "/etc/systemd/logind.conf.d/85-site.conf", "[Login]\nInhibitDelayMaxSec=10\n")
		h.Run(t, "chmod", "-R", "a+rX", "/etc/systemd/logind.conf.d")
		h.Run(t, "systemctl", "restart", "systemd-logind")
		h.Await(t, "nth warns of the delay", func() bool {
			for _, e := range h.Logged(t, systemd.Started) {
				if strings.Contains(e.Message(), "can be held for 10s only") && e["PRIORITY"] == "4" {
					return true
				}
			}
			return false
		})
		h.Write(t, "/var/lib/kubelet/config.yaml", "shutdownGracePeriod: 60s\n")
		mustCheck(t, h,
			"warn  shutdown    logind allows a delay of 10s only, not for the 2m30s that 80-nth.conf asks for: ",
			"warn  shutdown    the kubelet wants to hold it for 1m0s, and logind grants 10s: ")
		h.Node.AddPods(t, "web", 3)
		cp.StopAPIServer(t)
		h.PowerOff(t)
		if len(h.Logged(t, systemd.Drained)) > 0 {
			t.Error("nth says that the node is drained, which it cannot know")
		}
		if len(h.Logged(t, systemd.DrainIncomplete)) == 0 {
			t.Error("nth does not say that its time is over")
		}
		cp.StartAPIServer(t)
	})
}

// mustCheck fails the test unless "nth check" has lines that begin like this.
func mustCheck(t *testing.T, h *host.Host, lines ...string) {
	t.Helper()
	said := "\n" + h.Run(t, "nth", "check")
	for _, line := range lines {
		if !strings.Contains(said, "\n"+line) {
			t.Errorf("nth check says%s\nwant a line that begins with %q", said, line)
		}
	}
}
