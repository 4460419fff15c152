package notify

import (
	"time"

	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// decisionTime is how long after the announcement of an event that something is to be done about nothing is written, unless
// the node is cordoned before.
const decisionTime = time.Second

// gate is closed while the node's cordon is under way or is about to begin: nothing of ours goes before it, not even a
// request that would be quick. What is only announced does not close it.
type gate struct {
	cordoning bool
	begun     time.Time // the cordon that is under way
	until     time.Time
}

func (g *gate) hear(h record.Happening) {
	switch h.What {
	case record.Announced, record.Changed:
		if h.Entry.Phase == record.Cordoning || h.Entry.Phase == record.Draining {
			g.hold(time.Now().Add(decisionTime))
		}
	case record.Begun:
		g.cordoning, g.begun = h.Action == string(policy.Cordon) || h.Action == string(policy.Drain), time.Now()
	case record.CalledBack:
		g.cordoning = false
		g.hold(time.Now().Add(decisionTime)) // another step may follow
	case record.NodeCordoned, record.CordonFound, record.Done, record.Failed, record.RanOut, record.LeftAlone,
		record.PodEvicted, record.PodDeleted, record.PodHeld, record.PodGone: // What becomes of the cordon is known then, too.
		g.cordoning, g.until = false, time.Time{}
	case record.Missed, record.PutOff, record.ClosedWith, record.SourceLost, record.SourceBack:
	}
}

func (g *gate) hold(until time.Time) {
	if until.After(g.until) {
		g.until = until
	}
}

// closed is how long the gate stays closed if nothing is heard; 0 if it is open.
func (g *gate) closed(now time.Time) time.Duration {
	if g.cordoning {
		return idle
	}
	return max(g.until.Sub(now), 0)
}
