// Package shutdown judges what becomes of a node when the machine goes down, on a machine that a real systemd has booted
// and with nth installed from its package.
package shutdown

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 4)) }

// pods is what a node in use has, and grace what each of them takes to end.
const (
	pods  = 30
	grace = 3 * time.Second
)

// bootID lets nth see the boot ID of its machine. systemd-nspawn binds it over the one of the kernel below, which survives each reboot, and these
// settings of the unit hide the bind. In package power, machines have a kernel of their own, and nth has these settings.
const bootID = "[Service]\nProtectProc=default\nProtectKernelTunables=no\nProtectControlGroups=no\n"

// onEverySuite runs a test on a machine of each suite, on which nth holds its lock.
func onEverySuite(t *testing.T, test func(t *testing.T, h *host.Host)) {
	t.Helper()
	machine.OnSuites(t, func(t *testing.T, suite string) {
		h := host.Bare(t, lab.Shared(t), suite)
		h.Write(t, "/etc/systemd/system/nth.service.d/40-boot-id.conf", bootID)
		h.Join(t)
		h.Install(t, host.Older)
		h.WaitWatching(t)
		h.AwaitLock(t, "nth", "shutdown")
		test(t, h)
	})
}

// mustBeDrained fails the test unless the node is cordoned and has no pod left that can be moved.
func mustBeDrained(t *testing.T, h *host.Host) {
	t.Helper()
	if !h.Node.Object(t).Spec.Unschedulable {
		t.Error("the machine went down and its node is not cordoned")
	}
	for _, pod := range h.Node.Pods(t) {
		if lab.Evictable(&pod) {
			t.Errorf("the machine went down with the pod %s on its node", pod.Name)
		}
	}
}

// holdAsWell holds another lock until the returned function is called, in place of the kubelet, which holds one for its
// own graceful shutdown.
func holdAsWell(t *testing.T, h *host.Host) (letGo func()) {
	t.Helper()
	h.Run(t, "systemd-run", "--quiet", "systemd-inhibit", "--what=shutdown", "--mode=delay", "--who=kubelet",
		"sh", "-c", "until [ -e /run/let-go ]; do sleep 0.1; done")
	h.AwaitLock(t, "kubelet", "shutdown")
	return func() { h.Run(t, "touch", "/run/let-go") }
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

func TestShutdown_CalledOffIsUndoneAndTheNextDrains(t *testing.T) {
	onEverySuite(t, func(t *testing.T, h *host.Host) {
		stop := h.Node.Observe(t, func(m lab.Moment) { t.Errorf("%s %s, want nothing to happen for what is scheduled", m.What, m.Pod) })
		h.Run(t, "shutdown", "+1")
		h.Run(t, "shutdown", "-c")
		h.Run(t, "systemctl", "restart", "nth")
		h.WaitWatching(t)
		stop()
		h.AwaitLock(t, "nth", "shutdown")

		letGo := holdAsWell(t, h)
		h.Node.AddPods(t, "web", 2)
		h.Try(t, "systemctl", "poweroff")
		h.WaitLogged(t, systemd.Drained)
		h.Run(t, "systemctl", "mask", "--runtime", "poweroff.target") // so that logind has to give it up
		letGo()
		h.WaitLogged(t, systemd.Uncordoned)
		h.Node.WaitUncordoned(t)
		h.AwaitLock(t, "nth", "shutdown")

		h.Run(t, "systemctl", "unmask", "--runtime", "poweroff.target")
		h.Node.AddPods(t, "db", pods, lab.Grace(grace), lab.GoesAtGrace())
		h.PowerOff(t)
		mustBeDrained(t, h)
	})
}

// logind announces some ways to go down. Others leave only nth's own stop job: of Ctrl-Alt-Del process 1 gets a SIGINT, and stops all units. A
// forced reboot stops none, and leaves the pods what systemd-shutdown gives to any process.
func TestReboot_DrainsUnlessItIsForced(t *testing.T) {
	onEverySuite(t, func(t *testing.T, h *host.Host) {
		for number, way := range []struct {
			command string
			drains  bool
		}{
			{"systemctl reboot", true},
			{"systemctl start --no-block reboot.target", true},
			{"kill -INT 1", true},
			{"systemctl reboot --force", false},
		} {
			grace := grace
			if !way.drains {
				grace = time.Minute // longer than a boot, after which the pods are counted
			}
			h.Node.AddPods(t, fmt.Sprintf("web-%d", number), pods, lab.Grace(grace), lab.GoesAtGrace())
			h.RebootBy(t, "sh", "-c", way.command)
			h.WaitWatching(t)
			left := len(h.Node.Pods(t))
			said := len(h.Journal(t, "--boot=-1", "MESSAGE_ID="+systemd.Drained))
			if way.drains && (left > 0 || said != 1) || !way.drains && (left == 0 || said > 0) {
				t.Errorf("%q: %d of %d pods were left, and it was said %d times that the node is drained", way.command, left, pods, said)
			}
			h.Node.WaitUncordoned(t)
			h.AwaitLock(t, "nth", "shutdown")
		}
	})
}

// The stand-in of the metadata service clears the event at the reboot, as EC2 does for one that it counts as the user's.
func TestReboot_ByNthCarriesOutMaintenance(t *testing.T) {
	onEverySuite(t, func(t *testing.T, h *host.Host) {
		h.Node.AddDeployment(t, "web", 4, lab.Grace(grace), lab.GoesAtGrace(), lab.MinAvailable(3))
		h.Node.AddSpare(t)
		first := make(chan time.Time, 1)
		h.Node.Observe(t, func(m lab.Moment) {
			if m.What == lab.PodTerminating {
				select {
				case first <- m.At:
				default: // It is not the first.
				}
			}
		})
		ev := h.IMDS.AddMaintenance(imdstest.MaintenanceEvent{Code: "system-reboot", NotBefore: time.Now().Add(24 * time.Hour)})
		h.Write(t, "/etc/nth/nth.toml.d/60-finish.toml", "[events.scheduled-maintenance]\nfinish = \"reboot\"\ncodes = { system-reboot = \"now\" }\n")
		h.RebootBy(t, "systemctl", "reload", "nth")
		h.IMDS.AddMaintenance(imdstest.MaintenanceEvent{Code: ev.Code, NotBefore: ev.NotBefore, EventId: ev.EventId, State: "completed"})
		h.WaitWatching(t)
		h.Node.WaitUncordoned(t)
		t.Logf("%.1f s from the first eviction until the node is open", time.Since(<-first).Seconds())
		for id, want := range map[string]int{systemd.Rebooting: 1, systemd.PodDeleted: 0} { // A deletion asks no budget.
			if said := h.Journal(t, "--boot=-1", "MESSAGE_ID="+id); len(said) != want {
				t.Errorf("the message %s is in the journal %d times, want %d: %v", id, len(said), want, said)
			}
		}
		if again := h.Logged(t, systemd.Rebooting); len(again) > 0 {
			t.Errorf("the machine is rebooted again: %v", again)
		}
	})
}

// fill writes to the journal's socket until it takes no more, from many sockets, each of which may write so much.
const fill = `
import socket
while True:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.setblocking(False)
    taken = 0
    try:
        while True:
            s.sendto(b"MESSAGE=full\nSYSLOG_IDENTIFIER=fill\n", "/run/systemd/journal/socket")
            taken += 1
    except BlockingIOError:
        pass
    if taken == 0:
        break
`

// The journal hangs, and hogs take every processor, as pods may. Package power has a machine with a kernel of its own.
func TestNotice_OnAStarvedMachineWithoutAJournalDrains(t *testing.T) {
	onEverySuite(t, func(t *testing.T, h *host.Host) {
		h.Node.AddPods(t, "web", pods)
		journald := h.Hang(t, "systemd-journald")
		h.Run(t, "python3", "-c", fill)
		for range 8 {
			h.Run(t, "systemd-run", "--quiet", "sh", "-c", "while :; do :; done")
		}
		h.IMDS.SetSpot("terminate", time.Now().Add(2*time.Minute))
		h.Node.WaitEmpty(t)
		h.WaitStatus(t, "is drained")
		h.Run(t, "kill", "-CONT", journald)
		h.WaitLogged(t, systemd.Drained)
		if said := h.Logged(t, systemd.PodGone); len(said) != pods {
			t.Errorf("the journal has %d pods that are gone, want %d", len(said), pods)
		}
	})
}

// A whole cluster that is powered off must not wait for itself. The delays are shortened: what is judged is that they end.
func TestShutdown_WithoutAnAPIServerEndsAllTheSame(t *testing.T) {
	t.Parallel()
	cp := lab.ForTest(t)
	h := host.New(t, cp, machine.SuiteOf(t.Name()))
	h.Write(t, "/etc/systemd/logind.conf.d/85-site.conf", "[Login]\nInhibitDelayMaxSec=10\n")
	h.Run(t, "chmod", "-R", "a+rX", "/etc/systemd/logind.conf.d")
	h.Run(t, "systemctl", "restart", "systemd-logind")
	lab.Await(t, "nth warns of the delay", func() bool {
		return slices.ContainsFunc(h.Logged(t, systemd.Started), func(e machine.Entry) bool {
			return strings.Contains(e.Message(), "logind delays a shutdown by only 10s") && e["PRIORITY"] == "4"
		})
	})
	h.Write(t, "/var/lib/kubelet/config.yaml", "shutdownGracePeriod: 60s\n")
	mustCheck(t, h,
		"warn  shutdown    logind delays a shutdown by only 10s, even if pods are left: 80-nth.conf, which sets 2m30s, ",
		"warn  shutdown    the kubelet wants to hold it for 1m0s, and logind grants 10s: ")
	h.Node.AddPods(t, "web", 3)
	cp.StopAPIServer(t)
	h.Reboot(t)
	if said := h.Journal(t, "--boot=-1", "MESSAGE_ID="+systemd.Drained); len(said) > 0 {
		t.Error("nth says that the node is drained, which it cannot know")
	}
	if said := h.Journal(t, "--boot=-1", "MESSAGE_ID="+systemd.DrainIncomplete); len(said) == 0 {
		t.Error("nth does not say that its time is over")
	}
	cp.StartAPIServer(t)
	h.WaitStatus(t, h.Node.Name)

	// A stop job is the only warning where logind was passed by. systemd kills nth when it is over.
	h.Write(t, "/etc/systemd/system/nth.service.d/50-test.conf", "[Service]\nTimeoutStopSec=20s\n")
	h.Run(t, "systemctl", "daemon-reload")
	cp.FreezeAPIServer(t)
	h.Try(t, "systemctl", "start", "--no-block", "poweroff.target")
	h.WaitOff(t)
	cp.ThawAPIServer(t)
}
