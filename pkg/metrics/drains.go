package metrics

import (
	"sync"

	"github.com/nth-project/nth/pkg/record"
)

// drains are the drains under way, by node. On a machine there is one at most; nth-queue has many.
type drains struct {
	mu    sync.Mutex
	under map[string]*progress
}

// progress is how far one drain has come.
type progress struct {
	events      map[string]bool // that it is for, and that it has not ended for
	total, left int
	held        map[string]bool // pods
}

// drained takes in what happens in a drain. What is shown is the sum of those under way; when none is, the last one stands, with
// the pods that come to its node late.
func (m *Metrics) drained(h record.Happening) {
	d := &m.drains
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.of(h); p != nil {
		p.take(h)
		if len(p.events) == 0 {
			delete(d.under, h.Node)
		}
	}
	sum, held := progress{total: h.Total, left: h.Left}, 0
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

// of is the drain under way that a happening belongs to; nil if there is none.
func (d *drains) of(h record.Happening) *progress {
	if d.under == nil {
		d.under = map[string]*progress{}
	}
	if p := d.under[""]; p != nil && d.under[h.Node] == nil { // It was begun before the node had a name.
		delete(d.under, "")
		d.under[h.Node] = p
	}
	if h.What == record.Begun && d.under[h.Node] == nil {
		d.under[h.Node] = &progress{events: map[string]bool{}, held: map[string]bool{}}
	}
	return d.under[h.Node]
}

// take takes in what happens.
func (p *progress) take(h record.Happening) {
	p.total, p.left = h.Total, h.Left
	switch h.What { //nolint:exhaustive // All others begin and end nothing, hold no pod and let none go.
	case record.Begun:
		p.events[h.Entry.Event.ID] = true
	case record.Done, record.RanOut, record.CalledBack, record.LeftAlone: // What has failed goes on.
		delete(p.events, h.Entry.Event.ID)
	case record.PodHeld:
		p.held[h.Pod] = true
	case record.PodEvicted, record.PodDeleted, record.PodGone:
		delete(p.held, h.Pod)
	}
}
