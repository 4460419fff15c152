package notify

import (
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

const (
	// decisionTime is how long nothing is sent after the announcement of an event that is acted upon, unless the node is cordoned
	// before that.
	decisionTime = time.Second
	// maxCordonWait is how long messages wait for a cordon that is under way. It may not succeed.
	maxCordonWait = 5 * time.Second
)

// gate holds back all messages about a node while the node is being cordoned, or is about to be: no request of this package may delay the
// cordon. The gate stays open when an event is announced for which nth does nothing yet.
type gate struct {
	mu      sync.Mutex
	opens   time.Time     // when the gate opens; in the past, or zero, if it is open
	changed chan struct{} // closed when opens changes; nil until somebody waits
}

// observe opens or closes the gate, depending on a transition.
func (g *gate) observe(t state.Transition) {
	switch t.Kind {
	case state.Announced, state.Changed:
		if t.Entry.Phase == state.Cordoning || t.Entry.Phase == state.Draining {
			g.closeFor(decisionTime)
		}
	case state.Begun:
		if t.Action == string(policy.Uncordon) { // No cordon is to come.
			g.open()
		} else {
			g.closeFor(maxCordonWait)
		}
	case state.CalledBack: // Another step may follow, with a cordon.
		g.open()
		g.closeFor(decisionTime)
	case state.NodeCordoned, state.CordonFound, state.Done, state.Failed, state.RanOut, state.LeftAlone,
		state.PodEvicted, state.PodDeleted, state.PodHeld, state.PodGone: // The cordon has succeeded or failed before these.
		g.open()
	case state.Missed, state.PutOff, state.ClosedWith, state.SourceLost, state.SourceBack: // These say nothing about a cordon.
	}
}

// closeFor closes the gate for a duration, unless it is closed for longer already.
func (g *gate) closeFor(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if opens := time.Now().Add(d); opens.After(g.opens) {
		g.opens = opens
	}
}

// open opens the gate at once.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opens = time.Time{}
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// opensAt returns when the gate opens, and a channel that is closed if it opens before that. If the gate is open, the time is in the past, or
// zero.
func (g *gate) opensAt() (time.Time, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	return g.opens, g.changed
}
