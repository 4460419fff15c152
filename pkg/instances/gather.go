package instances

import (
	"context"
	"sync"
	"time"
)

const (
	// window is how long a question waits for others to go with it.
	window = 25 * time.Millisecond
	// fresh is how long an answer counts, and briefly how long it does that nothing is known.
	fresh, briefly = 5 * time.Minute, 30 * time.Second
	// kept is how many answers are remembered, at most.
	kept = 20_000
)

// gatherer asks many questions at once and remembers the answers.
type gatherer[V any] struct {
	many func(ctx context.Context, keys []string) (map[string]V, error)

	mu      sync.Mutex
	answers map[string]answer[V]
	next    *round[V] // the one that still takes questions; nil without one
}

// answer is what was said, and until when it counts.
type answer[V any] struct {
	value V
	known bool
	until time.Time
}

// round is one request, under way or about to be.
type round[V any] struct {
	keys map[string]bool
	done chan struct{}
	said map[string]V
	err  error
}

func newGatherer[V any](many func(context.Context, []string) (map[string]V, error)) *gatherer[V] {
	return &gatherer[V]{many: many, answers: map[string]answer[V]{}}
}

// ask returns what is said of one key.
func (g *gatherer[V]) ask(ctx context.Context, key string) (value V, known bool, err error) {
	g.mu.Lock()
	a, there := g.answers[key]
	g.mu.Unlock()
	if there && time.Now().Before(a.until) {
		return a.value, a.known, nil
	}
	return g.anew(ctx, key)
}

// anew returns what is said of one key by a request that has not been made yet: none that is remembered counts, nor one
// that is under way.
func (g *gatherer[V]) anew(ctx context.Context, key string) (value V, known bool, err error) {
	g.mu.Lock()
	r := g.join(ctx, key)
	g.mu.Unlock()
	select {
	case <-r.done:
	case <-ctx.Done():
		return value, false, ctx.Err()
	}
	value, known = r.said[key]
	return value, known, r.err
}

// join puts a key into the round that still takes some, and begins one where there is none. g.mu is held.
func (g *gatherer[V]) join(ctx context.Context, key string) *round[V] {
	if g.next == nil {
		r := &round[V]{keys: map[string]bool{}, done: make(chan struct{})}
		g.next = r
		go g.run(context.WithoutCancel(ctx), r) // Others may wait for it when the one who began it does not any more.
	}
	r := g.next
	r.keys[key] = true
	if len(r.keys) >= most {
		g.next = nil
	}
	return r
}

// run waits for the round to fill, and asks.
func (g *gatherer[V]) run(ctx context.Context, r *round[V]) {
	time.Sleep(window)
	g.mu.Lock()
	if g.next == r {
		g.next = nil
	}
	keys := make([]string, 0, len(r.keys))
	for key := range r.keys {
		keys = append(keys, key)
	}
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r.said, r.err = g.many(ctx, keys)
	if r.err == nil {
		g.remember(keys, r.said)
	}
	close(r.done)
}

func (g *gatherer[V]) remember(keys []string, said map[string]V) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.answers) > kept {
		clear(g.answers)
	}
	for _, key := range keys {
		value, known := said[key]
		life := fresh
		if !known {
			life = briefly
		}
		g.answers[key] = answer[V]{value: value, known: known, until: time.Now().Add(life)}
	}
}
