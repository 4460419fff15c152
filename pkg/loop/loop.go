// Package loop lets one goroutine own some state, while other goroutines, its workers, do the work that may block.
//
// The loop's goroutine changes the state. A worker returns a function that changes the state, and the loop calls that function. What a worker itself
// has to change, it changes with the mutex held. Start with Loop.Run.
package loop

import (
	"context"
	"sync"
	"time"
)

// Loop is the goroutine that calls Run, with its workers. The goroutine's owner keeps the state. Any goroutine may read the state with Mutex
// held. The functions that Run calls may change the state.
type Loop struct {
	sync.Mutex
	ctx     context.Context // set by Run, and ended when Run returns
	posts   chan func()     // functions from Post, for the next turn
	woken   <-chan struct{} // the channel that New was given
	workers sync.WaitGroup  // the workers that Go and Worker have started
}

// New returns a loop that does nothing before Run is called. Whenever woken receives, the loop has a turn. The owner sends with Nudge.
func New(woken <-chan struct{}) *Loop { return &Loop{posts: make(chan func()), woken: woken} }

// Run calls turn with the mutex held: at once, whenever woken receives, for each function of Post, and at the time that turn has asked for.
//
// Each turn gets post: a function of Post, which turn must call; nil if turn was called for another reason. It returns wake and after. wake is when
// Run calls turn again at the latest; zero is never. Run calls after without the mutex; after must not be nil. Run returns once ctx and all workers
// have ended.
func (l *Loop) Run(ctx context.Context, turn func(post func()) (wake time.Time, after func())) {
	ctx, stop := context.WithCancel(ctx)
	defer l.workers.Wait()
	defer stop() // runs before Wait: the workers must see that the context has ended
	l.ctx = ctx
	timer := time.NewTimer(0) // for the first turn
	defer timer.Stop()
	for {
		var post func()
		select {
		case <-ctx.Done():
			return
		case <-l.woken:
		case post = <-l.posts:
		case <-timer.C:
		}
		l.Lock()
		wake, after := turn(post)
		l.Unlock()
		after()
		timer.Stop() // The wake time of an earlier turn no longer counts.
		if !wake.IsZero() {
			timer.Reset(max(time.Until(wake), 0))
		}
	}
}

// Nudge wakes the receiver of a channel with a buffer of one. It does not block.
func Nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // An earlier nudge is still in the buffer. Or c is nil, as nobody waits for nudges.
	}
}

// Forever is longer than any node exists.
const Forever = 365 * 24 * time.Hour

// Await waits until d has passed, wake receives or is closed, or ctx ends, whichever is first. It returns false if ctx has ended. A nil wake
// never ends the wait.
func Await(ctx context.Context, wake <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// Context returns the context of the loop, which ends when Run returns; nil before Run.
func (l *Loop) Context() context.Context { return l.ctx }

// Post hands do to Run, which passes it to the next turn. Post waits until Run has taken do, not until do was called. If the loop ends first,
// do is dropped. Any goroutine but the loop's own may call Post, after Run has begun.
func (l *Loop) Post(do func()) {
	select {
	case l.posts <- do:
	case <-l.ctx.Done():
	}
}

// Go runs work as a worker, in a new goroutine. ctx ends with the loop. work returns a function that changes the state, and Go posts that
// function to the loop. If nothing is to be changed, work returns nil.
func (l *Loop) Go(work func(ctx context.Context) (then func())) { go l.Worker()(work) }

// Worker registers a worker, and returns run, which does what Go does but in the goroutine of its caller. The caller must call run exactly
// once: before that, Run does not return.
func (l *Loop) Worker() (run func(work func(ctx context.Context) (then func()))) {
	l.workers.Add(1)
	return func(work func(ctx context.Context) (then func())) {
		defer l.workers.Done()
		if then := work(l.ctx); then != nil {
			l.Post(then)
		}
	}
}

// Soonest returns the earlier of two times to be woken at. Zero stands for never: the result is zero only if both are.
func Soonest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
