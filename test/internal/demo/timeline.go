package demo

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// lag is how long a fact waits for others that happened before it: the witnesses report within milliseconds, but not
// in the same ones. A pod that is evicted and gone within that time gets one line.
const lag = 250 * time.Millisecond

// A timeline takes facts from several goroutines, in any order, and gives them back in the order in which they happened.
type timeline struct {
	mu      sync.Mutex
	pending []fact
	gone    map[string]bool // pods, those of pending facts too
}

func newTimeline() *timeline { return &timeline{gone: map[string]bool{}} }

func (t *timeline) add(f fact) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = append(t.pending, f)
	if f.kind == gone {
		t.gone[f.pod] = true
	}
}

// until takes out the facts that happened before that time, the first one first.
func (t *timeline) until(end time.Time) []fact {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(t.pending, func(a, b fact) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.kind, b.kind)) })
	n, _ := slices.BinarySearchFunc(t.pending, end, func(f fact, end time.Time) int { return f.at.Compare(end) })
	ripe := slices.Clone(t.pending[:n])
	t.pending = slices.Delete(t.pending, 0, n)
	return ripe
}

// allGone tells whether it is known of all these pods that they are gone.
func (t *timeline) allGone(pods []string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !slices.ContainsFunc(pods, func(pod string) bool { return !t.gone[pod] })
}
