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
	looks          *time.Timer // at the urgency of those that wait; nil while nobody has to look
}

// lane is a number of places, with the two lines for them.
type lane struct {
	free        int
	first, rest []*ticket
}

// ticket is a request that waits for a place.
type ticket struct {
	urgent func() bool // nil if its urgency does not change
	first  Precedence
	turn   func(leave func(), err error)
	forget func() bool // ends the watch for the end of its context
}

// NewGate returns a gate with so many places, and as many more for urgent requests.
func NewGate(places int) *Gate {
	return &Gate{normal: lane{free: places}, urgent: lane{free: places}}
}

// longestPass is how long a request may keep its place. If it takes longer, the reason is its own, such as a webhook that does not answer,
// and must not hold up all nodes.
const longestPass = 2 * time.Second

// urgentLook is how often requests that wait for a place are checked for whether they have become urgent.
const urgentLook = time.Second

// Precedence is where a request joins the line for a place.
type Precedence bool

// The precedences. A request that is First passes those that are InTurn.
const (
	InTurn Precedence = false
	First  Precedence = true
)

// Enter waits for a place, and returns a function that must be called to leave it. The request's own timeout should begin only then. urgent,
// if not nil, reports whether the request is urgent, and is called again while it waits; it must not block. The error
// is ctx's.
func (g *Gate) Enter(ctx context.Context, urgent func() bool, first Precedence) (leave func(), err error) {
	decided := make(chan struct{})
	g.Line(ctx, urgent, first, func(l func(), e error) {
		leave, err = l, e
		close(decided)
	})
	<-decided
	return leave, err
}

// Line is Enter for those who do not wait: it joins the line, and turn is called once with what Enter returns. turn must not block. A
// thousand requests in line need no goroutine.
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

// join puts a ticket into a line. The mutex is held.
func (g *Gate) join(l *lane, t *ticket) {
	if t.first {
		l.first = append(l.first, t)
	} else {
		l.rest = append(l.rest, t)
	}
	if t.urgent != nil && g.looks == nil {
		g.looks = time.AfterFunc(urgentLook, g.look)
	}
}

// remove takes a ticket out of a lane's lines, and reports whether it was in one.
func (l *lane) remove(t *ticket) bool {
	for _, line := range []*[]*ticket{&l.first, &l.rest} {
		if i := slices.Index(*line, t); i >= 0 {
			*line = slices.Delete(*line, i, i+1)
			return true
		}
	}
	return false
}

// look moves the tickets that have become urgent to the urgent lane. While others may still become urgent, it runs again after urgentLook.
func (g *Gate) look() {
	g.mu.Lock()
	var granted []*ticket
	more := false
	for _, t := range slices.Concat(g.normal.first, g.normal.rest) {
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

// leave gives a place to the next one in line.
func (g *Gate) leave(l *lane) {
	g.mu.Lock()
	var next *ticket
	for _, line := range []*[]*ticket{&l.first, &l.rest} {
		if len(*line) > 0 {
			next, (*line)[0] = (*line)[0], nil
			*line = (*line)[1:]
			break
		}
	}
	if next == nil {
		l.free++
	}
	g.mu.Unlock()
	if next != nil {
		g.grant(l, next)
	}
}
