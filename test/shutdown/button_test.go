package shutdown

import (
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
)

// withAButton runs a test on a machine of each suite that has a power button, which nth answers.
func withAButton(t *testing.T, test func(t *testing.T, h *host.Host)) {
	t.Helper()
	t.Parallel()
	for _, suite := range machine.SuitesOf(t.Name()) {
		t.Run(suite, func(t *testing.T) {
			t.Parallel()
			h := host.Bare(t, lab.Shared(t), suite)
			h.AddPowerButton(t)
			h.Join(t)
			h.Install(t, host.Older)
			h.WaitWatching(t)
			waitLock(t, h, true)
			waitKey(t, h, true)
			test(t, h)
		})
	}
}

// waitKey waits until logind lists nth's lock on the power key, or does not.
func waitKey(t *testing.T, h *host.Host, want bool) {
	t.Helper()
	h.Await(t, "nth answers the power key, or not", func() bool { return answers(t, h) == want })
}

func answers(t *testing.T, h *host.Host) bool {
	t.Helper()
	for line := range strings.Lines(h.Try(t, "systemd-inhibit", "--list", "--no-legend").Stdout) {
		if strings.HasPrefix(line, "nth ") && strings.Contains(line, "handle-power-key") && strings.Contains(line, "block") {
			return true
		}
	}
	return false
}

// announced tells whether logind is shutting down.
func announced(t *testing.T, h *host.Host) bool {
	t.Helper()
	return property(t, h, "PreparingForShutdown") == "b true"
}

// property is one of logind's.
func property(t *testing.T, h *host.Host, name string) string {
	t.Helper()
	return strings.TrimSpace(h.Try(t, "busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1",
		"org.freedesktop.login1.Manager", name).Stdout)
}

// waitScheduled waits until logind is to power off by itself, whatever becomes of nth.
func waitScheduled(t *testing.T, h *host.Host) {
	t.Helper()
	h.Await(t, "logind is to power off by itself", func() bool {
		return strings.Contains(property(t, h, "ScheduledShutdown"), `"poweroff"`)
	})
}

func TestPress_IsAnsweredByADrainBeforeAnybodyElseHearsOfIt(t *testing.T) {
	withAButton(t, func(t *testing.T, h *host.Host) {
		letGo := holdAsWell(t, h)
		h.Node.AddPods(t, "web", pods, lab.Grace(grace), lab.GoesAtGrace())
		h.PressPower(t)
		h.WaitLogged(t, systemd.DrainStarted)
		waitScheduled(t, h)
		if announced(t, h) {
			t.Error("logind has announced the shutdown before the node is drained")
		}
		h.WaitLogged(t, systemd.Drained)
		h.Await(t, "logind announces the shutdown", func() bool { return announced(t, h) })
		letGo()
		h.WaitOff(t)
		mustBeDrained(t, h)
	})
}

// From systemd 257 on, which trixie has, logind refuses root, too, what somebody blocks: nth asks systemd then. The block comes last, as
// logind would schedule nothing beside it, and its schedule is what a killed nth knows the press by.
func TestPress_OutlivesNthLogindTheBusAndABlock(t *testing.T) {
	withAButton(t, func(t *testing.T, h *host.Host) {
		h.Node.AddPods(t, "web", pods, lab.Grace(20*time.Second), lab.GoesAtGrace())
		h.PressPower(t)
		h.WaitLogged(t, systemd.PodEvicted)
		waitScheduled(t, h)
		for _, harm := range []string{"systemctl kill --signal=KILL nth", "systemctl restart nth", "systemctl reload nth", "systemctl restart systemd-logind", "systemctl restart dbus"} {
			h.Run(t, "sh", "-c", harm)
			h.WaitStatus(t, "draining node")
		}
		h.Run(t, "systemd-run", "--quiet", "systemd-inhibit", "--what=shutdown", "--mode=block", "--who=somebody", "sleep", "infinity")
		h.WaitOff(t)
		mustBeDrained(t, h)
	})
}

// logind's schedule is the memory of the press: where nth is stopped, logind goes down without it.
func TestKey_IsLogindsWhereNthIsStoppedOrTheSettingsSayIt(t *testing.T) {
	withAButton(t, func(t *testing.T, h *host.Host) {
		mustCheck(t, h, "ok    shutdown    the power button is handled by nth, process "+h.MainPID(t)+":")
		h.Configure(t, "[events.shutdown]\npower_key = \"logind\"\n")
		h.Run(t, "systemctl", "reload", "nth")
		waitKey(t, h, false)
		mustCheck(t, h, "ok    shutdown    the power button is handled by logind, which announces")
		h.Configure(t, "")
		h.Run(t, "systemctl", "reload", "nth")
		waitKey(t, h, true)

		h.Node.AddPods(t, "web", 1, lab.Grace(time.Hour), lab.GoesAtGrace())
		h.PressPower(t)
		waitScheduled(t, h)
		h.Run(t, "systemctl", "stop", "nth")
		waitKey(t, h, false)
		waitScheduled(t, h)
		h.Run(t, "systemctl", "start", "nth")
		h.WaitStatus(t, "draining node")
		waitKey(t, h, true)
		waitScheduled(t, h)
		if !h.Node.Object(t).Spec.Unschedulable || len(h.Logged(t, systemd.Uncordoned)) > 0 {
			t.Error("the machine goes down, and its node takes pods")
		}
	})
}
