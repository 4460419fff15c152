package drain

import (
	"context"
	"sync"
)

// Gate bounds how many evictions and deletions, of the pods of all nodes that share it, wait for an answer at once. An
// API server that is asked thousands of things in one moment answers most of them too late, and is asked again. The nil
// Gate is always open.
type Gate struct {
	places chan struct{}

	mu    sync.Mutex
	in    int           // how many have a place or wait for one
	quiet chan struct{} // closed while there are none
}

// NewGate returns a gate that lets so many through at once.
func NewGate(places int) *Gate {
	quiet := make(chan struct{})
	close(quiet)
	return &Gate{places: make(chan struct{}, places), quiet: quiet}
}

// Quiet returns a channel that is closed once nobody asks for evictions or deletions, or waits to do so.
func (g *Gate) Quiet() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.quiet
}

// enter waits for a place. The error is ctx's.
func (g *Gate) enter(ctx context.Context) error {
	if g == nil {
		return nil
	}
	g.count(1)
	select {
	case g.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		g.count(-1)
		return ctx.Err()
	}
}

func (g *Gate) leave() {
	if g != nil {
		<-g.places
		g.count(-1)
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
