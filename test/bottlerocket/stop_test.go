package bottlerocket_test

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/test/internal/bottlerocket"
	"github.com/nth-project/nth/test/internal/lab"
)

// unit is the container's.
const unit = "host-containers@nth.service"

// superpowered returns a host on which nth watches with the kubelet's plugin.
func superpowered(t *testing.T) *bottlerocket.Host {
	t.Helper()
	t.Parallel()
	h := bottlerocket.New(t, lab.Shared(t))
	h.JoinByPlugin(t)
	h.Start(t)
	return h
}

// inMidDrain returns a host on which nth is in the middle of a drain that a disruption budget holds.
func inMidDrain(t *testing.T) *bottlerocket.Host {
	t.Helper()
	h := superpowered(t)
	h.Node.AddPods(t, "web", 2)
	h.Node.AddDeployment(t, "guarded", 1, lab.MinAvailable(1))
	h.IMDS.SetSpot("terminate", twoMinutes())
	h.WaitSaid(t, "guarded", 1)
	h.WaitSaid(t, "evicted "+h.Node.Namespace+"/web", 2) // What a process is killed before it says, nobody says.
	return h
}

// finish lets the drain go on, and waits until the node is empty. No pod may have been evicted twice.
func finish(t *testing.T, h *bottlerocket.Host) {
	t.Helper()
	budgets := lab.Shared(t).Admin.PolicyV1().PodDisruptionBudgets(h.Node.Namespace)
	if err := budgets.Delete(t.Context(), "guarded", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	h.Node.WaitEmpty(t)
	h.WaitStatus(t, "is drained")
	evicted := map[string]int{}
	for _, e := range h.Said(t, "evicted "+h.Node.Namespace+"/") {
		pod, _, _ := strings.Cut(e.Message(), "  ")
		if evicted[pod]++; evicted[pod] > 1 {
			t.Errorf("it was said twice: %s", pod)
		}
	}
	if len(evicted) != 3 {
		t.Errorf("evicted: %v", evicted)
	}
}

// The container is stopped as for a changed setting, and again while it hangs, so that Bottlerocket has to end it with SIGKILL.
func TestDaemon_ContinuesItsDrainHoweverItEnds(t *testing.T) {
	h := inMidDrain(t)
	h.AwaitLock(t, "nth", "shutdown")
	mustCheck(t, h, "the exec plugin aws-iam-authenticator")
	h.Run(t, "systemctl", "restart", unit)
	h.WaitStatus(t, "draining")
	if text := h.Errors(t); strings.Contains(text, "killing the container") {
		t.Errorf("the container had to be killed when it was asked to stop:\n%s", text)
	}

	h.Run(t, "kill", "-STOP", h.Daemon(t))
	h.Run(t, "systemctl", "restart", unit)
	if text := h.Errors(t); !strings.Contains(text, "killing the container") {
		t.Errorf("the container was not killed:\n%s", text)
	}
	h.WaitStatus(t, "draining")
	finish(t, h)
}

// A reboot goes by way of logind. What does not leaves a host container the time between SIGTERM and SIGKILL.
func TestShutdown_OfTheHostDrainsInTheTimeThereIs(t *testing.T) {
	h := superpowered(t)
	// Of its own a host grants five seconds, which a busy one needs to stop.
	h.Write(t, "/etc/systemd/logind.conf.d/85-test.conf", "[Login]\nInhibitDelayMaxSec=60\n")
	h.Run(t, "chmod", "-R", "a+rX", "/etc/systemd/logind.conf.d")
	h.Run(t, "systemctl", "restart", "systemd-logind")
	h.WaitSaid(t, "logind delays a shutdown", 2)
	h.Node.AddPods(t, "web", 3, lab.Grace(3e9), lab.GoesAtGrace())
	h.Reboot(t)
	if said := h.Said(t, "drained the node: 3 pods evicted"); len(said) != 1 {
		t.Errorf("before the reboot it was said %d times that the node is drained, want once", len(said))
	}
	h.Node.WaitUncordoned(t)
	h.WaitStatus(t, "watching; nothing is announced for node "+h.Node.Name)

	h.Node.AddPods(t, "web", 3)
	h.Node.AddPods(t, "slow", 1, lab.NeverGoes())
	h.Try(t, "systemctl", "start", "--no-block", "poweroff.target") // may not live to tell its status
	h.WaitOff(t)
	if !h.Node.Object(t).Spec.Unschedulable {
		t.Error("the host is off and its node is not cordoned")
	}
	for _, pod := range h.Node.Pods(t) {
		if pod.DeletionTimestamp == nil && lab.Evictable(&pod) {
			t.Errorf("nobody has asked the pod %s to go", pod.Name)
		}
	}
	if text := h.Errors(t); strings.Contains(text, "killing the container") {
		t.Errorf("nth has not ended by itself:\n%s", text)
	}
	h.Node.WaitForPods(t, "only the slow one is left", func(pods []*corev1.Pod) bool { return len(pods) == 1 })
	if _, err := os.Stat(h.Path("/local/host-containers/nth/state/record.json")); err != nil {
		t.Errorf("what nth remembers is not on the host: %v", err)
	}
}
