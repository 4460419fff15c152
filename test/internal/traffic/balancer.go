package traffic

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// A Balancer says how the load balancer behaves whose targets are nodes. What EC2's do differs by their kind and their
// settings, from seconds to minutes.
type Balancer struct {
	// Reacts is how long it takes from the label on the Node until a controller deregisters the target.
	Reacts time.Duration
	// Stops is how long it takes from then on until no new connection goes there: every part of the load balancer has to
	// hear of it. Network Load Balancers take up to three minutes for that.
	Stops time.Duration
	// Deregistration is how long connections live on after the target was deregistered. Then those that are left are cut, and the target is out.
	Deregistration time.Duration
	// CheckEvery is the time between two health checks of a target. Two that fail in a row make it unhealthy, and two
	// that do not make it healthy.
	CheckEvery time.Duration
}

// threshold is how many checks in a row change the health of a target.
const threshold = 2

// errDeregistered is what a connection ends with that outlives its target's deregistration.
var errDeregistered = errors.New("cut after the deregistration delay")

// A target is a node that the load balancer knows.
type target struct {
	leaving bool // labelled: it is being deregistered
	closed  bool // takes no new connections any more
	failing bool // unhealthy
	against int  // checks in a row that speak against what is known of its health
	until   context.Context
	cut     context.CancelCauseFunc
}

// A balancer is one that works.
type balancer struct {
	Balancer
	mu      sync.Mutex
	targets map[string]*target
}

func newBalancer(ctx context.Context, o Balancer, nodes ...string) *balancer {
	b := &balancer{Balancer: o, targets: map[string]*target{}}
	for _, node := range nodes {
		t := &target{}
		t.until, t.cut = context.WithCancelCause(ctx)
		b.targets[node] = t
	}
	return b
}

// exclude has a controller see that a node is to be taken out. It calls deregistered when it has deregistered the node.
func (b *balancer) exclude(node string, deregistered func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.targets[node]
	if t == nil || t.leaving {
		return
	}
	t.leaving = true
	time.AfterFunc(b.Reacts, func() {
		deregistered()
		time.AfterFunc(b.Stops, func() {
			b.mu.Lock()
			t.closed = true
			b.mu.Unlock()
		})
		time.AfterFunc(b.Deregistration, func() { t.cut(errDeregistered) })
	})
}

// check does one health check of all targets. healthy is what a node answers.
func (b *balancer) check(healthy func(node string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, node := range slices.Sorted(maps.Keys(b.targets)) {
		t := b.targets[node]
		if healthy(node) != t.failing {
			t.against = 0
			continue
		}
		if t.against++; t.against == threshold {
			t.against, t.failing = 0, !t.failing
		}
	}
}

// choose returns the node that the next connection goes to, and the context that it lives in. Where all targets are
// unhealthy all are used.
func (b *balancer) choose() (string, context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var open, good []string
	for _, node := range slices.Sorted(maps.Keys(b.targets)) {
		t := b.targets[node]
		if t.closed {
			continue
		}
		open = append(open, node)
		if !t.failing {
			good = append(good, node)
		}
	}
	if len(good) == 0 {
		good = open
	}
	if len(good) == 0 {
		return "", nil
	}
	node := good[rand.IntN(len(good))]
	return node, b.targets[node].until
}
