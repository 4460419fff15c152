package drain

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Gate bounds how many requests of a kind, for all nodes that share it, wait for an answer at once: evictions and deletions of pods at one
// gate, reads and writes of Nodes at another. An API server that is asked thousands of things in one moment answers most of them too late,
// and is asked again. What is urgent has places of its own, so that it never waits behind what is not: a pod whose turn before a deadline
// has come, a node that is gone in minutes. Of the others and of these, what is first, such as a pod whose volumes have to be attached
// elsewhere, takes a place before what has come earlier. The nil Gate is always open.
type Gate struct {
	mu             sync.Mutex
	polite, urgent lane
	in             int           // how many have a place or wait for one
	quiet          chan struct{} // closed while there are none
}

// lane is a number of places, and who waits for one: those that come first, and the others.
type lane struct {
	free        int
	first, rest []chan struct{}
}

// NewGate returns a gate that lets so many through at once, and as many that are urgent.
func NewGate(places int) *Gate {
	quiet := make(chan struct{})
	close(quiet)
	return &Gate{polite: lane{free: places}, urgent: lane{free: places}, quiet: quiet}
}

// Quiet returns a channel that is closed once nobody asks for evictions or deletions, or waits to do so.
func (g *Gate) Quiet() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.quiet
}

// longestPass is how long a request is counted that has entered. What takes longer does so for a reason of its own, such as a webhook that
// does not answer, and is not to hold up all nodes.
const longestPass = 2 * time.Second

// Enter waits for a place for a request, and returns how to leave it, which must be called. The time that the request may take begins
// only then. The error is ctx's.
func (g *Gate) Enter(ctx context.Context, urgent, first bool) (leave func(), err error) {
	left, err := g.line(urgent, first)(ctx)
	if err != nil {
		return nil, err
	}
	once := sync.OnceFunc(left)
	limit := time.AfterFunc(longestPass, once)
	return func() {
		limit.Stop()
		once()
	}, nil
}

// line takes a place, or one in the line for it. It returns what waits for the turn, which must be called, and returns how to leave
// the place again. The error is ctx's.
func (g *Gate) line(urgent, first bool) func(ctx context.Context) (leave func(), err error) {
	if g == nil {
		return func(context.Context) (func(), error) { return func() {}, nil }
	}
	l := &g.polite
	if urgent {
		l = &g.urgent
	}
	turn := make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.in++; g.in == 1 {
		g.quiet = make(chan struct{})
	}
	switch {
	case l.free > 0:
		l.free--
		close(turn)
	case first:
		l.first = append(l.first, turn)
	default:
		l.rest = append(l.rest, turn)
	}
	return func(ctx context.Context) (func(), error) {
		select {
		case <-turn:
			return func() { g.leave(l, turn) }, nil
		case <-ctx.Done():
			g.leave(l, turn)
			return nil, ctx.Err()
		}
	}
}

// leave gives up a place to whoever is next, or one in the line.
func (g *Gate) leave(l *lane, turn chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.in--; g.in == 0 {
		close(g.quiet)
	}
	for _, waiting := range []*[]chan struct{}{&l.first, &l.rest} {
		if i := slices.Index(*waiting, turn); i >= 0 {
			*waiting = slices.Delete(*waiting, i, i+1)
			return
		}
	}
	for _, waiting := range []*[]chan struct{}{&l.first, &l.rest} {
		if len(*waiting) > 0 {
			close((*waiting)[0])
			*waiting = (*waiting)[1:]
			return
		}
	}
	l.free++
}
