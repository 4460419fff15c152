package kube

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Gate bounds how many requests are in flight at once. nth-queue has one for evictions and deletions of pods on all nodes, and another for
// reads and writes of Nodes. Without a bound, an API server that gets thousands of requests in one moment answers most of them too late,
// and gets them again. The nil Gate is always open.
type Gate struct {
	mu      sync.Mutex
	free    int // places that no request has; 0 while any waits, as leave passes a place on
	waiting [Last + 1][]*ticket
}

// Precedence is which requests get a place before others.
type Precedence int

// The precedences. A request that is Urgent passes all others, one that is First those that are InTurn, and those all that are Last.
const (
	// Urgent is for a pod whose turn before a deadline has come, and for a node that is gone in minutes.
	Urgent Precedence = iota
	// First is for a cordon.
	First
	InTurn
	// Last is for a report of what is done.
	Last
)

// ticket is a request that waits for a place.
type ticket struct {
	turn   func(leave func(), err error) // is called with a place, or with the error of the request's context
	detach func() bool                   // stops watching the request's context
}

// NewGate returns a gate with so many places.
func NewGate(places int) *Gate { return &Gate{free: places} }

// longestPass is how long a request may keep its place. A request that takes longer, for example because of a slow admission webhook, must
// not hold up all nodes.
const longestPass = 2 * time.Second

// Enter waits for a place. The caller makes its request, and then must call leave to give the place back. The request's own timeout should
// begin only when Enter returns. If ctx ends first, Enter returns the error of ctx, and no leave.
func (g *Gate) Enter(ctx context.Context, precedence Precedence) (leave func(), err error) {
	decided := make(chan struct{})
	g.Enqueue(ctx, precedence, func(l func(), e error) {
		leave, err = l, e
		close(decided)
	})
	<-decided
	return leave, err
}

// Enqueue puts a request into its queue, and returns without waiting. turn is called once, with what Enter would return, maybe before Enqueue
// returns. turn must not block. So a thousand requests that wait need no goroutines.
func (g *Gate) Enqueue(ctx context.Context, precedence Precedence, turn func(leave func(), err error)) {
	if g == nil { // always open
		turn(func() {}, nil)
		return
	}
	g.mu.Lock()
	if g.free == 0 {
		t := &ticket{turn: turn}
		g.waiting[precedence] = append(g.waiting[precedence], t)
		t.detach = context.AfterFunc(ctx, func() { g.giveUp(precedence, t, ctx.Err()) })
		g.mu.Unlock()
		return
	}
	g.free--
	g.mu.Unlock()
	turn(g.pass(), nil)
}

// giveUp takes a ticket out of its line, since the request's context has ended. It does nothing if the ticket has got a place meanwhile.
func (g *Gate) giveUp(precedence Precedence, t *ticket, why error) {
	g.mu.Lock()
	i := slices.Index(g.waiting[precedence], t) // -1 if it has a place
	if i >= 0 {
		g.waiting[precedence] = slices.Delete(g.waiting[precedence], i, i+1)
	}
	g.mu.Unlock()
	if i >= 0 {
		t.turn(nil, why)
	}
}

// pass returns the function with which a request gives its place back. After longestPass, the place is given back in any case.
func (g *Gate) pass() (leave func()) {
	once := sync.OnceFunc(g.leave)
	limit := time.AfterFunc(longestPass, once)
	return func() {
		limit.Stop()
		once()
	}
}

// leave passes one place on to the next ticket, by precedence. If no ticket waits, the place is free.
func (g *Gate) leave() {
	g.mu.Lock()
	for i, line := range g.waiting {
		if len(line) > 0 {
			next := line[0]
			line[0], g.waiting[i] = nil, line[1:] // The array must not keep the ticket alive.
			g.mu.Unlock()
			next.detach()
			next.turn(g.pass(), nil)
			return
		}
	}
	g.free++
	g.mu.Unlock()
}
