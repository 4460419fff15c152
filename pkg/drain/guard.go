package drain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/state"
)

const (
	// settle is how long after the cordon a node does not count as drained yet. A scheduler that does not know of the cordon may still bind
	// a pod.
	settle = time.Second
	// lookEvery is how often the Node is read while nothing happens.
	lookEvery = 5 * time.Second
)

// guard is the work of Node.Guard. Only its loop changes its fields; but keepLooking changes looks and cutLook, with the lock held.
type guard struct {
	node     *Node
	loop     *loop.Loop
	pods     *evict.Pods
	wantLook chan struct{} // wakes keepLooking
	cutLook  func()        // cuts the look that is under way short

	goal     Goal
	goalRead *Goal      // the task's goal when it was last read; another pointer is a new goal
	queued   []Progress // for the caller of Guard, after the present turn of the loop
	// cordoningSince is when the guard began to cordon the node for the present events.
	cordoningSince time.Time

	memory
	// formerCordonStamp is when the cordon that somebody has taken off was set, by the API server's clock; zero if that is not known.
	formerCordonStamp time.Time
	// looks counts the looks that have begun, and looked is the number of the last look that has returned.
	looks, looked int
	// trouble is why the Node cannot be read or cordoned.
	trouble kube.Trouble
	// labelTrouble is why ExcludeLabel cannot be written.
	labelTrouble kube.Trouble
	// cordonDecided is when it became known whether the node is cordoned, and evictFrom is when evictions begin. Each is zero while it is not
	// known.
	cordonDecided, evictFrom time.Time

	// foundReported: the first list of the pods was reported.
	foundReported bool
	// epoch counts what voids any earlier proof that the node is drained: a new pod, a node that was uncordoned, another goal. The node was
	// reported drained in the epoch drainedIn. The first epoch is 1, so that 0 is none.
	epoch, drainedIn int
	waiting
}

// Guard works for the goal of a task until ctx ends, and retries what fails. It calls report for everything that happens, from one goroutine.
// report must not block, but may ask for the task's result: Guard calls it without the loop's lock. Each turn of the loop handles one
// function that was posted, and then does all that is due.
func (n *Node) Guard(ctx context.Context, task *Task, report func(Progress)) {
	goal := task.goal.Load()
	g := &guard{
		node: n, goal: *goal, goalRead: goal, memory: memory{view: view{mayNotEvict: goal.MayNotEvict}}, loop: loop.New(task.changed),
		wantLook: make(chan struct{}, 1), cutLook: func() {}, epoch: 1, cordoningSince: time.Now(),
	}
	g.pods = n.Pods(g.loop, g)
	task.SetResult(g.result)
	looking := false
	g.loop.Run(ctx, func(post func()) (time.Time, func()) {
		if !looking { // the first turn: the loop has a context now
			looking = true
			g.loop.Go(g.keepLooking)
		}
		if next := task.goal.Load(); next != g.goalRead {
			g.goalRead = next
			g.setGoal(*next)
		}
		if post != nil {
			post()
		}
		wake := g.advance(time.Now())
		queued := g.queued
		g.queued = nil
		return wake, func() {
			for _, p := range queued {
				report(p)
			}
		}
	})
}

// Terms implements evict.Drain: pkg/evict asks under which terms pods have to go now.
func (g *guard) Terms() evict.Terms {
	from := g.evictFrom
	if g.cordonFirst() { // The cordon may have been lost since evictFrom was set.
		from = time.Time{} // Not known: see evict.Terms.
	}
	return evict.Terms{
		Evict: g.goal.Evict && !g.view.mayNotEvict, Hard: g.goal.Hard, Soft: g.goal.Soft, From: from,
		Cordoned: g.view.cordoned(), Looked: g.looked, Uncordoned: g.staysUncordoned(), Since: g.since(),
	}
}

// since returns a time: pods that came to the node later stay, as the operator who has uncordoned the node wants them there. Zero means that no
// pod stays for this reason. The time is when the cordon was set that the operator has taken off, by the API server's clock. If the Node does not
// say that, it is Goal.Before: the time of that cordon by the record, which the policy sets after an uncordon. Both are about the same cordon: see
// handleUncordon.
func (g *guard) since() time.Time {
	if g.staysUncordoned() || !g.goal.Before.IsZero() {
		return cmp.Or(g.formerCordonStamp, g.goal.Before)
	}
	return time.Time{}
}

// drained reports whether the node was reported drained, and still is.
func (g *guard) drained() bool { return g.drainedIn == g.epoch && !g.cordonFirst() }

// Met implements evict.Drain: a pod was found that has to go. So the node is not drained any more. A fresh pod was not on the node at the first
// list. If one comes although the node is cordoned or drained, that is reported.
func (g *guard) Met(pod *corev1.Pod, fresh bool) {
	arrived := fresh && (g.drained() || g.view.cordoned())
	g.epoch++
	g.renewVolumes()
	if arrived {
		g.Report(state.PodArrived, pod, "")
	}
}

// Report implements evict.Drain: something happened to a pod, or to all pods if pod is nil.
func (g *guard) Report(what state.TransitionKind, pod *corev1.Pod, detail string) {
	if pod == nil {
		g.report(Progress{Kind: what, Detail: detail})
	} else {
		g.report(aboutPod(what, pod, detail))
	}
}

// aboutPod returns the Progress that reports what happened to a pod.
func aboutPod(what state.TransitionKind, pod *corev1.Pod, detail string) Progress {
	return Progress{Kind: what, Pod: evict.Name(pod), PodUID: string(pod.UID), Detail: detail}
}

// staysUncordoned reports whether somebody has uncordoned the node for all reasons of the goal.
func (g *guard) staysUncordoned() bool { return g.memory.staysUncordoned(g.goal) }

// setGoal changes the goal. For a new generation, some earlier findings do not count: that operators have uncordoned the node, and which pods
// were left because they keep coming back.
func (g *guard) setGoal(goal Goal) {
	newGeneration, waitsAgain := goal.Generation > g.goal.Generation, goal.Evict && !g.goal.Evict
	if g.goal.Hard.IsZero() && !goal.Hard.IsZero() { // The requests of the look under way may take longer than there is time now.
		g.cutLook()
	}
	stayedUncordoned := g.staysUncordoned()
	g.goal = goal // Its generation, if it is new, is not uncordonedIn: an uncordon before it no longer counts.
	g.epoch++     // That the node is drained is proven and reported again for this goal.
	if newGeneration {
		g.cordoningSince = time.Now()
		if stayedUncordoned { // The node has to be cordoned again first.
			waitsAgain, g.cordonDecided = true, time.Time{}
		}
		g.pods.Restart()
	}
	if waitsAgain { // Scripts run again, and evictions wait for them.
		g.evictFrom, g.scriptsDone = time.Time{}, false
	}
	if waitsAgain || !goal.Evict { // A wait for load balancers that is under way belongs to an earlier drain.
		g.balancers.end(errCalledOff)
	}
	if newGeneration || waitsAgain {
		g.Look()
	}
	g.pods.Rejudge()
	g.report(Progress{Kind: state.StateChanged})
}

// report queues what happened, with the state after it, for the report function of Guard.
func (g *guard) report(p Progress) {
	pods := g.pods.Counts()
	p.Generation, p.State, p.Total, p.Left = g.goal.Generation, g.state(), pods.Total, pods.Left
	g.queued = append(g.queued, p)
}

// state returns what the guard knows of the node now.
func (g *guard) state() State {
	cordon := g.view.cordon
	s := State{
		Cordoned: g.cordoned(), Uncordoned: g.staysUncordoned(), Ours: cordon == CordonSet || cordon == CordonKept, MayNotCordon: cordon == CordonOptedOut,
		UID: g.view.uid, CordonStamp: g.view.cordonStamp, Drained: g.drained(), Looked: g.hasLooked(), MayNotEvict: g.view.mayNotEvict,
		Trouble: g.pods.Unlisted(),
	}
	if why := g.trouble.Last(); why != "" {
		s.Trouble = g.cordonTrouble(why)
	}
	return s
}

// cordonTrouble adds to a reason that the node cannot be cordoned because of it.
func (g *guard) cordonTrouble(why string) string {
	return fmt.Sprintf("cannot cordon node %q: %s", g.node.name, why)
}

// hasLooked reports whether a look of this generation has been answered.
func (g *guard) hasLooked() bool { return g.lookedIn == g.goal.Generation }

// cordoned reports whether the node was seen cordoned in this generation.
func (g *guard) cordoned() bool { return g.view.cordoned() && g.hasLooked() }

// result returns what has been done so far. Task.Result calls it, from any goroutine.
func (g *guard) result() Result {
	g.loop.Lock()
	defer g.loop.Unlock()
	pods := g.pods.Counts()
	r := Result{
		Cordon: g.view.cordon, Evicted: pods.Evicted, Deleted: pods.Deleted, Skipped: pods.Skipped, HeldBy: map[string]string{},
		NodeGone: g.nodeGone(), MayNotEvict: g.view.mayNotEvict,
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

// nodeGone reports whether the Node was deleted: it existed in this boot, and does not any more.
func (g *guard) nodeGone() bool { return g.view.missing && (g.view.uid != "" || g.goal.NodeSeen) }

// advance does all of the drain that can be done now: it schedules evictions, makes them, and concludes the drain. It is called at the end of
// each turn of the loop. It returns when to call it again if nothing happens; zero is never.
func (g *guard) advance(now time.Time) time.Time {
	anothersPods := g.node.opts.UID != "" && g.view.missing // See Options.UID: the pods may be another machine's.
	if !g.goal.Evict || anothersPods {
		return time.Time{}
	}
	g.pods.Begin()
	wake := g.scheduleEvictions(now)
	if g.pods.Synced() && !g.evictFrom.IsZero() && !g.foundReported { // The list often comes before the cordon, but is reported after it.
		g.foundReported = true
		g.report(Progress{Kind: state.PodsFound})
	}
	wake = loop.Soonest(wake, g.pods.Act(now))
	return loop.Soonest(wake, g.concludeDrain(now))
}

// scheduleEvictions sets evictFrom, when evictions begin: once the cordon is decided, scripts have run, and load balancers have had their
// time. While a wait is under way, evictFrom is far away: then only a pod whose turn has come is evicted. The end of the scripts sets it to zero, so that
// load balancers get their time; the end of that sets it for good. scheduleEvictions returns when to call it again; zero is never.
func (g *guard) scheduleEvictions(now time.Time) time.Time {
	wake := loop.Soonest(g.scripts.endIfLate(now), g.balancers.endIfLate(now))
	if !g.evictFrom.IsZero() || g.view.mayNotEvict { // It is set already, or operators allow no evictions.
		return wake
	}
	if g.cordonDecided.IsZero() {
		if g.goal.Hard.IsZero() { // There is time to wait for the cordon.
			return wake
		}
		// The machine will be gone. Evicting without a cordon is better than pods that die with the machine.
		if patience := g.Terms().Patience(g.cordoningSince); now.Before(patience) {
			return loop.Soonest(wake, patience)
		}
	}
	g.pods.Replan() // It is known from now on when evictions begin.
	switch {
	case g.node.opts.Scripts != nil && !g.scriptsDone:
		g.evictFrom = now.Add(loop.Forever)
		return g.awaitScripts(now)
	case g.node.opts.LoadBalancers != nil:
		g.evictFrom = now.Add(loop.Forever)
		return g.awaitBalancers(now)
	}
	g.delayEvictions(now, g.node.opts.LoadBalancerWait)
	return wake
}

// Look implements evict.Drain. It requests a look at the Node, and returns the number of that look.
func (g *guard) Look() int {
	loop.Nudge(g.wantLook)
	return g.looks + 1
}

// keepLooking looks at the Node until the guard ends: when Look asks for it, else every lookEvery. While looks fail, the pauses grow. It runs
// in a goroutine of the loop's, and returns nil because nothing remains to be done at its end.
func (g *guard) keepLooking(ctx context.Context) (then func()) {
	failing, refused := kube.Failures, kube.Refusals // the pauses; to assign them again starts with the first pause
	for {
		select {
		case <-g.wantLook: // The look that begins now answers this request, too.
		default:
		}
		g.loop.Lock()
		g.looks++
		goal, before, number := g.goal, g.memory, g.looks
		lookContext, cut := context.WithCancel(ctx)
		g.cutLook = cut
		g.loop.Unlock()
		v := g.node.look(lookContext, goal, before)
		cut()
		handled := make(chan struct{})
		g.loop.Post(func() { g.handleLook(v, number, goal.Generation); close(handled) })
		loop.Await(ctx, handled, loop.Forever) // The next look needs what this one has changed in memory.
		// A call of Look shortens the pause, but not to less than minPause. So looks that fail stay rare, however often Look is called.
		pause, minPause := lookEvery, time.Second
		switch {
		case v.leavesLabel():
			failing, refused, pause = kube.Failures, kube.Refusals, 0
		case v.err == nil:
			failing, refused, minPause = kube.Failures, kube.Refusals, 0
		case kube.Passing(v.err):
			pause = max(failing.Step(), kube.RetryAfter(v.err))
		case v.missing: // The kubelet may register the Node at any moment.
			pause = time.Second
		default: // The API server has refused the read or the cordon.
			pause = refused.Step()
		}
		minPause = min(minPause, pause)
		if !loop.Await(ctx, nil, minPause) || !loop.Await(ctx, g.wantLook, pause-minPause) {
			return nil
		}
	}
}

// handleLook handles the result of the look of that number. generation is the goal's when the look began. If the look changed what the agent has
// to know, but nothing was reported, handleLook reports StateChanged, so that the agent gets the new state.
func (g *guard) handleLook(v view, number, generation int) {
	before, lastLook := g.view, g.looked
	wasCordoned, hadLooked, reported := g.cordoned(), g.hasLooked(), len(g.queued)
	g.pods.Replan() // Pods may have waited for this look.
	g.countLook(v, number, generation)
	if v.uid != "" && g.sawAnother(v.uid) { // The Node was registered again. An uncordon was about the Node before.
		g.uncordonedIn = 0
	}
	switch {
	case v.missing:
		g.handleMissingNode(v)
	case v.err != nil:
		g.handleNodeError(v)
	default:
		g.handleNode(v)
		if v.uncordoned {
			g.handleUncordon(v)
			g.pods.SpareLate(lastLook) // Pods that came since the look before stay, as they came after the uncordon.
		}
	}
	optOutChanged := g.view.mayNotEvict != before.mayNotEvict
	if optOutChanged {
		g.epoch++ // Other pods have to go now.
		g.pods.Rejudge()
	}
	newlyCordoned, newlyLooked := g.cordoned() && !wasCordoned, g.hasLooked() && !hadLooked
	changed := newlyCordoned || newlyLooked || optOutChanged || g.view.uid != before.uid
	if changed && len(g.queued) == reported {
		g.report(Progress{Kind: state.StateChanged})
	}
}

// countLook records that a look has returned: its number, for pods that wait for a look, and its generation, for hasLooked. A look that failed does
// not count, as it is repeated. But before a hard deadline pods do not wait for the next one, and a refusal is final for the generation.
func (g *guard) countLook(v view, number, generation int) {
	shown := v.uid != "" || v.missing // The look shows the Node, or that there is none, even if the cordon has failed.
	succeeded := v.err == nil || v.missing
	hard, refused := !g.goal.Hard.IsZero(), v.err != nil && !kube.Passing(v.err)
	if succeeded || hard {
		g.looked = number
	}
	if shown || hard && refused {
		g.lookedIn = generation
	}
}

// handleUncordon handles that somebody uncordoned the node. It stays uncordoned in the present generation, even if that has begun since the look. The
// agent knows which of the events want the node cordoned again, and begins the next generation for them.
func (g *guard) handleUncordon(v view) {
	g.uncordonedIn = g.goal.Generation
	// Pods that came after the cordon stay (g.since). With Goal.Before, operators had uncordoned the node before, for all events that drain it. So what
	// they have taken off now is a second cordon, for an event that only cordons: pods that came after the first one stay.
	secondCordon := g.goal.Cordon && !g.goal.Before.IsZero()
	if !secondCordon {
		g.formerCordonStamp = v.cordonStamp
	}
	g.pods.Rejudge()
	claim, _ := parseClaim(v.node.Annotations[CordonAnnotation]) // If the operator has removed the annotation, too, the claim names no events.
	g.report(Progress{Kind: state.NodeUncordoned, Claim: claim})
}

// handleMissingNode handles that there is no Node: it was deleted, or the kubelet has not registered it in this boot. It reports that once.
func (g *guard) handleMissingNode(v view) {
	reported := g.view.missing
	g.trouble = kube.Trouble{}
	v.uid = g.view.uid // nodeGone needs the UID of the Node that was read before.
	g.view = v
	why := "the kubelet has not registered it yet"
	if g.nodeGone() {
		why = "it was deleted"
		if g.cordonDecided.IsZero() {
			g.cordonDecided = time.Now() // No pod can be bound to it any more, so evictions need not wait for a cordon.
		}
	}
	if !reported {
		g.report(Progress{Kind: state.NodeMissing, Detail: why})
	}
}

// handleNodeError handles that the Node could not be read or cordoned, and reports each new reason once. If the cordon is refused for good and
// there is a hard deadline, evictions begin without the cordon.
func (g *guard) handleNodeError(v view) {
	if v.uid == "" { // The Node was not read, so what is known of it stays.
		g.view.err = v.err
	} else {
		g.view = v
	}
	if !g.lacksCordon() { // No cordon waits for the next look, so the failure harms nobody.
		return
	}
	if !kube.Passing(v.err) && !g.goal.Hard.IsZero() && g.cordonDecided.IsZero() {
		g.cordonDecided = time.Now() // Evictions do not wait for the cordon any more.
	}
	if why := g.trouble.Note(v.err); why != "" {
		g.report(Progress{Kind: state.NodeCordonFailed, Detail: g.cordonTrouble(why)})
	}
}

// handleNode handles a Node that was read, and that was cordoned in the same look if the goal asked for that.
func (g *guard) handleNode(v view) {
	before := g.view
	newNode, newlyCordoned := before.uid != v.uid, v.cordoned() && !before.cordoned()
	g.trouble, g.view = kube.Trouble{}, v
	if newNode || newlyCordoned { // Pods may have come since the last look, and no earlier proof counts.
		g.epoch++
		g.cordonDecided = time.Now() // The look had no error, so the Node is cordoned, uncordoned or opted out.
		g.renewVolumes()
	}
	if newlyCordoned && !g.staysUncordoned() {
		g.pods.Restart() // Pods that came back to a node without a cordon need not come back to a cordoned one.
		g.pods.Rejudge()
	}
	if g.cordonDecided.IsZero() && (v.cordoned() || g.hasLooked()) { // Without a cordon, only a look of this generation decides.
		g.cordonDecided = time.Now()
	}
	g.reportChange(before, newNode)
}

// reportChange reports what the last look has found out about the cordon and the label, compared with the look before. newNode: that was a look at
// another Node, or there was none.
func (g *guard) reportChange(before view, newNode bool) {
	cordonChanged := g.view.cordon != before.cordon || newNode
	if cordonChanged && g.view.cordon != Uncordoned { // handleUncordon reports Uncordoned.
		g.report(g.view.cordon.progress())
	}
	if g.view.labeled && !before.labeled && !newNode { // The first look at a Node sets no label: one that it finds is old.
		g.report(Progress{Kind: state.NodeExcluded})
	}
	if g.view.labelErr == nil {
		g.labelTrouble = kube.Trouble{}
	} else if why := g.labelTrouble.Note(g.view.labelErr); why != "" {
		why = fmt.Sprintf("cannot write the label %s of node %q, so load balancers treat it as before: %s", ExcludeLabel, g.node.name, why)
		g.report(Progress{Kind: state.PodRefused, Detail: why})
	}
}

// concludeDrain reports the node drained once a list proves that no pod has to go, and volumes are free. It returns when to call it again; zero
// means after the next event.
func (g *guard) concludeDrain(now time.Time) time.Time {
	if g.drained() || g.view.mayNotEvict { // It is reported already, or operators opted the pods out.
		return time.Time{}
	}
	cordonKnown := g.hasLooked() && !g.cordonDecided.IsZero() && !g.cordonPending()
	waits := g.scripts != nil || g.balancers != nil
	podsLeft := !g.pods.Synced() || g.pods.Counts().Left > 0
	if !cordonKnown || waits || podsLeft {
		return time.Time{}
	}
	if settled := g.cordonDecided.Add(settle); now.Before(settled) {
		return settled
	}
	if proven, again := g.pods.Prove(g.epoch, now); !proven { // The watch may lag, so a list is needed.
		return again
	}
	if until, waits := g.awaitVolumes(now); waits {
		return until
	}
	g.drainedIn = g.epoch
	g.report(Progress{Kind: state.NodeEmpty})
	return time.Time{}
}

// cordonPending reports whether the guard is still trying to cordon the node, so that pods may still come. It is false if there is a hard deadline and
// the cordon was refused.
func (g *guard) cordonPending() bool {
	return g.cordonFirst() || g.lacksCordon() && (g.view.err == nil || kube.Passing(g.view.err))
}

// cordonFirst reports whether the machine may stay, and the node still has to be cordoned: then no pod is evicted, and the node is not drained. The
// cordon may be lost in the midst of a drain, as with a Node that is registered again.
func (g *guard) cordonFirst() bool { return g.goal.Hard.IsZero() && g.lacksCordon() }

// lacksCordon reports whether there is a Node that is to be cordoned, and was not seen cordoned.
func (g *guard) lacksCordon() bool {
	return !g.view.cordoned() && g.view.cordon != CordonOptedOut && !g.view.missing && !g.staysUncordoned()
}
