package kube

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Gate bounds how many requests nth-queue has in flight at once for all nodes. It has a gate for evictions and deletions of pods, and another
// for reads and writes of Nodes. Without a bound, an API server that gets thousands of requests in one moment answers most of them too late,
// and gets them again.
//
// Urgent requests have places of their own, and never wait behind others. A request is urgent for a pod whose turn before a deadline has
// come, or for a node that is gone in minutes. In both lanes, some requests take a place before those that came earlier: for example those
// for a pod with volumes, which have to be attached elsewhere. The nil Gate is always open.
type Gate struct {
	mu             sync.Mutex
	normal, urgent lane
	looks          *time.Timer // calls look; nil if no ticket may become urgent
}

// lane is a number of places, and the requests that wait for one.
type lane struct {
	free    int       // places
	waiting []*ticket // the next one first
}

// ticket is a request that waits for a place.
type ticket struct {
	urgent func() bool // nil if its urgency does not change
	first  Precedence
	turn   func(leave func(), err error) // is called with a place, or with the error of its context
	forget func() bool                   // after it, the end of its context does not matter
}

// NewGate returns a gate with so many places, and as many more for urgent requests.
func NewGate(places int) *Gate {
	return &Gate{normal: lane{free: places}, urgent: lane{free: places}}
}

// longestPass is how long a request may keep its place. A request that takes longer, for example because of a slow admission webhook, must
// not hold up all nodes.
const longestPass = 2 * time.Second

// urgentLook is how often the gate checks whether requests that wait have become urgent.
const urgentLook = time.Second

// Precedence is where a request joins the line for a place.
type Precedence bool

// The precedences. A request that is First passes those that are InTurn.
const (
	InTurn Precedence = false
	First  Precedence = true
)

// Enter waits for a place, and returns a function that the caller must call to leave the place. The request's own timeout should begin only
// when Enter returns. urgent, if not nil, reports whether the request is urgent. It is called again while the request waits, and must not
// block. The error is ctx's.
func (g *Gate) Enter(ctx context.Context, urgent func() bool, first Precedence) (leave func(), err error) {
	decided := make(chan struct{})
	g.Line(ctx, urgent, first, func(l func(), e error) {
		leave, err = l, e
		close(decided)
	})
	<-decided
	return leave, err
}

// Line is Enter without waiting: it returns at once, and later calls turn, once, with what Enter returns. turn must not block. So a thousand
// requests in line need no goroutines.
func (g *Gate) Line(ctx context.Context, urgent func() bool, first Precedence, turn func(leave func(), err error)) {
	if g == nil {
		turn(func() {}, nil)
		return
	}
	t := &ticket{urgent: urgent, first: first, turn: turn}
	l := &g.normal
	if urgent != nil && urgent() {
		l, t.urgent = &g.urgent, nil
	}
	g.mu.Lock()
	if l.free > 0 {
		l.free--
		g.mu.Unlock()
		turn(g.pass(l), nil)
		return
	}
	g.join(l, t)
	t.forget = context.AfterFunc(ctx, func() { g.giveUp(t, ctx.Err()) })
	g.mu.Unlock()
}

// join puts a ticket into the line of a lane: a First one behind the others that are First, and an InTurn one at the end. The mutex is held.
func (g *Gate) join(l *lane, t *ticket) {
	at := slices.IndexFunc(l.waiting, func(other *ticket) bool { return other.first == InTurn })
	if t.first == InTurn || at < 0 {
		at = len(l.waiting)
	}
	l.waiting = slices.Insert(l.waiting, at, t)
	if t.urgent != nil && g.looks == nil {
		g.looks = time.AfterFunc(urgentLook, g.look)
	}
}

// remove takes a ticket out of a lane's line, and reports whether it was in it.
func (l *lane) remove(t *ticket) bool {
	i := slices.Index(l.waiting, t)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	return i >= 0
}

// look moves the tickets that have become urgent to the urgent lane. It runs every urgentLook while waiting tickets may become urgent.
func (g *Gate) look() {
	g.mu.Lock()
	var granted []*ticket
	more := false
	for _, t := range slices.Clone(g.normal.waiting) {
		switch {
		case t.urgent == nil: // Its urgency does not change.
		case !t.urgent():
			more = true
		default:
			g.normal.remove(t)
			t.urgent = nil
			if g.urgent.free == 0 {
				g.join(&g.urgent, t)
				continue
			}
			g.urgent.free--
			granted = append(granted, t)
		}
	}
	if g.looks = nil; more {
		g.looks = time.AfterFunc(urgentLook, g.look)
	}
	g.mu.Unlock()
	for _, t := range granted {
		g.grant(&g.urgent, t)
	}
}

// giveUp takes a ticket out of its line when its context has ended, and calls its turn with the error why. If it has a place already, it does
// nothing.
func (g *Gate) giveUp(t *ticket, why error) {
	g.mu.Lock()
	waits := g.normal.remove(t) || g.urgent.remove(t)
	g.mu.Unlock()
	if waits {
		t.turn(nil, why)
	}
}

// grant calls the turn of a ticket that has left its line. The caller has taken a place for it.
func (g *Gate) grant(l *lane, t *ticket) {
	t.forget()
	t.turn(g.pass(l), nil)
}

// pass returns the function that gives a place in a lane back. After longestPass, the place is given back in any case.
func (g *Gate) pass(l *lane) (leave func()) {
	once := sync.OnceFunc(func() { g.leave(l) })
	limit := time.AfterFunc(longestPass, once)
	return func() {
		limit.Stop()
		once()
	}
}

// leave gives a place in a lane to the next ticket in line. If none waits, the place is free.
func (g *Gate) leave(l *lane) {
	g.mu.Lock()
	var next *ticket
	if len(l.waiting) > 0 {
		next, l.waiting[0] = l.waiting[0], nil // The array must not keep the ticket alive.
		l.waiting = l.waiting[1:]
	} else {
		l.free++
	}
	g.mu.Unlock()
	if next != nil {
		g.grant(l, next)
	}
}
