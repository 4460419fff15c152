package kube

import (
	"context"
	"fmt"
	"time"

	"github.com/nth-project/nth/pkg/loop"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
)

// The packages that drain make requests with the REST client and MaxRetries(0). The typed client would retry a request up to ten times, each
// time after as many seconds as Retry-After says, whatever the deadline. After a broken connection it would wait for a second, which is long
// for a cordon.

// Attempt calls read once, with a context that ends after the limit Read. The error is that of read.
func Attempt(ctx context.Context, read func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, Read)
	defer cancel()
	return read(ctx)
}

// OpenWatch calls open once, which has to open a watch within Read. WatchEnd later, the watch ends. So nth notices within seconds that a
// connection has died silently; client-go would need minutes.
func OpenWatch(ctx context.Context, open func(context.Context) (watch.Interface, error)) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	end := time.AfterFunc(Read, cancel)
	w, err := open(ctx)
	if err != nil {
		end.Stop()
		cancel()
		return nil, err
	}
	end.Reset(WatchEnd)
	return bounded{Interface: w, cancel: cancel}, nil
}

// bounded is a watch that cancels its own context when it is stopped.
type bounded struct {
	watch.Interface
	cancel context.CancelFunc
}

// Stop ends the watch.
func (b bounded) Stop() {
	b.Interface.Stop()
	b.cancel()
}

// Outlasting returns a context for a write. It ends after timeout, or sooner: WritePressed after ctx has ended. So the end of ctx does not cancel
// a write that was sent: the API server might carry it out all the same, and nth would not know. The caller must call the function
// that is returned when the write has ended.
func Outlasting(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	stop := context.AfterFunc(ctx, func() {
		loop.Await(limited, nil, WritePressed) // It returns sooner if the write has ended, which cancels limited.
		cancel()
	})
	return limited, func() { stop(); cancel() }
}

// Failures are the pauses between attempts while the API server fails, which is mostly for a short time. Refusals are the pauses after a request
// that the API server has refused: nth is in no hurry to repeat that.
var (
	Failures = Backoff(50*time.Millisecond, time.Second)
	Refusals = Backoff(time.Second, 30*time.Second)
)

// Backoff returns pauses that double from first to longest, each with a jitter that adds up to as much again.
func Backoff(first, longest time.Duration) wait.Backoff {
	return wait.Backoff{Duration: first, Cap: longest, Factor: 2, Jitter: 1, Steps: 10}
}

// Retry repeats do until it succeeds, fails with an error that does not pass (see Passing), or ctx ends. When ctx ends, Retry returns the last
// error from before that, which says more than the error of ctx. It wraps both.
func Retry(ctx context.Context, do func(context.Context) error) error {
	b := Failures
	var last error
	for {
		err := do(ctx)
		if err == nil || !Passing(err) {
			return err
		}
		if last == nil || ctx.Err() == nil { // Otherwise the end of ctx has caused err.
			last = err
		}
		if !loop.Await(ctx, nil, max(b.Step(), RetryAfter(err))) {
			return fmt.Errorf("%w%.0w", last, ctx.Err()) // %.0w wraps it without its text.
		}
	}
}
