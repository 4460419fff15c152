package main

import (
	"context"
	"time"
)

const (
	// writers is how many requests that tell the cluster something are made at the same time, for all nodes together: the
	// drains need the API server more.
	writers = 4
	// yielding is how long an Event waits for evictions to be over. It is as true afterwards, and has its time in it.
	yielding = 10 * time.Second
)

// turns lets those who tell the cluster something ask the API server, a few at a time, and Events only while nobody asks
// for evictions: in a storm, Events would be half of all that is written.
type turns struct {
	places chan struct{}
	// quiet returns a channel that is closed once nobody asks for evictions.
	quiet func() <-chan struct{}
}

func newTurns(quiet func() <-chan struct{}) *turns {
	return &turns{places: make(chan struct{}, writers), quiet: quiet}
}

// take waits for a turn; it implements notify.KubernetesOptions.Turn.
func (t *turns) take(ctx context.Context, hurried bool) (end func(), err error) {
	late := make(chan struct{})
	timer := time.AfterFunc(yielding, func() { close(late) })
	defer timer.Stop()
	for {
		if !hurried {
			if err := either(ctx, t.quiet(), late); err != nil {
				return nil, err
			}
		}
		select {
		case t.places <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if hurried || isClosed(t.quiet()) || isClosed(late) {
			return func() { <-t.places }, nil
		}
		<-t.places // Evictions have begun meanwhile.
	}
}

// either waits until one of the channels is closed. The error is ctx's.
func either(ctx context.Context, a, b <-chan struct{}) error {
	select {
	case <-a:
	case <-b:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
