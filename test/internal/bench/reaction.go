package bench

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

// quickUndo lets nth uncordon as soon as a notice is withdrawn, so that one node can be doomed many times. What leads
// to the cordon is not touched by it.
const quickUndo = "[imds]\nwithdrawn_after = \"0s\"\n"

// reacting measures the time from the moment at which a spot notice can be read to the node's being unschedulable, at
// random moments between two polls, for each edition in turns.
func (b *bench) reacting(t lab.TB) []row {
	var watchers []*watcher
	for _, e := range b.editions {
		watchers = append(watchers, b.watcher(t, e))
	}
	took := make([]sample, len(watchers))
	for i := range events {
		for number, w := range watchers {
			took[number] = append(took[number], w.react(t, i))
		}
	}
	for _, w := range watchers {
		w.stop()
		w.nth.Stop(t)
	}
	return append([]row{
		{"notice in IMDS → node unschedulable, median", took[0].median(), 0.35, "s", 3},
		{fmt.Sprintf("    longest of %d", events), took[0].worst(), 0.7, "s", 3},
	}, b.against(took)...)
}

// A watcher is an nth that waits for notices, on a node that is watched.
type watcher struct {
	host
	nth      *daemon.Daemon
	cordoned chan time.Time
	stop     func()
}

func (b *bench) watcher(t lab.TB, e edition) *watcher {
	t.Helper()
	w := &watcher{host: b.host(t, e, quickUndo)}
	w.cordoned, w.stop = cordons(t, w.node)
	w.nth = w.start(t)
	return w
}

// cordons reports each cordon of a node, until stop is called.
func cordons(t lab.TB, node *lab.Node) (cordoned chan time.Time, stop func()) {
	t.Helper()
	cordoned = make(chan time.Time, 1)
	return cordoned, node.Observe(t, func(m lab.Moment) {
		if m.What == lab.Cordoned {
			cordoned <- m.At
		}
	})
}

// react returns how long the cordon took, for the notice with that number.
func (w *watcher) react(t lab.TB, number int) time.Duration {
	t.Helper()
	time.Sleep(rand.N(500 * time.Millisecond)) // any moment between two polls is as likely as another
	began := time.Now()
	w.imds.SetSpot("terminate", began.Add(2*time.Minute+time.Duration(number)*time.Second))
	took := receive(t, w.cordoned).Sub(began)
	w.imds.ClearSpot()
	w.node.WaitUncordoned(t)
	return took
}

// patience is how long something may take that must come: 1,000 pods on a busy machine take more than a minute.
const patience = 5 * time.Minute

// receive waits for a moment that must come.
func receive(t lab.TB, from <-chan time.Time) time.Time {
	t.Helper()
	select {
	case at := <-from:
		return at
	case <-time.After(patience):
		t.Fatalf("waiting for a node to be drained: it is not")
	case <-t.Context().Done():
		t.Fatalf("waiting for a node to be drained: %v", t.Context().Err())
	}
	return time.Time{}
}
