package main

import "context"

// Turns are turns.
type Turns struct{ turns *turns }

// NewTurns returns turns beside evictions, which quiet tells of.
func NewTurns(quiet func() <-chan struct{}) Turns { return Turns{newTurns(quiet)} }

// Take waits for a turn.
func (t Turns) Take(ctx context.Context, hurried bool) (end func(), err error) {
	return t.turns.take(ctx, hurried)
}
