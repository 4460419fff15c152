package shutdown

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
)

// all, in the environment, asks for what takes long, too.
const all = "NTH_SHUTDOWN"

// withAButton runs a test on a machine of each suite that has a power button, which nth answers.
func withAButton(t *testing.T, test func(t *testing.T, h *host.Host)) {
	t.Helper()
	t.Parallel()
	for _, suite := range machine.Suites() {
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
		return strings.Contains(property(t, h, "ScheduledShutdown"), `"poweroff" 1`)
	})
}

func TestThePowerButtonIsAnsweredByADrainAndNobodyElseHearsOfItBefore(t *testing.T) {
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

func TestAPressWhileNthHangsIsAnsweredByTheProcessThatFollows(t *testing.T) {
	withAButton(t, func(t *testing.T, h *host.Host) {
		h.Node.AddPods(t, "web", pods)
		hung := h.Hang(t, "nth")
		h.PressPower(t)
		h.WaitOff(t) // the watchdog ends nth before
		mustBeDrained(t, h)
		if said := h.Logged(t, systemd.Started); len(said) == 0 || said[len(said)-1]["_PID"] == hung {
			t.Errorf("it was the process that hung, %s", hung)
		}
	})
}

func TestAPressOutlivesNthAndLogindAndTheBus(t *testing.T) {
	for name, harm := range map[string][]string{
		"nth is killed":            {"systemctl", "kill", "--signal=KILL", "nth"},
		"nth is started again":     {"systemctl", "restart", "nth"},
		"logind is started again":  {"systemctl", "restart", "systemd-logind"},
		"the bus is started again": {"systemctl", "restart", "dbus"},
	} {
		t.Run(name, func(t *testing.T) {
			withAButton(t, func(t *testing.T, h *host.Host) {
				h.Node.AddPods(t, "web", pods, lab.Grace(grace), lab.GoesAtGrace())
				h.PressPower(t)
				h.WaitLogged(t, systemd.PodEvicted)
				h.Run(t, harm[0], harm[1:]...)
				h.WaitOff(t)
				mustBeDrained(t, h)
			})
		})
	}
}

// logind waits for what nth was to have, which is too long for a test.
func TestAPressIsAnsweredByLogindIfNthIsStopped(t *testing.T) {
	withAButton(t, func(t *testing.T, h *host.Host) {
		h.Node.AddPods(t, "web", 1, lab.Grace(time.Hour), lab.GoesAtGrace())
		h.PressPower(t)
		waitScheduled(t, h)
		h.Run(t, "systemctl", "stop", "nth")
		waitKey(t, h, false)
		waitScheduled(t, h)
		// systemd keeps no press of a service that was stopped. The machine goes down by it all the same.
		h.Run(t, "systemctl", "start", "nth")
		h.WaitStatus(t, "draining node")
		waitKey(t, h, true)
		waitScheduled(t, h)
		if !h.Node.Object(t).Spec.Unschedulable || len(h.Logged(t, systemd.Uncordoned)) > 0 {
			t.Error("the machine goes down, and its node takes pods")
		}
	})
}

// A drop-in has systemd keep nothing for the process after this one: a press would be lost with the process that has read it.
func TestTheKeyIsLogindsWhereSystemdKeepsNothing(t *testing.T) {
	withAButton(t, func(t *testing.T, h *host.Host) {
		h.Write(t, "/etc/systemd/system/nth.service.d/50-test.conf", "[Service]\nFileDescriptorStoreMax=0\n")
		h.Run(t, "systemctl", "daemon-reload")
		mustCheck(t, h, "warn  shutdown    the power button is handled by logind from nth's next start on: systemd keeps 0 open files")
		h.Run(t, "systemctl", "restart", "nth")
		waitKey(t, h, false)
		h.Await(t, "it is said", func() bool {
			said := h.Logged(t, systemd.Started)
			return slices.ContainsFunc(said, func(e machine.Entry) bool {
				return strings.HasPrefix(e.Message(), "the power button is handled by logind: systemd keeps 0 open files")
			})
		})
	})
}

// From systemd 257 on, which trixie has, logind refuses root, too, what somebody blocks.
func TestAMachineWhoseShutdownSomebodyBlocksGoesDownByItsButton(t *testing.T) {
	for name, stopped := range map[string]bool{"after the drain": false, "by a timer, where nth is stopped": true} {
		t.Run(name, func(t *testing.T) {
			withAButton(t, func(t *testing.T, h *host.Host) {
				h.Run(t, "systemd-run", "--quiet", "systemd-inhibit", "--what=shutdown", "--mode=block", "--who=somebody", "sleep", "infinity")
				h.Await(t, "the shutdown is blocked", func() bool { return locks(t, h, "somebody") })
				if !stopped {
					h.Node.AddPods(t, "web", pods, lab.Grace(grace), lab.GoesAtGrace())
					h.PressPower(t)
					h.WaitOff(t)
					mustBeDrained(t, h)
					return
				}
				h.Node.AddPods(t, "web", 1, lab.Grace(time.Hour), lab.GoesAtGrace())
				h.PressPower(t)
				h.Await(t, "logind or systemd is to power off by itself", func() bool {
					return strings.Contains(property(t, h, "ScheduledShutdown"), `"poweroff" 1`) ||
						strings.Contains(h.Try(t, "systemctl", "list-timers", "--no-legend").Stdout, "nth-power-off.timer")
				})
				h.Run(t, "systemctl", "stop", "nth")
				if os.Getenv(all) == "" {
					t.Logf("it goes down at second 150: to wait for that, set %s", all)
					return
				}
				h.WaitOff(t)
			})
		})
	}
}

func TestTheKeyIsLogindsWhereTheSettingsSayIt(t *testing.T) {
	withAButton(t, func(t *testing.T, h *host.Host) {
		mustCheck(t, h, "ok    shutdown    the power button is handled by nth, process "+h.MainPID(t)+":")
		for _, action := range []string{"notify", "ignore"} {
			h.Configure(t, "[events.shutdown]\naction = \""+action+"\"\n")
			mustCheck(t, h, "warn  shutdown    the power button is handled by nth, process "+h.MainPID(t)+", which has not read the settings")
		}
		h.Configure(t, "[events.shutdown]\npower_key = \"logind\"\n")
		h.Run(t, "systemctl", "reload", "nth")
		waitKey(t, h, false)
		mustCheck(t, h, "ok    shutdown    the power button is handled by logind, as events.shutdown.power_key says")
		h.Configure(t, "")
		mustCheck(t, h, "ok    shutdown    the power button is handled by logind: nth")
		h.Run(t, "systemctl", "reload", "nth")
		waitKey(t, h, true)
	})
}
