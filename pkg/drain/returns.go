package drain

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A cordon keeps pods off the node that ask the scheduler. It does not keep off those that tolerate it, or that name the
// node themselves: their controller replaces each that is evicted, at once and on the same node. So they are evicted in
// rounds, with pauses that grow. Where there is a deadline, that goes on until then, so that each gets its signal before
// the machine is gone; where there is none, it would never end, and they are left there after some rounds.

const (
	mostRounds   = 4
	longestRound = 30 * time.Second
)

// family is what the pods of one controller have come to in a drain.
type family struct {
	// first counts those that were met before any came back, gone those that went, and back those that came after that.
	first, gone, back int
	told, left        bool
}

// familyOf names the pod's controller, and is the same for all its pods. A pod without one is its own.
func familyOf(pod *corev1.Pod) string {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return owner.Kind + " " + pod.Namespace + "/" + owner.Name
	}
	return "pod " + podName(pod)
}

// round counts a pod that was met now, and tells which of its controller's attempts to bring pods back it belongs to; 0
// if to none.
func (d *drainer) round(pod *corev1.Pod) int {
	name := familyOf(pod)
	f := d.families[name]
	if f == nil {
		f = &family{}
		d.families[name] = f
	}
	if f.gone == 0 {
		f.first++
		return 0
	}
	f.back++
	return (f.back + f.first - 1) / f.first
}

// roundPause is how long to wait before the pods of a round are evicted. The first may have been bound when the
// scheduler had not heard of the cordon.
func roundPause(round int) time.Duration {
	if round < 2 {
		return 0
	}
	p := time.Second
	for range round - 1 {
		if p *= 2; p >= longestRound {
			return longestRound
		}
	}
	return p
}

// gaveUp tells whether the pods of that round are left where they are, and says once what becomes of them.
func (d *drainer) gaveUp(pod *corev1.Pod, round int) bool {
	name := familyOf(pod)
	f := d.families[name]
	if round > mostRounds && d.deadline.IsZero() {
		if !f.left {
			f.left = true
			d.tell(Progress{What: LeftToReturn, Detail: name})
		}
		return true
	}
	if round > 1 && !f.told {
		f.told = true
		d.tell(Progress{What: Returning, Detail: name})
	}
	return false
}

// wentAway counts a pod of a drain that is gone.
func (d *drainer) wentAway(pod *corev1.Pod) {
	if f := d.families[familyOf(pod)]; f != nil {
		f.gone++
	}
}

// waitRound waits out the pause of the pod's round, but for no longer than to the turn; after that, for no longer than
// half of what is left, so that there is some grace for the pod.
func (j job) waitRound(ctx context.Context) bool {
	pause := j.pause
	if left := time.Until(j.turn); !j.turn.IsZero() && left > 0 {
		pause = min(pause, left)
	} else if half := time.Until(j.end) / 2; !j.end.IsZero() && half > time.Second {
		pause = min(pause, half)
	}
	return pause <= 0 || sleep(ctx, pause)
}

// cameSince tells of a pod that came to the node since somebody has opened it again: of those that were bound after our
// cordon, to a second, none can have come sooner.
func (d *drainer) cameSince(pod *corev1.Pod) bool {
	if d.lifted.IsZero() {
		return false
	}
	came := pod.CreationTimestamp.Time
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(came) {
			came = c.LastTransitionTime.Time
		}
	}
	return came.After(d.lifted)
}
