// Package loop is one goroutine that owns some state, and workers that may block. A worker never touches the state: it returns what is to
// be done with its result, and the loop does that.
package loop

import (
	"context"
	"sync"
	"time"
)

// Loop is one such goroutine. Its state may be read with Mutex held, from any goroutine; only the loop changes it.
type Loop struct {
	sync.Mutex
	ctx     context.Context // Run's
	posts   chan func()
	woken   chan struct{}
	workers sync.WaitGroup
}

// New returns a loop that does nothing before it is run.
func New() *Loop { return &Loop{posts: make(chan func()), woken: make(chan struct{}, 1)} }

// Run calls turn at once, after each Wake, for each post, and when the time comes that turn has returned, zero for never; post is nil then.
// With the mutex released, it then calls after. It returns when ctx and all workers have ended.
func (l *Loop) Run(ctx context.Context, turn func(post func(), timed bool) (wake time.Time, after func())) {
	ctx, stop := context.WithCancel(ctx)
	defer l.workers.Wait()
	defer stop()
	l.ctx = ctx
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var post func()
		timed := false
		select {
		case <-ctx.Done():
			return
		case <-l.woken:
		case post = <-l.posts:
		case <-timer.C:
			timed = true
		}
		l.Lock()
		wake, after := turn(post, timed)
		l.Unlock()
		after()
		timer.Stop()
		if !wake.IsZero() {
			timer.Reset(max(time.Until(wake), 0))
		}
	}
}

// Wake has Run call turn. It does not block, and may be called before Run.
func (l *Loop) Wake() { Nudge(l.woken) }

// Nudge wakes the receiver of a channel with a buffer of one.
func Nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Context ends with the loop.
func (l *Loop) Context() context.Context { return l.ctx }

// Post has turn called with a function, and waits until the loop has taken it or ends.
func (l *Loop) Post(do func()) {
	select {
	case l.posts <- do:
	case <-l.ctx.Done():
	}
}

// Go runs work apart from the loop. ctx ends with the loop. What work returns is posted, unless that is nil.
func (l *Loop) Go(work func(ctx context.Context) (then func())) { go l.Worker()(work) }

// Worker returns a function that runs work as Go does, but later, and in the caller's goroutine. It must be called once: the loop waits
// for it.
func (l *Loop) Worker() (run func(work func(ctx context.Context) (then func()))) {
	l.workers.Add(1)
	return func(work func(ctx context.Context) (then func())) {
		defer l.workers.Done()
		if then := work(l.ctx); then != nil {
			l.Post(then)
		}
	}
}

// Soonest returns the earlier of two times to be woken at, where zero is never.
func Soonest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
