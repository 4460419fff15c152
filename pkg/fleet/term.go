package fleet

import (
	"context"
	"maps"
	"slices"
	"sync"

	"k8s.io/client-go/util/workqueue"

	"github.com/nth-project/nth/pkg/ec2"
)

// term is the time for which this process leads. All work belongs to it: when its context ends, everything stops where it is, and its messages
// go back into the queue.
type term struct {
	*Fleet
	ctx    context.Context
	queue  workqueue.TypedDelayingInterface[string]
	urgent workqueue.TypedDelayingInterface[string] // of instances with urgent notices: it never waits behind others
	truth  truth

	beginning sync.Mutex // guards closed, and the beginning of work
	closed    bool
	work      sync.WaitGroup

	mu        sync.Mutex
	ended     bool // no more hints are taken
	instances map[string]*instance
	hints     int // of all instances
}

// serveTerm works until ctx ends, and returns when nothing of the work is left.
func (f *Fleet) serveTerm(ctx context.Context, receive func(ctx context.Context)) {
	t := &term{
		Fleet: f, ctx: ctx, instances: map[string]*instance{},
		queue: workqueue.NewTypedDelayingQueue[string](), urgent: workqueue.NewTypedDelayingQueue[string](),
		truth: truth{listed: map[string]ec2.Status{}},
	}
	f.opts.Log.Info("this process leads: it receives messages and drains nodes")
	f.term.Store(t)
	var receiving sync.WaitGroup
	receiving.Go(func() { receive(ctx) })
	for range reconcilers {
		t.work.Go(func() { t.reconcile(t.queue) })
		t.work.Go(func() { t.reconcile(t.urgent) })
	}
	t.work.Go(t.poll)
	<-ctx.Done()
	f.term.Store(nil)
	t.queue.ShutDown()
	t.urgent.ShutDown()
	t.beginning.Lock()
	t.closed = true
	t.beginning.Unlock()
	t.work.Wait()
	t.returnAll()
	receiving.Wait()
	f.opts.Log.Info("this process no longer leads: its work has ended, and its messages are back in the queue")
}

// returnAll returns the messages of all hints.
func (t *term) returnAll() {
	t.mu.Lock()
	t.ended = true
	instances := slices.Collect(maps.Values(t.instances))
	t.mu.Unlock()
	for _, in := range instances {
		t.mu.Lock()
		hints := slices.Collect(maps.Values(in.hints))
		t.mu.Unlock()
		for _, h := range hints {
			t.endHint(in, h, true, 0)
		}
	}
}

// background runs a function in a goroutine that the end of the term waits for. It reports whether the term has not ended before.
func (t *term) background(do func(ctx context.Context)) (begun bool) {
	t.beginning.Lock()
	defer t.beginning.Unlock()
	if t.closed {
		return false
	}
	t.work.Go(func() { do(t.ctx) })
	return true
}

// lookAtAll has all known instances looked at.
func (t *term) lookAtAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.instances {
		t.queue.Add(id)
	}
}

// instanceOn is the instance of a Node; "" if that is not known.
func (t *term) instanceOn(n node) string {
	if n.instance != "" {
		return n.instance
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, in := range t.instances {
		if in.node.uid == n.uid {
			return in.id
		}
	}
	return ""
}

// nodeChanged takes in that a Node has changed, has come or is gone. A drain of one that is gone, or another machine's by now, ends.
func (t *term) nodeChanged(n node) {
	id := t.instanceOn(n)
	now, ok := t.nodes.now(n)
	t.mu.Lock()
	defer t.mu.Unlock()
	if in := t.instances[id]; in != nil {
		if s := in.drain; s != nil && s.node.uid == n.uid && (!ok || now.machine != s.node.machine) {
			if s.stop(); s.stage == waiting {
				in.drain = nil
			}
			s.stage = max(s.stage, ending)
		}
		t.queue.Add(id)
		return
	}
	if !n.silent || id != "" {
		return
	}
	for _, in := range t.instances { // It may be of one that waits for its Node.
		if !in.had && len(in.hints) > 0 {
			t.queue.Add(in.id)
		}
	}
}
