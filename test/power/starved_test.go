package power

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
)

// Pods that are out of order take all the memory, again and again, and all the processors. They live where a kubelet
// puts pods.
const (
	podsSlice = "kubepods.slice"
	eatMemory = "hoard = []\nwhile True: hoard.append(b'x' * (1 << 24))"
	eatTime   = "while :; do :; done"
)

// starve lets a notice arrive while the machine has neither memory nor time left, and presses the button then.
func starve(t *testing.T, n *node) {
	const pods, grace = 30, 3 * time.Second
	n.cluster.AddPods(t, "web", pods, lab.Grace(grace), lab.GoesAtGrace())
	before := n.Property(t, "nth", "MainPID")
	n.Run(t, "systemd-run", "--quiet", "--slice="+podsSlice, "--property=Restart=always", "--property=RestartSec=0",
		"--property=StartLimitIntervalSec=0", "/usr/bin/python3", "-c", eatMemory)
	n.Await(t, "the kernel is out of memory", func() bool { return n.killed(t) > 0 })
	for range 4 {
		n.Run(t, "systemd-run", "--quiet", "--slice="+podsSlice, "/bin/sh", "-c", eatTime)
	}

	c, stop := n.observe(t, pods)
	c.began = time.Now()
	n.imds.SetSpot("terminate", c.began.Add(2*time.Minute))
	n.cluster.WaitEmpty(t)
	stop()
	killed := n.killed(t)
	t.Logf("after the notice: cordoned %.1f s, last of %d pods evicted %.1f s, last gone %.1f s (grace %s); the kernel killed %d processes for memory",
		c.cordoned, pods, c.evicted, c.empty, grace, killed)
	c.mustBeDrained(t, (2 * time.Minute).Seconds())
	n.waitStatus(t, "is drained")
	if after, restarts := n.Property(t, "nth", "MainPID"), n.Property(t, "nth", "NRestarts"); after != before || restarts != "0" {
		t.Errorf("the process is %s after %s restarts, and was %s before", after, restarts, before)
	}

	pressed := n.PressPower(t)
	t.Logf("off %.1f s after the button", n.WaitOff(t).Sub(pressed).Seconds())
}

// killed is how many processes of pods the kernel has killed because there was no memory left.
func (n *node) killed(t *testing.T) int {
	t.Helper()
	events := n.Try(t, "cat", "/sys/fs/cgroup/"+podsSlice+"/memory.events").Stdout
	for line := range strings.Lines(events) {
		if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
			killed, err := strconv.Atoi(strings.TrimSpace(count))
			if err != nil {
				t.Fatalf("reading what the kernel has killed: %v", err)
			}
			return killed
		}
	}
	return 0
}
