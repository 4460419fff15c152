package kube

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Gate bounds how many requests are in flight at once, for all nodes that share it: evictions and deletions of pods at one gate, reads and
// writes of Nodes at another. An API server that gets thousands of requests in one moment answers most of them too late, and gets them
// again. Urgent requests have places of their own and never wait behind others: those for a pod whose turn before a deadline has come, or
// for a node that is gone in minutes. Among the urgent ones and among the others, those that are first, such as for a pod with volumes to
// attach elsewhere, take a place before those that came earlier. The nil Gate is always open.
type Gate struct {
	mu             sync.Mutex
	normal, urgent lane
	entered        int           // how many requests have a place or wait for one
	quiet          chan struct{} // closed while there are none
}

// lane is a number of places, with the two lines for them.
type lane struct {
	free        int
	first, rest []chan struct{}
}

// NewGate returns a gate with so many places, and as many more for urgent requests.
func NewGate(places int) *Gate {
	quiet := make(chan struct{})
	close(quiet)
	return &Gate{normal: lane{free: places}, urgent: lane{free: places}, quiet: quiet}
}

// Quiet returns a channel that is closed once no request has a place or waits for one.
func (g *Gate) Quiet() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.quiet
}

// longestPass is how long a request may keep its place. If it takes longer, the reason is its own, such as a webhook that does not answer,
// and must not hold up all nodes.
const longestPass = 2 * time.Second

// urgentLook is how often a request that waits for a place checks whether it has become urgent.
const urgentLook = time.Second

// Enter waits for a place, and returns a function that must be called to leave it. The request's own timeout should begin only then. urgent,
// if not nil, tells whether the request is urgent, and is called again while it waits. The error is ctx's.
func (g *Gate) Enter(ctx context.Context, urgent func() bool, first bool) (leave func(), err error) {
	return g.Line(urgent, first)(ctx)
}

// Line is Enter in two steps: it joins the line at once, and returns the function that waits, which must be called.
func (g *Gate) Line(urgent func() bool, first bool) func(ctx context.Context) (leave func(), err error) {
	if g == nil {
		return func(context.Context) (func(), error) { return func() {}, nil }
	}
	l := &g.normal
	if urgent != nil && urgent() {
		l = &g.urgent
	}
	turn := g.join(l, first)
	return func(ctx context.Context) (func(), error) {
		var looks <-chan time.Time
		if l == &g.normal && urgent != nil {
			ticks := time.NewTicker(urgentLook)
			defer ticks.Stop()
			looks = ticks.C
		}
		for {
			select {
			case <-turn:
				return g.pass(l, turn), nil
			case <-ctx.Done():
				g.leave(l, turn)
				return nil, ctx.Err()
			case <-looks:
				if urgent() {
					before := turn
					l, turn, looks = &g.urgent, g.join(&g.urgent, first), nil
					g.leave(&g.normal, before)
				}
			}
		}
	}
}

// pass returns the function that leaves a place. After longestPass, the place is left in any case.
func (g *Gate) pass(l *lane, turn chan struct{}) (leave func()) {
	once := sync.OnceFunc(func() { g.leave(l, turn) })
	limit := time.AfterFunc(longestPass, once)
	return func() {
		limit.Stop()
		once()
	}
}

// join takes a place or joins the line for one. The channel is closed once the place is taken.
func (g *Gate) join(l *lane, first bool) (turn chan struct{}) {
	turn = make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.entered++; g.entered == 1 {
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
	return turn
}

// leave leaves the line, or gives the place to the next one in line.
func (g *Gate) leave(l *lane, turn chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.entered--; g.entered == 0 {
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
