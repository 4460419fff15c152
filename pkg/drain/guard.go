package drain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/state"
)

const (
	// settle is how long after the cordon a node may not yet count as drained: a scheduler that has not heard of the
	// cordon may still bind a pod.
	settle = time.Second
	// lookEvery is how often the Node is read while nothing happens.
	lookEvery = 5 * time.Second
)

// guard implements Guard. Only its loop changes its fields.
//
// A look is one read of the Node, with the cordon if that is missing (Node.close). Looks are numbered in the order in which they are
// requested.
type guard struct {
	node     *Node
	tell     func(Progress)
	loop     *loop.Loop
	pods     *evict.Pods
	wantLook chan struct{} // wakes keepLooking

	goal Goal
	next *Goal // set by Adjust, not taken over yet
	news []Progress
	// closingSince is when the guard began to close the node for the present events.
	closingSince time.Time

	memory
	// lookRequested is the last look that was requested, and lookDone the last that has returned. Until the look lookNeeded has
	// returned, it is not known whether the node is closed in this generation; 0 if it is known.
	lookRequested, lookDone, lookNeeded int
	// lookedIn is the last generation in which a look has been answered.
	lookedIn int
	// tidying tells that a patch of our other keys is under way, tidyBackoff how long to wait after one that fails, and tidyRefusal
	// the refusals that were reported.
	tidying     bool
	tidyBackoff wait.Backoff
	tidyRefusal kube.Reasons
	// endLook ends the look under way, apart from what a patch needs that was sent; nil before the first look.
	endLook context.CancelFunc
	// failing is since when the Node could not be read or cordoned, for reasons that may pass, and failuresReported which of them were reported.
	failing          time.Time
	failuresReported kube.Reasons
	// unreported tells that somebody uncordoned the node, and that this is reported once our label is off: the guard may be ended then, and
	// nobody else would take the label off.
	unreported *Progress
	// cordonDecided is when it became known whether the node is closed; zero while it is not known. Evictions begin at evictFrom; zero
	// while that is not known.
	cordonDecided, evictFrom time.Time

	// foundReported tells that the first list of the pods was reported.
	foundReported bool
	drained       bool
	// epoch counts what voids any earlier proof that the node is drained: a new pod, an open node, an event that joins.
	epoch int
	waiting
}

// Guard returns a guard of the node, which does nothing before it is run. tell is called for everything that happens, from one
// goroutine. It must not block.
func (n *Node) Guard(goal Goal, tell func(Progress)) Guard {
	g := &guard{
		node: n, tell: tell, goal: goal, memory: memory{view: view{limited: goal.Limited}}, loop: loop.New(),
		wantLook: make(chan struct{}, 1), tidyBackoff: kube.Failures, epoch: 1,
	}
	g.pods = n.Pods(g.loop, g)
	return g
}

// Adjust implements Guard.
func (g *guard) Adjust(goal Goal) {
	g.loop.Lock()
	g.next = &goal
	g.loop.Unlock()
	g.loop.Wake()
}

// Run implements Guard.
func (g *guard) Run(ctx context.Context) {
	g.closingSince = time.Now()
	g.node.reads.SetDeadline(g.goal.Hard)
	looking := false
	g.loop.Run(ctx, func(post func(), timed bool) (time.Time, func()) {
		if !looking {
			looking = true
			g.loop.Go(g.keepLooking)
		}
		if timed {
			g.pods.Replan()
		}
		if g.next != nil {
			g.setGoal(*g.next)
			g.next = nil
		}
		if post != nil {
			post()
		}
		wake := g.advance(time.Now())
		news := g.news
		g.news = nil
		return wake, func() {
			for _, p := range news {
				g.tell(p)
			}
		}
	})
}

// Terms implements evict.Drain.
func (g *guard) Terms() evict.Terms {
	return evict.Terms{
		Evict: g.goal.Evict && !g.view.limited, Hard: g.goal.Hard, Soft: g.goal.Soft, From: g.evictFrom,
		Seen: g.view.uid != "", Closed: g.view.closed(), Looked: g.lookDone,
		Reopened: g.staysOpen(), Since: cmp.Or(g.cordonedAt, g.goal.Before), // The latter is by the machine's clock.
	}
}

// Look implements evict.Drain.
func (g *guard) Look() int { return g.requestLook() }

// Met implements evict.Drain.
func (g *guard) Met(pod *corev1.Pod, fresh bool) {
	g.epoch++
	g.volumesSince = time.Time{}
	if fresh && (g.drained || g.view.closed()) {
		g.Report(state.PodArrived, pod, "")
	}
	g.drained = false
}

// Report implements evict.Drain.
func (g *guard) Report(what state.TransitionKind, pod *corev1.Pod, detail string) {
	if pod == nil {
		g.report(Progress{Kind: what, Detail: detail})
	} else {
		g.report(aboutPod(what, pod, detail))
	}
}

// aboutPod is something that happened to a pod.
func aboutPod(what state.TransitionKind, pod *corev1.Pod, detail string) Progress {
	return Progress{Kind: what, Pod: evict.Name(pod), PodUID: string(pod.UID), PodLabels: pod.Labels, Detail: detail}
}

// staysOpen tells whether somebody has uncordoned the node for all reasons of the goal.
func (g *guard) staysOpen() bool { return g.memory.staysOpen(g.goal) }

// setGoal changes the goal. A new generation starts afresh: that operators have uncordoned the node, or which pods were left because they keep
// coming back, does not count for it.
func (g *guard) setGoal(goal Goal) {
	grown, begins, wasOpen := goal.Generation > g.goal.Generation, goal.Evict && !g.goal.Evict, g.staysOpen()
	if grown {
		g.reportUncordon() // It concerns the generation before.
	}
	g.setDeadline(goal)
	g.drained = false // It is reported again.
	if grown {
		if wasOpen { // The node has to be closed again first.
			begins, g.cordonDecided, g.closingSince = true, time.Time{}, time.Now()
		}
		if goal.Before.IsZero() {
			g.cordonedAt = time.Time{}
		}
		g.epoch++
		g.pods.ForgetReturns()
	}
	if begins {
		g.evictFrom, g.scriptsDone = time.Time{}, false
	}
	if begins || !goal.Evict {
		g.balancers.end(errCalledOff)
	}
	if grown || begins {
		g.lookNeeded = g.requestLook()
	}
	g.pods.Rejudge()
	g.report(Progress{Kind: state.GoalChanged})
}

// setDeadline changes the goal. Requests that were refused wait no longer if a hard deadline is near now, and a cordon that hangs is given up
// sooner if it is nearer than before.
func (g *guard) setDeadline(goal Goal) {
	now := time.Now()
	if nearer := g.goal.Hard.IsZero() || goal.Hard.Before(g.goal.Hard.Add(-time.Minute)); nearer && goal.patchTimeout() < kube.Write && g.endLook != nil {
		g.endLook()
	}
	wasNear := g.Terms().Near(now)
	g.goal = goal
	g.node.reads.SetDeadline(goal.Hard)
	if !wasNear && g.Terms().Near(now) {
		g.pods.EndRefusals(now)
	}
}

// report queues what happened for tell, together with the present state.
func (g *guard) report(p Progress) {
	pods := g.pods.Counts()
	p.Generation, p.State, p.Total, p.Left = g.goal.Generation, g.state(), pods.Total, pods.Left
	g.news = append(g.news, p)
}

func (g *guard) state() State {
	s := State{
		Closed: g.closed(), Open: g.staysOpen() && g.unreported == nil, Ours: g.view.ours, Left: g.view.cordon == CordonLeft, Ready: g.view.ready, Seen: g.view.uid != "" || g.goal.NodeSeen,
		Drained: g.drained, Looked: g.hasLooked(), Limited: g.view.limited,
	}
	switch err := g.view.err; {
	case err == nil || g.view.missing:
		s.Trouble = g.pods.Unlisted()
	case !kube.Passing(err):
		s.Trouble = g.uncordonable(err.Error())
	case len(g.failuresReported) > 0:
		s.Trouble = g.uncordonable(kube.Plain(err))
	}
	return s
}

// uncordonable says why the node cannot be cordoned.
func (g *guard) uncordonable(why string) string {
	return fmt.Sprintf("cordoning node %q: %s", g.node.name, why)
}

// hasLooked tells whether a look has been answered in this generation.
func (g *guard) hasLooked() bool { return g.lookedIn == g.goal.Generation }

// closed tells whether the node was seen unschedulable in this generation.
func (g *guard) closed() bool { return g.view.closed() && g.seenIn == g.goal.Generation }

// Result implements Guard.
func (g *guard) Result() Result {
	g.loop.Lock()
	defer g.loop.Unlock()
	pods := g.pods.Counts()
	r := Result{
		Cordon: g.view.cordon, Evicted: pods.Evicted, Deleted: pods.Deleted, Skipped: pods.Skipped, HeldBy: map[string]string{},
		NodeGone: g.nodeGone(), Limited: g.view.limited, VolumesInUse: g.volumesLeft,
	}
	for name, held := range g.pods.Left() {
		r.Left = append(r.Left, name)
		if held != "" {
			r.HeldBy[name] = held
		}
	}
	slices.Sort(r.Left)
	return r
}

// nodeGone tells whether the Node was deleted: there was one in this boot, and is none any more.
func (g *guard) nodeGone() bool { return g.view.missing && (g.view.uid != "" || g.goal.NodeSeen) }

// advance does everything that can be done now, and returns when to call it again if nothing happens; zero for never.
func (g *guard) advance(now time.Time) time.Time {
	if !g.goal.Evict || g.node.opts.UID != "" && g.view.missing {
		return time.Time{}
	}
	g.pods.Begin()
	wake := g.scheduleEvictions(now)
	if g.pods.Synced() && !g.evictFrom.IsZero() && !g.foundReported { // The list often comes before the cordon.
		g.foundReported = true
		g.report(Progress{Kind: state.PodsFound})
	}
	wake = loop.Soonest(wake, g.pods.Act(now))
	return loop.Soonest(wake, g.concludeDrain(now))
}

// scheduleEvictions sets evictFrom once the cordon is decided: after the scripts have run, and with the delays that are configured. It
// returns when to call it again.
func (g *guard) scheduleEvictions(now time.Time) time.Time {
	if wake := loop.Soonest(g.scripts.limit(now), g.balancers.limit(now)); !g.evictFrom.IsZero() || g.view.limited {
		return wake
	}
	if g.cordonDecided.IsZero() {
		if g.goal.Hard.IsZero() {
			return time.Time{}
		}
		// The machine is lost: evicting without a cordon is better than pods that die with it.
		if patience := g.Terms().Patience(g.closingSince); now.Before(patience) {
			return patience
		}
	}
	switch {
	case g.node.opts.Scripts != nil && !g.scriptsDone:
		g.evictFrom = now.Add(forever)
		return g.awaitScripts(now)
	case g.node.opts.LoadBalancers != nil:
		g.evictFrom = now.Add(forever)
		return g.awaitMachine(now)
	}
	g.delayEvictions(now, g.node.opts.LoadBalancerWait)
	return g.evictFrom
}

// requestLook requests a look at the Node, and returns its number.
func (g *guard) requestLook() int {
	g.lookRequested++
	loop.Nudge(g.wantLook)
	return g.lookRequested
}

// answerRequest ends the wake-up for a look that is being made, or is not needed any more.
func (g *guard) answerRequest() {
	select {
	case <-g.wantLook:
	default:
	}
}

// keepLooking looks at the Node until the guard ends: on request, every lookEvery otherwise, and with growing pauses while that
// fails.
func (g *guard) keepLooking(ctx context.Context) (then func()) {
	failing, refused := kube.Failures, kube.Refusals
	for more := true; more; {
		g.loop.Lock()
		g.answerRequest()
		goal, before, number := g.goal, g.memory, g.lookRequested
		look, end := context.WithCancel(ctx)
		g.endLook = end
		g.loop.Unlock()
		v := g.node.close(look, goal, before)
		end()
		pause, minPause := lookEvery, time.Second // minPause: while looks fail, requests must not make them more frequent than this.
		switch {
		case v.err == nil:
			failing, refused, minPause = kube.Failures, kube.Refusals, 0
		case kube.Passing(v.err):
			pause = max(failing.Step(), kube.RetryAfter(v.err))
		case !v.missing:
			pause = refused.Step()
		default:
			pause = time.Second
		}
		handled := make(chan struct{})
		g.loop.Post(func() { g.handleLook(v, number, goal.Generation); close(handled) })
		minPause = min(minPause, pause)
		more = kube.Await(ctx, handled, forever) && kube.Await(ctx, nil, minPause) && g.awaitLook(ctx, v, pause-minPause)
	}
	return nil
}

// awaitLook waits until a look is requested, or until the pause is over and the Node may have changed since the last look. It reports false
// if the guard ends.
func (g *guard) awaitLook(ctx context.Context, last view, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-g.wantLook:
			return true
		case <-timer.C:
		}
		if unchanged := g.node.opts.Unchanged; unchanged == nil || last.err != nil || last.tidy != nil || !unchanged(last.version) {
			return true
		}
		g.loop.Post(g.pods.Replan)
		timer.Reset(lookEvery)
	}
}

// handleLook takes in the result of a look that was made in a generation.
func (g *guard) handleLook(v view, number, generation int) {
	before, lookDone, first := g.view, g.lookDone, g.view.uid == ""
	wasClosed, hadLooked, reported := g.closed(), g.hasLooked(), len(g.news)
	g.pods.Replan()
	g.countLook(v, number, generation)
	switch {
	case v.missing:
		g.handleMissingNode(v)
	case v.err != nil:
		g.handleNodeError(v)
	default:
		g.seenIn = generation
		g.handleNode(v)
		if v.reopened {
			g.handleUncordon(v, lookDone, first)
		}
		if v.tidy == nil {
			g.reportUncordon()
		}
	}
	if first && g.view.uid != "" && g.lookDone == number {
		g.lookDone = g.lookRequested // Before the first answer, any look will do for the pods that requested one.
		g.answerRequest()
	}
	limitedChanged := g.view.limited != before.limited
	if limitedChanged {
		g.epoch++
		g.drained = false // Operators may have freed its pods.
		g.pods.Rejudge()
	}
	changed := g.closed() && !wasClosed || g.view.ready && !before.ready || g.hasLooked() && !hadLooked || limitedChanged
	if changed && len(g.news) == reported {
		g.report(Progress{Kind: state.GoalChanged})
	}
}

// countLook notes that a look has returned. One that failed proves nothing, and is repeated; but before a hard deadline pods do not wait
// for the next one.
func (g *guard) countLook(v view, number, generation int) {
	answered, hard := v.err == nil || v.missing, !g.goal.Hard.IsZero()
	switch {
	case answered:
		g.failing, g.failuresReported, g.conflicts = time.Time{}, nil, 0
	case apierrors.IsConflict(v.err):
		g.conflicts++
	}
	if answered || v.uid != "" { // A Node that cannot be cordoned was read all the same.
		g.lookedIn = generation
	}
	if answered || hard {
		g.lookDone = number
	}
	if number >= g.lookNeeded && (answered || hard && !kube.Passing(v.err)) {
		g.lookNeeded = 0
	}
}

// handleUncordon takes in that somebody uncordoned the node. Even if a generation has begun since that look, the node stays open until the
// next one: which of the events want it closed again, the agent knows. The pods that came after the cordon, and for which this look was
// requested, stay.
func (g *guard) handleUncordon(v view, lookDone int, first bool) {
	claim, _ := parseClaim(v.claim)
	g.unreported = &Progress{Kind: state.NodeReopened, Closed: v.closedIn, Claim: claim}
	g.uncordonedIn = g.goal.Generation
	if !g.goal.Close || g.goal.Before.IsZero() { // Otherwise the cordon was only for events that pods need not go for.
		g.cordonedAt = v.cordonedAt
	}
	g.pods.Rejudge()
	if !first {
		g.pods.SpareLate(lookDone, g.lookDone)
	}
}

func (g *guard) reportUncordon() {
	if news := g.unreported; news != nil {
		g.unreported = nil
		g.report(*news)
	}
}

// handleMissingNode takes in that there is no Node.
func (g *guard) handleMissingNode(v view) {
	known := g.view.missing
	v.uid, v.version = g.view.uid, g.view.version
	g.view = v
	if g.nodeGone() && g.cordonDecided.IsZero() {
		g.cordonDecided = time.Now()
	}
	if !known {
		why := "the kubelet has not registered it yet"
		if g.nodeGone() {
			why = "it was deleted"
		}
		g.report(Progress{Kind: state.NodeMissing, Detail: why})
	}
}

// noteNode takes in which Node was read. That somebody has uncordoned the one before does not count for another one.
func (g *guard) noteNode(uid types.UID) {
	if !g.anotherThan(uid) {
		return
	}
	g.reportUncordon()
	g.report(Progress{Kind: state.NodeRegistered})
	g.uncordonedIn, g.cordonedAt = 0, time.Time{}
}

// handleNodeError takes in that the Node could not be read or cordoned. If the cordon is refused for good and there is a hard deadline,
// evictions begin without it.
func (g *guard) handleNodeError(v view) {
	text, known := v.err.Error(), fmt.Sprint(g.view.err)
	g.view.err = v.err
	if v.uid != "" { // It was read, and takes pods. The next look must not conclude that somebody uncordoned it.
		g.noteNode(v.uid)
		g.view.uid, g.view.missing, g.view.cordon, g.view.limited, g.view.unschedulable, g.view.claim = v.uid, false, CordonNone, v.limited, false, v.claim
	}
	if kube.Passing(v.err) {
		g.handleLastingFailure(v.err)
		return
	}
	if !g.goal.Hard.IsZero() && g.cordonDecided.IsZero() {
		g.cordonDecided = time.Now()
	}
	if !kube.EqualIgnoringDigits(text, known) || g.goal.Hard.IsZero() {
		g.report(Progress{Kind: state.NodeUnclosable, Detail: g.uncordonable(text)})
	}
}

// failurePatience is how long something may fail for a reason that may pass before that is reported.
const failurePatience = 10 * time.Second

// handleLastingFailure takes in that a node that is to be closed could not be, for a reason that may pass. Once that has lasted, each reason is
// reported once.
func (g *guard) handleLastingFailure(err error) {
	if !g.cordonPending() || g.view.cordon == CordonLeft {
		return
	}
	now := time.Now()
	if g.failing.IsZero() {
		g.failing = now
	}
	if text := kube.Plain(err); now.Sub(g.failing) >= failurePatience && g.failuresReported.Add(text, kube.EqualIgnoringDigits) {
		g.report(Progress{Kind: state.NodeUnclosable, Detail: g.uncordonable(text)})
	}
}

// handleNode takes in a Node that was read, and cordoned if that was called for.
func (g *guard) handleNode(v view) {
	before := g.view
	g.noteNode(v.uid)
	another, newlyClosed := before.uid != v.uid, v.closed() && !before.closed()
	if v.cordon == CordonSet || newlyClosed || another {
		// Until now the node was open, or it is another Node: pods may have come since the last look, and what was found out before
		// proves nothing.
		g.epoch++
		g.drained, g.cordonDecided, g.volumesSince = false, time.Now(), time.Time{}
	}
	g.view = v.after(before)
	if newlyClosed && !g.staysOpen() {
		g.pods.ForgetReturns() // Pods that came back to an open node need not come back to a closed one.
		g.pods.Rejudge()
	}
	if g.cordonDecided.IsZero() && (v.closed() || g.seenIn == g.goal.Generation) { // For a new generation, the next look decides.
		g.cordonDecided = time.Now()
	}
	if cordon := g.view.cordon; (cordon != before.cordon || another) && cordon != CordonLifted { // handleUncordon reports the latter.
		g.report(cordon.progress())
	}
	g.tidy(v)
}

// after returns the view with what only the view before can tell.
func (v view) after(before view) view {
	// It was this guard that has set it; also if the node was open, and the answer to its patch was lost.
	if v.cordon == CordonOurs && before.uid == v.uid && (before.cordon == CordonSet || before.cordon == CordonNone && !before.missing) {
		v.cordon = CordonSet
	}
	if kube.Newer(v.version, before.version) != v.version {
		v.ours = before.ours // The label was set after this was read.
	}
	return v
}

// tidy brings our other keys on the Node up to date, without holding anything up. If that fails, the next look tries again; it is requested
// soon if the failure may pass.
func (g *guard) tidy(v view) {
	if v.tidy == nil || g.tidying {
		return
	}
	g.tidying = true
	timeout, pause := g.goal.patchTimeout(), g.tidyBackoff.Step()
	g.loop.Go(func(running context.Context) func() {
		// Keys are taken off even if the guard ends meanwhile, as it may once it is known that operators have uncordoned the node.
		ctx, cancel := kube.Outlasting(running, timeout)
		defer cancel()
		node, err := g.node.patch(ctx, v.tidy)
		for b := kube.Failures; !v.excludes && err != nil && kube.Passing(err) && !apierrors.IsConflict(err) && kube.Await(ctx, nil, b.Step()); {
			node, err = g.node.patch(ctx, v.tidy)
		}
		again := err != nil && kube.Passing(err) && kube.Await(running, nil, pause)
		return func() {
			g.tidying = false
			if again {
				g.requestLook()
			}
			g.handleTidied(v, node, err)
		}
	})
}

// handleTidied takes in the result of tidy's patch.
func (g *guard) handleTidied(v view, node *corev1.Node, err error) {
	switch {
	case err == nil:
		g.view.version = kube.Newer(g.view.version, node.ResourceVersion)
		g.tidyBackoff, g.tidyRefusal = kube.Failures, nil
	case !apierrors.IsConflict(err):
		g.reportRefused(&g.tidyRefusal, err.Error())
	}
	if err == nil && v.excludes {
		g.view.ours = true
		g.report(Progress{Kind: state.NodeExcluded})
	}
	if err == nil || !kube.Passing(err) {
		g.reportUncordon()
	}
}

// reportRefused reports why something about the node is refused, unless that was reported before.
func (g *guard) reportRefused(reported *kube.Reasons, text string) {
	if reported.Add(text, kube.EqualIgnoringDigits) {
		g.report(Progress{Kind: state.PodRefused, Detail: text})
	}
}

// concludeDrain reports the node drained once it is. It returns when to call it again.
func (g *guard) concludeDrain(now time.Time) time.Time {
	switch {
	case g.drained || g.lookNeeded > 0 || g.view.limited || g.scripts != nil:
		return time.Time{}
	case !g.pods.Synced() || g.pods.Counts().Left > 0 || g.cordonDecided.IsZero() || g.cordonPending():
		return time.Time{}
	}
	if settled := g.cordonDecided.Add(settle); now.Before(settled) {
		return settled
	}
	if waiting, until := g.awaitRest(now); waiting {
		return until
	}
	if g.pods.Proven() != g.epoch {
		g.pods.Prove(g.epoch) // The watch may lag.
		return time.Time{}
	}
	g.drained = true
	g.report(Progress{Kind: state.NodeEmpty})
	return time.Time{}
}

// cordonPending tells whether the cordon is still being tried, so that pods may come.
func (g *guard) cordonPending() bool {
	return !g.view.closed() && !g.view.missing && !g.staysOpen() && (g.view.err == nil || kube.Passing(g.view.err))
}
