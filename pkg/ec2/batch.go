package ec2

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"

	"github.com/nth-project/nth/pkg/role"
)

const (
	// batchWindow is how long a lookup waits for others to share its request.
	batchWindow = 25 * time.Millisecond
	// knownTTL is how long an answer is cached, and unknownTTL how long it is that nothing is known.
	knownTTL, unknownTTL = 5 * time.Minute, 30 * time.Second
	// maxCached is how many answers are cached, at most.
	maxCached = 20_000
)

// batcher looks many keys up with one request and caches the answers.
type batcher[V any] struct {
	query func(ctx context.Context, keys []string) (map[string]V, error)

	mu    sync.Mutex
	cache map[string]cached[V]
	next  *batch[V] // still takes keys; nil if there is none
}

type cached[V any] struct {
	value   V
	known   bool
	expires time.Time
}

// batch is one request, under way or about to be.
type batch[V any] struct {
	keys   map[string]bool
	done   chan struct{}
	values map[string]V
	err    error
}

// newBatcher returns a batcher that gets values by query, for several keys in one request.
func newBatcher[V any](query func(context.Context, []string) (map[string]V, error)) *batcher[V] {
	return &batcher[V]{query: query, cache: map[string]cached[V]{}}
}

// get looks a key up, in the cache first.
func (b *batcher[V]) get(ctx context.Context, key string) (value V, known bool, err error) {
	b.mu.Lock()
	c, hit := b.cache[key]
	b.mu.Unlock()
	if hit && time.Now().Before(c.expires) {
		return c.value, c.known, nil
	}
	return b.fetch(ctx, key)
}

// fetch looks a key up with a request that has not begun yet.
func (b *batcher[V]) fetch(ctx context.Context, key string) (value V, known bool, err error) {
	b.mu.Lock()
	next := b.join(ctx, key)
	b.mu.Unlock()
	select {
	case <-next.done:
	case <-ctx.Done():
		return value, false, ctx.Err()
	}
	value, known = next.values[key]
	return value, known, next.err
}

// join adds a key to the next batch. b.mu is held.
func (b *batcher[V]) join(ctx context.Context, key string) *batch[V] {
	if b.next == nil {
		b.next = &batch[V]{keys: map[string]bool{}, done: make(chan struct{})}
		go b.run(context.WithoutCancel(ctx), b.next) // Others may wait for it when the one who began it no longer does.
	}
	next := b.next
	next.keys[key] = true
	if len(next.keys) >= maxBatch {
		b.next = nil
	}
	return next
}

// run waits for the batch to fill, and makes its request.
func (b *batcher[V]) run(ctx context.Context, batch *batch[V]) {
	time.Sleep(batchWindow)
	b.mu.Lock()
	if b.next == batch {
		b.next = nil
	}
	keys := slices.Collect(maps.Keys(batch.keys))
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	batch.values, batch.err = b.query(ctx, keys)
	if batch.err == nil {
		b.store(keys, batch.values)
	}
	close(batch.done)
}

func (b *batcher[V]) store(keys []string, values map[string]V) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.cache) > maxCached {
		clear(b.cache)
	}
	for _, key := range keys {
		value, known := values[key]
		ttl := knownTTL
		if !known {
			ttl = unknownTTL
		}
		b.cache[key] = cached[V]{value: value, known: known, expires: time.Now().Add(ttl)}
	}
}

const (
	// attemptTimeout bounds one attempt: a dead connection must not use up all the time there is.
	attemptTimeout = 8 * time.Second
	// minBackoff and maxBackoff are the pauses between attempts, made as long as there is time: a node whose instance
	// is gone in two minutes may wait for the answer. As up to 200 lookups share a request, that is a request every two
	// seconds even in a storm.
	minBackoff, maxBackoff = time.Second, 2 * time.Second
)

// retryOptions are for the SDK's own retries, with Auto Scaling.
func retryOptions(o *retry.StandardOptions) {
	o.MaxAttempts = int(lookupTimeout / maxBackoff)
	o.Backoff = retry.BackoffDelayerFunc(func(attempt int, _ error) (time.Duration, error) {
		return role.Pause(attempt, minBackoff, maxBackoff), nil
	})
}

// retryRules say which errors are worth a retry.
var retryRules = retry.NewStandard()

// retryEC2 calls EC2 until there is an answer, an error that will not pass, or no time left. Unlike the SDK's retries it
// returns EC2's last error then, not the context's.
func retryEC2[T any](ctx context.Context, call func(context.Context) (*T, error)) (*T, error) {
	for attempt := 1; ; attempt++ {
		limited, cancel := context.WithTimeout(ctx, attemptTimeout)
		answer, err := call(limited)
		timedOut := limited.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil {
			return answer, nil
		}
		retryable := timedOut || retryRules.IsErrorRetryable(err) // It looks at the answer's status, which api has not.
		if api, ok := errors.AsType[smithy.APIError](err); ok {
			err = api // The SDK's further text is of no use to operators.
		}
		if ctx.Err() != nil || !retryable || !role.Sleep(ctx, role.Pause(attempt, minBackoff, maxBackoff)) {
			return nil, err
		}
	}
}
