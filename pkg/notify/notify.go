// Package notify reports what happens, to the cluster and to people.
//
// It has two agent.Listeners. Each is told of every state.Transition and must not hold up the agent. So OnTransition only
// puts what there is to report into a bounded queue, and Run, in a goroutine of its own, delivers it: best effort, bounded in time,
// with backoff after a failure, and with a last short attempt when nth stops. Nothing here can fail a drain, and
// nothing is sent before the cordon that it is about.
//
//   - Kubernetes keeps the Node's condition InterruptionPending, whose heartbeat shows that nth watches the node. It writes core/v1 Events about the Node and about evicted pods.
//     docs/node-contract.md lists what it writes.
//   - Webhook posts messages that a template renders, and tries those again that could not be delivered, for a day at most.
//
// A failure is reported once, and not again until something has succeeded in between.
package notify

import (
	"time"

	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// idleWait is how long to wait when there is nothing to wait for.
const idleWait = time.Hour

// decisionTime is how long nothing is written after the announcement of an event that is acted upon, unless the node is
// cordoned before that.
const decisionTime = time.Second

// gate is closed while the node is being cordoned, or is about to be: no request of this package may delay that. An event that is
// only announced does not close it.
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
		g.closeUntil(time.Now().Add(decisionTime)) // Another step may follow.
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

// closed is how long the gate stays closed without another transition; 0 if it is open.
func (g *gate) closed(now time.Time) time.Duration {
	if g.cordoning {
		return idleWait
	}
	return max(g.until.Sub(now), 0)
}

// wake wakes the goroutine that waits for c, whose capacity is 1.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
