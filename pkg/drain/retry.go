package drain

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

var errNotReady = errors.New("the node is not Ready yet")

// backoff yields growing pauses with jitter. The first pauses are short, since most failures of an API server are.
type backoff struct {
	next, longest time.Duration
}

func newBackoff() *backoff { return &backoff{next: 100 * time.Millisecond, longest: 2 * time.Second} }

func (b *backoff) pause() time.Duration {
	p := b.next/2 + rand.N(b.next/2+1)
	b.next = min(b.next*2, b.longest)
	return p
}

// retry repeats do until it succeeds, fails for good, or ctx ends; then it returns do's last error of its own, which says
// more than the context's. Each attempt has its own time limit.
func retry(ctx context.Context, do func(context.Context) error) error {
	b := newBackoff()
	var last error
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := do(attempt)
		cancel()
		if err == nil || !passing(err) {
			return err
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if ctx.Err() != nil || !sleep(ctx, max(b.pause(), retryAfter(err))) {
			return fmt.Errorf("%w (%w)", last, ctx.Err())
		}
	}
}

// passing tells whether a failure may pass by itself. What the API server refuses with a 4xx stays refused, but for
// authentication (a credential may be renewed), conflicts, time-outs and throttling.
func passing(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return true
	default:
		return code < 400 || code >= 500
	}
}

// retryAfter is the pause that a throttling API server asks for, within reason.
func retryAfter(err error) time.Duration {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		return min(time.Duration(seconds)*time.Second, longestRetryAfter)
	}
	return 0
}

// longestRetryAfter bounds the obedience to Retry-After: a drain that has two minutes cannot spend one of them waiting.
const longestRetryAfter = 5 * time.Second

// sleep waits and tells whether it could do so to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
