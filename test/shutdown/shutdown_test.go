// Package shutdown judges what becomes of a node when the machine goes down, on a machine that a real systemd has booted
// and with nth installed from its package.
package shutdown

import (
	"os"
	"strings"
	"testing"
	"time"

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

// onEverySuite runs a test on a machine of each suite, on which nth holds its lock.
func onEverySuite(t *testing.T, test func(t *testing.T, h *host.Host)) {
	t.Helper()
	t.Parallel()
	for _, suite := range machine.SuitesOf(t.Name()) {
		t.Run(suite, func(t *testing.T) {
			t.Parallel()
			h := host.New(t, lab.Shared(t), suite)
			waitLock(t, h, true)
			test(t, h)
		})
	}
}

// withAControlPlaneOfItsOwn runs a test that breaks its control plane on a machine of each suite.
func withAControlPlaneOfItsOwn(t *testing.T, test func(t *testing.T, cp *lab.ControlPlane, h *host.Host)) {
	t.Helper()
	t.Parallel()
	for _, suite := range machine.SuitesOf(t.Name()) {
		t.Run(suite, func(t *testing.T) {
			t.Parallel()
			cp := lab.ForTest(t)
			test(t, cp, host.New(t, cp, suite))
		})
	}
}

// waitLock waits until logind lists nth's lock, or does not.
func waitLock(t *testing.T, h *host.Host, want bool) {
	t.Helper()
	h.Await(t, "nth holds its lock, or not", func() bool { return locks(t, h, "nth") == want })
}

func locks(t *testing.T, h *host.Host, who string) bool {
	t.Helper()
	for line := range strings.Lines(h.Try(t, "systemd-inhibit", "--list", "--no-legend").Stdout) {
		if strings.HasPrefix(line, who+" ") && strings.Contains(line, "shutdown") {
			return true
		}
	}
	return false
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

func TestTheNodeIsDrainedBeforeTheMachineIsOff(t *testing.T) {
	for _, way := range []string{
		"systemctl poweroff",
		"shutdown -h now",
		// Not by way of logind: there is no announcement, only nth's own stop job.
		"systemctl start --no-block poweroff.target",
	} {
		t.Run(way, func(t *testing.T) {
			onEverySuite(t, func(t *testing.T, h *host.Host) {
				h.Node.AddPods(t, "web", pods, lab.Grace(grace), lab.GoesAtGrace())
				h.Try(t, "sh", "-c", way) // may not live to tell its status
				h.WaitOff(t)
				mustBeDrained(t, h)
				if said := h.Logged(t, systemd.Drained); len(said) != 1 {
					t.Errorf("it was said %d times that the node is drained, want once", len(said))
				}
			})
		})
	}
}

func TestTheNodeIsDrainedBeforeARebootAndBackAfterIt(t *testing.T) {
	onEverySuite(t, func(t *testing.T, h *host.Host) {
		h.Node.AddPods(t, "web", pods, lab.Grace(grace), lab.GoesAtGrace())
		h.Reboot(t)
		h.Node.WaitUncordoned(t)
		h.WaitWatching(t)
		mustHaveLeft(t, h)
		waitLock(t, h, true)
	})
}

// mustHaveLeft fails the test unless nth has drained the node in the boot before this one.
func mustHaveLeft(t *testing.T, h *host.Host) {
	t.Helper()
	if said := h.Journal(t, "--boot=-1", "MESSAGE_ID="+systemd.Drained); len(said) != 1 {
		t.Errorf("before the reboot it was said %d times that the node is drained, want once", len(said))
	}
	if left := h.Node.Pods(t); len(left) != 0 {
		t.Errorf("after the reboot the node has %d pods", len(left))
	}
}

func TestAShutdownThatIsCalledOffIsUndoneAndTheNextOneHeardOf(t *testing.T) {
	onEverySuite(t, func(t *testing.T, h *host.Host) {
		letGo := holdAsWell(t, h)
		h.Node.AddPods(t, "web", 2)
		h.Try(t, "systemctl", "poweroff")
		h.WaitLogged(t, systemd.Drained)
		h.Run(t, "systemctl", "mask", "--runtime", "poweroff.target") // so that logind has to give it up
		letGo()
		h.WaitLogged(t, systemd.Uncordoned)
		h.Node.WaitUncordoned(t)
		waitLock(t, h, true)

		h.Run(t, "systemctl", "unmask", "--runtime", "poweroff.target")
		h.Node.AddPods(t, "db", 2)
		h.PowerOff(t)
		mustBeDrained(t, h)
	})
}

func TestAShutdownThatIsScheduledAndCalledOffIsNone(t *testing.T) {
	onEverySuite(t, func(t *testing.T, h *host.Host) {
		stop := h.Node.Observe(t, func(m lab.Moment) { t.Errorf("%s %s, want nothing to happen", m.What, m.Pod) })
		h.Run(t, "shutdown", "+1")
		h.Run(t, "shutdown", "-c")
		h.Run(t, "systemctl", "restart", "nth")
		h.WaitWatching(t)
		stop()
		waitLock(t, h, true)
	})
}

// holdAsWell holds another lock until the returned function is called, in place of the kubelet, which holds one for its
// own graceful shutdown.
func holdAsWell(t *testing.T, h *host.Host) (letGo func()) {
	t.Helper()
	h.Run(t, "systemd-run", "--quiet", "systemd-inhibit", "--what=shutdown", "--mode=delay", "--who=kubelet",
		"sh", "-c", "until [ -e /run/let-go ]; do sleep 0.1; done")
	h.Await(t, "the other lock is held", func() bool { return locks(t, h, "kubelet") })
	return func() { h.Run(t, "touch", "/run/let-go") }
}

// The hogs stand for pods that take every processor. Package power has those that take all memory, which a container
// cannot show where the host keeps that controller to itself.
func TestANoticeIsHeededOnAStarvedMachine(t *testing.T) {
	onEverySuite(t, func(t *testing.T, h *host.Host) {
		h.Node.AddPods(t, "web", pods)
		for range 8 {
			h.Run(t, "systemd-run", "--quiet", "sh", "-c", "while :; do :; done")
		}
		h.IMDS.SetSpot("terminate", time.Now().Add(2*time.Minute))
		h.Node.WaitEmpty(t)
		h.WaitStatus(t, "is drained")
	})
}
