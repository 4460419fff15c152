package drain

import "context"

// Gate bounds how many evictions and deletions, of the pods of all nodes that share it, wait for an answer at once. An
// API server that is asked thousands of things in one moment answers most of them too late, and is asked again. The nil
// Gate is always open.
type Gate struct{ places chan struct{} }

// NewGate returns a gate that lets so many through at once.
func NewGate(places int) *Gate { return &Gate{make(chan struct{}, places)} }

// enter waits for a place. The error is ctx's.
func (g *Gate) enter(ctx context.Context) error {
	if g == nil {
		return nil
	}
	select {
	case g.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *Gate) leave() {
	if g != nil {
		<-g.places
	}
}
