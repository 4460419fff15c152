package kube

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nth-project/nth/pkg/loop"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
)

// Requests are made with the REST client and MaxRetries(0). The typed client would retry them by itself: up to ten times, each after as many
// seconds as Retry-After says, whatever the deadline; or a second after a broken connection, which is long for a cordon.

// Reads bounds attempts to read: the limit grows after each time-out, and shrinks after an answer for which the one before was enough.
type Reads struct {
	timeouts atomic.Int32
	hard     atomic.Pointer[time.Time] // the deadline, if there is one
}

// SetDeadline has attempts leave half of the time before a hard deadline to what follows them.
func (r *Reads) SetDeadline(hard time.Time) { r.hard.Store(&hard) }

// limit returns how long an attempt may take after so many time-outs in a row.
func (r *Reads) limit(timeouts int) time.Duration {
	limit := ReadLimit(timeouts)
	if hard := r.hard.Load(); hard != nil && time.Now().Before(*hard) {
		limit = min(limit, max(Read, time.Until(*hard)/2))
	}
	return limit
}

// Attempt calls read once, with a context that ends after the present limit, and adapts the limit to how that went. The error is that of read.
func (r *Reads) Attempt(ctx context.Context, read func(context.Context) error) error {
	timeouts := int(r.timeouts.Load())
	limited, cancel := context.WithTimeout(ctx, r.limit(timeouts))
	defer cancel()
	began := time.Now()
	err := read(limited)
	r.note(timeouts, err == nil, limited.Err() != nil && ctx.Err() == nil, time.Since(began))
	return err
}

// Open makes one attempt to open a watch, within the limit of a read. The watch is closed after WatchEnd, and later if the limit is longer than
// Read: if the connection has died silently, client-go would take minutes to notice.
func (r *Reads) Open(ctx context.Context, open func(context.Context) (watch.Interface, error)) (watch.Interface, error) {
	timeouts, began := int(r.timeouts.Load()), time.Now()
	limit := r.limit(timeouts)
	ctx, cancel := context.WithTimeout(ctx, WatchEnd+limit-Read)
	opening := time.AfterFunc(limit, cancel)
	w, err := open(ctx)
	r.note(timeouts, err == nil, !opening.Stop(), time.Since(began))
	if err != nil {
		cancel()
		return nil, err
	}
	return bounded{Interface: w, cancel: cancel}, nil
}

// bounded is a watch that cancels its context when it is stopped.
type bounded struct {
	watch.Interface
	cancel context.CancelFunc
}

// Stop ends the watch.
func (b bounded) Stop() {
	b.Interface.Stop()
	b.cancel()
}

// note adapts the limit to how an attempt ended: it grows after a time-out, and shrinks after an answer for which the shorter limit was enough.
// timeouts is the count when the attempt began. If another attempt has changed it since, nothing happens.
func (r *Reads) note(timeouts int, answered, timedOut bool, took time.Duration) {
	switch {
	case answered && timeouts > 0 && took < ReadLimit(timeouts-1):
		r.timeouts.CompareAndSwap(int32(timeouts), int32(timeouts-1))
	case !answered && timedOut && ReadLimit(timeouts) < ReadMost:
		r.timeouts.CompareAndSwap(int32(timeouts), int32(timeouts+1))
	}
}

// Outlasting returns a context that ends after a timeout, whatever becomes of ctx; but WritePressed after ctx's end at the latest. A write
// that was sent is not canceled: the API server might still carry it out.
func Outlasting(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	stop := context.AfterFunc(ctx, func() {
		loop.Await(limited, nil, WritePressed)
		cancel()
	})
	return limited, func() { stop(); cancel() }
}

// Most failures of an API server are short, and a request that it refuses for good is repeated without hurry.
var (
	Failures = Backoff(50*time.Millisecond, time.Second)
	Refusals = Backoff(time.Second, 30*time.Second)
)

// Backoff returns pauses that double from first to longest, each with a jitter that adds up to as much again.
func Backoff(first, longest time.Duration) wait.Backoff {
	return wait.Backoff{Duration: first, Cap: longest, Factor: 2, Jitter: 1, Steps: 10}
}

// Retry repeats do until it succeeds, is refused for good, or ctx ends. In the last case it returns the last error that ctx's end did not
// cause, which says more.
func Retry(ctx context.Context, do func(context.Context) error) error {
	b := Failures
	var last error
	for {
		err := do(ctx)
		if err == nil || !Passing(err) {
			return err
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if !loop.Await(ctx, nil, max(b.Step(), RetryAfter(err))) {
			return fmt.Errorf("%w (%w)", last, ctx.Err())
		}
	}
}

// Newer returns the newer of two resource versions, which the API server counts up; a if one of them is no number.
func Newer(a, b string) string {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	if errB == nil && (a == "" || errA == nil && y > x) {
		return b
	}
	return a
}
