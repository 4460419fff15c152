package metrics

import (
	"sync"

	"github.com/nth-project/nth/pkg/record"
)

// drains are the drains under way, by node. On a machine there is one at most; nth-queue has many.
type drains struct {
	mu    sync.Mutex
	under map[string]progress
}

// progress is how far one drain has come.
type progress struct {
	total, left int
	held        map[string]bool // pods
}

// drained takes in what happens in a drain. What is shown is the sum of those under way; when none is, the last one stands.
func (m *Metrics) drained(h record.Happening) {
	d := &m.drains
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.under[h.Node].after(h)
	sum := progress{total: h.Total, left: h.Left}
	if ends(h.What) {
		delete(d.under, h.Node)
	} else {
		if d.under == nil {
			d.under = map[string]progress{}
		}
		d.under[h.Node] = now
	}
	held := 0
	if len(d.under) > 0 {
		sum = progress{}
	}
	for _, p := range d.under {
		sum.total, sum.left, held = sum.total+p.total, sum.left+p.left, held+len(p.held)
	}
	m.series.draining.Set(float64(len(d.under)))
	m.series.pods.Set(float64(sum.total))
	m.series.left.Set(float64(sum.left))
	if m.opts.Queue { // The status of one node tells it better.
		m.series.held.Set(float64(held))
	}
}

// after is how far a drain has come with what happens.
func (p progress) after(h record.Happening) progress {
	p.total, p.left = h.Total, h.Left
	switch h.What { //nolint:exhaustive // All others hold no pod and let none go.
	case record.Begun:
		p.held = map[string]bool{}
	case record.PodHeld:
		if p.held == nil {
			p.held = map[string]bool{}
		}
		p.held[h.Pod] = true
	case record.PodEvicted, record.PodDeleted, record.PodGone:
		delete(p.held, h.Pod)
	}
	return p
}
