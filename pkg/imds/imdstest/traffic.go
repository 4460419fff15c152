package imdstest

import (
	"context"
	"fmt"
	"maps"
	"sync"
)

// Counts is the traffic that a Simulator has seen since it was made.
type Counts struct {
	// Total counts all requests, token requests too, from their beginning.
	Total int `json:"total"`
	// Tokens counts the requests for a token.
	Tokens int `json:"tokens"`
	// ByPath counts the requests by the path as it was asked for, such as /latest/meta-data/spot/instance-action.
	ByPath map[string]int `json:"byPath"`
	// ByStatus counts the answers by HTTP status. Requests that a fault left without an answer are not in it.
	ByStatus map[int]int `json:"byStatus"`
	// InFlight is the number of requests being answered, and MostInFlight the largest it ever was.
	InFlight     int `json:"inFlight"`
	MostInFlight int `json:"mostInFlight"`
}

// Requests returns the counts up to now.
func (s *Simulator) Requests() Counts {
	counts, _ := s.traffic.read()
	return counts
}

// Await returns once the counts are as reached wants them, or with an error when ctx ends before that.
func (s *Simulator) Await(ctx context.Context, reached func(Counts) bool) error {
	for {
		counts, changed := s.traffic.read()
		if reached(counts) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("awaiting requests, %d so far: %w", counts.Total, ctx.Err())
		}
	}
}

type traffic struct {
	mu      sync.Mutex
	counts  Counts
	changed chan struct{}
}

func (t *traffic) begin(path string, token bool) {
	t.update(func(c *Counts) {
		c.Total++
		c.ByPath[path]++
		if token {
			c.Tokens++
		}
		c.InFlight++
		c.MostInFlight = max(c.MostInFlight, c.InFlight)
	})
}

// answered is called before the answer is written, so that whoever has read an answer finds it counted.
func (t *traffic) answered(status int) { t.update(func(c *Counts) { c.ByStatus[status]++ }) }

func (t *traffic) end() { t.update(func(c *Counts) { c.InFlight-- }) }

func (t *traffic) update(change func(*Counts)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ready()
	change(&t.counts)
	close(t.changed)
	t.changed = make(chan struct{})
}

// read returns the counts and a channel that is closed when they change.
func (t *traffic) read() (Counts, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ready()
	counts := t.counts
	counts.ByPath, counts.ByStatus = maps.Clone(counts.ByPath), maps.Clone(counts.ByStatus)
	return counts, t.changed
}

func (t *traffic) ready() {
	if t.changed == nil {
		t.changed = make(chan struct{})
		t.counts.ByPath, t.counts.ByStatus = map[string]int{}, map[int]int{}
	}
}
