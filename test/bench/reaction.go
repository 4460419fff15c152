package bench

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nth-project/nth/test/lab"
)

// quickUndo lets nth uncordon as soon as a notice is withdrawn, so that one node can be doomed many times. What leads
// to the cordon is not touched by it.
const quickUndo = "[events.spot-interruption]\nwithdrawn_after = \"0s\"\n"

// reacting measures the time from the moment at which a spot notice can be read to the node's being unschedulable, at
// random moments between two polls.
func (b *bench) reacting(t lab.TB) []row {
	h := b.host(t, quickUndo)
	cordoned := make(chan time.Time, 1)
	stop := h.node.Observe(t, func(m lab.Moment) {
		if m.What == lab.Cordoned {
			cordoned <- m.At
		}
	})
	defer stop()
	nth := h.start(t)
	var took sample
	for i := range events {
		time.Sleep(rand.N(500 * time.Millisecond)) // any moment between two polls is as likely as another
		began := time.Now()
		h.imds.SetSpot("terminate", began.Add(2*time.Minute+time.Duration(i)*time.Second))
		took = append(took, receive(t, cordoned).Sub(began))
		h.imds.ClearSpot()
		h.node.WaitUncordoned(t)
	}
	nth.Stop(t)
	return []row{
		{"notice in IMDS → node unschedulable, median", took.median(), 0.35, "s", 3},
		{fmt.Sprintf("    longest of %d", events), took.worst(), 0.7, "s", 3},
	}
}

// receive waits for a moment that must come.
func receive(t lab.TB, from <-chan time.Time) time.Time {
	t.Helper()
	select {
	case at := <-from:
		return at
	case <-time.After(time.Minute):
		t.Fatalf("waiting for a node to be drained: it is not")
	case <-t.Context().Done():
		t.Fatalf("waiting for a node to be drained: %v", t.Context().Err())
	}
	return time.Time{}
}
