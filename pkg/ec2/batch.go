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
	// knownTTL is how long a value is cached, and unknownTTL how long AWS's answer that it does not know a key is cached.
	knownTTL, unknownTTL = 5 * time.Minute, 30 * time.Second
	// maxCached is how many answers are cached, at most.
	maxCached = 20_000
)

// batcher looks many keys up with one request and caches the answers.
type batcher[V any] struct {
	// query makes the request, and returns the values of these keys. It leaves out a key that AWS does not know.
	query func(ctx context.Context, keys []string) (map[string]V, error)
	cache *cache.LRUExpireCache // answers by their keys

	mu   sync.Mutex
	next *batch[V] // the batch that lookups still join; nil if there is none
}

// batch is one request, under way or about to be. values and err may be read once done is closed.
type batch[V any] struct {
	keys   map[string]bool
	done   chan struct{}
	values map[string]V
	err    error
}

// newBatcher returns a batcher with an empty cache. query is its field of that name.
func newBatcher[V any](query func(context.Context, []string) (map[string]V, error)) *batcher[V] {
	return &batcher[V]{query: query, cache: cache.NewLRUExpireCache(maxCached)}
}

// get looks a key up, in the cache first. The value of a key that AWS does not know is the zero value.
func (b *batcher[V]) get(ctx context.Context, key string) (V, error) {
	if cached, hit := b.cache.Get(key); hit {
		return cached.(V), nil
	}
	return b.fetch(ctx, key)
}

// fetch is get without the cache, by a request that begins after the call.
func (b *batcher[V]) fetch(ctx context.Context, key string) (value V, err error) {
	next := b.join(ctx, key)
	select {
	case <-next.done:
		return next.values[key], next.err
	case <-ctx.Done():
		return value, ctx.Err()
	}
}

// join adds a key to the batch that lookups still join, and returns that batch. If there is none, it begins one.
func (b *batcher[V]) join(ctx context.Context, key string) *batch[V] {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = &batch[V]{keys: map[string]bool{}, done: make(chan struct{})}
		// Without ctx's end: other lookups may join the batch, and wait for it when this one no longer does.
		go b.run(context.WithoutCancel(ctx), b.next)
	}
	next := b.next
	next.keys[key] = true
	if len(next.keys) >= maxBatch {
		b.next = nil // It is full.
	}
	return next
}

// run gives lookups batchWindow to join the batch. Then it makes the request, caches the answers, and closes done.
func (b *batcher[V]) run(ctx context.Context, batch *batch[V]) {
	time.Sleep(batchWindow)
	b.mu.Lock()
	if b.next == batch { // From now on lookups begin another batch. A full one was already replaced.
		b.next = nil
	}
	keys := slices.Collect(maps.Keys(batch.keys))
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	batch.values, batch.err = b.query(ctx, keys)
	if batch.err == nil {
		for _, key := range keys {
			value, known := batch.values[key]
			ttl := knownTTL
			if !known {
				ttl = unknownTTL
			}
			b.cache.Add(key, value, ttl)
		}
	}
	close(batch.done)
}
