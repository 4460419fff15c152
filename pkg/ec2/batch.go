package ec2

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// batchWindow is how long a lookup waits for others to share its request.
	batchWindow = 25 * time.Millisecond
	// knownTTL is how long instances are cached, and unknownTTL how long AWS's answer that there is none is cached.
	knownTTL, unknownTTL = 5 * time.Minute, 30 * time.Second
	// maxCached is how many answers are cached, at most.
	maxCached = 20_000
)

// batcher looks many instances up with one request and caches the answers.
type batcher struct {
	// query returns the instances that match one of EC2's filters, whose name is filter. value is what the filter compares of an instance.
	query  func(ctx context.Context, filter string, values []string) ([]Instance, error)
	filter string
	value  func(Instance) string
	cache  *cache.LRUExpireCache // lists of instances by that value

	mu   sync.Mutex
	next *batch // the batch that lookups still join; nil if there is none
}

// batch is one request, under way or about to be. found and err may be read once done is closed.
type batch struct {
	values map[string]bool
	done   chan struct{}
	found  map[string][]Instance
	err    error
}

// newBatcher returns a batcher with an empty cache. The parameters are its fields of these names.
func newBatcher(query func(context.Context, string, []string) ([]Instance, error), filter string, value func(Instance) string) *batcher {
	return &batcher{query: query, filter: filter, value: value, cache: cache.NewLRUExpireCache(maxCached)}
}

// get returns the instances with a value, from the cache if it has them.
func (b *batcher) get(ctx context.Context, value string) ([]Instance, error) {
	if cached, hit := b.cache.Get(value); hit {
		return cached.([]Instance), nil
	}
	return b.fetch(ctx, value)
}

// fetch is get without the cache, by a request that begins after the call.
func (b *batcher) fetch(ctx context.Context, value string) ([]Instance, error) {
	joined := b.join(ctx, value)
	select {
	case <-joined.done:
		return joined.found[value], joined.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// join adds a value to the batch that lookups still join, and returns that batch. If there is none, it begins one.
func (b *batcher) join(ctx context.Context, value string) *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = &batch{values: map[string]bool{}, done: make(chan struct{})}
		// Without ctx's end: other lookups may join the batch, and wait for it when this one no longer does.
		go b.run(context.WithoutCancel(ctx), b.next)
	}
	joined := b.next
	joined.values[value] = true
	if len(joined.values) >= maxBatch {
		b.next = nil // It is full.
	}
	return joined
}

// run gives lookups batchWindow to join the batch. Then it makes the request, caches the answers, and closes done.
func (b *batcher) run(ctx context.Context, batch *batch) {
	defer close(batch.done)
	time.Sleep(batchWindow)
	b.mu.Lock()
	if b.next == batch { // From now on lookups begin another batch. A full one was already replaced.
		b.next = nil
	}
	values := slices.Collect(maps.Keys(batch.values))
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	all, err := b.query(ctx, b.filter, values)
	if batch.err = err; err != nil {
		return
	}
	batch.found = map[string][]Instance{}
	for _, i := range all {
		batch.found[b.value(i)] = append(batch.found[b.value(i)], i)
	}
	for _, value := range values {
		ttl := knownTTL
		if len(batch.found[value]) == 0 {
			ttl = unknownTTL
		}
		b.cache.Add(value, batch.found[value], ttl)
	}
}
