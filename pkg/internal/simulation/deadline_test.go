package simulation_test

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/event"
)

// watchDeadline arranges that the pods are judged when the machine is lost, and a margin before that. It does nothing for a notice without
// a hard deadline.
func (w *world) watchDeadline(n *notice) {
	limit := w.limit(n)
	at := limit.Add(-w.options.Margin)
	if limit.IsZero() || !w.rules[n.kind].Hard || time.Until(at) <= 0 || n.watching.Equal(limit) {
		return
	}
	n.watching = limit
	// A deadline that has moved meanwhile is judged at its new time.
	judge := func(do func()) func() {
		return func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.limit(n).Equal(limit) && w.rules[n.kind].Hard && !w.ending && w.nth != nil {
				do()
			}
		}
	}
	time.AfterFunc(time.Until(at), judge(func() { w.judgeAsked(n, at) }))
	time.AfterFunc(time.Until(limit), judge(func() { w.judgeGone(n) }))
}

// calm reports whether nth has surely known a notice for longer than d, and nothing has kept nth from its work in that time.
func (w *world) calm(n *notice, d time.Duration) bool {
	if w.stepped || n.vague || !w.sure(n, drained) || w.cluster.action != "" || w.server.CurrentNode() == nil {
		return false
	}
	for _, t := range []time.Time{
		w.nth.began, w.nth.firstLook[n.kind], w.troubled, w.cluster.actionSet, w.cluster.back,
		n.firstSeen, n.announced, n.deadlined, w.ruleSet[n.kind],
	} {
		if time.Since(t) <= d {
			return false
		}
	}
	return true
}

// graceOf is a pod's own grace period, which every pod in the world has.
func graceOf(pod *corev1.Pod) time.Duration {
	return time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
}

// judgeAsked judges, a margin before the machine is lost, whether each pod that has to go was evicted or deleted in time for its grace period.
func (w *world) judgeAsked(n *notice, at time.Time) {
	if !w.calm(n, slow) {
		return
	}
	w.judgedLocked(askedInTime)
	for _, pod := range w.onNode() {
		grace := graceOf(pod)
		if since := grace + slow; !w.mustGo(pod, n, true) || time.Since(w.cluster.arrived(pod)) < since || !w.calm(n, since) {
			continue
		}
		late := 2 * time.Second
		if slices.ContainsFunc(w.faults, func(f *fault) bool { return f.kind == "void" && time.Since(f.until) < grace+slow }) {
			late = max(late, grace/3+time.Second) // An eviction that was accepted has a third of the time to show its effect.
			if late >= grace {                    // The deletion that follows may still be on its way.
				continue
			}
		}
		switch asked, byNTH := w.cluster.ended[string(pod.UID)]; {
		case pod.DeletionTimestamp == nil:
			w.violatedLocked(askedInTime, "%s is not terminating %s before the deadline of %s", pod.Name, w.options.Margin, n.name)
		case byNTH && asked.After(at.Add(late-grace)):
			w.violatedLocked(askedInTime, "%s was asked %s before the margin of %s, and has a grace period of %s", pod.Name, at.Sub(asked), n.name, grace)
		}
	}
}

// judgeGone judges, when the machine is lost, whether every pod is gone that had to go and could.
func (w *world) judgeGone(n *notice) {
	since := slow + w.options.Margin
	if !w.calm(n, since) {
		return
	}
	w.judgedLocked(goneInTime)
	for _, pod := range w.onNode() {
		could := pod.Finalizers == nil && !w.cluster.hanging[pod.Namespace+"/"+pod.Name]
		if could && w.mustGo(pod, n, true) && time.Since(w.cluster.arrived(pod)) > since {
			w.violatedLocked(goneInTime, "%s is on the node at the deadline of %s", pod.Name, n.name)
		}
	}
}

// holds reports whether the node is surely closed for a notice, so that nth must not open it while the notice stands.
func (w *world) holds(n *notice) bool {
	if !w.sure(n, cordoned) || w.cluster.owner != byNTH || !w.steady(slow) || n.vague || !n.rebooted.IsZero() {
		return false
	}
	action, _ := w.action(n)
	expires := n.kind == event.RebalanceRecommendation && action == cordoned && w.rules[n.kind].CordonFor > 0
	return !expires && time.Since(n.firstSeen) > slow && time.Since(n.announced) > slow && time.Since(w.ruleSet[n.kind]) > slow
}

// missedFor is for how long nth has found that a notice is not announced any more. Zero means that nth has not. It may be a little too long.
func (w *world) missedFor(n *notice) time.Duration {
	if n.missed.IsZero() {
		return 0
	}
	until := time.Now()
	if d := w.documents[n.kind]; until.Before(d.deaf) {
		until = d.since.Add(5 * time.Second) // A source notices within that time that it cannot look.
	}
	return until.Sub(n.missed) + time.Second
}

// judgeLift judges whether nth may lift its cordon: no event for which the node is closed has been missing for too short a time.
func (w *world) judgeLift() {
	w.judgeReady()
	if w.stepped {
		return
	}
	w.judgedLocked(notUndoneTooSoon)
	for _, n := range w.notices {
		if after := w.rules[n.kind].WithdrawnAfter; n.held && !n.listed && n.state == event.Pending && w.missedFor(n) < after {
			w.violatedLocked(notUndoneTooSoon, "the cordon is lifted, and %s has been missing for %s only; %s", n.name, w.missedFor(n), w.standing())
		}
	}
}

// judgeReady judges whether the kubelet has reported the node Ready since a reboot, when nth lifts a cordon from before that. nth need not wait
// for that if an event was announced in this boot, too.
func (w *world) judgeReady() {
	node := w.server.CurrentNode()
	inThisBoot := w.anyNotice(func(n *notice) bool { // A reboot that was announced is over.
		return !n.reboots() && (n.boot == w.boot || n.listed || n.unlisted.After(w.booted))
	})
	if node == nil || w.boot == 1 || !w.cluster.owned.Before(w.booted) || inThisBoot {
		return
	}
	w.judgedLocked(readyAfterBoot)
	if node.Status.NodeInfo.BootID != w.bootID() {
		w.violatedLocked(readyAfterBoot, "the Node has the boot ID %s, and this is %s; %s", node.Status.NodeInfo.BootID, w.bootID(), w.standing())
	}
}

// judgeWithdrawn judges whether an event that nth records as withdrawn has been missing for long enough.
func (w *world) judgeWithdrawn(i *incarnation, n *notice) {
	// That it was announced again may not have reached the disk when nth was killed.
	unwritten := n.announced.Before(i.began) && i.began.Sub(n.announced) < slow
	again := n.listed && time.Since(n.announced) < slow || unwritten
	if w.stepped || n.vague || n.outdated || again {
		return
	}
	w.judgedLocked(notUndoneTooSoon)
	after, missed := w.rules[n.kind].WithdrawnAfter, w.missedFor(n)
	if !w.watchedBy(i, n.kind) && n.missed.IsZero() {
		missed = time.Since(i.began)
	}
	if missed < after {
		w.violatedLocked(notUndoneTooSoon, "%s is closed as withdrawn, and has been missing for %s only", n.name, missed)
	}
}

// judgeVolumes judges, when the node is recorded as drained for a notice, whether its volumes are free or were waited for.
func (w *world) judgeVolumes(n *notice) {
	wait := w.options.VolumeWait
	if wait == 0 || w.cluster.action != "" || time.Since(w.cluster.actionSet) < slow || w.server.CurrentNode() == nil {
		return
	}
	w.judgedLocked(volumesAwaited)
	over := w.anyNotice(func(n *notice) bool {
		limit := w.limit(n)
		// nth may know its deadline from before it moved, or count its time from when the claim was written.
		unheard := time.Since(n.deadlined) < slow || n.vague && w.counted(n)
		return w.possible(n, drained) && (unheard || !limit.IsZero() && time.Until(limit) < w.options.Margin+w.rounding())
	})
	if over || w.stepped { // nth waits for nothing then.
		return
	}
	// No pod has brought this volume. It came while nth waited for load balancers only, after it had found the volumes free.
	if w.cluster.used.After(w.server.LastRemoval().Add(slow)) && w.cluster.used.After(n.firstSeen) {
		return
	}
	for _, at := range append(slices.Collect(maps.Values(w.cluster.annotated)), w.cluster.failed) {
		if time.Since(at) < wait+slow {
			return // Pods that nth does not wait for may have their volumes still.
		}
	}
	if since := time.Since(w.server.LastRemoval()); w.cluster.volumes > 0 && since < wait-time.Second {
		w.violatedLocked(volumesAwaited, "%s: %d are in use, %s after the last pod has gone", n.name, w.cluster.volumes, since)
	}
}

// judgeOutOfTime judges an event that is reported as out of time. That must not be for volumes or load balancers alone: once no pod has to go any
// more, those waits end before the deadline.
func (w *world) judgeOutOfTime(n *notice) {
	proof := slow // how long nth needs to see that no pod is left
	if slices.ContainsFunc(w.faults, func(f *fault) bool { return f.kind == "late" && time.Since(f.until) < slow }) {
		proof += 3 * 9 * time.Second // for opening a watch, a list, and reading the Node
	}
	if time.Since(w.server.LastRemoval()) < proof || !w.calm(n, proof+w.options.Margin) {
		return
	}
	if !w.rules[n.kind].Hard && slices.ContainsFunc(w.notices, func(other *notice) bool {
		return w.rules[other.kind].Hard && (w.possible(other, drained) || time.Since(other.ended) < slow)
	}) {
		return // The drain goes by the hard deadline, or did until now, and may wait beyond the soft one.
	}
	w.judgedLocked(notForVolumes)
	if len(w.onNode()) == 0 {
		w.violatedLocked(notForVolumes, "%s, and nothing has to go; %d volumes are in use", n.name, w.cluster.volumes)
	}
}
