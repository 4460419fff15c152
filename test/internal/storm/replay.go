package storm

import (
	"fmt"
	"io"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
	"github.com/nth-project/nth/test/internal/trace"
)

// Faster is by what a replay shortens the times between preemptions: a day takes twelve minutes. A notice keeps its two minutes and a pod its
// grace period, so that more nodes are drained at once than in the traced day.
const Faster = 120

// Replayed is what became of the nodes of a replay.
type Replayed struct {
	// Emptied are the times from the notices to the ends of the last pods. A node that still had pods after the last notice is not in it.
	Emptied []time.Duration
	// AtOnce is how many nodes had been notified and were not empty, at most.
	AtOnce int
}

// Replay sends a warning for one node after the other, at those times from now, until all nodes are empty or the last notice is over. It tells
// progress how far it is.
func (s *Storm) Replay(t lab.TB, r *region.Region, preemptions []time.Duration, progress io.Writer) (all Replayed) {
	t.Helper()
	seen, began := s.Watch(t), time.Now()
	told, sent := began, make([]time.Time, 0, len(preemptions))
	for empty := 0; empty < len(preemptions); empty = len(seen.Emptied()) {
		var due []string
		for i := len(sent); i < len(preemptions) && time.Since(began) >= preemptions[i]/Faster; i++ {
			due, sent = append(due, region.Spot(s.Instances[i])), append(sent, time.Now())
		}
		if len(due) > 0 {
			r.Send(t, due...)
		} else if len(sent) == len(preemptions) && time.Since(sent[len(sent)-1]) > trace.Notice {
			break
		}
		all.AtOnce = max(all.AtOnce, len(sent)-empty)
		if time.Since(told) > 15*time.Second {
			told = time.Now()
			fmt.Fprintf(progress, "  %d of %d preempted, %d empty\n", len(sent), len(preemptions), empty)
		}
		time.Sleep(100 * time.Millisecond)
	}
	empty := seen.Emptied()
	for i, node := range s.Nodes {
		if at, ok := empty[node]; ok {
			all.Emptied = append(all.Emptied, at.Sub(sent[i]))
		}
	}
	return all
}
