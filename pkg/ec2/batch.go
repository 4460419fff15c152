package ec2

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// batchWindow is how long a lookup waits for others to share its request.
const batchWindow = 25 * time.Millisecond

// batcher looks instances up by one property, such as the ID. Lookups that come within batchWindow share a request.
type batcher struct {
	// query asks EC2 for the instances for which a filter has one of the values.
	query  func(ctx context.Context, filter string, values []string) ([]Instance, error)
	filter string                // EC2's name of the filter, such as "instance-id"
	value  func(Instance) string // what the filter compares: this property of an instance

	mu   sync.Mutex
	next *batch // the batch that lookups still join; nil if there is none
}

// batch is one request, for several lookups that wait for it.
type batch struct {
	values map[string]bool // what the lookups look for; under the batcher's mutex
	done   chan struct{}   // closed when found and err are set, and may be read
	found  map[string][]Instance
	err    error
}

// get returns the instances whose property has this value; none if EC2 knows none. Its request begins after the call.
func (b *batcher) get(ctx context.Context, value string) ([]Instance, error) {
	joined := b.join(ctx, value)
	select {
	case <-joined.done:
		return joined.found[value], joined.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// join returns the batch that lookups still join, with the value added. If there is no such batch, join begins one: see run.
func (b *batcher) join(ctx context.Context, value string) *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = &batch{values: map[string]bool{}, done: make(chan struct{})}
		// The end of ctx must not end the batch: other lookups may wait for it when this lookup no longer does.
		go b.run(context.WithoutCancel(ctx), b.next)
	}
	joined := b.next
	joined.values[value] = true
	if len(joined.values) >= maxBatch {
		b.next = nil // The batch is full: the next lookup begins another one.
	}
	return joined
}

// run is the goroutine of a batch. It gives lookups batchWindow to join, makes the request, and closes done.
func (b *batcher) run(ctx context.Context, batch *batch) {
	defer close(batch.done)
	time.Sleep(batchWindow)
	b.mu.Lock()
	if b.next == batch { // Otherwise join has already replaced this batch, as it is full.
		b.next = nil
	}
	values := slices.Collect(maps.Keys(batch.values))
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, err := b.query(ctx, b.filter, values)
	if err != nil {
		batch.err = err
		return
	}
	batch.found = map[string][]Instance{}
	for _, instance := range found {
		value := b.value(instance)
		batch.found[value] = append(batch.found[value], instance)
	}
}
