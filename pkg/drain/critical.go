package drain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// overdueAfter is how much longer than its grace period a pod may take to end before critical pods stop waiting for it.
// The kubelet needs seconds to clear up after the last container; what takes longer is stuck, be it behind a finalizer or
// a volume, and needs no name service any more.
const overdueAfter = 10 * time.Second

// critical tells whether other pods may need this one until they are gone.
func critical(pod *corev1.Pod) bool {
	return pod.Spec.PriorityClassName == "system-node-critical" || pod.Spec.PriorityClassName == "system-cluster-critical"
}

// openRest lets critical pods go once nothing is left that may need them.
func (d *drainer) openRest() {
	if d.restDone || !d.synced {
		return
	}
	for _, t := range d.targets {
		if !critical(t.pod) && !t.overdue {
			return
		}
	}
	d.restDone = true
	close(d.rest)
}

// timeEnd has the loop told when a pod that is terminating should have ended. The time is counted from when that was
// first seen, on the monotonic clock: the pod's own times are the API server's.
func (d *drainer) timeEnd(t *target) {
	if t.timed || t.pod.DeletionTimestamp == nil {
		return
	}
	t.timed = true
	limit, uid := overdueAfter, t.pod.UID
	if seconds := t.pod.DeletionGracePeriodSeconds; seconds != nil {
		limit += time.Duration(*seconds) * time.Second
	}
	d.workers.Go(func() {
		if sleep(t.ctx, limit) {
			d.report(t.ctx, outcome{uid: uid, what: Overdue, detail: "it does not end"})
		}
	})
}
