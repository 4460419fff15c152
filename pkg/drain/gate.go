package drain

import (
	"context"
	"sync"
)

// Gate bounds how many evictions and deletions, of the pods of all nodes that share it, wait for an answer at once. An
// API server that is asked thousands of things in one moment answers most of them too late, and is asked again. What is urgent,
// since its turn before a deadline has come, has places of its own, so that it never waits behind what is not. The nil Gate is
// always open.
type Gate struct {
	polite, urgent chan struct{}

	mu    sync.Mutex
	in    int           // how many have a place or wait for one
	quiet chan struct{} // closed while there are none
}

// NewGate returns a gate that lets so many through at once, and as many that are urgent.
func NewGate(places int) *Gate {
	quiet := make(chan struct{})
	close(quiet)
	return &Gate{polite: make(chan struct{}, places), urgent: make(chan struct{}, places), quiet: quiet}
}

// Quiet returns a channel that is closed once nobody asks for evictions or deletions, or waits to do so.
func (g *Gate) Quiet() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.quiet
}

// enter waits for a place, and returns how to leave it. The error is ctx's.
func (g *Gate) enter(ctx context.Context, urgent bool) (leave func(), err error) {
	if g == nil {
		return func() {}, nil
	}
	places := g.polite
	if urgent {
		places = g.urgent
	}
	g.count(1)
	select {
	case places <- struct{}{}:
		return func() { <-places; g.count(-1) }, nil
	case <-ctx.Done():
		g.count(-1)
		return nil, ctx.Err()
	}
}

func (g *Gate) count(more int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.in += more
	switch {
	case g.in == 0:
		close(g.quiet)
	case g.in == 1 && more > 0:
		g.quiet = make(chan struct{})
	}
}
