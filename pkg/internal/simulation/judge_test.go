package simulation_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

const (
	// quiet is for how long nothing must have happened until only one outcome is right.
	quiet = 45 * time.Second
	// slow is how long nth may take to see a change and to act on it, while nothing is wrong.
	slow = 15 * time.Second
	// overtime is how long nth may still work for an event after its deadline.
	overtime = 30 * time.Second
)

// want is what a notice asks for, in ascending sequence.
type want int

const (
	nothing want = iota
	cordoned
	drained
)

var wants = map[policy.Action]want{policy.Cordon: cordoned, policy.Drain: drained}

// action returns what a notice asks for by the present rules, and from when on. Zero means from the beginning.
func (w *world) action(n *notice) (action want, from time.Time) {
	rule := w.rules[n.kind]
	action = wants[rule.Action]
	if n.kind == event.SpotInterruption && n.code == "hibernate" {
		action = min(action, wants[rule.Hibernate])
	}
	if n.kind != event.ScheduledMaintenance {
		return action, from
	}
	when, known := rule.Codes[n.code]
	if !known {
		when = rule.Codes[policy.OtherCodes]
	}
	switch when {
	case policy.OnlyNotify, policy.Never:
		return nothing, from
	case policy.Lead:
		if !n.deadline.IsZero() {
			from = n.deadline.Add(-rule.Lead - spread + share)
		}
	case policy.Window:
		if !n.deadline.IsZero() {
			from = n.deadline.Add(-max(rule.Window, rule.Lead+spread) + share)
		}
	case policy.Now:
	}
	return action, from
}

// ends is when nth must have found that a notice is withdrawn; zero while the notice is listed.
func (w *world) ends(n *notice) time.Time {
	if n.listed || n.unlisted.IsZero() {
		return time.Time{}
	}
	allowed := w.rules[n.kind].WithdrawnAfter
	from := n.missed // nth counts from its first look that did not find it.
	if w.nth == nil || n.missed.IsZero() {
		from = time.Now() // There was none yet.
	} else if look := w.nth.firstLook[n.kind]; look.After(from) || look.IsZero() {
		from = later(look, w.nth.began)
	}
	from = later(from, w.documents[n.kind].deaf)
	return from.Add(allowed + n.deafSince + slow)
}

// over reports whether a notice cannot be a reason for anything any more: it was withdrawn, canceled or completed, and nth knows that.
func (w *world) over(n *notice) bool {
	end := w.ends(n)
	return !end.IsZero() && time.Now().After(end) || n.state != event.Pending && n.listed && w.knows(n) && !n.outdated
}

// knows reports whether nth surely knows a notice as it is now.
func (w *world) knows(n *notice) bool {
	if w.nth == nil {
		return time.Since(n.changed) > slow
	}
	look := w.nth.firstLook[n.kind]
	if time.Since(w.documents[n.kind].deaf) < slow {
		return false
	}
	looked := !look.IsZero() && time.Since(look) > slow
	return time.Since(n.changed) > slow && (looked || !w.watched(n.kind)) // For kinds that nth does not watch, it goes by its record.
}

// reboots reports whether a reboot is what was announced, so that the notice is over with it.
func (n *notice) reboots() bool {
	return n.code == "system-reboot" || n.code == "instance-reboot"
}

// possible reports whether a notice may be a reason to cordon or to drain now, if only because nth does not know yet that it is none.
func (w *world) possible(n *notice, level want) bool {
	adopted := n.vague && level == cordoned // nth may have found its claim.
	recent := func(t time.Time) bool { return time.Since(t) < slow+w.trouble(n.kind) }
	if w.over(n) && !recent(w.cluster.woke()) || n.firstSeen.IsZero() && !n.outdated && !adopted {
		return false
	}
	action, from := w.action(n)
	if action < level && !recent(w.ruleSet[n.kind]) {
		return false
	}
	due := !from.After(time.Now().Add(w.rounding()))
	otherTime := recent(n.deadlined) || n.movedUnheard() || recent(w.ruleSet[n.kind]) || w.stepped // nth may take it for due.
	return due || otherTime
}

// movedUnheard reports whether nth has never seen the present deadline of a notice that is not listed any more.
func (n *notice) movedUnheard() bool { return !n.listed && n.lastSeen.Before(n.deadlined) }

// trouble is by how much longer than usual nth may need to see a change of a document that could not be read lately, or not yet.
func (w *world) trouble(kind event.Kind) time.Duration {
	switch {
	case time.Since(w.documents[kind].readable) < 30*time.Second:
		return time.Minute
	case w.nth == nil || w.nth.firstLook[kind].IsZero():
		return time.Hour
	}
	return 0
}

// sure reports whether a notice is surely a reason to cordon or to drain now. It may be one even if this is false: see possible.
func (w *world) sure(n *notice, level want) bool {
	if n.unsure || !n.lifted.IsZero() || !n.listed || n.state != event.Pending || n.firstSeen.IsZero() || w.nth == nil || w.nth.firstLook[n.kind].IsZero() {
		return false
	}
	action, from := w.action(n)
	switch {
	case action < level, from.After(time.Now().Add(-slow)): // It asks for less, or is not due for long enough.
		return false
	case time.Since(w.documents[n.kind].deaf) < slow: // nth may not have seen it again yet.
		return false
	case w.stepped && (!from.IsZero() || n.requests > 0): // By nth's clock it may not be due.
		return false
	case !n.rebooted.IsZero() && (n.reboots() || n.kind == event.Shutdown): // It may be over with the reboot.
		return false
	case !n.rebooted.IsZero() && !n.deadline.IsZero() && w.documents[n.kind].readable.After(w.booted):
		return false // Its deadline passed while it could not be read, so nth may take it for one that ended with the reboot.
	case n.kind == event.RebalanceRecommendation && action == cordoned && w.rules[n.kind].CordonFor > 0: // The cordon ends after that time.
		return !n.vague && time.Since(n.firstSeen) < w.rules[n.kind].CordonFor-slow
	}
	return true
}

// surelyNot reports whether a notice is surely no reason for anything now.
func (w *world) surelyNot(n *notice) bool {
	neverSeen := !n.vague && n.firstSeen.IsZero() && time.Since(n.changed) > slow && w.nth != nil && !w.nth.firstLook[n.kind].IsZero()
	if w.over(n) || neverSeen && !n.listed {
		return true
	}
	if n.unsure {
		return false
	}
	action, from := w.action(n)
	switch {
	case time.Since(w.ruleSet[n.kind]) < slow: // nth may go by the rule before.
		return false
	case action == nothing:
		return true
	case from.After(time.Now().Add(slow)) && !w.stepped && !n.movedUnheard() && n.rebooted.IsZero() && n.deadlined.After(w.ruleSet[n.kind]):
		return true // It is not due yet. nth would go on with one that was due before its rule changed.
	case n.rebooted.IsZero():
		return false
	case n.kind == event.Shutdown:
		return time.Since(n.rebooted) > slow
	case n.reboots() && n.acted && n.done && n.requests == 0: // It is over with the reboot, unless that was an early one, or nth has requested it.
		isEarly := n.rebooted.Before(n.deadline.Add(-w.rules[n.kind].Lead))
		return time.Since(n.rebooted) > slow && !isEarly && !w.stepped
	}
	return false
}

// steady reports whether nth has run, and nothing has happened or been wrong, for a time.
func (w *world) steady(d time.Duration) bool {
	return time.Since(w.disturbed) >= d && w.nth != nil && time.Since(w.nth.began) > d && time.Now().After(w.refused)
}

// anyNotice reports whether something is true of any notice.
func (w *world) anyNotice(is func(*notice) bool) bool {
	return slices.ContainsFunc(w.notices, is)
}

// judgeRest judges the node, its pods and the hooks, if nothing has happened for so long that only one outcome is right.
func (w *world) judgeRest() {
	node, pods := w.server.CurrentNode(), w.onNode()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.steady(quiet) || node == nil || time.Since(w.cluster.back) < quiet {
		return
	}
	for _, kind := range event.Kinds() {
		if w.watched(kind) && w.nth.firstLook[kind].IsZero() { // nth does not know all yet.
			return
		}
	}
	w.judgeNode(node)
	w.judgePods(node, pods)
	w.judgeHooks()
}

// watched reports whether the present incarnation looks for events of a kind.
func (w *world) watched(kind event.Kind) bool { return w.watchedBy(w.nth, kind) }

// watchedBy reports whether an incarnation looks for events of a kind: the rule was not "ignore" when it began.
func (w *world) watchedBy(i *incarnation, kind event.Kind) bool {
	return !slices.Contains(i.unwatched, kind)
}

// leftAlone reports whether operators want nothing done to the node.
func (c *cluster) leftAlone() bool {
	return c.action == drain.LeaveNode || c.action == drain.OnlyNotify
}

// judgeNode judges what is on a Node at rest: the cordon, the claim and the label.
func (w *world) judgeNode(node *corev1.Node) {
	_, claimed := node.Annotations[drain.CordonAnnotation]
	mine := claimed && !strings.Contains(node.Annotations[drain.CordonAnnotation], `"`+drain.Queue+`"`)
	labeled := node.Labels[drain.ExcludeLabel] == drain.Host
	wanted := w.anyNotice(func(n *notice) bool { return w.sure(n, cordoned) })
	none := !w.anyNotice(func(n *notice) bool { return !w.surelyNot(n) })
	stays := !w.goesDown()
	free := none && stays
	allLifted := !w.anyNotice(func(n *notice) bool { return !w.surelyNot(n) && n.lifted.IsZero() }) && !none && stays
	w.judgedLocked(othersUnchanged)
	if wanted {
		w.judgedLocked(closedWithReason)
	}
	if free {
		w.judgedLocked(undoneInTime)
	}
	if allLifted {
		w.judgedLocked(uncordonRespected)
	}
	switch {
	case wanted && !w.cluster.leftAlone() && !node.Spec.Unschedulable:
		w.violatedLocked(closedWithReason, "it is open: %s", w.standing())
	case free && mine:
		w.violatedLocked(undoneInTime, "its annotation is left: %s; %s", node.Annotations[drain.CordonAnnotation], w.standing())
	case free && labeled:
		w.violatedLocked(undoneInTime, "its label is left; %s", w.standing())
	case free && node.Spec.Unschedulable && w.cluster.owner == byNTH:
		w.violatedLocked(undoneInTime, "its cordon is left; %s", w.standing())
	case allLifted && node.Spec.Unschedulable && w.cluster.owner == byNTH:
		w.violatedLocked(uncordonRespected, "the node is cordoned; %s", w.standing())
	case allLifted && labeled && !node.Spec.Unschedulable:
		w.violatedLocked(uncordonRespected, "the label is left; %s", w.standing())
	}
	if w.cluster.foreign && node.Labels[drain.ExcludeLabel] != "true" {
		w.violatedLocked(othersUnchanged, "somebody else's label has the value %q", node.Labels[drain.ExcludeLabel])
	}
	if !node.Spec.Unschedulable && w.cluster.owner != "" {
		w.violatedLocked(othersUnchanged, "the cordon of %s is gone", w.cluster.owner)
	}
}

// goesDown reports whether nth has lately recorded a request to reboot the machine. The node stays closed then, even if EC2 has ended the event.
func (w *world) goesDown() bool {
	return w.nth != nil && slices.ContainsFunc(w.nth.store.Entries(), func(e state.Entry) bool {
		return e.BootID == w.bootID() && !e.RebootAt.IsZero() && w.nth.now().Sub(e.RebootAt) < 10*time.Minute+slow
	})
}

// standing describes what is announced and recorded, for a violation.
func (w *world) standing() string {
	var words []string
	for _, n := range w.notices {
		if !w.over(n) {
			action, _ := w.action(n)
			words = append(words, fmt.Sprintf("%s %s/%s listed=%t wants=%d sure=%t none=%t lifted=%t", n.name, n.kind, n.code, n.listed, action, w.sure(n, action), w.surelyNot(n), !n.lifted.IsZero()))
		}
	}
	if w.nth != nil {
		for _, e := range w.nth.store.Entries() {
			if e.Phase != state.Closed {
				words = append(words, fmt.Sprintf("on record: %s is %s released=%t on-node=%t error=%q", e.Event.ID, e.Phase, e.Released(), e.OnNode, e.Error))
			}
		}
	}
	return fmt.Sprintf("owner %q, action %q; %s", w.cluster.owner, w.cluster.action, strings.Join(words, "; "))
}

// mustGo reports whether a drain for a notice surely has to end a pod. atDeadline: the deadline is near, so that the pods which may run until then
// have to go, too.
func (w *world) mustGo(pod *corev1.Pod, n *notice, atDeadline bool) bool {
	owner := metav1.GetControllerOf(pod)
	when := pod.Annotations[evict.Annotation]
	switch {
	case owner != nil && owner.Kind == "DaemonSet", pod.Annotations[corev1.MirrorPodAnnotationKey] != "":
		return false
	case when == evict.Never || when == evict.AtDeadline && !atDeadline:
		return false
	case owner == nil && w.options.ProtectUnmanaged:
		return false
	case w.cluster.broughtBack(pod):
		return false // nth leaves the pods of a controller that keeps bringing them back.
	case pod.Finalizers != nil && pod.DeletionTimestamp != nil: // nth can do no more for it.
		return false
	case w.cluster.uncordoned.After(n.firstSeen.Add(-slow)):
		return false // It may have come since the uncordon, and then it stays.
	}
	return time.Since(w.cluster.annotated[pod.Namespace+"/"+pod.Name]) > slow
}

// broughtBack reports whether a pod may have come back to a closed node after nth evicted one of the same controller.
func (c *cluster) broughtBack(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || !c.returning[owner.Name] {
		return false
	}
	first, ended := c.firstEnded[owner.Name]
	return ended && c.byWorld(pod.CreationTimestamp.Time).Add(time.Second).After(first) // The API server cuts its own time to seconds.
}

// arrived is when a pod was bound to the node, by the world's clock.
func (c *cluster) arrived(pod *corev1.Pod) time.Time {
	at := pod.CreationTimestamp.Time
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.LastTransitionTime.After(at) {
			at = condition.LastTransitionTime.Time
		}
	}
	return c.byWorld(at)
}

// budgetHolds reports whether a disruption budget may refuse to let a pod go, however often nth asks. An eviction that it has granted in vain counts
// for two minutes.
func (c *cluster) budgetHolds(pod *corev1.Pod) bool {
	app := pod.Labels["app"]
	granted, inVain := c.inVain[app]
	return c.guarded[app] || inVain && time.Since(granted) < 2*time.Minute+quiet
}

// judgePods judges the pods on a node at rest: while a drain is due, each is evicted unless something holds it.
func (w *world) judgePods(node *corev1.Node, pods []*corev1.Pod) {
	if !w.anyNotice(func(n *notice) bool { return w.sure(n, drained) }) || w.cluster.action != "" || !node.Spec.Unschedulable {
		return
	}
	othersHeld := false // Critical pods wait for these.
	for _, pod := range pods {
		waits := pod.Annotations[evict.Annotation] == evict.AtDeadline
		owner := metav1.GetControllerOf(pod)
		returns := owner != nil && w.cluster.returning[owner.Name]
		othersHeld = othersHeld || w.cluster.budgetHolds(pod) || waits || returns || pod.DeletionTimestamp != nil
	}
	w.judgedLocked(evictedWhileDue)
	for _, pod := range pods {
		held := w.cluster.budgetHolds(pod) || othersHeld && pod.Spec.PriorityClassName != ""
		held = held || time.Since(w.server.LastRemoval()) < time.Second // It may have waited for a pod that has just gone.
		if pod.DeletionTimestamp == nil && w.duePod(pod) && !held && time.Since(w.cluster.arrived(pod)) > quiet {
			w.violatedLocked(evictedWhileDue, "%s has been on the node since %s; %s", pod.Name, w.cluster.arrived(pod).Sub(w.start), w.standing())
		}
	}
}

// duePod reports whether a pod surely has to go, and has had to for long enough.
func (w *world) duePod(pod *corev1.Pod) bool {
	return w.anyNotice(func(n *notice) bool {
		_, from := w.action(n)
		return w.sure(n, drained) && time.Since(from) > quiet && w.mustGo(pod, n, false)
	})
}

// judgeHooks judges whether each lifecycle hook is completed and each inhibitor lock released in time.
func (w *world) judgeHooks() {
	for _, n := range w.notices {
		if n.kind != event.ASGTermination && n.kind != event.Shutdown || !n.listed || n.firstSeen.IsZero() || !n.settled.IsZero() || n.boot != w.boot {
			continue
		}
		end := w.limit(n)
		for _, t := range []time.Time{w.ruleSet[n.kind], w.nth.firstLook[n.kind], n.firstSeen} {
			end = later(end, t.Add(overtime))
		}
		if w.stepped || !w.watched(n.kind) {
			continue
		}
		w.judgedLocked(settledInTime)
		if time.Since(end) > slow {
			w.violatedLocked(settledInTime, "%s is not settled %s after its time; %s", n.name, time.Since(end), w.standing())
		}
	}
}

// limit is when the time of a notice is over: its deadline, or the budget of its rule if that ends sooner. Zero is never.
func (w *world) limit(n *notice) time.Time {
	limit := n.deadline
	if w.counted(n) && !n.firstSeen.IsZero() {
		if end := n.firstSeen.Add(w.rules[n.kind].Budget); limit.IsZero() || end.Before(limit) {
			limit = end
		}
	}
	return limit
}

// counted reports whether the rule gives a notice a budget of time, counted from when nth first saw it.
func (w *world) counted(n *notice) bool {
	return w.rules[n.kind].Budget > 0 && (n.kind == event.SpotInterruption || n.kind == event.ASGTermination)
}

// settled is agent.Config.Settled. The agent calls it with the outcome of each announced event, again and again; "" means that none is known yet.
func (i *incarnation) settled(ev event.Event, outcome event.Outcome) {
	w := i.world
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.of(ev.ID)
	if i.gone || n == nil {
		return
	}
	if w.judgeOutcome(n, outcome); outcome == "" {
		return
	}
	if n.settled.IsZero() {
		n.settled = time.Now()
		w.noteLocked("%s is settled: %s", n.name, outcome)
		w.judgedLocked(settledIfDone)
	}
	if !w.sure(n, drained) || w.stepped || n.vague || n.outdated || n.incomplete || n.drained != "" {
		return // judgeEntries judges what is recorded as drained.
	}
	for _, t := range []time.Time{n.changed, n.firstSeen, w.ruleSet[n.kind], i.firstLook[n.kind]} {
		if time.Since(t) < slow {
			return // nth may not know yet that a drain is wanted.
		}
	}
	limit := w.limit(n)
	if !limit.IsZero() && time.Until(limit) < time.Second { // Its time is over.
		return
	}
	w.judgeEmpty(n, settledIfDone)
}

// judgeOutcome judges an outcome when it changes. It must be true at that moment, since a hook may be completed with it.
func (w *world) judgeOutcome(n *notice, outcome event.Outcome) {
	if n.outcome == outcome {
		return
	}
	n.outcome = outcome
	w.noteLocked("%s has the outcome %q", n.name, outcome)
	node := w.server.CurrentNode()
	limits := node != nil && slices.Contains([]string{drain.LeaveNode, drain.OnlyNotify, drain.OnlyCordon}, node.Annotations[drain.ActionAnnotation])
	heard := time.Since(w.cluster.actionSet) > slow && w.steady(slow) // nth knows the annotation.
	wanted, _ := w.action(n)
	w.judgedLocked(outcomeTrue)
	if outcome == event.OutOfTime {
		w.judgeOutOfTime(n)
	}
	switch over := w.limit(n); {
	case wanted < drained || time.Since(w.ruleSet[n.kind]) < slow: // Outcomes are those of drains.
	case outcome == event.LeftAlone:
		if !limits && heard && n.lifted.IsZero() {
			w.violatedLocked(outcomeTrue, "%s is reported as left alone, and no operator asks for that; %s", n.name, w.standing())
		}
	case outcome != "" && limits && heard && w.sure(n, drained):
		w.violatedLocked(outcomeTrue, "%s is reported as %s, and operators want the node left alone; %s", n.name, outcome, w.standing())
	case outcome == event.Drained && n.drainedBy == w.nth.number && (over.IsZero() || time.Until(over) > 0) && w.sure(n, drained) && !n.vague:
		w.judgeEmpty(n, outcomeTrue)
	case outcome == event.OutOfTime && !w.stepped && !n.vague && n.rebooted.IsZero() && !n.firstSeen.IsZero():
		if over.IsZero() || time.Until(over) > time.Second && time.Since(n.changed) > slow && !n.incomplete {
			w.violatedLocked(outcomeTrue, "%s is reported as out of time %s too soon; %s", n.name, time.Until(over), w.standing())
		}
	}
}

// judgeEmpty judges, as the invariant of that name, whether no pod is left that has to go for a notice.
func (w *world) judgeEmpty(n *notice, name invariant) {
	if w.cluster.action != "" || time.Since(w.cluster.actionSet) < slow {
		return
	}
	if set := w.cluster.actionSet; !set.IsZero() && w.disturbed.After(set) && !w.steady(slow) {
		return // nth may not have read yet that operators removed the annotation.
	}
	for _, pod := range w.onNode() {
		// nth has to know a pod that was bound before the cordon, however far the API server's cache lags.
		before := w.cluster.owner == byNTH && w.cluster.arrived(pod).Add(time.Second).Before(w.cluster.owned)
		known := slow
		if w.muted.After(w.cluster.arrived(pod)) && w.cluster.volumes > 0 { // It came after the list that proves the node drained, and the watch was mute.
			known += kube.WatchEnd
		}
		if w.mustGo(pod, n, false) && (before || time.Since(w.cluster.arrived(pod)) > known) {
			w.violatedLocked(name, "%s: %s is on the node; %s", n.name, pod.Name, w.standing())
		}
	}
}

// judgeEntries judges the entries that nth is about to record, and takes note of them.
func (w *world) judgeEntries(i *incarnation, entries []state.Entry) {
	for _, e := range entries {
		n, before := w.of(e.Event.ID), i.phases[e.Event.ID]
		i.phases[e.Event.ID] = e.Phase
		if n != nil && e.Released() {
			n.released = true
		}
		if before == e.Phase {
			continue
		}
		w.noteLocked("record: %s %s -> %s %s%s", e.Event.ID, before, e.Phase, e.Ending, e.Error)
		if n != nil {
			w.judgeEntry(i, n, before, e)
		}
	}
}

// judgeEntry judges an entry of a notice that is recorded with another phase than before.
func (w *world) judgeEntry(i *incarnation, n *notice, before state.Phase, e state.Entry) {
	switch e.Phase {
	case state.Drained:
		w.judgedLocked(oneOutcome)
		same := n.drained == w.bootID() && n.drainedBy == i.number
		if same && time.Since(w.ruleSet[n.kind]) > time.Hour && n.rebooted.IsZero() {
			w.violatedLocked(oneOutcome, "%s is drained again", n.name)
		}
		n.drained, n.drainedBy = w.bootID(), i.number
		if w.sure(n, drained) {
			w.judgedLocked(emptyIfDrained)
			w.judgeEmpty(n, emptyIfDrained)
			w.judgeVolumes(n)
		}
	case state.Draining:
		if before == state.Drained {
			n.drained = "" // Operators wanted the node left alone, and do not any more.
		}
	case state.Closed, state.Seen, state.Undoing:
		n.ended = time.Now()
		if unseen := w.cluster.erased && !n.released && time.Since(w.cluster.uncordoned) < slow; unseen && !n.lifted.IsZero() {
			n.unsure, n.lifted = true, time.Time{} // The guard has ended without another look, and the Node does not say that it was nth's.
		}
		// Its time was over or the machine has survived it, so nothing more is sure, whatever the rules say later.
		n.unsure = n.unsure || e.Ending == state.Expired || e.Ending == state.Rebooted && n.kind == event.SpotInterruption
		if e.Phase == state.Closed && e.Ending == state.Withdrawn {
			w.judgeWithdrawn(i, n)
			// If it is announced again, nth takes it for a new one.
			n.firstSeen, n.settled, n.watching, n.incomplete, n.held = time.Time{}, time.Time{}, time.Time{}, false, false
			n.lifted = time.Time{}
		}
		if before != "" || w.forgot.Before(n.announced) {
			n.drained = ""
		}
	case state.Incomplete:
		n.incomplete = true
	case state.Cordoned:
		if before == "" || before == state.Closed {
			n.vague = true // nth has adopted a claim, which says when it was written and no more.
		}
	case state.Cordoning: // Nothing follows from it.
	}
}

// patchOf has what is judged of a PATCH of the Node.
type patchOf struct {
	Metadata struct {
		Annotations map[string]*string `json:"annotations"`
		Labels      map[string]*string `json:"labels"`
		Version     string             `json:"resourceVersion"`
	} `json:"metadata"`
	Spec struct {
		Unschedulable *bool `json:"unschedulable"`
	} `json:"spec"`
}

// patch returns what a PATCH of the Node changes. lifts: it makes the node schedulable.
func (q request) patch() (p patchOf, lifts bool) {
	_ = json.Unmarshal(q.body, &p) // The fake API server refuses a bad body.
	return p, strings.Contains(string(q.body), `"unschedulable":null`)
}

// judgeBefore judges a request of nth when it reaches the API server.
func (w *world) judgeBefore(q request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch q.verb {
	case "patch":
		w.noteLocked("PATCH %s", q.body)
		w.judgePatch(q)
	case "evict", "delete":
		w.noteLocked("%s %s %s", strings.ToUpper(q.verb), q.pod, q.body)
		w.judgeRemoval(q)
	}
}

// judgePatch judges a patch of the Node, before it is carried out.
func (w *world) judgePatch(q request) {
	p, lifts := q.patch()
	if node := w.server.CurrentNode(); node != nil && p.Metadata.Version != "" && p.Metadata.Version != node.ResourceVersion {
		return // The API server refuses it: there is a conflict.
	}
	recently := func(t time.Time) bool { return time.Since(t) < 2*time.Second }
	reason := w.anyNotice(func(n *notice) bool { return w.possible(n, cordoned) })
	switch {
	case p.Spec.Unschedulable != nil && *p.Spec.Unschedulable:
		w.judgedLocked(notClosedWithout, annotationsRespected)
		if !reason {
			w.violatedLocked(notClosedWithout, "%s", w.standing())
		}
		if w.cluster.leftAlone() && time.Since(w.cluster.actionSet) > slow {
			w.violatedLocked(annotationsRespected, "the node is cordoned in spite of nth-project.github.io/action")
		}
		w.judgeUncordoned(cordoned, "the node is cordoned again")
	case lifts:
		w.judgedLocked(othersUnchanged)
		w.judgeLift()
		if w.cluster.owner != byNTH && !recently(w.cluster.owned) {
			w.violatedLocked(othersUnchanged, "the cordon of %q is lifted", w.cluster.owner)
		}
		if w.cluster.karpenter && !recently(w.cluster.tainted) {
			w.violatedLocked(othersUnchanged, "the cordon is lifted under Karpenter's taint")
		}
		if w.anyNotice(func(n *notice) bool { return w.sure(n, cordoned) && time.Since(n.changed) > slow }) && w.steady(slow) {
			w.violatedLocked(closedWithReason, "the cordon is lifted; %s", w.standing())
		}
	}
	if label, set := p.Metadata.Labels[drain.ExcludeLabel]; set && label == nil && w.cluster.foreign {
		w.violatedLocked(othersUnchanged, "nth removes somebody else's label")
	}
	if claim, set := p.Metadata.Annotations[drain.CordonAnnotation]; set && claim == nil && w.cluster.owner == byQueue && !recently(w.cluster.owned) {
		w.violatedLocked(othersUnchanged, "nth removes nth-queue's claim")
	}
}

// judgeUncordoned judges what nth does after an operator's uncordon: only an event that began later can be the reason to close or drain the node
// again. what describes it.
func (w *world) judgeUncordoned(level want, what string) {
	earlier := w.anyNotice(func(n *notice) bool { return w.possible(n, level) && !n.lifted.IsZero() })
	newer := w.anyNotice(func(n *notice) bool { return w.possible(n, level) && n.lifted.IsZero() })
	recorded := w.anyNotice(func(n *notice) bool { return n.released && !n.lifted.IsZero() })
	unheard := !recorded && w.troubled.After(w.cluster.uncordoned) && time.Since(w.troubled) < slow
	underWay := time.Since(w.cluster.uncordoned) < 2*time.Second
	if !earlier || newer || unheard || underWay {
		return
	}
	w.judgedLocked(uncordonRespected)
	w.violatedLocked(uncordonRespected, "%s %s after the uncordon; %s", what, time.Since(w.cluster.uncordoned), w.standing())
}

// judgeRemoval judges the eviction or deletion of a pod, before it is carried out.
func (w *world) judgeRemoval(q request) {
	pod := w.server.Pod(q.pod)
	if pod == nil {
		return
	}
	if ofAnother := !strings.Contains(string(q.body), `"`+string(pod.UID)+`"`); ofAnother && time.Since(w.troubled) < slow {
		w.cluster.inVain[pod.Labels["app"]] = time.Now() // nth cannot know yet that this pod has come in place of the one that it names.
	}
	w.judgedLocked(notEndedWithout, nodesOwnStays, annotationsRespected)
	if !w.anyNotice(func(n *notice) bool { return w.possible(n, drained) }) {
		w.violatedLocked(notEndedWithout, "%s %s; %s", q.verb, q.pod, w.standing())
	}
	owner := metav1.GetControllerOf(pod)
	if owner != nil && owner.Kind == "DaemonSet" || pod.Annotations[corev1.MirrorPodAnnotationKey] != "" {
		w.violatedLocked(nodesOwnStays, "%s %s", q.verb, q.pod)
	}
	annotated := time.Since(w.cluster.annotated[q.pod]) > slow && time.Since(w.troubled) > slow // nth knows it from the watch.
	if pod.Annotations[evict.Annotation] == evict.Never && annotated && time.Since(w.cluster.arrived(pod)) > 2*time.Second {
		w.violatedLocked(annotationsRespected, "%s %s, which is never to be evicted", q.verb, q.pod)
	}
	nodeExists := w.server.CurrentNode() != nil
	if nodeExists && w.cluster.action != "" && time.Since(w.cluster.actionSet) > slow && w.steady(slow) {
		w.violatedLocked(annotationsRespected, "%s %s in spite of nth-project.github.io/action", q.verb, q.pod)
	}
	if w.cluster.arrived(pod).After(w.cluster.uncordoned) {
		w.judgeUncordoned(drained, q.verb+" "+q.pod)
	}
	w.judgeGrace(q, pod)
}

// judgeGrace judges the grace period in a request, and whether a deletion was needed: only before a hard deadline.
func (w *world) judgeGrace(q request, pod *corev1.Pod) {
	if w.stepped || w.anyNotice(func(n *notice) bool {
		sent := min(time.Since(n.changed), time.Since(n.ended), time.Since(w.ruleSet[n.kind])) < time.Second
		moved := n.deadlined.After(n.announced) && (time.Since(n.deadlined) < slow || n.lastSeen.Before(n.deadlined))
		return n.vague || sent || moved || n.movedUnheard() || n.unsure && w.counted(n) && !w.over(n)
	}) {
		return // nth may go by another deadline, such as that from before a reboot, or have gone by one when it made the request.
	}
	var body struct {
		metav1.DeleteOptions
		Nested metav1.DeleteOptions `json:"deleteOptions"`
	}
	if json.Unmarshal(q.body, &body) != nil { // The fake API server refuses it.
		return
	}
	given := body.GracePeriodSeconds
	if q.verb == "evict" {
		given = body.Nested.GracePeriodSeconds
	}
	own := graceOf(pod)
	left, hard := w.nearest()
	w.judgedLocked(graceGiven)
	if q.verb == "delete" {
		w.judgedLocked(deletedForLost, deletedWhenNeeded)
	}
	if q.verb == "delete" && !hard {
		w.violatedLocked(deletedForLost, "%s; %s", q.pod, w.standing())
	}
	least := own
	if hard && left < own {
		least = left
	}
	rounded := w.rounding()
	if given != nil && pod.DeletionTimestamp == nil && time.Duration(*given)*time.Second < least-rounded && *given > 0 && least > time.Second {
		w.violatedLocked(graceGiven, "%s %s with %d s of its %s, and %s are left", q.verb, q.pod, *given, own, left)
	}
	if q.verb == "delete" && hard && pod.DeletionTimestamp == nil && left > own+2*time.Second {
		w.violatedLocked(deletedWhenNeeded, "%s has a grace period of %s, and %s are left", q.pod, own, left)
	}
}

// rounding is by how much nth may take a time for another one: times are in whole seconds. Where clocks differ, EC2 dates its answers in whole
// seconds, and nth takes clocks for equal that differ by less than two.
func (w *world) rounding() time.Duration {
	if w.ahead != 0 {
		return 4 * time.Second
	}
	return time.Second
}

// nearest returns how much time is left until a margin before the nearest hard deadline. hard is false if there is no such deadline.
func (w *world) nearest() (left time.Duration, hard bool) {
	for _, n := range w.notices {
		limit := w.limit(n)
		recentRule := time.Since(w.ruleSet[n.kind]) < slow
		if !w.possible(n, drained) || limit.IsZero() || !w.rules[n.kind].Hard && !recentRule {
			continue
		}
		l := time.Until(limit) - w.options.Margin
		if l < overtime && time.Until(limit) <= 0 {
			l = 0 // It has half a minute, and it is not known from when on.
		}
		if !hard || l < left {
			left, hard = l, true
		}
	}
	return left, hard
}

// judgeAfter records what the API server has done for nth.
func (w *world) judgeAfter(q request, answer *http.Response) {
	if answer.StatusCode >= 300 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch q.verb {
	case "patch":
		w.patched(q)
	case "evict", "delete":
		pod := w.server.Pod(q.pod)
		if pod == nil || pod.DeletionTimestamp == nil {
			return // An eviction that is refused may be answered with 201 all the same.
		}
		if _, before := w.cluster.ended[string(pod.UID)]; !before {
			w.cluster.ended[string(pod.UID)] = time.Now()
		}
		family := q.pod
		if owner := metav1.GetControllerOf(pod); owner != nil {
			family = owner.Name
		}
		if _, before := w.cluster.firstEnded[family]; !before {
			w.cluster.firstEnded[family] = time.Now()
		}
		w.cluster.evictions[family]++
	}
}

// patched records whose cordon is on the Node after a patch of nth's.
func (w *world) patched(q request) {
	w.cluster.patches++
	p, lifts := q.patch()
	claim, claims := p.Metadata.Annotations[drain.CordonAnnotation]
	switch {
	case p.Spec.Unschedulable != nil && *p.Spec.Unschedulable:
		if w.cluster.owner == "" {
			w.cluster.own(byNTH)
		}
	case lifts:
		w.cluster.own("")
	case claims && claim == nil && w.cluster.owner == byNTH: // It leaves the cordon to another drainer.
		w.cluster.own(byOther)
	}
}

// judgeEnd judges at the end of the history whether nth has made too many evictions, patches or writes of the record.
func (w *world) judgeEnd() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judgedLocked(evictionsEnd, nodeWritesEnd, recordEnds, diskWorks)
	most := 6 * (w.started + len(w.notices) + 2)
	for family, count := range w.cluster.evictions {
		if count > most*3 {
			w.violatedLocked(evictionsEnd, "%s: %d times", family, count)
		}
	}
	minutes := int(time.Since(w.start) / time.Minute)
	if most := 40 + 20*minutes + 40*len(w.notices); w.cluster.patches > most {
		w.violatedLocked(nodeWritesEnd, "%d times", w.cluster.patches)
	}
	for _, i := range w.all {
		if most := 100 + 60*minutes + 100*len(w.notices); i.puts > most {
			w.violatedLocked(recordEnds, "%d times by nth %d", i.puts, i.number)
		}
	}
}

// later is the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
