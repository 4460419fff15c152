package notify

import (
	"slices"
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
	mu    sync.Mutex
	opens time.Time // when the gate opens; in the past, or zero, if it is open
}

// observe opens or closes the gate, depending on a transition. It reports whether the gate now opens sooner than it was to: then the caller
// wakes the queues, whose messages may be ready.
func (g *gate) observe(t state.Transition) (sooner bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.opens
	switch t.Kind {
	case state.Announced, state.Changed:
		if t.Entry.Phase == state.Cordoning || t.Entry.Phase == state.Draining {
			g.closeFor(decisionTime)
		}
	case state.Begun:
		if t.Action == string(policy.Uncordon) { // No cordon is to come.
			g.opens = time.Time{}
		} else {
			g.closeFor(maxCordonWait)
		}
	case state.CalledBack: // Another step may follow, with a cordon.
		g.opens = time.Now().Add(decisionTime)
	case state.NodeCordoned, state.CordonFound, state.Done, state.Failed, state.RanOut, state.LeftAlone,
		state.PodEvicted, state.PodDeleted, state.PodHeld, state.PodGone: // The cordon has succeeded or failed before these.
		g.opens = time.Time{}
	case state.Missed, state.PutOff, state.ClosedWith, state.SourceLost, state.SourceBack: // These say nothing about a cordon.
	}
	return g.opens.Before(before)
}

// closeFor closes the gate for a duration, unless it is closed for longer already. The mutex is held.
func (g *gate) closeFor(d time.Duration) {
	if opens := time.Now().Add(d); opens.After(g.opens) {
		g.opens = opens
	}
}

// open opens the gate at once.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opens = time.Time{}
}

// opensAt returns when the gate opens. If the gate is open, that is a time in the past, or zero.
func (g *gate) opensAt() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opens
}

// reported remembers the last outcomes of events, the oldest first, so that none is posted twice. A restart forgets them. Most are not
// repeated then either, as the agent makes no transition for what its record has.
type reported struct {
	outcomes []reportedOutcome
	most     int // that are remembered
}

type reportedOutcome struct{ event, outcome string }

// isNews reports whether the webhook has yet to post an outcome of an event, and remembers the outcome. It returns false if the outcome was
// reported since the event entered that outcome's phase. A change from LeftAlone or to it is always news: the node has opted out, or in again.
func (r *reported) isNews(event, outcome string) bool {
	for _, before := range slices.Backward(r.outcomes) {
		if before.event != event {
			continue
		}
		if before.outcome == outcome {
			return false
		}
		if phaseOf(before.outcome) != phaseOf(outcome) || before.outcome == LeftAlone || outcome == LeftAlone {
			break // What was reported before this does not count: something else has happened since.
		}
	}
	r.outcomes = append(r.outcomes, reportedOutcome{event, outcome})
	r.outcomes = r.outcomes[max(len(r.outcomes)-r.most, 0):]
	return true
}
