package drain

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

const (
	// overtime is the time that a pod gets if the deadline is over and the machine is still there: enough for most to end by
	// themselves, short enough to be a last effort.
	overtime = 30 * time.Second
	// overdueAfter is how much longer than its grace period a pod may take to end before critical pods stop waiting for it, and how long
	// an accepted eviction may show no effect before it is repeated. The kubelet needs seconds to clean up after the last container;
	// what takes longer is stuck, for instance behind a finalizer or a volume, and needs no name service any more.
	overdueAfter = 10 * time.Second
	// lookGrace is how long a pod whose turn has come waits for a look at the Node: after an outage, there is one within two seconds.
	lookGrace = 3 * time.Second
	// unknownPatience is how long the API server may say that it does not know a young pod. Then the watch is suspected: one from a version that
	// is still to come, as after etcd was restored from a backup, says nothing.
	unknownPatience = 10 * time.Second
	// shortestPause is the shortest time between two requests for a pod whose turn has come.
	shortestPause = 100 * time.Millisecond
	// shortestNews is the least time that the watch gets to show that a pod is terminating.
	shortestNews = time.Second
	// widestWindow bounds how many pods of one disruption budget are evicted at once. A node has fewer pods.
	widestWindow = 1 << 10
)

// A refused eviction is repeated often enough that a disruption budget which yields costs no more than seconds of a two-minute notice.
// suspicions are the pauses between lists for what the watch should have shown.
var (
	evictions  = kube.Backoff(100*time.Millisecond, 1500*time.Millisecond)
	suspicions = kube.Backoff(5*time.Second, 5*time.Minute)
)

// pods is what a guard knows of the node's pods.
type pods struct {
	watching bool
	// listFailing is since when lists have failed, and listRefusal why, as far as it was reported.
	listFailing time.Time
	listRefusal kube.Reasons
	// synced tells that there has been a complete list, and foundReported that this was reported.
	synced        bool
	foundReported bool
	targets       map[types.UID]*target
	// staying are the pods that need not go. Of these, the exempt came back too often, or came after somebody uncordoned the node.
	staying map[types.UID]*corev1.Pod
	exempt  map[types.UID]bool
	// listing tells that relist's list is under way, and departed are the pods that have left the node meanwhile, which it may still have.
	listing  bool
	departed map[types.UID]bool
	owners   map[string]*owner
	budgets  map[string]*budget

	total, evicted, deleted int
	// The next actOnPods plans for the targets in touched, or for all of them. wake is when to come back to the others.
	all     bool
	touched []*target
	wake    time.Time

	drained bool
	// epoch counts what voids any earlier proof that the node is drained: a new target, an open node, an event that joins.
	// confirmedEpoch is the last in which a list has proven that no pod is left.
	epoch, confirmedEpoch int
	// listAt is when the pods may be listed for what the watch should have shown, and listPause the pause after that.
	listAt    time.Time
	listPause wait.Backoff
}

// target is a pod that has to go.
type target struct {
	pod *corev1.Pod
	// round is how often its owner has brought pods back (see rounds).
	round int
	// needsLook is the look that first has to show that the node is still closed; 0 for none.
	needsLook int
	metAt     time.Time
	// notBefore is the earliest time for the next request: its owner brings pods back, or the last request failed.
	notBefore time.Time
	// requesting is the request under way, which cancel ends; sent tells that it has left the gate. lastRequest was made, or accepted, at
	// requestedAt; urgent tells that the pod's turn had come then.
	requesting, lastRequest state.TransitionKind
	cancel                  context.CancelFunc
	requestedAt             time.Time
	sent                    *atomic.Bool
	urgent                  bool
	// doneBy is the request that would have done it if the pod went now: one that was accepted, or that has no answer. It is credited, which
	// means counted, once the pod is terminating: a webhook may have made it a dry run.
	accepted         bool
	doneBy, credited state.TransitionKind
	// backoff are the pauses after a failure that may pass, or while a hard deadline is near, and refused those after any other.
	backoff, refused wait.Backoff
	budget           *budget
	held             string // what holds it now, in words
	told             kube.Reasons
	// overtime is until when it has to be gone if it is asked for after the deadline.
	overtime time.Time
	// endBy is when a pod that is terminating should have ended; overdue tells that it has not, and shortened that its grace was
	// shortened.
	endBy     time.Time
	overdue   bool
	shortened bool
}

// budget is a disruption budget that holds pods. While it refuses, one of them is tried for all; each eviction that it grants doubles
// the window, which is how many are tried at once.
type budget struct {
	window, inFlight int
	next             time.Time
	backoff          wait.Backoff
}

// owner is the controller of pods, or whatever else makes them.
type owner struct {
	name string
	// from is when the first of its pods began to leave, by the API server's clock: pods that are younger have come back, in this round.
	from                         time.Time
	round                        int
	changed                      time.Time // when a pod of it was last met or left
	returnReported, leftReported bool
}

// replacePods takes in a complete list. Pods that are missing from it are gone, even if the watch has not told so.
func (g *guard) replacePods(all []*corev1.Pod) {
	there := make(map[types.UID]bool, len(all))
	for _, pod := range all {
		there[pod.UID] = true
	}
	for uid, t := range g.targets {
		if !there[uid] {
			g.handleGone(t.pod)
		}
	}
	for _, pod := range all { // after those that they replace have gone
		g.handlePod(pod)
	}
	maps.DeleteFunc(g.staying, func(uid types.UID, _ *corev1.Pod) bool { return !there[uid] })
	maps.DeleteFunc(g.exempt, func(uid types.UID, _ bool) bool { return !there[uid] })
	if !g.synced {
		g.synced, g.all = true, true
	}
}

// handlePod takes in a pod that is on the node.
func (g *guard) handlePod(pod *corev1.Pod) {
	t, known := g.targets[pod.UID]
	switch mustGo := g.mustGo(pod); {
	case known && mustGo:
		g.updateTarget(t, pod)
	case known:
		t.pod = pod
		g.release(t)
	case mustGo && g.addTarget(pod):
	default:
		g.staying[pod.UID] = pod
	}
}

func (g *guard) mustGo(pod *corev1.Pod) bool {
	deadline := !g.goal.Hard.IsZero() || !g.goal.Soft.IsZero()
	return g.goal.Evict && !g.view.limited && !g.exempt[pod.UID] && !g.cameSince(pod) &&
		g.node.opts.concerns(pod) && !stays(pod, deadline)
}

// rejudge decides again for all pods whether they have to go.
func (g *guard) rejudge() {
	g.all = true
	pods := slices.Collect(maps.Values(g.staying))
	for _, t := range g.targets {
		pods = append(pods, t.pod)
	}
	for _, pod := range pods {
		g.handlePod(pod)
	}
}

// forgetReturns counts the rounds of returning pods from the start. No pod is exempt after that.
func (g *guard) forgetReturns() {
	clear(g.owners)
	clear(g.exempt)
	for _, t := range g.targets {
		t.round = 0
	}
}

// addTarget makes a target of a pod that has to go. It returns false if the pod is exempt instead.
func (g *guard) addTarget(pod *corev1.Pod) bool {
	_, known := g.staying[pod.UID]
	fresh := g.synced && !known
	if g.uncordoned && fresh {
		g.exempt[pod.UID] = true // It came after somebody uncordoned the node.
		return false
	}
	o := g.ownerOf(pod)
	round := o.roundOf(pod)
	if round >= len(rounds) {
		g.exempt[pod.UID] = true
		if !o.leftReported {
			o.leftReported = true
			g.report(Progress{Kind: state.PodsLeftToReturn, Detail: o.name})
		}
		return false
	}
	delete(g.staying, pod.UID)
	g.noteAddresses(pod)
	t := g.newTarget(pod, round, fresh)
	g.targets[pod.UID] = t
	g.total++
	g.touched = append(g.touched, t)
	g.epoch++
	g.volumesSince = time.Time{}
	if round > 1 && !o.returnReported {
		o.returnReported = true
		g.report(Progress{Kind: state.PodsReturning, Detail: o.name})
	}
	if fresh && (g.drained || g.view.closed()) {
		g.report(aboutPod(state.PodArrived, pod, ""))
	}
	g.drained = false
	if pod.DeletionTimestamp != nil { // No noteDeparture: it was leaving before the drain, so its replacement does not count as a return.
		t.terminating()
	}
	return true
}

// newTarget returns the target for a pod. A fresh one was not on the node at the first list.
func (g *guard) newTarget(pod *corev1.Pod, round int, fresh bool) *target {
	now := time.Now()
	t := &target{
		pod: pod, round: round, metAt: now, backoff: evictions, refused: kube.Refusals,
		notBefore: now.Add(rounds[round]),
	}
	if fresh && g.view.closed() || g.view.uid == "" {
		t.needsLook = g.requestLook() // Somebody may have uncordoned the node meanwhile, or want nothing done to it.
	}
	return t
}

// updateTarget takes in a change of a target. Once the pod is terminating, whoever caused that, it is not evicted any more: a second
// eviction would have no effect, and look like another one to others. All that may be left to do is to shorten its grace before the deadline.
//
// A request that has been sent is not canceled: before the API server removes a pod without a grace, it writes that the pod is
// terminating, and if the client goes away in between, the pod stays so for ever.
func (g *guard) updateTarget(t *target, pod *corev1.Pod) {
	t.pod = pod
	g.noteAddresses(pod)
	if pod.DeletionTimestamp != nil && t.endBy.IsZero() {
		if t.cancel != nil && !t.sent.Load() {
			t.cancel()
		}
		t.held = ""
		if t.requesting == "" { // Otherwise its answer tells whose doing it is.
			g.credit(t)
		}
		g.noteDeparture(t)
		t.terminating()
	} else if pod.DeletionTimestamp != nil { // Its grace may have been shortened, or only a finalizer holds it now.
		t.endBy = soonest(t.endBy, time.Now().Add(given(pod)+overdueAfter))
	}
	g.touched = append(g.touched, t)
}

// given is the grace period that a terminating pod was given.
func given(pod *corev1.Pod) time.Duration {
	if pod.DeletionGracePeriodSeconds == nil {
		return 0
	}
	return seconds(*pod.DeletionGracePeriodSeconds)
}

// terminating notes when a pod that is terminating should have ended. That is counted from when it was first seen, on the monotonic clock:
// the pod's timestamps are by the API server's clock.
func (t *target) terminating() {
	t.endBy = time.Now().Add(given(t.pod) + overdueAfter)
}

// accept takes in that a request for a pod was accepted.
func (g *guard) accept(t *target, how state.TransitionKind) {
	g.widenBudget(t)
	t.accepted, t.doneBy = true, how
	if t.pod.DeletionTimestamp != nil {
		g.credit(t)
	}
}

// widenBudget takes in that a budget has let a pod go: more are tried at once.
func (g *guard) widenBudget(t *target) {
	b := t.budget
	if b == nil {
		return
	}
	if t.requesting != "" {
		b.inFlight--
	}
	b.window, b.backoff, t.budget, g.all = min(b.window*2, widestWindow), evictions, nil, true
}

// credit counts and reports a pod that goes as evicted or deleted, if that may be the doing of a request of ours.
func (g *guard) credit(t *target) {
	switch {
	case t.doneBy == t.credited || t.doneBy == "" || t.credited == state.PodDeleted:
		return
	case t.doneBy == state.PodEvicted:
		g.evicted++
	case t.credited == state.PodEvicted: // Its grace was shortened.
		g.evicted--
		fallthrough
	default:
		g.deleted++
	}
	t.credited, t.held = t.doneBy, ""
	g.widenBudget(t)
	g.report(aboutPod(t.credited, t.pod, ""))
}

// noEffect is what is said of a pod that goes on running although its eviction was accepted: a webhook may have made that a dry run.
const noEffect = "accepted, but the pod is not terminating"

// handleGone takes in that a pod has left the node, given as it was last.
func (g *guard) handleGone(last *corev1.Pod) {
	delete(g.staying, last.UID)
	delete(g.exempt, last.UID)
	if g.listing {
		g.departed[last.UID] = true
	}
	t, known := g.targets[last.UID]
	if !known {
		return
	}
	if t.requesting != "" && t.sent.Load() { // No answer is waited for.
		t.doneBy = t.requesting
	}
	g.credit(t)
	t.pod = last
	if t.endBy.IsZero() {
		g.noteDeparture(t)
	}
	g.removeTarget(t)
	g.report(aboutPod(state.PodGone, last, ""))
}

// removeTarget forgets a target.
func (g *guard) removeTarget(t *target) {
	if t.cancel != nil {
		t.cancel()
	}
	delete(g.targets, t.pod.UID)
	g.all = true // Critical pods may have waited for it, and others for its budget.
	if b := t.budget; b != nil && t.requesting != "" {
		b.inFlight--
	}
}

// release lets a target stay.
func (g *guard) release(t *target) {
	g.removeTarget(t)
	g.total--
	g.staying[t.pod.UID] = t.pod
	g.report(aboutPod(state.PodSpared, t.pod, ""))
}

// actOnPods makes all requests that are due, and returns when to call it again.
func (g *guard) actOnPods(now time.Time) time.Time {
	due := g.touched
	if g.all { // Where a budget grants one eviction at a time, pods that come back do not delay those that have not been evicted yet.
		due = slices.SortedFunc(maps.Values(g.targets), func(a, b *target) int {
			return cmp.Or(cmp.Compare(a.round, b.round), a.requestedAt.Compare(b.requestedAt), volumesFirst(a.pod, b.pod), cmp.Compare(podName(a.pod), podName(b.pod)))
		})
		g.wake = time.Time{}
	}
	g.all, g.touched = false, nil
	for _, t := range due {
		what, again := g.plan(t, now)
		if what != "" {
			g.request(t, what, now)
		} else {
			g.wake = soonest(g.wake, again)
		}
	}
	if g.all { // One of them has become overdue, and others before it in line may have waited for that.
		return now
	}
	return g.wake
}

// plan decides which request to make for a pod now, an eviction or a deletion. If none, it returns when to plan again; zero if something
// has to happen first.
func (g *guard) plan(t *target, now time.Time) (state.TransitionKind, time.Time) {
	end, turn := g.limits(t, now)
	hard, turnCome, wake := !end.IsZero(), false, turn
	if !turn.IsZero() && !now.Before(turn) {
		turnCome, wake = true, time.Time{}
	}
	switch {
	case t.requesting == state.PodEvicted && hard && turnCome && !t.urgent:
		t.cancel() // An eviction that hangs gives way to a deletion.
		return "", time.Time{}
	case t.requesting == state.PodEvicted && hard:
		return "", wake
	case t.requesting != "":
		return "", time.Time{}
	case t.pod.DeletionTimestamp != nil:
		return g.planTerminating(t, end, now)
	case g.node.opts.rank(t.pod) == lastRank && g.isPreceded(t.pod):
		return "", time.Time{} // The drain itself runs in it, and would end with it.
	}
	return g.planRunning(t, end, turnCome, wake, now)
}

// planRunning is plan for a pod that is running, with no request under way.
func (g *guard) planRunning(t *target, end time.Time, turnCome bool, wake, now time.Time) (state.TransitionKind, time.Time) {
	hard, effect := !end.IsZero(), t.effectBy(end, turnCome)
	switch {
	case t.accepted && now.Before(effect):
		return "", soonest(effect, wake)
	case t.accepted && !(hard && turnCome):
		return "", soonest(g.suspectWatch(now), wake)
	case t.needsLook > g.lookDone && !hard:
		return "", time.Time{}
	case t.needsLook > g.lookDone && now.Before(g.lookBy(t, turnCome)):
		return "", soonest(g.lookBy(t, turnCome), wake)
	case hard && turnCome && g.escalates(t, now):
		if t.lastRequest == "" {
			return state.PodEvicted, time.Time{} // Its budget is asked once.
		}
		return state.PodDeleted, time.Time{}
	case now.Before(t.notBefore):
		return "", soonest(t.notBefore, wake)
	}
	if held, again := g.heldBack(t, turnCome, now); held {
		return "", soonest(again, wake)
	}
	return state.PodEvicted, time.Time{}
}

// escalates tells whether a pod whose turn before a hard deadline has come is requested now: its first request, and the deletion that
// follows an eviction, wait for no pause.
func (g *guard) escalates(t *target, now time.Time) bool {
	return t.lastRequest == "" || t.lastRequest == state.PodEvicted && !g.longOver(now) || !now.Before(t.notBefore)
}

// effectBy is until when an accepted request has to show an effect before it is repeated. Once the pod's turn before a hard deadline has
// come, that is at most a third of the time that was left when the request was made.
func (t *target) effectBy(end time.Time, turnCome bool) time.Time {
	patience := overdueAfter
	switch {
	case end.IsZero() || !turnCome:
	case t.urgent:
		patience = min(patience, max(end.Sub(t.requestedAt)/3, shortestNews))
	default:
		patience = shortestNews
	}
	return t.requestedAt.Add(patience)
}

// lookBy is until when a pod waits for its look at the Node before a hard deadline: an API server that does not answer must not cost the
// pod its grace. A pod whose turn has come waits for a moment only: the watch and the look recover from an outage at the same time.
func (g *guard) lookBy(t *target, turnCome bool) time.Time {
	by := g.patience(t.metAt)
	if turnCome {
		by = soonest(by, t.metAt.Add(lookGrace))
	}
	return by
}

// limits returns by when a pod must be gone, zero without a hard deadline, and its turn: the latest time that leaves it its grace before
// the deadline, hard or soft. From then on nothing may delay it, and before a hard deadline eviction gives way to deletion.
func (g *guard) limits(t *target, now time.Time) (end, turn time.Time) {
	switch hard := g.goal.Hard; {
	case hard.IsZero():
	case now.Before(hard):
		end = hard.Add(-g.node.opts.Margin)
	default:
		if t.overtime.IsZero() || !now.Before(t.overtime) && !t.accepted {
			t.overtime = now.Add(overtime)
		}
		end = t.overtime
	}
	grace, soft := g.node.opts.grace(t.pod), g.goal.Soft
	switch {
	case !end.IsZero():
		turn = end.Add(-grace)
	case !soft.IsZero():
		turn = soft.Add(-g.node.opts.Margin - grace)
	}
	return end, turn
}

// planTerminating is plan for a pod that is terminating. It is left to end, unless it would end after the deadline. Then its grace is shortened
// to a second, and only in the last second: its containers have had their signal and are using their time, and the kubelet would count a new
// grace from a time of the API server's clock.
func (g *guard) planTerminating(t *target, end, now time.Time) (state.TransitionKind, time.Time) {
	var again time.Time
	switch {
	case now.Before(t.endBy):
		again = t.endBy
	case !t.overdue:
		t.overdue, g.all = true, true
		t.held = "it does not end"
		g.report(aboutPod(state.PodOverdue, t.pod, t.held))
		g.listPause, g.listAt = suspicions, time.Time{}
		fallthrough
	default:
		again = g.suspectWatch(now)
	}
	// A grace that was shortened to the last second, or that is no longer than that, cannot be shortened.
	last := t.pod.DeletionGracePeriodSeconds
	if end.IsZero() || t.shortened || last != nil && *last <= 1 || !t.endBy.Add(-overdueAfter).After(end) {
		return "", again
	}
	if at := end.Add(-time.Second); now.Before(at) {
		return "", soonest(again, at)
	}
	if now.Before(t.notBefore) {
		return "", soonest(again, t.notBefore)
	}
	return state.PodDeleted, time.Time{}
}

// heldBack tells whether something holds back a pod's eviction, and until when; zero if that is not known. Once its turn before a soft
// deadline has come, only a missing cordon or its disruption budget does.
func (g *guard) heldBack(t *target, turnCome bool, now time.Time) (bool, time.Time) {
	if finished(t.pod) { // No budget holds it.
		t.budget = nil
	}
	switch b := t.budget; {
	case g.evictFrom.IsZero() || !turnCome && (waits(t.pod) || g.isPreceded(t.pod)):
		return true, time.Time{}
	case !turnCome && now.Before(g.evictFrom):
		return true, g.evictFrom
	case b == nil:
		return false, time.Time{}
	case now.Before(b.next):
		return true, b.next
	default:
		return b.inFlight >= b.window, time.Time{}
	}
}

// isPreceded tells whether a pod of a lower rank is left that this one has to wait for.
func (g *guard) isPreceded(pod *corev1.Pod) bool {
	rank := g.node.opts.rank(pod)
	if rank == 0 {
		return false
	}
	for _, t := range g.targets {
		if g.node.opts.rank(t.pod) < rank && !t.overdue {
			return true
		}
	}
	return false
}

// request evicts or deletes a pod, and does not wait for that.
func (g *guard) request(t *target, what state.TransitionKind, now time.Time) {
	end, turn := g.limits(t, now)
	pod := t.pod
	ctx, cancel := context.WithCancel(g.ctx)
	t.requesting, t.lastRequest, t.requestedAt, t.cancel, t.sent = what, what, now, cancel, new(atomic.Bool)
	urgent := !end.IsZero() && !now.Before(turn)
	if urgent && !t.urgent {
		t.backoff = evictions // Earlier failures must not slow it down now.
	}
	if t.urgent = urgent; !urgent {
		g.wake = soonest(g.wake, turn)
	}
	if t.budget != nil {
		t.budget.inFlight++
	}
	nodeUrgent := func() bool { return g.node.opts.Urgent != nil && g.node.opts.Urgent() }
	enter := g.node.opts.Gate.Line(func() bool { return urgent || nodeUrgent() }, attaches(pod) || urgent && nodeUrgent())
	g.workers.Go(func() {
		defer cancel()
		leave, err := enter(ctx)
		if err == nil {
			if options, timeout := g.send(ctx, t, pod, what); options != nil {
				err = g.node.remove(ctx, what, pod, options, timeout)
			} else {
				err = errUnwanted
			}
			leave()
		}
		canceled := errors.Is(err, errUnwanted) || ctx.Err() != nil // before the deferred cancel
		g.post(func() { g.handleAnswer(t, pod, what, err, canceled) })
	})
}

var errUnwanted = errors.New("it is no longer wanted")

// send returns the options and the timeout of a request that has passed the gate; nil if it is no longer wanted. The gate may have taken
// long, so that this goes by the present deadline.
func (g *guard) send(ctx context.Context, t *target, pod *corev1.Pod, what state.TransitionKind) (options *metav1.DeleteOptions, timeout time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	end, turn := g.limits(t, now)
	due := turn
	if pod.DeletionTimestamp != nil {
		due = end.Add(-time.Second) // as in planTerminating
	}
	if ctx.Err() != nil || what == state.PodDeleted && (end.IsZero() || now.Before(due)) {
		return nil, 0
	}
	t.sent.Store(true)
	timeout = kube.Write
	if !end.IsZero() {
		left := max(end.Sub(now), g.goal.Hard.Sub(now)) // A slow API server may use up the margin.
		timeout = min(timeout, max(turn.Sub(now), min(kube.WriteLimit(left), left/2), time.Second/2))
	}
	return g.node.opts.deleteOptions(pod, end, now), timeout
}

// deleteOptions are what a pod is evicted or deleted with: its grace, or what the deadline leaves of that, and its UID, so that another
// pod of the same name is not touched.
func (o Options) deleteOptions(pod *corev1.Pod, end, now time.Time) *metav1.DeleteOptions {
	// Requests are made some milliseconds after the pod's turn; that must not cost the pod a second of its grace.
	const late = 200 * time.Millisecond
	options := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
	grace, replaced := o.grace(pod), o.GracePeriod != nil || pod.DeletionTimestamp != nil
	if left := end.Sub(now) + late; !end.IsZero() && left < grace {
		grace, replaced = left, true
	}
	if replaced {
		options.GracePeriodSeconds = new(max(int64(grace/time.Second), 1))
	}
	return options
}

// handleAnswer takes in the answer to a request, or that there was none. asked is the pod as it was at the request.
func (g *guard) handleAnswer(t *target, asked *corev1.Pod, what state.TransitionKind, err error, canceled bool) {
	if g.targets[t.pod.UID] != t {
		return
	}
	now := time.Now()
	t.requesting, t.cancel = "", nil
	g.touched = append(g.touched, t)
	if b := t.budget; b != nil {
		b.inFlight--
		g.all = true // Another pod of the budget may be tried now.
	}
	switch {
	case err == nil:
		t.shortened, t.requestedAt = asked.DeletionTimestamp != nil, now // Webhooks may have taken long.
		g.accept(t, what)
		return
	case kube.Answer(err).Code != 0:
		if !t.accepted {
			t.doneBy = ""
		}
	case t.sent.Load():
		t.doneBy = what
	}
	if t.pod.DeletionTimestamp != nil && asked.DeletionTimestamp == nil { // It has begun to terminate all the same.
		g.credit(t)
		return
	}
	if canceled {
		return
	}
	g.handleRefusal(t, err, now)
}

// deadlineNear tells whether a hard deadline leaves no time for long pauses. It is not near any more once it is long over.
func (g *guard) deadlineNear(now time.Time) bool {
	const near = 10 * time.Minute
	hard := g.goal.Hard
	return !hard.IsZero() && hard.Sub(now) < near && !g.longOver(now)
}

// longOver tells whether a hard deadline has been over for as long as pods get after it.
func (g *guard) longOver(now time.Time) bool {
	return !g.goal.Hard.IsZero() && now.After(g.goal.Hard.Add(overtime))
}

// handleRefusal takes in that a request was not accepted. An answer that says that the pod is gone is not reported: the watch will tell,
// and until then the answer may come from an API server that has not heard of a young pod yet.
func (g *guard) handleRefusal(t *target, err error, now time.Time) {
	name, held := heldBy(err)
	if !held {
		t.budget = nil
	}
	near := g.deadlineNear(now)
	pause := max(t.backoff.Step(), kube.RetryAfter(err))
	if !kube.Passing(err) && !near && !vanished(err, t.pod) {
		pause = t.refused.Step()
	}
	switch {
	case vanished(err, t.pod):
		if now.Sub(t.metAt) >= unknownPatience {
			g.suspectWatch(now)
		}
	case held:
		key := t.pod.Namespace + "/" + name
		if g.budgets[key] == nil {
			g.budgets[key] = &budget{backoff: evictions}
		}
		b := g.budgets[key]
		if !now.Before(b.next) {
			b.window, b.next = 1, now.Add(max(b.backoff.Step(), kube.RetryAfter(err)))
		}
		t.budget, pause = b, 0
		g.noteHeld(t, state.PodHeld, name)
	default:
		g.noteHeld(t, state.PodRefused, kube.Plain(err))
	}
	if end, _ := g.limits(t, now); t.urgent && near && !end.IsZero() { // It is to be repeated while some of its grace is left.
		pause = min(pause, max(end.Sub(now)/3, shortestPause))
	}
	t.notBefore = now.Add(pause)
}

// endRefusals ends the pauses after refusals, since a hard deadline is near now.
func (g *guard) endRefusals(now time.Time) {
	for _, t := range g.targets {
		t.refused = kube.Refusals
		if first := t.metAt.Add(rounds[t.round]); first.Before(now) {
			t.notBefore = soonest(t.notBefore, now)
		}
	}
}

// suspectWatch has the pods listed, since the watch should have shown something, and returns when to ask again. The pauses grow.
func (g *guard) suspectWatch(now time.Time) time.Time {
	if !now.Before(g.listAt) {
		g.listAt = now.Add(g.listPause.Step())
		g.relist(0)
	}
	return g.listAt
}

// relist lists the pods as they are now: the watch may be silent, or lag. The list proves that no pod has to go in an epoch, unless it shows
// one that has to, or the epoch has ended; 0 is none.
func (g *guard) relist(proves int) {
	if g.listing {
		return
	}
	g.listing = true
	clear(g.departed)
	began := time.Now()
	g.workers.Go(func() {
		var list *corev1.PodList
		err := kube.Retry(g.ctx, func(ctx context.Context) (err error) {
			if list, err = g.node.listNow(ctx); err != nil {
				g.post(func() { g.handleListError(err) })
			}
			return err
		})
		if err != nil {
			kube.Await(g.ctx, nil, lookEvery) // It is refused.
		}
		g.post(func() {
			if g.listing, g.all = false, true; err == nil {
				g.handleListed()
				g.confirmedEpoch = max(g.confirmedEpoch, proves)
				g.handleRelisted(list.Items, began)
			}
		})
	})
}

// handleRelisted takes in a list that was begun at a time. A pod that was known before, and is not in it, is gone. A request that was accepted
// before, for a pod that is not terminating in it, has had no effect.
func (g *guard) handleRelisted(pods []corev1.Pod, began time.Time) {
	listed := map[types.UID]bool{}
	for i := range pods {
		pod := &pods[i]
		listed[pod.UID] = true
		known := g.staying[pod.UID]
		if t := g.targets[pod.UID]; t != nil {
			known = t.pod
		}
		if !g.departed[pod.UID] && (known == nil || kube.Newer(known.ResourceVersion, pod.ResourceVersion) != known.ResourceVersion) {
			g.handlePod(pod)
		}
	}
	for uid, t := range g.targets {
		switch {
		case !listed[uid] && t.metAt.Before(began):
			g.handleGone(t.pod)
		case t.accepted && t.pod.DeletionTimestamp == nil && t.requesting == "" && t.requestedAt.Before(began):
			t.accepted, t.doneBy = false, ""
			t.notBefore = time.Now().Add(t.refused.Step())
			g.noteHeld(t, state.PodRefused, noEffect)
		}
	}
}

// noteHeld notes what holds a pod, and reports it if it is new.
func (g *guard) noteHeld(t *target, what state.TransitionKind, by string) {
	same := kube.Alike
	if what == state.PodHeld { // The names of two budgets may differ in a digit.
		same = func(a, b string) bool { return a == b }
	}
	before := t.held
	switch t.held = by; {
	case t.told.Add(by, same):
		g.report(aboutPod(what, t.pod, by))
	case by == before:
	case what == state.PodHeld:
		g.report(aboutPod(state.PodHeldAgain, t.pod, "PDB "+by))
	default:
		g.report(aboutPod(state.PodHeldAgain, t.pod, by))
	}
}

// cameSince tells whether a pod came to the node after somebody uncordoned it, possibly before this guard began. While our cordon stood,
// no pod could be bound, so that any pod bound later than the cordon, to a second, has come after it was lifted.
func (g *guard) cameSince(pod *corev1.Pod) bool {
	return cameAfter(pod, cmp.Or(g.cordonedAt, g.goal.Reopened)) // The latter is by the machine's clock.
}

// cameAfter tells whether a pod was created or bound after a time; never after zero.
func cameAfter(pod *corev1.Pod, since time.Time) bool {
	came := pod.CreationTimestamp.Time
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(came) {
			came = c.LastTransitionTime.Time
		}
	}
	return !since.IsZero() && came.After(since)
}

// A cordon does not keep off pods that tolerate it, or that name the node themselves: their controller replaces each one that is
// evicted, on the same node. So they are evicted in rounds, with pauses that grow, and left there after the last round.

// rounds are the pauses before the pods of a round are evicted, so that all of them are likely to be there. Pods of round 1 may have been
// bound before the scheduler heard of the cordon.
var rounds = []time.Duration{0, 500 * time.Millisecond, 2 * time.Second, 4 * time.Second, 8 * time.Second}

// ownerMemory is for how long an owner is remembered none of whose pods comes or goes: a guard may stand for weeks, and each Job is another
// owner. One that brings its pods back does so sooner.
const ownerMemory = 15 * time.Minute

// ownerOf returns a pod's owner, and notes that one of its pods has come or gone.
func (g *guard) ownerOf(pod *corev1.Pod) *owner {
	name := ownerName(pod)
	if g.owners[name] == nil {
		g.owners[name] = &owner{name: name}
	}
	g.owners[name].changed = time.Now()
	return g.owners[name]
}

// ownerName names a pod's controller. If there is none, that is its first owner, or else the prefix from which its name was generated. Any
// other pod is its own owner.
func ownerName(pod *corev1.Pod) string {
	ref := metav1.GetControllerOf(pod)
	if ref == nil && len(pod.OwnerReferences) > 0 {
		ref = &pod.OwnerReferences[0]
	}
	name := "pod " + podName(pod)
	switch {
	case ref != nil:
		name = ref.Kind + " " + pod.Namespace + "/" + ref.Name
	case pod.GenerateName != "":
		name = "the maker of pods " + pod.Namespace + "/" + pod.GenerateName + "*"
	}
	return name
}

// roundOf returns the round of a pod that was met now: 0, unless it came after one that has left.
func (o *owner) roundOf(pod *corev1.Pod) int {
	if o.from.IsZero() || pod.CreationTimestamp.Time.Before(o.from) { // It was only bound late.
		return 0
	}
	return o.round
}

// noteDeparture notes that a pod leaves the node. Its replacement is created after the request for its end, to a second. If the pod was not
// seen terminating, all that is known is that the replacement is younger.
func (g *guard) noteDeparture(t *target) {
	from, now := t.pod.CreationTimestamp.Time, time.Now()
	if end := t.pod.DeletionTimestamp; end != nil {
		from = end.Add(-given(t.pod))
	}
	o := g.ownerOf(t.pod)
	o.from, o.round = soonest(o.from, from), max(o.round, t.round+1)
	maps.DeleteFunc(g.owners, func(_ string, o *owner) bool { return now.Sub(o.changed) > ownerMemory && !o.leftReported })
}

// attaches tells whether a pod has volumes that have to be attached to the next node, which is what takes longest when a pod moves.
func attaches(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil })
}

// volumesFirst compares two pods: those that attach volumes come first.
func volumesFirst(a, b *corev1.Pod) int {
	switch x, y := attaches(a), attaches(b); {
	case x == y:
		return 0
	case x:
		return -1
	}
	return 1
}

// aboutPod is something that happened to a pod.
func aboutPod(what state.TransitionKind, pod *corev1.Pod, detail string) Progress {
	return Progress{Kind: what, Pod: podName(pod), PodUID: string(pod.UID), PodLabels: pod.Labels, Detail: detail}
}
