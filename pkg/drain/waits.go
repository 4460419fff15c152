package drain

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/wait"
)

// longestDeregistration is the longest deregistration delay that Elastic Load Balancing allows. The wait for load balancers takes no longer.
const longestDeregistration = time.Hour

// Why a wait ends before its time.
var (
	errLate      = errors.New("the wait has taken too long")
	errCalledOff = errors.New("no drain is due any more, or a new one begins")
	errHalf      = errors.New("the wait has taken half of the time before the deadline")
)

// waiting is what a guard waits for, and has waited for. While evictions wait, evictFrom is far away: no pod waits beyond its turn.
type waiting struct {
	// scripts and balancers are waits before evictions, and volumes is the wait when no pod is left. nil means that no wait is under way.
	scripts, balancers, volumes *hold
	// scriptsDone: the scripts have run for this drain, or their time is over.
	scriptsDone bool
	// volumesDone: the wait for the volumes of the pods that have left is over.
	volumesDone bool
}

// hold is one wait for a wait.Blocker. The caller of await sets until, and await the rest.
type hold struct {
	began time.Time
	// left is what was missing, as reported last.
	left string
	// until returns when the wait ends at the latest, and the reason for that end. Both may change with the goal. A zero time means never.
	until func(now time.Time) (time.Time, error)
	// over ends the wait. Its argument is why the wait ends early; nil if nothing is missing any more. A second call does nothing.
	over func(error)
}

// await begins a wait for b. place is the guard's field for this wait: it is h until the wait ends, and nil afterwards. While b waits, what it
// still misses is reported as a Progress of the kind missing. At the end, done is called once, in the loop, with the reason if the wait ends
// early.
func (g *guard) await(place **hold, h *hold, b wait.Blocker, missing state.TransitionKind, done func(error)) {
	ctx, cancel := context.WithCancel(g.loop.Context())
	h.began, *place = time.Now(), h
	h.over = func(err error) {
		cancel()
		if *place == h { // Otherwise the wait was over already.
			*place = nil
			g.pods.Replan()
			done(err)
		}
	}
	node := wait.Node{Labeled: g.node.opts.ExcludeFromLoadBalancers, Staying: g.pods.Staying()}
	g.loop.Go(func(context.Context) func() {
		err := b.Wait(ctx, node, func(left string) {
			g.loop.Post(func() {
				if *place == h { // The wait is not over.
					h.left = left
					g.report(Progress{Kind: missing, Detail: left})
				}
			})
		})
		cancel()
		return func() { h.over(err) }
	})
}

// end ends a wait early, for the reason err.
func (h *hold) end(err error) {
	if h != nil { // A wait is under way.
		h.over(err)
	}
}

// endIfLate ends a wait whose time is over. Otherwise it returns when the time will be over; zero for never, and if no wait is under way.
func (h *hold) endIfLate(now time.Time) time.Time {
	if h == nil {
		return time.Time{}
	}
	until, late := h.until(now)
	if until.IsZero() || now.Before(until) {
		return until
	}
	h.over(late)
	return time.Time{}
}

// awaitScripts starts Options.Scripts, for which evictions wait: for ScriptsWait, or a quarter of the time before a hard deadline. Scripts that
// still run for an earlier drain are not started again. It returns when the wait ends at the latest.
func (g *guard) awaitScripts(now time.Time) time.Time {
	if g.scripts != nil { // They run for an earlier drain.
		return g.scripts.endIfLate(now)
	}
	h := &hold{}
	h.until = func(time.Time) (time.Time, error) {
		until := h.began.Add(g.node.opts.ScriptsWait)
		if !g.goal.Hard.IsZero() {
			until = loop.Soonest(until, h.began.Add(max(g.goal.Hard.Sub(h.began)/4, 0)))
		}
		return until, errLate
	}
	g.await(&g.scripts, h, g.node.opts.Scripts, "", func(err error) { // Scripts report nothing that is missing.
		g.scriptsDone, g.evictFrom = true, time.Time{} // scheduleEvictions sets evictFrom again, or waits for load balancers.
		if err != nil {
			g.report(Progress{Kind: state.ScriptsFailed, Detail: err.Error()})
		}
	})
	return h.endIfLate(now)
}

// awaitBalancers has evictions wait until load balancers have removed the machine. The wait takes half of the time before the deadline at most: a target
// may drain for longer, and disruption budgets need time as well. If that cannot be found out, or takes longestDeregistration, evictions begin
// LoadBalancerWait after the wait began. setGoal may call the wait off. awaitBalancers reports why the wait ends, except if load balancers were done at
// once. It returns when the wait ends at the latest.
func (g *guard) awaitBalancers(now time.Time) time.Time {
	h := &hold{}
	h.until = func(now time.Time) (time.Time, error) { return g.balancersUntil(h.began, now) }
	g.await(&g.balancers, h, g.node.opts.LoadBalancers, state.TargetsLeft, func(err error) {
		calledOff := errors.Is(err, errCalledOff)
		reason := "" // It stays empty if load balancers have removed the machine.
		if err != nil {
			reason = err.Error()
		}
		waitReported, failed := h.left != "", err != nil && !calledOff
		if waitReported || failed {
			g.report(Progress{Kind: state.TargetsOut, Detail: reason})
		}
		switch {
		case calledOff: // setGoal has decided about evictFrom.
		case err != nil && !errors.Is(err, errHalf): // It is unknown whether load balancers are done.
			g.delayEvictions(h.began, g.node.opts.LoadBalancerWait)
		default:
			g.delayEvictions(h.began, 0)
		}
	})
	return h.endIfLate(now)
}

// balancersUntil returns when a wait for load balancers that began at a time ends at the latest, and why then.
func (g *guard) balancersUntil(began, now time.Time) (time.Time, error) {
	deadline := g.lastMoment(now)
	if soft := g.Terms().SoftDeadline(now); !soft.IsZero() { // It only shortens the wait, so it counts together with a hard one.
		deadline = loop.Soonest(deadline, soft.Add(-g.node.opts.Margin))
	}
	longest := began.Add(longestDeregistration)
	if half := began.Add(deadline.Sub(began) / 2); !deadline.IsZero() && half.Before(longest) {
		return half, errHalf
	}
	return longest, errLate
}

// delayEvictions sets when evictions begin: delay after since. It reports the time that is left, unless that moment is over.
func (g *guard) delayEvictions(since time.Time, delay time.Duration) {
	g.evictFrom = since.Add(delay)
	if left := time.Until(g.evictFrom); left > 0 {
		g.report(Progress{Kind: state.EvictionsDelayed, Detail: left.Round(100 * time.Millisecond).String()})
	}
}

// awaitVolumes starts the wait for volumes, once no pod is left: a volume that stays attached keeps its pod from starting elsewhere for minutes. It
// returns when the wait ends at the latest. waits is false if nothing has to be waited for, or the wait is over.
func (g *guard) awaitVolumes(now time.Time) (until time.Time, waits bool) {
	if g.volumes == nil && !g.volumesDone && g.node.opts.VolumeWait > 0 {
		h := &hold{}
		h.until = func(now time.Time) (time.Time, error) {
			return loop.Soonest(h.began.Add(g.node.opts.VolumeWait), g.lastMoment(now)), errLate
		}
		volumes := wait.Volumes{
			Node:   func(ctx context.Context) (*corev1.Node, error) { return g.node.get(ctx, kube.InTurn) },
			Client: g.node.client,
		}
		g.await(&g.volumes, h, volumes, state.VolumesInUse, func(error) { g.volumesDone = true })
	}
	until = g.volumes.endIfLate(now) // g.volumes is nil afterwards if that ends the wait.
	return until, g.volumes != nil
}

// renewVolumes has volumes waited for again, as a pod has come or may have come.
func (g *guard) renewVolumes() {
	g.volumes.end(errCalledOff)
	g.volumesDone = false
}

// lastMoment returns until when load balancers and volumes may be waited for; zero is for ever. It is a margin before the first event runs out
// of time, so that the node still counts as drained for that event.
func (g *guard) lastMoment(now time.Time) time.Time {
	until := g.goal.Hard
	if g.goal.TimeEnds.After(now) { // An event whose time is over does not count.
		until = loop.Soonest(until, g.goal.TimeEnds)
	}
	if !until.IsZero() {
		until = until.Add(-g.node.opts.Margin)
	}
	return until
}
