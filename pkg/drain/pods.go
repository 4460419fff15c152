package drain

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nth-project/nth/pkg/state"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// overtime is what a pod gets whose end is asked for when the deadline is over and the machine is still there: enough for most
	// to end by themselves, short enough to be a last effort.
	overtime = 30 * time.Second
	// overdueAfter is how much longer than its grace period a pod may take to end before critical pods stop waiting for
	// it, and before one whose end was accepted and that does not begin is asked for again. The kubelet needs seconds to clear up
	// after the last container; what takes longer is stuck, be it behind a finalizer or a volume, and needs no name service any more.
	overdueAfter = 10 * time.Second
	// checkPatience is how long a pod whose turn has come waits for a look at the Node: after an outage, there is one within two seconds.
	checkPatience = 3 * time.Second
	// shortestPause is the shortest between two requests for a pod whose turn has come.
	shortestPause = 100 * time.Millisecond
	// shortestNews is how long the news that a pod is ending may take at least.
	shortestNews = time.Second
	// widestWindow is how many of a budget's pods ask at once at most. A node has fewer pods.
	widestWindow = 1 << 10
)

// pods is what a guard knows of the node's pods.
type pods struct {
	watching bool
	// version is the newest that the watch has told of.
	version string
	// unlisted is what was told last of lists that are refused.
	unlisted string
	// synced tells that there has been a complete list, and found that it was told what was in it.
	synced  bool
	found   bool
	targets map[types.UID]*target
	// replaced is what became of the restarts for pods that had to go, and do not now.
	replaced map[types.UID]restart
	// spared are those that stay. Of them, kept came to a node that somebody has uncordoned, or are left in peace.
	spared map[types.UID]*corev1.Pod
	kept   map[types.UID]bool
	// left are those that have left the node since the last complete list.
	left     map[types.UID]bool
	families map[string]*family
	// returning names the families that have brought pods back to the closed node.
	returning map[string]bool
	budgets   map[string]*budget

	total, evicted, deleted int
	// all and touched are the targets to act upon, and wake is when to come back to the others.
	all     bool
	touched []*target
	wake    time.Time

	drained bool
	// round counts what makes a proof worthless that the node is drained: a pod more, and that it was open. confirmedFor and freedFor
	// are the rounds for which a list has been seen, and volumes have been waited for; confirming tells that a list is under way, and
	// freeing ends the wait that is. freeSince is when the first wait began since a pod was there or the node was open; zero before.
	// inUse are the volumes that it has left. joined is the round in which the last event has joined.
	round, confirmedFor, freedFor int
	joined                        int
	confirming                    bool
	freeing                       context.CancelFunc
	freeSince                     time.Time
	inUse                         int

	balanced
}

// target is a pod that has to go.
type target struct {
	pod   *corev1.Pod
	round int
	// check is the look at the Node that has to say first that it is still closed; 0 if none has to.
	check int
	// met is when it was met, and since when the check is waited for.
	met time.Time
	// notBefore is when it may be asked for at the earliest: its controller brings pods back, or the last attempt failed.
	notBefore time.Time
	// asking is what is being asked for now, and cancel ends that. last is what was asked for last, asked is when, and urgent
	// tells that its turn had come before.
	asking, last state.TransitionKind
	cancel       context.CancelFunc
	asked        time.Time
	sent         *atomic.Bool // tells that what is being asked for has left the gate
	urgent       bool
	// unanswered was asked for and may have been done. accepted was said to be done.
	unanswered, accepted state.TransitionKind
	backoff              backoff
	budget               *budget
	held                 string // what refuses it now
	// overtime is when it is to be gone that was asked for after the deadline.
	overtime time.Time
	// endBy is when it should have ended that is terminating, and overdue tells that it has not.
	endBy     time.Time
	overdue   bool
	shortened bool
	// late tells that it came when the node was being emptied already. A Deployment that is restarted makes other pods before those
	// go, and as another ReplicaSet's: no round tells that they come back.
	late    bool
	restart restart
}

// budget is a disruption budget that holds pods. While it refuses, one of them asks for all; as it yields, more do.
type budget struct {
	window, asking int
	next           time.Time
	backoff        backoff
}

// family is what the pods of one controller have come to.
type family struct {
	name       string
	leavings   []leaving
	told, left bool
}

// leaving is that of one pod, by the API server's clock: from when to when its controller may have made another one for it.
type leaving struct {
	from, to time.Time
	round    int
	answered bool // it has
}

// replace takes in a complete list: pods that are not in it are gone, even if nobody saw them go.
func (g *guard) replace(all []*corev1.Pod) {
	there := make(map[types.UID]bool, len(all))
	for _, pod := range all {
		there[pod.UID] = true
	}
	for uid, t := range g.targets {
		if !there[uid] {
			g.lose(t.pod)
		}
	}
	for _, pod := range all { // Those that replace others come after them.
		g.meet(pod)
	}
	maps.DeleteFunc(g.spared, func(uid types.UID, _ *corev1.Pod) bool { return !there[uid] })
	maps.DeleteFunc(g.kept, func(uid types.UID, _ bool) bool { return !there[uid] })
	maps.DeleteFunc(g.replaced, func(uid types.UID, _ restart) bool { return !there[uid] })
	clear(g.left)
	if !g.synced {
		g.synced, g.all = true, true
	}
}

// meet takes in a pod that is on the node.
func (g *guard) meet(pod *corev1.Pod) {
	t, known := g.targets[pod.UID]
	switch goes := g.goes(pod); {
	case known && goes:
		g.follow(t, pod)
	case known:
		t.pod = pod
		g.release(t)
	case goes && g.welcome(pod):
	default:
		g.spared[pod.UID] = pod
	}
}

// goes tells whether a pod has to go.
func (g *guard) goes(pod *corev1.Pod) bool {
	deadline := !g.goal.Hard.IsZero() || !g.goal.Soft.IsZero()
	return g.goal.Evict && !g.view.limited && !g.kept[pod.UID] && !g.cameSince(pod) &&
		g.node.opts.concerns(pod) && !stays(pod, deadline)
}

// rejudge looks at all pods again, as something has changed that decides which have to go.
func (g *guard) rejudge() {
	g.all = true
	pods := slices.Collect(maps.Values(g.spared))
	for _, t := range g.targets {
		pods = append(pods, t.pod)
	}
	for _, pod := range pods {
		g.meet(pod)
	}
}

// forgetReturns has it counted anew which pods come back, and lets none stay that was left in peace.
func (g *guard) forgetReturns() {
	clear(g.families)
	clear(g.kept)
	for _, t := range g.targets {
		t.round = 0
	}
}

// welcome makes a target of a pod, unless it is left in peace.
func (g *guard) welcome(pod *corev1.Pod) bool {
	_, known := g.spared[pod.UID]
	fresh := g.synced && !known
	if g.lifted && fresh {
		g.kept[pod.UID] = true // It came to a node that people have opened.
		return false
	}
	f := g.family(pod)
	round := f.attempt(pod.CreationTimestamp.Time)
	if round >= len(rounds) {
		g.kept[pod.UID] = true
		if !f.left {
			f.left = true
			g.say(Progress{Kind: state.PodsLeftToReturn, Detail: f.name})
		}
		return false
	}
	delete(g.spared, pod.UID)
	g.noteAddresses(pod)
	t := g.newTarget(pod, round, fresh)
	g.recallRestart(t, f)
	g.targets[pod.UID] = t
	g.total++
	g.touched = append(g.touched, t)
	g.round++
	g.freeSince = time.Time{}
	if round > 1 && !f.told {
		f.told = true
		g.say(Progress{Kind: state.PodsReturning, Detail: f.name})
	}
	if fresh && (g.drained || g.view.closed()) {
		g.say(aboutPod(state.PodArrived, pod, ""))
	}
	g.drained = false
	if pod.DeletionTimestamp != nil { // What was ending before says nothing of who comes back.
		t.ending()
	}
	return true
}

// newTarget is a pod that has to go from now on. A fresh one was not there before.
func (g *guard) newTarget(pod *corev1.Pod, round int, fresh bool) *target {
	now := time.Now()
	t := &target{
		pod: pod, round: round, met: now, late: fresh && !g.opens.IsZero(), backoff: evictions, notBefore: now.Add(rounds[round]),
	}
	if fresh && g.view.closed() || g.view.uid == "" {
		t.check = g.lookNow() // Somebody may have uncordoned the node meanwhile, or want nothing done to it.
	}
	return t
}

// follow takes in a change of a pod that has to go. Once it is ending, by whoever's hand, it is not evicted any more: a
// second request would do nothing for it, and others would take it for a second eviction. All that may be left to do is
// to shorten its grace before the deadline. A request that has been sent is not taken back: an API server that is about to remove a pod
// without a grace writes first that it is ending, and whoever leaves then leaves it so for ever.
func (g *guard) follow(t *target, pod *corev1.Pod) {
	t.pod = pod
	g.noteAddresses(pod)
	if pod.DeletionTimestamp != nil && t.endBy.IsZero() {
		if t.cancel != nil && !t.sent.Load() {
			t.cancel()
		}
		g.credit(t)
		t.held = ""
		g.leaves(t)
		t.ending()
	} else if pod.DeletionTimestamp != nil { // It may have been given less since, or its containers have ended and a finalizer holds it.
		t.endBy = soonest(t.endBy, time.Now().Add(given(pod)+overdueAfter))
	}
	if t.restart.holds && !g.node.opts.restarts(pod) {
		t.restart.holds, t.held = false, ""
	}
	g.touched = append(g.touched, t)
}

// given is the grace with which a pod is terminating.
func given(pod *corev1.Pod) time.Duration {
	if pod.DeletionGracePeriodSeconds == nil {
		return 0
	}
	return seconds(*pod.DeletionGracePeriodSeconds)
}

// ending notes when a pod that is terminating should have ended. The time is counted from now, when that is first seen, on the
// monotonic clock: the pod's own times are the API server's.
func (t *target) ending() {
	t.endBy = time.Now().Add(given(t.pod) + overdueAfter)
	t.restart.holds = false
}

// credit counts how a pod was made to go, if that was our doing. The watch may be faster than the answer to the request.
func (g *guard) credit(t *target) {
	how := t.unanswered
	if t.asking != "" && t.sent.Load() {
		how = t.asking
	}
	if t.accepted == "" && how != "" {
		g.accept(t, how)
	}
}

func (g *guard) accept(t *target, how state.TransitionKind) {
	if b := t.budget; b != nil { // It yields: let more ask.
		if t.asking != "" {
			b.asking--
		}
		b.window, b.backoff, t.budget, g.all = min(b.window*2, widestWindow), evictions, nil, true
	}
	switch before := t.accepted; {
	case before == how || before == state.PodDeleted:
		return
	case before == state.PodEvicted:
		g.evicted--
	}
	t.accepted, t.held = how, ""
	if how == state.PodEvicted {
		g.evicted++
	} else {
		g.deleted++
	}
	g.say(aboutPod(how, t.pod, ""))
}

// lose takes in that a pod is gone, as it was last.
func (g *guard) lose(last *corev1.Pod) {
	delete(g.spared, last.UID)
	delete(g.kept, last.UID)
	delete(g.replaced, last.UID)
	g.left[last.UID] = true
	t, known := g.targets[last.UID]
	if !known {
		return
	}
	g.credit(t)
	t.pod = last
	if t.endBy.IsZero() {
		g.leaves(t)
	}
	g.drop(t)
	g.say(aboutPod(state.PodGone, last, ""))
}

// drop makes no target of a pod any more.
func (g *guard) drop(t *target) {
	if t.cancel != nil {
		t.cancel()
	}
	delete(g.targets, t.pod.UID)
	g.all = true // Critical pods may have waited for it, and others for its budget.
	if b := t.budget; b != nil && t.asking != "" {
		b.asking--
	}
}

// release leaves a target where it is.
func (g *guard) release(t *target) {
	g.drop(t)
	g.noteRestart(t)
	g.total--
	g.spared[t.pod.UID] = t.pod
	if t.held != "" {
		g.say(aboutPod(state.PodSpared, t.pod, ""))
	}
}

// actOnPods asks for what is due, and returns when to come back.
func (g *guard) actOnPods(now time.Time) time.Time {
	due := g.touched
	if g.all { // Of those that a budget lets go one by one, none waits for one that would only be brought back once more.
		due = slices.SortedFunc(maps.Values(g.targets), func(a, b *target) int {
			return cmp.Or(cmp.Compare(a.round, b.round), a.asked.Compare(b.asked), volumesFirst(a.pod, b.pod), cmp.Compare(podName(a.pod), podName(b.pod)))
		})
		g.wake = time.Time{}
	}
	g.all, g.touched = false, nil
	for _, t := range due {
		what, again := g.plan(t, now)
		if what != "" {
			g.ask(t, what, now)
		} else {
			g.wake = soonest(g.wake, again)
		}
	}
	if g.all { // One of them has become overdue, and others before it in line may have waited for that.
		return now
	}
	return g.wake
}

// plan says what is to be asked for now for a pod, or when to come back; zero if news has to come first.
func (g *guard) plan(t *target, now time.Time) (state.TransitionKind, time.Time) {
	end, turn := g.limits(t, now)
	hard, turned, wake := !end.IsZero(), false, turn
	if !turn.IsZero() && !now.Before(turn) {
		turned, wake = true, time.Time{}
	}
	switch {
	case t.asking == state.PodEvicted && hard && turned && !t.urgent:
		t.cancel() // One that hangs gives way to a deletion.
		return "", time.Time{}
	case t.asking == state.PodEvicted && hard:
		return "", wake
	case t.asking != "":
		return "", time.Time{}
	case t.pod.DeletionTimestamp != nil:
		return g.planEnding(t, end, now)
	case g.node.opts.rank(t.pod) == lastRank && g.isPreceded(t.pod):
		return "", time.Time{} // Its end would be that of who asks for the others'.
	}
	return g.planRunning(t, end, turned, wake, now)
}

// planRunning is plan for a pod that runs and for which nothing is being asked.
func (g *guard) planRunning(t *target, end time.Time, turned bool, wake, now time.Time) (state.TransitionKind, time.Time) {
	hard, effect := !end.IsZero(), t.effectBy(end, turned)
	switch {
	case t.accepted != "" && now.Before(effect):
		return "", soonest(effect, wake)
	case t.check > g.looked && !hard:
		return "", time.Time{}
	case t.check > g.looked && now.Before(g.checkedBy(t, turned)):
		return "", soonest(g.checkedBy(t, turned), wake)
	case hard && turned && (t.last == "" || t.last == state.PodEvicted || !now.Before(t.notBefore)):
		if t.last == "" {
			return state.PodEvicted, time.Time{} // Its budget is asked once.
		}
		return state.PodDeleted, time.Time{}
	case now.Before(t.notBefore):
		return "", soonest(t.notBefore, wake)
	}
	if gated, again := g.gated(t, turned, now); gated {
		return "", soonest(again, wake)
	}
	return state.PodEvicted, time.Time{}
}

// effectBy is when something must have become of what was accepted. Once the pod's turn before a hard deadline has come, the news of that is
// waited for no longer than its grace allows: as for an answer, until a third of the time is over.
func (t *target) effectBy(end time.Time, turned bool) time.Time {
	patience := overdueAfter
	switch {
	case end.IsZero() || !turned:
	case t.urgent:
		patience = min(patience, max(end.Sub(t.asked)/3, shortestNews))
	default:
		patience = shortestNews
	}
	return t.asked.Add(patience)
}

// checkedBy is until when a pod waits for the look at the Node before a hard deadline: an API server that does not answer must not
// cost it its grace. One whose turn had come when it was met waits for a moment, as its news and the look's come at the same time.
func (g *guard) checkedBy(t *target, turned bool) time.Time {
	by := g.patience(t.met)
	if turned {
		by = soonest(by, t.met.Add(checkPatience))
	}
	return by
}

// limits are when a pod must be gone, zero without a hard deadline, and the latest time that leaves it its grace; from then on
// nothing holds it back, and with a hard deadline eviction gives way to deletion.
func (g *guard) limits(t *target, now time.Time) (end, turn time.Time) {
	switch hard := g.goal.Hard; {
	case hard.IsZero():
	case now.Before(hard):
		end = hard.Add(-g.node.opts.Margin)
	default:
		if t.overtime.IsZero() || !now.Before(t.overtime) && t.accepted == "" {
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

// planEnding is plan for a pod that is terminating. It is left to end, unless that would take it past the deadline. It has had its
// signal then and uses its time, and any shortening would make the kubelet count anew from a time of the API server's; so it
// is shortened to a second in the last one.
func (g *guard) planEnding(t *target, end, now time.Time) (state.TransitionKind, time.Time) {
	var again time.Time
	if !t.overdue {
		if now.Before(t.endBy) {
			again = t.endBy
		} else {
			t.overdue, g.all = true, true
			t.held = "it does not end"
			g.say(aboutPod(state.PodOverdue, t.pod, t.held))
		}
	}
	// One that we have asked for with its last second, or that has no more than that, cannot be shortened.
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

// gated tells whether something holds a pod back, and when that is over; zero if news will tell. Once its turn has come before a
// deadline that is not hard, that is the missing cordon or its budget.
func (g *guard) gated(t *target, turned bool, now time.Time) (bool, time.Time) {
	if finished(t.pod) { // No budget holds it.
		t.budget = nil
	}
	switch b := t.budget; {
	case g.opens.IsZero() || !turned && (waits(t.pod) || g.isPreceded(t.pod)):
		return true, time.Time{}
	case !turned && now.Before(g.opens):
		return true, g.opens
	case b == nil:
		return g.restarting(t, turned, now)
	case now.Before(b.next):
		return true, b.next
	default:
		return b.asking >= b.window, time.Time{}
	}
}

// isPreceded tells whether a pod is left that is to go before this one. Who waits for another pod in its place holds up the last one only,
// whose end would be that of who asks.
func (g *guard) isPreceded(pod *corev1.Pod) bool {
	rank := g.node.opts.rank(pod)
	if rank == 0 {
		return false
	}
	for _, t := range g.targets {
		if g.node.opts.rank(t.pod) < rank && !t.overdue && (rank == lastRank || !t.restart.holds) {
			return true
		}
	}
	return false
}

// ask asks for a pod's end. It does not wait for it: the watch sees that.
func (g *guard) ask(t *target, what state.TransitionKind, now time.Time) {
	end, turn := g.limits(t, now)
	pod := t.pod
	ctx, cancel := context.WithCancel(g.ctx)
	t.asking, t.last, t.asked, t.cancel, t.sent = what, what, now, cancel, new(atomic.Bool)
	if t.restart.holds {
		t.restart.holds, t.held = false, ""
	}
	urgent := !end.IsZero() && !now.Before(turn)
	if urgent && !t.urgent {
		t.backoff = evictions // What it has met before costs it nothing now.
	}
	if t.urgent = urgent; !urgent {
		g.wake = soonest(g.wake, turn)
	}
	if t.budget != nil {
		t.budget.asking++
	}
	pressed := func() bool { return g.node.opts.Urgent != nil && g.node.opts.Urgent() }
	enter := g.node.opts.Gate.line(func() bool { return urgent || pressed() }, attaches(pod) || urgent && pressed())
	g.workers.Go(func() {
		defer cancel()
		leave, err := enter(ctx)
		if err == nil {
			if options, limit := g.send(ctx, t, pod, what); options != nil {
				err = g.node.end(ctx, what, pod, options, limit)
			} else {
				err = errUnwanted
			}
			leave()
		}
		canceled := errors.Is(err, errUnwanted) || ctx.Err() != nil // before it is canceled below
		g.post(func() { g.answered(t, pod, what, err, canceled) })
	})
}

var errUnwanted = errors.New("it is no longer wanted")

// send is with what, and for how long, a pod's end is asked for once the gate lets that through; nil if it is no longer wanted. That may
// have taken long, so that it goes by the deadline as it is now.
func (g *guard) send(ctx context.Context, t *target, pod *corev1.Pod, what state.TransitionKind) (options *metav1.DeleteOptions, limit time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	end, turn := g.limits(t, now)
	due := turn
	if pod.DeletionTimestamp != nil {
		due = end.Add(-time.Second) // as in planEnding
	}
	if ctx.Err() != nil || what == state.PodDeleted && (end.IsZero() || now.Before(due)) {
		return nil, 0
	}
	t.sent.Store(true)
	limit = attemptTimeout
	if !end.IsZero() {
		// The margin is there to be used, where the API server is slow.
		limit = min(limit, max(turn.Sub(now), end.Sub(now)/3, g.goal.Hard.Sub(now)/3, time.Second/2))
	}
	return g.node.opts.ending(pod, end, now), limit
}

// ending is what a pod is evicted or deleted with: the grace that it has or that the deadline leaves, and its UID,
// so that a pod reborn under the same name is not touched.
func (o Options) ending(pod *corev1.Pod, end, now time.Time) *metav1.DeleteOptions {
	// A turn is taken some milliseconds late; that must not cost a pod a second of its grace.
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

// answered takes in what was said to a request for a pod as it was then, or that there was no answer.
func (g *guard) answered(t *target, asked *corev1.Pod, what state.TransitionKind, err error, canceled bool) {
	if g.targets[t.pod.UID] != t {
		return
	}
	now := time.Now()
	t.asking, t.cancel = "", nil
	g.touched = append(g.touched, t)
	b := t.budget
	if b != nil {
		b.asking--
		g.all = true // Another one may ask now.
	}
	switch {
	case err == nil:
		t.shortened = asked.DeletionTimestamp != nil
		g.accept(t, what)
		return
	case canceled:
		if t.sent.Load() {
			t.unanswered = what
		}
		return
	case t.pod.DeletionTimestamp != nil && asked.DeletionTimestamp == nil:
		return // It is ending all the same.
	case answer(err).Code == 0:
		t.unanswered = what
	default:
		t.unanswered = ""
	}
	g.refused(t, err, now)
}

// refused takes in that a pod's end was not accepted. That a pod is said to be gone is not told: the watch will say so, and
// until it does, the answer may come from an API server that has not heard of a young pod yet.
func (g *guard) refused(t *target, err error, now time.Time) {
	name, held := heldBy(err)
	if !held {
		t.budget = nil
	}
	pause := max(t.backoff.pause(), retryAfter(err))
	switch {
	case vanished(err):
	case held:
		key := t.pod.Namespace + "/" + name
		if g.budgets[key] == nil {
			g.budgets[key] = &budget{backoff: evictions}
		}
		b := g.budgets[key]
		if !now.Before(b.next) {
			b.window, b.next = 1, now.Add(max(b.backoff.pause(), retryAfter(err)))
		}
		t.budget, pause = b, 0
		g.hold(t, state.PodHeld, name)
	default:
		g.hold(t, state.PodRefused, plain(err))
	}
	if end, _ := g.limits(t, now); t.urgent && !end.IsZero() { // It is to be repeated while some of its grace is left.
		pause = min(pause, max(end.Sub(now)/3, shortestPause))
	}
	t.notBefore = now.Add(pause)
}

// hold notes what holds a pod, and tells it once.
func (g *guard) hold(t *target, what state.TransitionKind, by string) {
	known := t.held
	if t.held = by; by != known && (what == state.PodHeld || !Alike(by, known)) {
		g.say(aboutPod(what, t.pod, by))
	}
}

// cameSince tells of a pod that came to the node since somebody has opened it again, before this guard began: of those that were
// bound after our cordon, to a second, none can have come sooner.
func (g *guard) cameSince(pod *corev1.Pod) bool {
	since := cmp.Or(g.goal.Reopened, g.since)
	if g.witnessed { // What the goal says is by the machine's clock.
		since = cmp.Or(g.since, since)
	}
	return cameAfter(pod, since)
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

// A cordon keeps pods off the node that ask the scheduler. It does not keep off those that tolerate it, or that name the
// node themselves: their controller replaces each that is evicted, on the same node. So they are evicted in rounds, with pauses
// that grow, and left there after some.

// family is that of the pod's controller. Who makes pods need not say that it controls them: then it is that of an owner, or of what
// their names begin with. Any other pod is its own.
func (g *guard) family(pod *corev1.Pod) *family {
	owner := metav1.GetControllerOf(pod)
	if owner == nil && len(pod.OwnerReferences) > 0 {
		owner = &pod.OwnerReferences[0]
	}
	name := "pod " + podName(pod)
	switch {
	case owner != nil:
		name = owner.Kind + " " + pod.Namespace + "/" + owner.Name
	case pod.GenerateName != "":
		name = "the maker of pods " + pod.Namespace + "/" + pod.GenerateName + "*"
	}
	if g.families[name] == nil {
		g.families[name] = &family{name: name}
	}
	return g.families[name]
}

// attempt tells which of the controller's attempts to bring pods back a pod belongs to that was met now; 0 if to none. One that was
// created before the first has left was only bound late. Any other is taken for the answer to the last that had left by then, so
// that a round has as many pods as have come back, however many there were at first. If more come than have left, there is no
// telling which those are: they belong to the latest round that they can.
func (f *family) attempt(created time.Time) int {
	round, last := 0, (*leaving)(nil)
	for i := range f.leavings {
		l := &f.leavings[i]
		if created.Before(l.from) {
			continue
		}
		round = max(round, l.round+1)
		if !l.answered && !created.After(l.to) && (last == nil || cmp.Or(l.from.Compare(last.from), cmp.Compare(l.round, last.round)) > 0) {
			last = l
		}
	}
	if last == nil {
		return round
	}
	last.answered = true
	return last.round + 1
}

// leaves notes that a pod leaves the node: another one may be made for it from when its end was asked for, to a second, until
// shortly after its grace. If it was not seen to end, all that is known is that the other one is younger.
func (g *guard) leaves(t *target) {
	from := t.pod.CreationTimestamp.Time
	to := from.Add(forever)
	if end := t.pod.DeletionTimestamp; end != nil {
		from, to = end.Add(-given(t.pod)), end.Add(overdueAfter)
	}
	f := g.family(t.pod)
	f.leavings = append(f.leavings, leaving{from: from, to: to, round: t.round})
}

// rounds are how long to wait before the pods of a round are evicted, until all of it are likely to be there. Those of the first may
// have been bound when the scheduler had not heard of the cordon. Those that come after the last are left where they are.
var rounds = []time.Duration{0, 500 * time.Millisecond, 2 * time.Second, 4 * time.Second, 8 * time.Second}

// aboutPod is a thing that happened to a pod.
func aboutPod(what state.TransitionKind, pod *corev1.Pod, detail string) Progress {
	return Progress{Kind: what, Pod: podName(pod), PodUID: string(pod.UID), PodLabels: pod.Labels, Detail: detail}
}
