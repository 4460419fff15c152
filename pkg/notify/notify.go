// Package notify passes on what happens, to the cluster and to people.
//
// Its parts are agent.Listeners: each hears every state.Transition and must not hold the agent up. So OnTransition only puts what
// there is to say into a bounded queue, and Run, in a goroutine of its own, delivers it: best effort, bounded in time,
// with backoff where it is refused, and with a last short attempt when nth stops. Nothing here can fail a drain, and
// nothing is sent before the cordon that it is about.
//
//   - Kubernetes keeps the Node's condition InterruptionPending, whose heartbeat tells others that the node is watched over, and,
//     if enabled, Kubernetes' own lifecycle conditions, and
//     writes core/v1 Events about the Node and about the pods that were evicted. What it writes is listed in
//     docs/node-contract.md.
//   - Webhook posts a document that a template makes, and keeps on disk what could not be delivered yet.
//
// What goes wrong is reported once, and not again until it has worked in between.
package notify

import (
	"time"

	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// idleWait is how long to wait when there is nothing to wait for.
const idleWait = time.Hour

// decisionTime is how long after the announcement of an event that is acted upon nothing is written, unless the node is
// cordoned before.
const decisionTime = time.Second

// gate is closed while the node's cordon is under way or about to begin: nothing of ours goes before it, not even a
// request that would be quick. An event that is only announced does not close it.
type gate struct {
	cordoning bool
	begun     time.Time // the cordon that is under way
	until     time.Time
}

// observe opens and closes the gate.
func (g *gate) observe(t state.Transition) {
	switch t.Kind {
	case state.Announced, state.Changed:
		if t.Entry.Phase == state.Cordoning || t.Entry.Phase == state.Draining {
			g.closeUntil(time.Now().Add(decisionTime))
		}
	case state.Begun:
		g.cordoning, g.begun = t.Action == string(policy.Cordon) || t.Action == string(policy.Drain), time.Now()
	case state.CalledBack:
		g.cordoning = false
		g.closeUntil(time.Now().Add(decisionTime)) // another step may follow
	case state.NodeCordoned, state.CordonFound, state.Done, state.Failed, state.RanOut, state.LeftAlone,
		state.PodEvicted, state.PodDeleted, state.PodHeld, state.PodGone: // The cordon has succeeded or failed by then.
		*g = gate{}
	case state.Missed, state.PutOff, state.ClosedWith, state.SourceLost, state.SourceBack:
	}
}

func (g *gate) closeUntil(until time.Time) {
	if until.After(g.until) {
		g.until = until
	}
}

// closed is how long the gate stays closed if nothing is heard; 0 if it is open.
func (g *gate) closed(now time.Time) time.Duration {
	if g.cordoning {
		return idleWait
	}
	return max(g.until.Sub(now), 0)
}

// wake makes a goroutine that waits for c look for work. c has room for one element.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
