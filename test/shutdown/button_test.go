package shutdown

import (
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
)

// withAButton runs a test on a machine of each suite that has a power button, which nth answers.
func withAButton(t *testing.T, test func(t *testing.T, h *host.Host)) {
	t.Helper()
	onEverySuite(t, func(t *testing.T, h *host.Host) {
		h.AddPowerButton(t)
		h.Run(t, "systemctl", "restart", "nth")
		h.AwaitLock(t, "nth", "handle-power-key")
		h.WaitWatching(t)
		test(t, h)
	})
}

// waitScheduled waits until logind is to power off by itself, whatever becomes of nth.
func waitScheduled(t *testing.T, h *host.Host) {
	t.Helper()
	lab.Await(t, "logind is to power off by itself", func() bool {
		return strings.Contains(h.Logind(t, "ScheduledShutdown"), `"poweroff"`)
	})
}

func TestPress_IsAnsweredByADrainBeforeAnybodyElseHearsOfIt(t *testing.T) {
	withAButton(t, func(t *testing.T, h *host.Host) {
		letGo := holdAsWell(t, h)
		h.Node.AddPods(t, "web", pods, lab.Grace(grace), lab.GoesAtGrace())
		h.PressPower(t)
		h.WaitLogged(t, systemd.DrainStarted)
		waitScheduled(t, h)
		const announced = "b true"
		if h.Logind(t, "PreparingForShutdown") == announced {
			t.Error("logind has announced the shutdown before the node is drained")
		}
		h.WaitLogged(t, systemd.Drained)
		lab.Await(t, "logind announces the shutdown", func() bool { return h.Logind(t, "PreparingForShutdown") == announced })
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
		h.AwaitNoLock(t, "nth", "handle-power-key")
		mustCheck(t, h, "ok    shutdown    the power button is handled by logind, which announces")
		h.Configure(t, "")
		h.Run(t, "systemctl", "reload", "nth")
		h.AwaitLock(t, "nth", "handle-power-key")

		h.Node.AddPods(t, "web", 1, lab.Grace(time.Hour), lab.GoesAtGrace())
		h.PressPower(t)
		waitScheduled(t, h)
		h.Run(t, "systemctl", "stop", "nth")
		h.AwaitNoLock(t, "nth", "handle-power-key")
		waitScheduled(t, h)
		h.Run(t, "systemctl", "start", "nth")
		h.WaitStatus(t, "draining node")
		h.AwaitLock(t, "nth", "handle-power-key")
		waitScheduled(t, h)
		if !h.Node.Object(t).Spec.Unschedulable || len(h.Logged(t, systemd.Uncordoned)) > 0 {
			t.Error("the machine goes down, and its node takes pods")
		}
	})
}
