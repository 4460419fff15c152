package notify

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// refreshInterval is how often a condition that is True is written without a heartbeat: as often as the kubelet
	// writes its own.
	refreshInterval = 5 * time.Minute
	// silence is the pause before Alive is called again after it was false.
	silence = time.Minute
)

// dryRun is the reason of the condition in a dry run.
const dryRun = "DryRun"

// dryRunCondition is the condition of a dry run, without times. It is False even while something is announced, so that nobody acts
// upon it.
func dryRunCondition() corev1.NodeCondition {
	return corev1.NodeCondition{
		Type: ConditionType, Status: corev1.ConditionFalse,
		Reason: dryRun, Message: "this is a dry run: what is announced for this machine is only logged on it",
	}
}

// isChange reports whether a condition says something new, which is written even if nth is not well. Every other write is only a
// heartbeat.
func isChange(existing *corev1.NodeCondition, wanted corev1.NodeCondition) bool {
	if existing == nil {
		return wanted.Status == corev1.ConditionTrue
	}
	return existing.Status != wanted.Status || wanted.Status == corev1.ConditionTrue && !sameContent(*existing, wanted)
}

// heartbeat says when an unchanged condition is written again, so that its lastHeartbeatTime shows that nth watches the node. It
// belongs to Run's goroutine.
type heartbeat struct {
	every time.Duration // 0 for none: the condition is refreshed while it is True
	pause time.Duration // from the last write to the next
}

func newHeartbeat(every time.Duration) *heartbeat {
	h := &heartbeat{every: every}
	h.draw()
	return h
}

// draw draws the next pause. It varies by a tenth, so that the nodes of a fleet do not write in step.
func (h *heartbeat) draw() {
	h.pause = refreshInterval
	if h.every > 0 {
		h.pause = wait.Jitter(h.every*9/10, 2.0/9)
	}
}

// has reports whether a condition is kept on the Node, and refreshed there.
func (h *heartbeat) has(c corev1.NodeCondition) bool {
	return h.every > 0 || c.Status == corev1.ConditionTrue
}

// alive reports whether a heartbeat would be true.
func (k *Kubernetes) alive() bool { return k.opts.Heartbeat == 0 || k.opts.Alive() }

// due reports whether a condition is old enough to be written again. If it is from the future, the clock was wrong.
func (h *heartbeat) due(c corev1.NodeCondition, now time.Time) bool {
	age := now.Sub(c.LastHeartbeatTime.Time)
	return h.has(c) && (age < 0 || age >= h.pause)
}

// next is when a condition has to be checked again; zero for never. It has now's monotonic reading, as the clock may be set.
func (h *heartbeat) next(c corev1.NodeCondition, now time.Time) time.Time {
	if !h.has(c) {
		return time.Time{}
	}
	left := h.pause
	if last := c.LastHeartbeatTime.Time; !last.IsZero() {
		left -= now.Sub(last)
	}
	return now.Add(left)
}
