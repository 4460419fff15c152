package packages

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/systemd"
)

// The unit of the manual, which writes something down.
const saveUnit = `[Unit]
Description=Save what is only on this node

[Service]
Type=oneshot
ExecStart=/bin/sh -c 'sleep 2; date +%%s >/var/tmp/saved'
TimeoutStartSec=30s

[Install]
WantedBy=nth-before-drain.target
`

func TestUnitsThatTheTargetWantsHaveRunBeforeThePodsGo(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := newHost(t, suite)
		if said := h.Run(t, "systemd-analyze", "verify", "--man=no", "nth-before-drain.target"); said != "" {
			t.Errorf("systemd-analyze verify says\n%s", said)
		}
		h.Write(t, "/etc/systemd/system/save.service", saveUnit)
		h.Write(t, "/etc/systemd/system/broken.service", strings.Replace(saveUnit, "sleep 2;", "exit 1;", 1))
		h.Run(t, "systemctl", "enable", "save.service", "broken.service")
		h.Configure(t, "[drain]\nscripts_wait = \"20s\"\n")
		h.Run(t, "systemctl", "restart", "nth")
		h.WaitWatching(t)
		h.Node.AddPods(t, "web", 1)
		h.IMDS.SetSpot("terminate", time.Now().Add(2*time.Minute))
		h.Node.WaitForPods(t, "its pods are going", func(pods []*corev1.Pod) bool {
			return len(pods) == 0 || pods[0].DeletionTimestamp != nil
		})
		if saved := h.Try(t, "cat", "/var/tmp/saved"); saved.Status != 0 {
			t.Errorf("a pod is going, and the unit has not run: %s", saved.Stderr)
		}
		h.Node.WaitEmpty(t)
		h.WaitLogged(t, systemd.Drained)
		const want = "the units that are to run before the drain: nth-before-drain.target: failed: broken.service"
		told := 0
		for _, e := range h.Logged(t, systemd.DrainStarted) {
			if e.Message() == want {
				told++
			}
		}
		if told != 1 {
			t.Errorf("what failed was told %d times, want once", told)
		}
		if state := h.Property(t, "nth-before-drain.target", "ActiveState"); state != "inactive" {
			t.Errorf("the target is %s after the drain, and would not be started for the next one", state)
		}
	})
}
