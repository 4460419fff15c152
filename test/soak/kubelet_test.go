package soak_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
)

// reboot gives the machine its next boot. Its kubelet comes later: until then the Node bears what the one before has said.
func (l *life) reboot(t *testing.T) {
	t.Helper()
	l.machine.Reboot(t)
	entries := l.machine.Record(t)
	l.model.reboot(l.machine.BootID(), func(n *notice) bool {
		e, found := n.entry(entries)
		return found && e.Acted()
	})
	l.model.restrained = l.node.Object(t).Spec.Unschedulable && l.model.owner == nth
	l.booted = time.Now()
	l.did("reboots", "the boot ID is %s", l.machine.BootID())
}

// startKubelet has the kubelet of this boot report, if it has not yet: not Ready at first.
func (l *life) startKubelet(t *testing.T) {
	t.Helper()
	if !l.model.starting {
		return
	}
	l.node.KubeletStarts(t, l.machine.BootID())
	l.pause(time.Second)
	l.mustHaveStayedClosed(t)
	l.node.KubeletIsReady(t)
	l.model.starting = false
	l.note("the kubelet is Ready")
}

// mustHaveStayedClosed fails the test if nth has lifted its cordon of an earlier boot before the node was Ready in this one.
func (l *life) mustHaveStayedClosed(t *testing.T) {
	t.Helper()
	if !l.model.restrained {
		return
	}
	for _, m := range l.heard() {
		if m.What == lab.Uncordoned && m.At.After(l.booted) {
			t.Fatalf("nth uncordoned the node at %s, after the reboot and before the kubelet was Ready", m.At.Format("15:04:05.000"))
		}
	}
	l.soak.toll.add("kubelets awaited")
}
