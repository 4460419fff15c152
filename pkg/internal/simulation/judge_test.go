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
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

const (
	// quiet is how long nothing must have happened before there is but one right outcome.
	quiet = 45 * time.Second
	// slow is how long nth may take to hear of something and to follow it, while nothing is wrong.
	slow = 15 * time.Second
	// overtime is what is left after a deadline.
	overtime = 30 * time.Second
)

// want is what a notice asks for.
type want int

const (
	nothing want = iota
	cordoned
	drained
)

var wants = map[policy.Action]want{policy.Cordon: cordoned, policy.Drain: drained}

// action is what the rules say now about a notice, and from when on.
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

// ends is until when a notice that is not listed may stand.
func (w *world) ends(n *notice) time.Time {
	if n.listed || n.unlisted.IsZero() {
		return time.Time{}
	}
	end := w.rules[n.kind].WithdrawnAfter
	if w.nth != nil {
		for _, kind := range w.nth.unwatched {
			if kind == n.kind {
				end = max(end, 10*time.Minute)
			}
		}
	}
	from := n.unlisted
	if w.nth == nil {
		from = time.Now() // it has not missed it yet
	} else if told := w.nth.told[n.kind]; told.After(from) || told.IsZero() {
		from = max2(told, w.nth.began)
	}
	if deaf := w.documents[n.kind].deaf; deaf.After(from) {
		from = deaf // it was withdrawn while nobody could tell
	}
	return from.Add(end + n.deafSince + slow)
}

// over tells that a notice cannot be a reason for anything any more.
func (n *notice) over(w *world) bool {
	end := w.ends(n)
	return !end.IsZero() && time.Now().After(end) || n.state != event.Pending && n.listed && w.knows(n) && !n.outdated
}

// knows reports whether nth has surely heard how a notice is now. Before its first look, it goes by its record.
func (w *world) knows(n *notice) bool {
	if w.nth == nil {
		return time.Since(n.changed) > slow
	}
	told := w.nth.told[n.kind]
	if time.Since(w.documents[n.kind].deaf) < slow {
		return false
	}
	return time.Since(n.changed) > slow && (!told.IsZero() && time.Since(told) > slow || !w.watched(n.kind))
}

// reboots reports whether what is announced is over with a reboot.
func (n *notice) reboots() bool {
	return n.code == "system-reboot" || n.code == "instance-reboot"
}

// possible reports whether a notice may be a reason for so much now, if only because nth has not heard yet that it is none.
func (w *world) possible(n *notice, level want) bool {
	if n.over(w) || n.seen.IsZero() && !n.outdated {
		return false
	}
	action, from := w.action(n)
	recent := func(t time.Time) bool { return time.Since(t) < slow+w.trouble(n.kind) }
	if action < level && !recent(w.ruleSet[n.kind]) {
		return false
	}
	return !from.After(time.Now().Add(time.Second)) || recent(n.deadlined) || n.movedUnheard() || recent(w.ruleSet[n.kind]) || w.stepped
}

// movedUnheard reports whether nth has never heard of the present time of a notice that is not listed any more.
func (n *notice) movedUnheard() bool { return !n.listed && n.said.Before(n.deadlined) }

// trouble is how long the document of a kind could not be read lately.
func (w *world) trouble(kind event.Kind) time.Duration {
	d := w.documents[kind]
	if time.Since(d.heard) < 30*time.Second {
		return time.Minute
	}
	if w.nth == nil || w.nth.told[kind].IsZero() {
		return time.Hour
	}
	return time.Since(w.nth.began) * 0
}

// sure reports whether a notice is a reason for so much now, beyond doubt.
func (w *world) sure(n *notice, level want) bool {
	if n.unsure || !n.lifted.IsZero() || !n.listed || n.state != event.Pending || n.seen.IsZero() || w.nth == nil || w.nth.told[n.kind].IsZero() {
		return false
	}
	action, from := w.action(n)
	switch {
	case action < level, from.After(time.Now().Add(-slow)), time.Since(w.documents[n.kind].deaf) < slow:
		return false
	case w.stepped && !from.IsZero():
		return false
	case !n.rebooted.IsZero() && (n.reboots() || n.kind == event.Shutdown):
		return false
	case !n.rebooted.IsZero() && !n.deadline.IsZero() && w.documents[n.kind].heard.After(w.booted):
		return false // it may have ended with the reboot, as nobody could say that it had not
	case n.kind == event.RebalanceRecommendation && action == cordoned && w.rules[n.kind].CordonFor > 0:
		return !n.vague && time.Since(n.seen) < w.rules[n.kind].CordonFor-slow
	}
	return true
}

// none reports whether a notice is a reason for nothing now, beyond doubt.
func (w *world) none(n *notice) bool {
	if n.over(w) || !n.vague && n.seen.IsZero() && time.Since(n.changed) > slow && w.nth != nil && !w.nth.told[n.kind].IsZero() && !n.listed {
		return true
	}
	if n.unsure {
		return false
	}
	action, from := w.action(n)
	switch {
	case time.Since(w.ruleSet[n.kind]) < slow:
		return false
	case action == nothing:
		return true
	case from.After(time.Now().Add(slow)) && !w.stepped && n.rebooted.IsZero() && n.deadlined.After(w.ruleSet[n.kind]):
		return true // it is not taken back because the lead has become shorter
	case !n.rebooted.IsZero() && n.kind == event.Shutdown:
		return time.Since(n.rebooted) > slow
	case !n.rebooted.IsZero() && n.reboots() && n.acted && n.done:
		return time.Since(n.rebooted) > slow
	}
	return false
}

// steady reports whether nothing has been wrong for so long.
func (w *world) steady(d time.Duration) bool {
	return time.Since(w.disturbed) >= d && w.nth != nil && time.Since(w.nth.began) > d && time.Now().After(w.refused)
}

func (w *world) any(is func(*notice) bool) bool {
	for _, n := range w.notices {
		if is(n) {
			return true
		}
	}
	return false
}

// judgeRest judges what has become of the node, if nothing has happened for long enough that there is one right outcome.
func (w *world) judgeRest() {
	node, pods := w.server.CurrentNode(), w.onNode()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.steady(quiet) || node == nil || time.Since(w.cluster.back) < quiet {
		return
	}
	for _, kind := range event.Kinds() {
		if w.watched(kind) && w.nth.told[kind].IsZero() {
			return
		}
	}
	w.judgeNode(node)
	w.judgePods(node, pods)
	w.judgeHooks()
}

func (w *world) watched(kind event.Kind) bool { return w.watchedBy(w.nth, kind) }

func (w *world) watchedBy(i *incarnation, kind event.Kind) bool {
	return !slices.Contains(i.unwatched, kind)
}

// leave reports whether operators want the node left alone.
func (c *cluster) leave() bool { return c.action == drain.LeaveNode || c.action == drain.OnlyNotify }

func (w *world) judgeNode(node *corev1.Node) {
	_, claimed := node.Annotations[drain.CordonAnnotation]
	mine := claimed && !strings.Contains(node.Annotations[drain.CordonAnnotation], `"`+drain.Queue+`"`)
	labeled := node.Labels[drain.ExcludeLabel] == drain.Host
	wanted := w.any(func(n *notice) bool { return w.sure(n, cordoned) })
	free := !w.any(func(n *notice) bool { return !w.none(n) })
	allLifted := !w.any(func(n *notice) bool { return !w.none(n) && n.lifted.IsZero() }) && !free
	w.judged(othersUnchanged)
	if wanted {
		w.judged(closedWithReason)
	}
	if free {
		w.judged(undoneInTime)
	}
	if allLifted {
		w.judged(uncordonRespected)
	}
	switch {
	case wanted && !w.cluster.leave() && !node.Spec.Unschedulable:
		w.violatedNow(closedWithReason, "it is open: %s", w.standing())
	case free && mine:
		w.violatedNow(undoneInTime, "its annotation is: %s; %s", node.Annotations[drain.CordonAnnotation], w.standing())
	case free && labeled:
		w.violatedNow(undoneInTime, "its label is; %s", w.standing())
	case free && node.Spec.Unschedulable && w.cluster.owner == byNTH:
		w.violatedNow(undoneInTime, "its cordon is; %s", w.standing())
	case allLifted && node.Spec.Unschedulable && w.cluster.owner == byNTH:
		w.violatedNow(uncordonRespected, "the node is cordoned; %s", w.standing())
	case allLifted && labeled && !node.Spec.Unschedulable:
		w.violatedNow(uncordonRespected, "the label is left; %s", w.standing())
	}
	if w.cluster.foreign && node.Labels[drain.ExcludeLabel] != "true" {
		w.violatedNow(othersUnchanged, "the label of somebody else is %q", node.Labels[drain.ExcludeLabel])
	}
	if !node.Spec.Unschedulable && w.cluster.owner != "" {
		w.violatedNow(othersUnchanged, "the cordon of %s is gone", w.cluster.owner)
	}
}

// standing says what is announced, for a violation.
func (w *world) standing() string {
	var words []string
	for _, n := range w.notices {
		if !n.over(w) {
			action, _ := w.action(n)
			words = append(words, fmt.Sprintf("%s %s/%s listed=%t wants=%d sure=%t none=%t lifted=%t", n.name, n.kind, n.code, n.listed, action, w.sure(n, action), w.none(n), !n.lifted.IsZero()))
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

// mustGo reports whether a pod is one that a drain for a notice has to end, beyond doubt: before a deadline of which the machine does
// not come back also one that may wait for it.
func (w *world) mustGo(pod *corev1.Pod, n *notice, last bool) bool {
	owner := metav1.GetControllerOf(pod)
	when := pod.Annotations[evict.Annotation]
	switch {
	case owner != nil && owner.Kind == "DaemonSet", pod.Annotations[corev1.MirrorPodAnnotationKey] != "":
		return false
	case when == evict.Never || when == evict.AtDeadline && !last:
		return false
	case owner == nil && w.options.ProtectUnmanaged:
		return false
	case w.cluster.broughtBack(pod):
		return false // it may have been left in peace
	case pod.Finalizers != nil && pod.DeletionTimestamp != nil:
		return false
	case w.cluster.uncordoned.After(n.seen.Add(-slow)):
		return false // it may have come since
	}
	return time.Since(w.cluster.annotated[pod.Namespace+"/"+pod.Name]) > slow
}

// broughtBack reports whether a pod's controller may have brought it back to a node that is closed, after a first one had to go.
func (c *cluster) broughtBack(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || !c.returning[owner.Name] {
		return false
	}
	first, ended := c.firstEnded[owner.Name]
	return ended && !c.byWorld(pod.CreationTimestamp.Time).Before(first.Truncate(time.Second))
}

// arrived is when a pod was bound to the node.
func (c *cluster) arrived(pod *corev1.Pod) time.Time {
	at := pod.CreationTimestamp.Time
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.LastTransitionTime.After(at) {
			at = condition.LastTransitionTime.Time
		}
	}
	return c.byWorld(at)
}

func (w *world) judgePods(node *corev1.Node, pods []*corev1.Pod) {
	if !w.any(func(n *notice) bool { return w.sure(n, drained) }) || w.cluster.action != "" || !node.Spec.Unschedulable {
		return
	}
	othersHeld := false
	for _, pod := range pods {
		waits := pod.Annotations[evict.Annotation] == evict.AtDeadline
		owner := metav1.GetControllerOf(pod)
		returns := owner != nil && w.cluster.returning[owner.Name] // round after round
		othersHeld = othersHeld || w.cluster.guarded[pod.Labels["app"]] || waits || returns || pod.DeletionTimestamp != nil
	}
	w.judged(evictedWhileDue)
	for _, pod := range pods {
		held := w.cluster.guarded[pod.Labels["app"]] || othersHeld && pod.Spec.PriorityClassName != ""
		held = held || time.Since(w.server.LastRemoval()) < time.Second // It may have waited for what is gone.
		if pod.DeletionTimestamp == nil && w.duePod(pod) && !held && time.Since(w.cluster.arrived(pod)) > quiet {
			w.violatedNow(evictedWhileDue, "%s is there since %s; %s", pod.Name, w.cluster.arrived(pod).Sub(w.start), w.standing())
		}
	}
}

// duePod reports whether some notice surely wants a pod to go.
func (w *world) duePod(pod *corev1.Pod) bool {
	return w.any(func(n *notice) bool {
		_, from := w.action(n)
		return w.sure(n, drained) && time.Since(from) > quiet && w.mustGo(pod, n, false)
	})
}

// judgeHooks judges that hooks and locks are given back in time.
func (w *world) judgeHooks() {
	for _, n := range w.notices {
		if n.kind != event.ASGTermination && n.kind != event.Shutdown || !n.listed || n.seen.IsZero() || !n.settled.IsZero() || n.boot != w.boot {
			continue
		}
		end := w.limit(n)
		for _, t := range []time.Time{w.ruleSet[n.kind], w.nth.told[n.kind], n.seen} {
			if t.Add(overtime).After(end) {
				end = t.Add(overtime)
			}
		}
		if w.stepped || end.IsZero() || !w.watched(n.kind) {
			continue
		}
		w.judged(settledInTime)
		if time.Since(end) > slow {
			w.violatedNow(settledInTime, "%s is not settled %s after its time; %s", n.name, time.Since(end), w.standing())
		}
	}
}

// limit is when the time of a notice is over; zero if never.
func (w *world) limit(n *notice) time.Time {
	limit := n.deadline
	if w.counted(n) && !n.seen.IsZero() {
		if end := n.seen.Add(w.rules[n.kind].Budget); limit.IsZero() || end.Before(limit) {
			limit = end
		}
	}
	return limit
}

// counted reports whether the time of a notice is counted from when it was seen first.
func (w *world) counted(n *notice) bool {
	return w.rules[n.kind].Budget > 0 && (n.kind == event.SpotInterruption || n.kind == event.ASGTermination)
}

// settled is called with what nth says that has come of an event, again and again.
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
		w.told("%s is settled: %s", n.name, outcome)
		w.judged(settledIfDone)
	}
	if !w.sure(n, drained) || w.stepped || n.vague || n.incomplete || n.drained != "" {
		return // what it says when it is drained is judged there
	}
	for _, t := range []time.Time{n.changed, n.seen, w.ruleSet[n.kind], i.told[n.kind]} {
		if time.Since(t) < slow {
			return // it may not know yet what it is due
		}
	}
	limit := w.limit(n)
	if !limit.IsZero() && time.Until(limit) < time.Second {
		return
	}
	w.judgeEmpty(n, settledIfDone)
}

// judgeOutcome judges an outcome that has become another, as whoever holds a hook would: it completes it with one, and not with another.
func (w *world) judgeOutcome(n *notice, outcome event.Outcome) {
	if n.outcome == outcome {
		return
	}
	n.outcome = outcome
	w.told("%s comes to %q", n.name, outcome)
	node := w.server.CurrentNode()
	limits := node != nil && slices.Contains([]string{drain.LeaveNode, drain.OnlyNotify, drain.OnlyCordon}, node.Annotations[drain.ActionAnnotation])
	heard := time.Since(w.cluster.actionSet) > slow && w.steady(slow)
	wantsDrain, _ := w.action(n)
	w.judged(outcomeTrue)
	if outcome == event.OutOfTime {
		w.judgeAlone(n)
	}
	switch over := w.limit(n); {
	case wantsDrain < drained || time.Since(w.ruleSet[n.kind]) < slow:
	case outcome == event.LeftAlone:
		if !limits && heard && n.lifted.IsZero() {
			w.violatedNow(outcomeTrue, "%s is said to be left alone, and no operator asks for that; %s", n.name, w.standing())
		}
	case outcome != "" && limits && heard && w.sure(n, drained):
		w.violatedNow(outcomeTrue, "%s is said to be %s, and operators want the node left alone; %s", n.name, outcome, w.standing())
	case outcome == event.Drained && (over.IsZero() || time.Until(over) > 0) && w.sure(n, drained) && !n.vague:
		w.judgeEmpty(n, outcomeTrue)
	case outcome == event.OutOfTime && !w.stepped && !n.vague && n.rebooted.IsZero() && !n.seen.IsZero():
		if over.IsZero() || time.Until(over) > time.Second && time.Since(n.changed) > slow && !n.incomplete {
			w.violatedNow(outcomeTrue, "%s is said to be out of time %s before that; %s", n.name, time.Until(over), w.standing())
		}
	}
}

// judgeEmpty judges that no pod is left that has to go.
func (w *world) judgeEmpty(n *notice, name invariant) {
	if w.cluster.action != "" || time.Since(w.cluster.actionSet) < slow {
		return
	}
	if set := w.cluster.actionSet; !set.IsZero() && w.disturbed.After(set) && !w.steady(slow) {
		return // That operators have taken the annotation off may not have been read.
	}
	for _, pod := range w.onNode() {
		// What was bound before the cordon is known when the node is said to be empty, however far the API server's cache lags behind.
		before := w.cluster.owner == byNTH && w.cluster.arrived(pod).Add(time.Second).Before(w.cluster.owned)
		if w.mustGo(pod, n, false) && (before || time.Since(w.cluster.arrived(pod)) > slow) {
			w.violatedNow(name, "%s: %s is there; %s", n.name, pod.Name, w.standing())
		}
	}
}

// judgeEntries judges what nth is about to write into its record.
func (w *world) judgeEntries(i *incarnation, entries []state.Entry) {
	for _, e := range entries {
		if n := w.of(e.Event.ID); n != nil && e.Released() {
			n.released = true
		}
		before := i.phases[e.Event.ID]
		i.phases[e.Event.ID] = e.Phase
		if before == e.Phase {
			continue
		}
		if n := w.of(e.Event.ID); n != nil && before == state.Drained && e.Phase == state.Draining {
			n.drained = "" // Operators have wanted it left alone, and do not any more.
		}
		w.told("record: %s %s -> %s %s%s", e.Event.ID, before, e.Phase, e.Ending, e.Error)
		n := w.of(e.Event.ID)
		if n == nil {
			continue
		}
		switch e.Phase {
		case state.Drained:
			w.judged(oneOutcome)
			if n.drained == w.bootID() && i.number == n.drainedBy && n.drainedAs == e.Event.ID && time.Since(w.ruleSet[n.kind]) > time.Hour && n.rebooted.IsZero() {
				w.violatedNow(oneOutcome, "%s is drained again", n.name)
			}
			n.drained, n.drainedBy, n.drainedAs = w.bootID(), i.number, e.Event.ID // one that is killed before that is on the disk has not said it
			if w.sure(n, drained) {
				w.judged(emptyIfDrained)
				w.judgeEmpty(n, emptyIfDrained)
				w.judgeVolumes(n)
			}
		case state.Closed, state.Seen, state.Undoing:
			n.ended = time.Now()
			// It has had its time, whatever the rules say later, or the machine has survived it.
			n.unsure = n.unsure || e.Ending == state.Expired || e.Ending == state.Rebooted && n.kind == event.SpotInterruption
			if e.Phase == state.Closed && e.Ending == state.Withdrawn {
				w.judgeWithdrawn(i, n)
			}
			if e.Phase == state.Closed && e.Ending == state.Withdrawn && !n.moving { // That may be known under another ID.
				n.seen, n.settled, n.watching, n.incomplete, n.held = time.Time{}, time.Time{}, time.Time{}, false, false // it is met anew
				n.lifted = time.Time{}
			}
			if (before != "" || w.forgot.Before(n.announced)) && (!n.moving || n.drainedAs == e.Event.ID) {
				n.drained = ""
			}
		case state.Incomplete:
			n.incomplete = true // also if its budget grows again
		case state.Cordoned:
			if before == "" || before == state.Closed {
				n.vague = true // a claim was found on the Node, which says when it was set and no more
			}
		case state.Cordoning, state.Draining:
		}
	}
}

// patchOf is what a PATCH of the Node is about.
type patchOf struct {
	Metadata struct {
		Annotations map[string]*string `json:"annotations"`
		Labels      map[string]*string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Unschedulable *bool `json:"unschedulable"`
	} `json:"spec"`
}

func (q request) patch() (p patchOf, lifts bool) {
	_ = json.Unmarshal(q.body, &p) // what it is not is not judged
	return p, strings.Contains(string(q.body), `"unschedulable":null`)
}

// judgeBefore judges what nth asks for when it reaches the API server.
func (w *world) judgeBefore(q request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch q.verb {
	case "patch":
		w.told("PATCH %s", q.body)
		w.judgePatch(q)
	case "evict", "delete":
		w.told("%s %s %s", strings.ToUpper(q.verb), q.pod, q.body)
		w.judgeEnd1(q)
	}
}

func (w *world) judgePatch(q request) {
	p, lifts := q.patch()
	recently := func(t time.Time) bool { return time.Since(t) < 2*time.Second }
	reason := w.any(func(n *notice) bool { return w.possible(n, cordoned) })
	switch {
	case p.Spec.Unschedulable != nil && *p.Spec.Unschedulable:
		w.judged(notClosedWithout, annotationsRespected)
		if !reason {
			w.violatedNow(notClosedWithout, "%s", w.standing())
		}
		if w.cluster.leave() && time.Since(w.cluster.actionSet) > slow {
			w.violatedNow(annotationsRespected, "the node is cordoned in spite of nth-project.github.io/action")
		}
		w.judgeUncordoned(cordoned, "the node is cordoned again")
	case lifts:
		w.judged(othersUnchanged)
		w.judgeLift()
		if w.cluster.owner != byNTH && !recently(w.cluster.owned) {
			w.violatedNow(othersUnchanged, "the cordon of %q is lifted", w.cluster.owner)
		}
		if w.cluster.karpenter && !recently(w.cluster.tainted) {
			w.violatedNow(othersUnchanged, "the cordon is lifted under Karpenter's taint")
		}
		if w.any(func(n *notice) bool { return w.sure(n, cordoned) && time.Since(n.changed) > slow }) && w.steady(slow) {
			w.violatedNow(closedWithReason, "the cordon is lifted; %s", w.standing())
		}
	}
	if label, set := p.Metadata.Labels[drain.ExcludeLabel]; set && label == nil && w.cluster.foreign {
		w.violatedNow(othersUnchanged, "the label of somebody else is taken off")
	}
	if note, set := p.Metadata.Annotations[drain.CordonAnnotation]; set && note == nil && w.cluster.owner == byQueue && !recently(w.cluster.owned) {
		w.violatedNow(othersUnchanged, "the claim of nth-queue is taken off")
	}
}

// judgeUncordoned judges what is begun while an operator's uncordon holds: only an event that began later can be the reason for it.
func (w *world) judgeUncordoned(level want, what string) {
	holds := w.any(func(n *notice) bool { return w.possible(n, level) && !n.lifted.IsZero() })
	later := w.any(func(n *notice) bool { return w.possible(n, level) && n.lifted.IsZero() })
	unheard := w.troubled.After(w.cluster.uncordoned) && time.Since(w.troubled) < slow && !w.any(func(n *notice) bool { return n.released && !n.lifted.IsZero() })
	if !holds || later || unheard || time.Since(w.cluster.uncordoned) < 2*time.Second { // It may have been under way.
		return
	}
	w.judged(uncordonRespected)
	w.violatedNow(uncordonRespected, "%s %s after the uncordon; %s", what, time.Since(w.cluster.uncordoned), w.standing())
}

// judgeEnd1 judges that a pod is to be ended.
func (w *world) judgeEnd1(q request) {
	pod := w.server.Pod(q.pod)
	if pod == nil {
		return
	}
	w.judged(notEndedWithout, nodesOwnStays, annotationsRespected)
	if !w.any(func(n *notice) bool { return w.possible(n, drained) }) {
		w.violatedNow(notEndedWithout, "%s %s: %s", q.verb, q.pod, w.standing())
	}
	owner := metav1.GetControllerOf(pod)
	if owner != nil && owner.Kind == "DaemonSet" || pod.Annotations[corev1.MirrorPodAnnotationKey] != "" {
		w.violatedNow(nodesOwnStays, "%s %s", q.verb, q.pod)
	}
	annotated := time.Since(w.cluster.annotated[q.pod]) > slow && time.Since(w.muted) > slow // No watch told of it before.
	if pod.Annotations[evict.Annotation] == evict.Never && annotated && time.Since(w.cluster.arrived(pod)) > 2*time.Second {
		w.violatedNow(annotationsRespected, "%s %s, which is never to be evicted", q.verb, q.pod)
	}
	ok := !w.cluster.gone.After(w.cluster.back) // What is written on a Node goes with it.
	if ok && w.cluster.action != "" && time.Since(w.cluster.actionSet) > slow && w.steady(slow) {
		w.violatedNow(annotationsRespected, "%s %s in spite of nth-project.github.io/action", q.verb, q.pod)
	}
	if w.cluster.arrived(pod).After(w.cluster.uncordoned) {
		w.judgeUncordoned(drained, q.verb+" "+q.pod)
	}
	w.judgeGrace(q, pod)
}

// judgeGrace judges what a pod is given, and that it is deleted for machines only that are lost.
func (w *world) judgeGrace(q request, pod *corev1.Pod) {
	if w.stepped || w.any(func(n *notice) bool {
		sent := min(time.Since(n.changed), time.Since(n.ended), time.Since(w.ruleSet[n.kind])) < time.Second
		moved := n.deadlined.After(n.announced) && (time.Since(n.deadlined) < slow || n.said.Before(n.deadlined))
		return n.vague || sent || moved || n.movedUnheard() || n.unsure && w.counted(n) && !n.over(w)
	}) {
		return // nth may have another deadline in mind, as that of the notice before a reboot, or may have had one when it asked
	}
	var body struct {
		metav1.DeleteOptions
		Nested metav1.DeleteOptions `json:"deleteOptions"`
	}
	if json.Unmarshal(q.body, &body) != nil {
		return
	}
	given := body.GracePeriodSeconds
	if q.verb == "evict" {
		given = body.Nested.GracePeriodSeconds
	}
	own := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	left, hard := w.nearest()
	w.judged(graceGiven)
	if q.verb == "delete" {
		w.judged(deletedForLost, deletedWhenNeeded)
	}
	if q.verb == "delete" && !hard {
		w.violatedNow(deletedForLost, "%s; %s", q.pod, w.standing())
	}
	least := own
	if hard && left < own {
		least = left
	}
	rounded := time.Second // to whole seconds
	if w.ahead != 0 {
		rounded += 3 * time.Second // EC2 dates its answers in whole seconds, and clocks that differ by less than two are taken for equal.
	}
	if given != nil && pod.DeletionTimestamp == nil && time.Duration(*given)*time.Second < least-rounded && *given > 0 && least > time.Second {
		w.violatedNow(graceGiven, "%s of %s gets %d s of %s, and %s are left", q.verb, q.pod, *given, own, left)
	}
	if q.verb == "delete" && hard && pod.DeletionTimestamp == nil && left > own+2*time.Second {
		w.violatedNow(deletedWhenNeeded, "%s has %s, and %s are left", q.pod, own, left)
	}
}

// nearest is how much is left until the margin before the nearest hard deadline; hard if there is one.
func (w *world) nearest() (left time.Duration, hard bool) {
	for _, n := range w.notices {
		limit := w.limit(n)
		recentRule := time.Since(w.ruleSet[n.kind]) < slow
		if !w.possible(n, drained) || limit.IsZero() || !w.rules[n.kind].Hard && !recentRule {
			continue
		}
		l := time.Until(limit) - w.options.Margin
		if l < overtime && time.Until(limit) <= 0 {
			l = 0 // it has half a minute, counted from who knows when
		}
		if !hard || l < left {
			left, hard = l, true
		}
	}
	return left, hard
}

// judgeAfter takes in what the API server has done.
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
			return // what is refused may be answered with 201 all the same
		}
		if _, before := w.cluster.ended[string(pod.UID)]; !before {
			grace := time.Duration(0)
			if pod.DeletionGracePeriodSeconds != nil {
				grace = time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
			}
			w.cluster.ended[string(pod.UID)] = ended{pod: q.pod, at: time.Now(), grace: grace, how: q.verb}
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

// patched takes in that the Node has been changed.
func (w *world) patched(q request) {
	w.cluster.patches++
	p, lifts := q.patch()
	note, noted := p.Metadata.Annotations[drain.CordonAnnotation]
	switch {
	case p.Spec.Unschedulable != nil && *p.Spec.Unschedulable:
		if w.cluster.owner == "" {
			w.cluster.own(byNTH)
		}
	case lifts:
		w.cluster.own("")
	case noted && note == nil && w.cluster.owner == byNTH:
		w.cluster.own(byOther)
	}
}

// judgeEnd judges the history as a whole.
func (w *world) judgeEnd() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judged(evictionsEnd, nodeWritesEnd, recordEnds, diskWorks)
	most := 6 * (w.started + len(w.notices) + 2)
	for family, count := range w.cluster.evictions {
		if count > most*3 {
			w.violatedNow(evictionsEnd, "%s: %d times", family, count)
		}
	}
	minutes := int(time.Since(w.start) / time.Minute)
	if most := 40 + 20*minutes + 40*len(w.notices); w.cluster.patches > most {
		w.violatedNow(nodeWritesEnd, "%d times", w.cluster.patches)
	}
	for _, i := range w.all {
		if most := 100 + 60*minutes + 100*len(w.notices); i.puts > most {
			w.violatedNow(recordEnds, "%d times by nth %d", i.puts, i.number)
		}
	}
}

func max2(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
