// Package loop is one goroutine that owns some state, and workers that may block. A worker never touches the state: it returns a function
// that does, and the loop calls that function.
package loop

import (
	"context"
	"sync"
	"time"
)

// Loop is one such goroutine. Any goroutine may read its state with Mutex held. Only the loop changes the state.
type Loop struct {
	sync.Mutex
	ctx     context.Context // set by Run, and ended when Run returns
	posts   chan func()     // from Post
	woken   <-chan struct{} // from New
	workers sync.WaitGroup  // those of Go and Worker
}

// New returns a loop that does nothing before it is run. Each element of woken is a reason for a turn: see Nudge.
func New(woken <-chan struct{}) *Loop { return &Loop{posts: make(chan func()), woken: woken} }

// Run is the loop. It calls turn with the mutex held: at once, for each element of woken, for each function of Post, and at the time wake.
//
// post is the function of Post, which turn has to call; nil if turn was called for another reason. timed is true if a wake time has come;
// the start of Run counts as one. turn returns the time of the next turn, zero for never, and a function, after, that Run calls once the mutex
// is released. Run returns when ctx and all workers have ended.
func (l *Loop) Run(ctx context.Context, turn func(post func(), timed bool) (wake time.Time, after func())) {
	ctx, stop := context.WithCancel(ctx)
	defer l.workers.Wait()
	defer stop()
	l.ctx = ctx
	timer := time.NewTimer(0) // for the first turn
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

// Nudge wakes the receiver of a channel with a buffer of one. It does not block.
func Nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // The receiver has yet to take the nudge before, or c is nil: nobody waits for nudges.
	}
}

// Await waits for d, until wake is closed or sends, or until ctx ends. It returns false if ctx has ended. wake may be nil.
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

// Context returns a context that ends with the loop; nil before Run.
func (l *Loop) Context() context.Context { return l.ctx }

// Post has Run call turn with a function. It waits until the loop has taken the function, or has ended and never will.
func (l *Loop) Post(do func()) {
	select {
	case l.posts <- do:
	case <-l.ctx.Done():
	}
}

// Go runs work in a goroutine of its own. ctx ends with the loop. The function that work returns is posted to the loop, unless it is nil.
func (l *Loop) Go(work func(ctx context.Context) (then func())) { go l.Worker()(work) }

// Worker returns a function that runs work as Go does, but in the goroutine of its caller. The caller must call run exactly once: until
// then, Run does not return.
func (l *Loop) Worker() (run func(work func(ctx context.Context) (then func()))) {
	l.workers.Add(1)
	return func(work func(ctx context.Context) (then func())) {
		defer l.workers.Done()
		if then := work(l.ctx); then != nil {
			l.Post(then)
		}
	}
}

// Soonest returns the earlier of two times to be woken at. Zero stands for never.
func Soonest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
