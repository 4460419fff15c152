package simulation_test

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/event"
)

// watchDeadline has it judged, when the machine is lost, whether its pods had their time. It belongs to who has the lock.
func (w *world) watchDeadline(n *notice) {
	limit := w.limit(n)
	at := limit.Add(-w.options.Margin)
	if limit.IsZero() || !w.rules[n.kind].Hard || time.Until(at) <= 0 || n.watching.Equal(limit) {
		return
	}
	n.watching = limit
	judge := func(do func()) func() {
		return func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.limit(n).Equal(limit) && w.rules[n.kind].Hard && !w.ending && w.nth != nil {
				do()
			}
		}
	}
	time.AfterFunc(time.Until(at), judge(func() { w.judgeTold(n, at) }))
	time.AfterFunc(time.Until(limit), judge(func() { w.judgeGone(n) }))
}

// calm reports whether a notice has been known, and nothing has kept nth from working for it, for so long before its deadline.
func (w *world) calm(n *notice, d time.Duration) bool {
	if w.stepped || n.vague || !w.sure(n, drained) || w.cluster.action != "" || w.cluster.gone.After(w.cluster.back) {
		return false
	}
	for _, t := range []time.Time{
		w.nth.began, w.nth.told[n.kind], w.troubled, w.cluster.actionSet, w.cluster.back,
		n.seen, n.announced, n.deadlined, w.ruleSet[n.kind],
	} {
		if time.Since(t) <= d {
			return false
		}
	}
	return true
}

func graceOf(pod *corev1.Pod) time.Duration {
	return time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
}

// judgeTold judges, a margin before a machine is lost, that all pods that had to go were told to end in time for their grace.
func (w *world) judgeTold(n *notice, at time.Time) {
	if !w.calm(n, slow) {
		return
	}
	w.judged(toldInTime)
	for _, pod := range w.onNode() {
		grace := graceOf(pod)
		if since := grace + slow; !w.mustGo(pod, n, true) || time.Since(w.cluster.arrived(pod)) < since || !w.calm(n, since) {
			continue
		}
		switch e, ended := w.cluster.ended[string(pod.UID)]; {
		case pod.DeletionTimestamp == nil:
			w.violatedNow(toldInTime, "%s has not been told, %s before the deadline of %s", pod.Name, w.options.Margin, n.name)
		case ended && e.at.After(at.Add(-grace+2*time.Second)):
			w.violatedNow(toldInTime, "%s was told %s before the margin of %s, and has %s", pod.Name, at.Sub(e.at), n.name, grace)
		}
	}
}

// judgeGone judges, when a machine is lost, that no pod is there that had to go and could.
func (w *world) judgeGone(n *notice) {
	since := slow + w.options.Margin
	if !w.calm(n, since) {
		return
	}
	w.judged(goneInTime)
	for _, pod := range w.onNode() {
		could := pod.Finalizers == nil && !w.cluster.hanging[pod.Namespace+"/"+pod.Name]
		if could && w.mustGo(pod, n, true) && time.Since(w.cluster.arrived(pod)) > since {
			w.violatedNow(goneInTime, "%s is there at the deadline of %s", pod.Name, n.name)
		}
	}
}

// holds reports whether the node is surely closed for a notice. What was set for it is not taken back as long as it stands.
func (w *world) holds(n *notice) bool {
	if !w.sure(n, cordoned) || w.cluster.owner != byNTH || !w.steady(slow) || n.vague || !n.rebooted.IsZero() {
		return false
	}
	action, _ := w.action(n)
	aging := n.kind == event.RebalanceRecommendation && action == cordoned && w.rules[n.kind].CordonFor > 0
	return !aging && time.Since(n.seen) > slow && time.Since(n.announced) > slow && time.Since(w.ruleSet[n.kind]) > slow
}

// missedFor is for how long a document that can be read has not listed a notice, as nth was told; never less than that.
func (w *world) missedFor(n *notice) time.Duration {
	if n.missed.IsZero() {
		return 0
	}
	until := time.Now()
	if d := w.documents[n.kind]; until.Before(d.deaf) {
		until = d.since.Add(5 * time.Second) // by when it is noticed
	}
	return until.Sub(n.missed) + time.Second
}

// judgeLift judges that no cordon is lifted that is still needed by what is missing only since a moment ago.
func (w *world) judgeLift() {
	w.judgeReady()
	if w.stepped {
		return
	}
	w.judged(notUndoneTooSoon)
	for _, n := range w.notices {
		if after := w.rules[n.kind].WithdrawnAfter; n.held && !n.listed && n.state == event.Pending && w.missedFor(n) < after {
			w.violatedNow(notUndoneTooSoon, "the cordon is lifted, %s is missing for %s only; %s", n.name, w.missedFor(n), w.standing())
		}
	}
}

// judgeReady judges that a cordon from before a reboot is lifted only when the kubelet has reported the node Ready since. What was
// announced in this boot as well may end without that.
func (w *world) judgeReady() {
	node := w.server.CurrentNode()
	stood := w.any(func(n *notice) bool {
		return !n.reboots() && (n.boot == w.boot || n.listed || n.unlisted.After(w.booted))
	})
	if node == nil || w.boot == 1 || !w.cluster.owned.Before(w.booted) || stood {
		return
	}
	w.judged(readyAfterBoot)
	if node.Status.NodeInfo.BootID != w.bootID() {
		w.violatedNow(readyAfterBoot, "it says %s, and this is %s; %s", node.Status.NodeInfo.BootID, w.bootID(), w.standing())
	}
}

// judgeWithdrawn judges that an event which is closed as withdrawn has been missing for long enough.
func (w *world) judgeWithdrawn(i *incarnation, n *notice) {
	// That it was announced again may not have reached the disk when nth was killed.
	again := (n.listed || n.announced.Before(i.began)) && time.Since(n.announced) < slow
	if w.stepped || n.vague || n.outdated || n.moving || again {
		return
	}
	w.judged(notUndoneTooSoon)
	after, missed := w.rules[n.kind].WithdrawnAfter, w.missedFor(n)
	if !w.watchedBy(i, n.kind) && n.missed.IsZero() {
		missed = time.Since(i.began)
	}
	if missed < after {
		w.violatedNow(notUndoneTooSoon, "%s is closed as withdrawn, and is missing for %s only", n.name, missed)
	}
}

// judgeVolumes judges that a node which is drained for a notice has no volumes in use, or that they were waited for.
func (w *world) judgeVolumes(n *notice) {
	wait := w.options.VolumeWait
	if wait == 0 || w.cluster.action != "" || time.Since(w.cluster.actionSet) < slow || w.cluster.gone.After(w.cluster.back) {
		return
	}
	w.judged(volumesAwaited)
	over := w.any(func(n *notice) bool {
		limit := w.limit(n)
		// nth may know it with the time that it had, or count its time from when the claim says that the node was closed.
		unheard := time.Since(n.deadlined) < slow || n.vague && w.counted(n)
		return w.possible(n, drained) && (unheard || !limit.IsZero() && time.Until(limit) < w.options.Margin+time.Second)
	})
	if over || w.stepped {
		return // then nothing is waited for
	}
	// A volume that no pod has brought, while nothing but load balancers is waited for, comes to a node that has been found free.
	if w.cluster.used.After(w.server.LastRemoval().Add(slow)) && w.cluster.used.After(n.seen) {
		return
	}
	for _, at := range append(slices.Collect(maps.Values(w.cluster.annotated)), w.cluster.failed) {
		if time.Since(at) < wait+slow {
			return // a pod that is going may be one that nobody waits for
		}
	}
	if since := time.Since(w.server.LastRemoval()); w.cluster.volumes > 0 && since < wait-time.Second {
		w.violatedNow(volumesAwaited, "%s: %d are in use, %s after the last pod has gone", n.name, w.cluster.volumes, since)
	}
}

// judgeAlone judges that an event does not run out of time when nothing has to go any more: whatever else is waited for ends before.
func (w *world) judgeAlone(n *notice) {
	proof := slow // that no pod is left
	if slices.ContainsFunc(w.faults, func(f *fault) bool { return f.kind == "late" && time.Since(f.until) < slow }) {
		proof += 3 * 9 * time.Second // a watch, a list, and the Node
	}
	if time.Since(w.server.LastRemoval()) < proof || !w.calm(n, proof+w.options.Margin) {
		return
	}
	if !w.rules[n.kind].Hard && w.any(func(other *notice) bool { return w.rules[other.kind].Hard && w.possible(other, drained) }) {
		return // a soft deadline takes nothing from a machine that is lost
	}
	w.judged(notForVolumes)
	if len(w.onNode()) == 0 {
		w.violatedNow(notForVolumes, "%s, and nothing has to go; %d volumes are in use", n.name, w.cluster.volumes)
	}
}

// hangs notes that a pod never ends.
func (w *world) hangs(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cluster.hanging[name] = true
}
