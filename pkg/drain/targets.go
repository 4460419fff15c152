package drain

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// longestDeregistration is how long Elastic Load Balancing lets a target drain at most. Nothing waits longer for one.
const longestDeregistration = time.Hour

var errHalf = errors.New("half of the time is over, and the rest is for the evictions")

// balanced is what a guard knows of load balancers.
type balanced struct {
	// waiting ends the wait for them that is; nil if there is none. outFor is the round for which they have been waited for at the end.
	waiting context.CancelFunc
	outFor  int
	// held is since when evictions are held for that wait; zero if they are not.
	held time.Time
	// addresses are those that pods have had that had to go.
	addresses map[string]bool
	// untargeted tells that something is left there, as was told, and unasked is why it could not be told, as was told last.
	untargeted bool
	unasked    string
}

// noteAddresses notes by which addresses a pod that has to go may still be known when it is gone. One that has finished has given up
// its own.
func (g *guard) noteAddresses(pod *corev1.Pod) {
	if g.node.opts.LoadBalancers == nil || finished(pod) {
		return
	}
	if g.addresses == nil {
		g.addresses = map[string]bool{}
	}
	for _, ip := range pod.Status.PodIPs {
		g.addresses[ip.IP] = true
	}
}

// whence are the addresses that are to be waited for: not those which pods have that stay.
func (g *guard) whence() []string {
	left := maps.Clone(g.addresses)
	for _, pod := range g.spared {
		for _, ip := range pod.Status.PodIPs {
			delete(left, ip.IP)
		}
	}
	return slices.Sorted(maps.Keys(left))
}

// await waits for load balancers beside all else, and has then called with what came of it, unless the wait was ended before.
func (g *guard) await(addresses []string, then func(error)) {
	ctx, stop := context.WithTimeout(g.ctx, longestDeregistration)
	ended := false
	g.waiting = func() { ended = true; stop() }
	balancers, labeled := g.node.opts.LoadBalancers, g.node.opts.ExcludeFromLoadBalancers
	g.workers.Go(func() {
		defer stop()
		err := balancers.Out(ctx, labeled, addresses, func(left string) {
			g.post(func() {
				if !ended {
					g.untargeted = true
					g.say(Progress{What: TargetsLeft, Detail: left})
				}
			})
		})
		g.post(func() {
			if !ended {
				g.waiting, g.held = nil, time.Time{}
				g.sayOut(err)
				then(err)
			}
		})
	})
}

// endWait ends the wait for load balancers that is, if there is one, for a reason; nil needs no word.
func (g *guard) endWait(why error) {
	if g.waiting != nil {
		g.waiting()
		g.waiting, g.held = nil, time.Time{}
		g.sayOut(why)
	}
}

// sayOut tells that nothing is waited for any more, if that was told or is not as it should be.
func (g *guard) sayOut(err error) {
	detail := ""
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		detail = "the time for that is over"
	case err != nil:
		detail = err.Error()
	}
	if g.untargeted || detail != "" && !Alike(detail, g.unasked) {
		g.untargeted, g.unasked = false, detail
		g.say(Progress{What: TargetsOut, Detail: detail})
	}
}

// holdForTargets holds evictions until load balancers are done with the machine, and for a set time where that cannot be told. What
// is set for all evictions holds in any case. As with any hold, no pod waits beyond its turn.
func (g *guard) holdForTargets(now time.Time, set time.Duration) {
	g.opens = now.Add(longestDeregistration + set)
	g.endWait(nil) // It was one at the end, of events before these.
	g.await(nil, func(err error) {
		hold := g.node.opts.EvictAfter
		if err != nil {
			hold = set
		}
		g.open(now.Add(hold))
	})
	g.held = now
}

// open has evictions begin at some time, which may be over.
func (g *guard) open(at time.Time) {
	g.opens, g.all = at, true
	if left := time.Until(at); left > 0 {
		g.say(Progress{What: Holding, Detail: left.Round(100 * time.Millisecond).String()})
	}
}

// letGo ends the hold for load balancers by half of the time that there is: a target may drain for longer than that, and what disruption
// budgets hold needs time as well. It returns when that is.
func (g *guard) letGo(now time.Time) time.Time {
	held, until := g.held, g.balancedBy(now)
	if held.IsZero() || until.IsZero() {
		return time.Time{}
	}
	if half := held.Add(until.Sub(held) / 2); now.Before(half) {
		return half
	}
	g.endWait(errHalf)
	g.open(held.Add(g.node.opts.EvictAfter))
	return time.Time{}
}

// balancedBy is until when load balancers are waited for at most: as long as volumes are, but not past a soft deadline. One that is over
// takes nothing from a hard one.
func (g *guard) balancedBy(now time.Time) time.Time {
	until, soft := g.volumesBy(now), g.goal.Soft
	if soft.After(now) || g.goal.Hard.IsZero() && !soft.IsZero() {
		until = soonest(until, soft.Add(-g.node.opts.Margin))
	}
	return until
}

// targetsOut tells whether load balancers are done with the machine and its pods, or the wait for that has ended; else it begins one,
// and returns when it ends at the latest. Where someone uncordoned the node, the machine is to stay in.
func (g *guard) targetsOut(now time.Time) (bool, time.Time) {
	if g.node.opts.LoadBalancers == nil || g.outFor == g.round || g.lifted {
		return true, time.Time{}
	}
	until := g.balancedBy(now)
	if !until.IsZero() && !now.Before(until) {
		g.endWait(context.DeadlineExceeded)
		g.outFor = g.round
		return true, time.Time{}
	}
	if g.waiting == nil {
		round := g.round
		g.await(g.whence(), func(error) { g.outFor = round })
	}
	return false, until
}
