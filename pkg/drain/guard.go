package drain

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/state"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// settle is how long after the cordon a node may not yet count as drained: a scheduler that has not heard of the
	// cordon may still bind a pod.
	settle = time.Second
	// lookEvery is how often the Node is looked at while nothing happens.
	lookEvery = 5 * time.Second
	// cordonPatience is how long evictions wait for a cordon that keeps failing, where the machine is lost anyway.
	cordonPatience = 10 * time.Second
	// lookPatience is how long they wait for the first look at the Node even where no time is left: it may say that people keep the node.
	lookPatience = time.Second
)

// guard implements Guard. One goroutine (Run) changes its fields, with mu held. What takes time is done by others, which
// post what came of it.
type guard struct {
	node     *Node
	tell     func(Progress)
	adjusted chan struct{}
	posts    chan func()
	look     chan struct{} // asks for a look at the Node
	workers  sync.WaitGroup

	mu   sync.Mutex
	ctx  context.Context // Run's, for what it starts
	goal Goal
	next *Goal // to be taken over
	news []Progress
	// closing is since when the node is being closed.
	closing time.Time

	memory
	// looked is the number of the last look that has come back, of those asked for, and needed the one before which the node is not
	// known to be closed for all events; 0 if it is.
	looked, asked, needed int
	// looks are the events for which the Node has been looked at, with an answer.
	looks []string
	// tidying tells that a patch of our other keys is under way, untidy is the pause after one that fails, and unlabeled what was told
	// last of those.
	tidying   bool
	untidy    backoff
	unlabeled string
	// witnessed tells that this guard has seen the node closed before that, so that since is by the API server's clock.
	witnessed bool
	// untold tells that someone uncordoned the node, which is told when our label is off: nobody may care for it after that.
	untold bool
	// decided is since when it is known whether the node is closed; zero while it is not. Once open, evictions may begin at
	// opens.
	decided, opens time.Time

	scripted
	pods
}

// Guard returns a guard of the node, which does nothing before it is run. tell is called for everything that happens, from one
// goroutine. It must not block.
func (n *Node) Guard(goal Goal, tell func(Progress)) Guard {
	return &guard{
		node: n, tell: tell, goal: goal, memory: memory{view: view{limited: goal.Limited}},
		adjusted: make(chan struct{}, 1), posts: make(chan func()), look: make(chan struct{}, 1),
		untidy: failures, pods: pods{
			targets: map[types.UID]*target{}, replaced: map[types.UID]restart{}, spared: map[types.UID]*corev1.Pod{}, kept: map[types.UID]bool{}, left: map[types.UID]bool{},
			families: map[string]*family{}, returning: map[string]bool{}, budgets: map[string]*budget{}, round: 1,
		},
	}
}

// Adjust implements Guard.
func (g *guard) Adjust(goal Goal) {
	g.mu.Lock()
	g.next = &goal
	g.mu.Unlock()
	nudge(g.adjusted)
}

// nudge wakes whoever waits for a channel of one place.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run implements Guard.
func (g *guard) Run(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer g.workers.Wait()
	defer stop()
	g.ctx, g.closing = ctx, time.Now()
	g.workers.Go(g.keepLooking)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var post func()
		select {
		case <-ctx.Done():
			return
		case <-g.adjusted:
		case post = <-g.posts:
		case <-timer.C:
			post = func() { g.all = true }
		}
		g.mu.Lock()
		if g.next != nil {
			g.take(*g.next)
			g.next = nil
		}
		if post != nil {
			post()
		}
		wake := g.advance(time.Now())
		news := g.news
		g.news = nil
		g.mu.Unlock()
		for _, p := range news {
			g.tell(p)
		}
		timer.Stop()
		if !wake.IsZero() {
			timer.Reset(max(time.Until(wake), 0))
		}
	}
}

// post has something done in Run's goroutine, unless that ends before.
func (g *guard) post(do func()) {
	select {
	case g.posts <- do:
	case <-g.ctx.Done():
	}
}

// take changes the goal. For an event that was not there before, everything counts anew: what people have lifted, and what was left
// in peace.
func (g *guard) take(goal Goal) {
	grown, begins := Joined(g.goal.Events, goal.Events), goal.Evict && !g.goal.Evict
	if grown {
		g.tellLifted() // as it is an order for those before
	}
	g.goal = goal
	g.events, g.looks = g.stillThere(g.events), g.stillThere(g.looks)
	g.drained = false // It is told anew.
	if grown {
		if g.lifted { // It is to be closed again first.
			begins, g.decided, g.closing = true, time.Time{}, time.Now()
		}
		g.lifted = false
		if goal.Reopened.IsZero() {
			g.since = time.Time{}
		}
		g.round++
		g.joined = g.round
		g.forgetReturns()
	}
	if begins {
		g.opens, g.ran = time.Time{}, false
	}
	if begins || !goal.Evict {
		g.endWait(nil)
	}
	if grown || begins {
		g.needed = g.lookNow()
	}
	g.rejudge()
	g.say(Progress{Kind: state.GoalChanged})
}

// stillThere are those of some events that the goal still has. One that comes back is another.
func (g *guard) stillThere(events []string) []string {
	return slices.DeleteFunc(slices.Clone(events), func(id string) bool { return !slices.Contains(g.goal.Events, id) })
}

// Joined tells whether there are events that were not there before, by the IDs of those before and now.
func Joined(before, now []string) bool {
	return slices.ContainsFunc(now, func(id string) bool { return !slices.Contains(before, id) })
}

// say tells something, with how things stand.
func (g *guard) say(p Progress) {
	p.Goal, p.State, p.Total, p.Left = g.goal.Number, g.state(), g.total, len(g.targets)
	g.news = append(g.news, p)
}

func (g *guard) state() State {
	s := State{
		Closed: g.closed(), Ours: g.view.ours, Left: g.view.cordon == CordonLeft, Ready: g.view.ready, Seen: g.view.uid != "" || g.goal.NodeSeen,
		Drained: g.drained, Looked: g.hasLooked(), Limited: g.view.limited,
	}
	if g.view.err != nil && !passing(g.view.err) && !g.view.missing {
		s.Trouble = g.view.err.Error()
	}
	return s
}

// hasLooked tells whether the Node has been looked at, with an answer, since the last event has joined.
func (g *guard) hasLooked() bool { return g.looks != nil && !Joined(g.looks, g.goal.Events) }

// closed tells whether the node takes no pods, as it was seen after the last event has joined.
func (g *guard) closed() bool { return g.view.closed() && !Joined(g.events, g.goal.Events) }

// Result implements Guard.
func (g *guard) Result() Result {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := Result{
		Cordon: g.view.cordon, Evicted: g.evicted, Deleted: g.deleted, Skipped: len(g.spared), HeldBy: map[string]string{},
		NodeGone: g.gone(), Limited: g.view.limited, VolumesInUse: g.inUse,
	}
	for _, t := range g.targets {
		name := podName(t.pod)
		r.Left = append(r.Left, name)
		if t.held != "" {
			r.HeldBy[name] = t.held
		}
	}
	slices.Sort(r.Left)
	return r
}

// gone tells that there was a Node in this boot, and is none any more.
func (g *guard) gone() bool { return g.view.missing && (g.view.uid != "" || g.goal.NodeSeen) }

// advance does what is to be done now, and returns when to come back without news; zero if never.
func (g *guard) advance(now time.Time) time.Time {
	if !g.goal.Evict {
		return time.Time{}
	}
	if !g.watching {
		g.watching = true
		g.workers.Go(g.watchPods)
	}
	wake := g.decide(now)
	if g.synced && !g.opens.IsZero() && !g.found { // The list is often there before the cordon.
		g.found = true
		g.say(Progress{Kind: state.PodsFound})
	}
	wake = soonest(wake, g.actOnPods(now))
	return soonest(wake, g.concludeDrain(now))
}

// decide begins the evictions once it is known what becomes of the cordon, and returns when to come back.
func (g *guard) decide(now time.Time) time.Time {
	scripts := g.awaitScripts(now)
	if !g.opens.IsZero() || g.view.limited {
		return soonest(scripts, g.letGo(now))
	}
	if g.decided.IsZero() {
		if g.goal.Hard.IsZero() {
			return time.Time{}
		}
		// The machine is lost. Evicting is better then than pods dying with it.
		if patience := g.patience(g.closing); now.Before(patience) {
			return patience
		}
	}
	if g.node.opts.Scripts != nil && !g.ran {
		g.runScripts(now)
		return g.awaitScripts(now)
	}
	wait := g.node.opts.EvictAfter
	if g.node.opts.ExcludeFromLoadBalancers {
		wait = max(wait, g.node.opts.LoadBalancerWait)
	}
	if g.node.opts.LoadBalancers != nil {
		g.holdForTargets(now, wait)
		return g.letGo(now)
	}
	if wait > 0 {
		g.say(Progress{Kind: state.EvictionsDelayed, Detail: wait.String()})
	}
	g.opens, g.all = now.Add(wait), true
	return g.opens
}

// patience is how long something that began then is waited for, of which the machine's loss cannot take account.
func (g *guard) patience(began time.Time) time.Time {
	return began.Add(min(cordonPatience, max(g.goal.Hard.Sub(began)/4, lookPatience)))
}

// lookNow asks for a look at the Node, and returns its number.
func (g *guard) lookNow() int {
	g.asked++
	nudge(g.look)
	return g.asked
}

// keepLooking looks at the Node, and sees to its being closed, until the guard ends: when asked to, every few seconds, and with
// pauses that grow while that fails.
func (g *guard) keepLooking() {
	failing, refused := failures, refusals
	for more := true; more; {
		g.mu.Lock()
		goal, before, number := g.goal, g.memory, g.asked
		g.mu.Unlock()
		v := g.node.close(g.ctx, goal, before)
		pause, deaf := lookEvery, time.Second // Who asks while it fails does not make it better.
		switch {
		case v.err == nil:
			failing, refused, deaf = failures, refusals, 0
		case passing(v.err):
			pause = max(failing.pause(), retryAfter(v.err))
		case !v.missing:
			pause = refused.pause()
		default:
			pause = time.Second
		}
		seen := make(chan struct{})
		g.post(func() { g.see(v, number, goal.Events); close(seen) })
		deaf = min(deaf, pause)
		more = Await(g.ctx, seen, forever) && Await(g.ctx, nil, deaf) && Await(g.ctx, g.look, pause-deaf)
	}
}

// see takes in what a look at the Node has shown.
func (g *guard) see(v view, number int, events []string) {
	before, looked, first := g.view, g.looked, g.view.uid == ""
	closed, seen, told := g.closed(), g.hasLooked(), len(g.news)
	g.all = true
	g.count(v, number, events)
	switch {
	case v.missing:
		g.see404(v)
	case v.err != nil:
		g.seeTrouble(v)
	default:
		g.events = g.stillThere(events)
		g.seeNode(v)
		g.seeEvents(v, events, looked, first)
	}
	if first && g.view.uid != "" && g.looked == number {
		g.looked = g.asked // They asked for any look.
	}
	limits := g.seeLimit(before)
	if news := g.closed() && !closed || g.view.ready && !before.ready || g.hasLooked() && !seen || limits; news && len(g.news) == told {
		g.say(Progress{Kind: state.GoalChanged})
	}
}

// seeLimit takes in whether people want the node's pods left alone, and tells whether that has changed. What was empty before need not be
// any more.
func (g *guard) seeLimit(before view) (changed bool) {
	if before.limited == g.view.limited {
		return false
	}
	g.round++
	g.drained = false
	g.rejudge()
	return true
}

// count notes which look has come back, and for which events it was asked for. One that failed tells nothing, and there is time for another; before a hard deadline, pods
// do not wait for that.
func (g *guard) count(v view, number int, events []string) {
	answered, hard := v.err == nil || v.missing, !g.goal.Hard.IsZero()
	if answered || v.uid != "" { // It may have been read, and not be cordoned.
		g.looks = g.stillThere(events)
	}
	if answered || hard {
		g.looked = number
	}
	if number >= g.needed && (answered || hard && !passing(v.err)) {
		g.needed = 0
	}
}

// seeEvents tells for which events someone uncordoned the node.
func (g *guard) seeEvents(v view, events []string, looked int, first bool) {
	if len(v.reopened) > 0 {
		g.say(Progress{Kind: state.NodeReopened, Events: v.reopened})
	}
	switch joined := Joined(events, g.goal.Events); {
	case v.opened && !joined:
		g.seeLifted(v, looked, first)
	case v.opened && !v.known: // For those that have joined while it was looked, it is none.
		g.say(Progress{Kind: state.NodeReopened, Events: events})
	}
}

// seeLifted takes in that someone uncordoned the node. The pods for which it was looked, since they came after the cordon,
// are left there.
func (g *guard) seeLifted(v view, looked int, first bool) {
	if !g.lifted {
		g.lifted, g.since, g.witnessed, g.untold = true, v.since, !first, true
		g.rejudge()
	}
	if v.tidy == nil {
		g.tellLifted()
	}
	for _, t := range g.targets {
		if !first && t.check > looked && t.check <= g.looked {
			g.kept[t.pod.UID] = true
			g.release(t)
		}
	}
}

func (g *guard) tellLifted() {
	if g.untold {
		g.untold = false
		g.say(Progress{Kind: state.NodeReopened, Events: g.goal.Events})
	}
}

// see404 takes in that there is no Node.
func (g *guard) see404(v view) {
	told := g.view.missing
	v.uid, v.version = g.view.uid, g.view.version
	g.view = v
	if g.gone() && g.decided.IsZero() {
		g.decided = time.Now()
	}
	if !told {
		why := "the kubelet has not registered it yet"
		if g.gone() {
			why = "it was deleted"
		}
		g.say(Progress{Kind: state.NodeMissing, Detail: why})
	}
}

// seeTrouble takes in that the Node could not be looked at, or not be cordoned. Where the cordon is refused for good and the
// machine is lost anyway, that is how it is.
func (g *guard) seeTrouble(v view) {
	text, known := v.err.Error(), fmt.Sprint(g.view.err)
	g.view.err = v.err
	if v.uid != "" { // It could be read, and takes pods. The next look is not to take that for an order.
		g.view.uid, g.view.missing, g.view.cordon, g.view.limited, g.view.shut = v.uid, false, CordonNone, v.limited, false
	}
	if v.reopened != nil {
		g.say(Progress{Kind: state.NodeReopened, Events: v.reopened})
	}
	if passing(v.err) {
		return
	}
	if !g.goal.Hard.IsZero() && g.decided.IsZero() {
		g.decided = time.Now()
	}
	if !Alike(text, known) || g.goal.Hard.IsZero() {
		g.say(Progress{Kind: state.NodeUnclosable, Detail: fmt.Sprintf("cordoning node %q: %s", g.node.name, text)})
	}
}

// seeNode takes in how the Node is.
func (g *guard) seeNode(v view) {
	before := g.view
	again, opened := before.uid != v.uid, v.closed() && !before.closed()
	if v.cordon == CordonSet || opened || again {
		// It was open until now, or is another: pods may have come since it was seen last. What is known from before the cordon proves
		// nothing any more.
		g.round++
		g.drained, g.decided, g.freeSince = false, time.Now(), time.Time{}
	}
	g.view = v.after(before)
	if opened && !g.lifted {
		g.forgetReturns() // Kind came back to an open node says nothing of what comes back to a closed one.
		clear(g.returning)
		g.rejudge()
	}
	if g.decided.IsZero() && (v.closed() || !Joined(g.events, g.goal.Events)) { // For one that has joined, it is yet to be closed.
		g.decided = time.Now()
	}
	if cordon := g.view.cordon; (cordon != before.cordon || again) && cordon != CordonLifted { // Of that is told with the events.
		g.say(cordon.progress())
	}
	g.tidy(v)
}

// after is what is known of a Node that was seen before.
func (v view) after(before view) view {
	if v.cordon == CordonOurs && before.cordon == CordonSet && before.uid == v.uid {
		v.cordon = CordonSet // It was this guard that has set it.
	}
	if newer(v.version, before.version) != v.version {
		v.ours = before.ours // It was seen before the label was set.
	}
	return v
}

// tidy brings our other keys on the Node up to date, beside all else. What fails is tried again at the next look, and where it may
// pass there is one soon.
func (g *guard) tidy(v view) {
	if v.tidy == nil || g.tidying {
		return
	}
	g.tidying = true
	// What is taken back is so for certain: the guard may be told to end as soon as it is known that people have opened the node.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.ctx), attemptTimeout)
	pause := g.untidy.pause()
	g.workers.Go(func() {
		defer cancel()
		node, err := g.node.patch(ctx, v.tidy)
		for b := failures; !v.excludes && err != nil && passing(err) && !apierrors.IsConflict(err) && Await(ctx, nil, b.pause()); {
			node, err = g.node.patch(ctx, v.tidy)
		}
		again := err != nil && passing(err) && Await(g.ctx, nil, pause)
		g.post(func() {
			g.tidying = false
			if again {
				g.lookNow()
			}
			g.tidied(v, node, err)
		})
	})
}

// tidied takes in that our other keys are up to date, or why they are not.
func (g *guard) tidied(v view, node *corev1.Node, err error) {
	switch {
	case err == nil:
		g.view.version = newer(g.view.version, node.ResourceVersion)
		g.untidy, g.unlabeled = failures, ""
	case !apierrors.IsConflict(err):
		g.sayRefused(&g.unlabeled, err)
	}
	if err == nil && v.excludes {
		g.view.ours = true
		g.say(Progress{Kind: state.NodeExcluded})
	}
	if v.opened && (err == nil || !passing(err)) {
		g.tellLifted()
	}
}

// sayRefused tells why something is refused that concerns the node, if that is not what was told of it last.
func (g *guard) sayRefused(last *string, err error) {
	if text := err.Error(); !Alike(text, *last) {
		*last = text
		g.say(Progress{Kind: state.PodRefused, Detail: text})
	}
}

// concludeDrain finds out whether the node is drained, and tells it. It returns when to come back.
func (g *guard) concludeDrain(now time.Time) time.Time {
	switch {
	case g.drained || g.needed > 0 || g.view.limited || g.running != nil:
		return time.Time{}
	case !g.synced || len(g.targets) > 0 || g.decided.IsZero() || g.unclosed():
		return time.Time{}
	default:
		if settled := g.decided.Add(settle); now.Before(settled) {
			return settled
		}
		if !g.volumesFree() {
			until := g.volumesBy(now)
			if until.IsZero() || now.Before(until) {
				return until
			}
			g.freeing() // That there is no time may have become known during the wait.
			return time.Time{}
		}
		if out, until := g.targetsOut(now); !out {
			return until
		}
		if !g.confirmed() {
			return time.Time{}
		}
	}
	g.drained = true
	g.say(Progress{Kind: state.NodeEmpty})
	return time.Time{}
}

// unclosed tells that the cordon is still being tried, so that pods may come.
func (g *guard) unclosed() bool {
	return !g.view.closed() && !g.view.missing && !g.lifted && (g.view.err == nil || passing(g.view.err))
}

// confirmed tells whether a list that is no older than the cordon, and than what the watch has told, has shown nothing that has to
// go, and has one made if there is none. The watch alone may be behind.
func (g *guard) confirmed() bool {
	if g.confirmedFor == g.round || g.confirming {
		return g.confirmedFor == g.round
	}
	g.confirming = true
	version, round := newer(g.view.version, g.version), g.round
	if g.confirmedFor < g.joined {
		version = "" // The watch may have been silent for a while, and the Node the same: the newest.
	}
	g.workers.Go(func() {
		var list *corev1.PodList
		err := retry(g.ctx, func(ctx context.Context) (err error) {
			list, err = g.node.listSince(ctx, version)
			return err
		})
		if err != nil {
			Await(g.ctx, nil, lookEvery) // It is refused.
		}
		g.post(func() {
			g.confirming = false
			if err != nil {
				g.sayRefused(&g.unlisted, err)
				return
			}
			g.unlisted = ""
			if g.round != round {
				return // A pod that it shows may have gone since. Another list is to be made anyway.
			}
			g.confirmedFor = round
			for i := range list.Items {
				pod := &list.Items[i]
				known, changed := g.spared[pod.UID], func(p *corev1.Pod) bool { return newer(p.ResourceVersion, pod.ResourceVersion) != p.ResourceVersion }
				if known == nil && !g.left[pod.UID] || known != nil && changed(known) {
					g.meet(slim(pod))
				}
			}
		})
	})
	return false
}

// volumesFree tells whether the wait for volumes has ended, and begins it if it has not begun. A volume that is still attached
// keeps its pod from starting elsewhere for minutes. For an event that joins, they are looked at anew, and waited for in what is left of
// the wait: it is counted from the last pod's end, and no event is to run out of time for those that it follows.
func (g *guard) volumesFree() bool {
	if g.freedFor == g.round || g.freeing != nil {
		return g.freeing == nil
	}
	if g.freeSince.IsZero() {
		g.freeSince = time.Now()
	}
	left := time.Until(g.freeSince.Add(g.node.opts.VolumeWait))
	if left <= 0 {
		return true
	}
	ctx, stop := context.WithTimeout(g.ctx, left)
	g.freeing = stop
	round, staying := g.round, claimsOf(g.spared)
	g.workers.Go(func() {
		defer stop()
		left := g.node.awaitVolumes(ctx, staying, func(left string) {
			g.post(func() { g.say(Progress{Kind: state.VolumesInUse, Detail: left}) })
		})
		g.post(func() {
			g.freeing, g.freedFor, g.inUse = nil, round, left
		})
	})
	return false
}

// volumesBy is until when volumes are waited for at most: in time for the node to be drained before an event runs out of time; zero if
// none does any more.
func (g *guard) volumesBy(now time.Time) time.Time {
	until := g.goal.Hard
	if g.goal.TimeEnds.After(now) {
		until = soonest(until, g.goal.TimeEnds)
	}
	if !until.IsZero() {
		until = until.Add(-g.node.opts.Margin)
	}
	return until
}

// soonest returns the earlier of two times, where zero means never.
func soonest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
