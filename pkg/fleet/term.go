package fleet

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
)

// term is one time for which this process leads. All work belongs to a term. When the term's context ends, its work stops where it is, and
// its messages go back into the queue.
type term struct {
	*Fleet
	ctx   context.Context
	queue workqueue.TypedDelayingInterface[string]
	truth truth
	work  sync.WaitGroup // all goroutines of the term but the one that receives messages

	mu        sync.Mutex
	instances map[string]*instance
}

// serveTerm does the work of one term, until ctx ends. leadership.campaign calls it when this process is elected, and ends ctx when the Lease is lost.
// It returns when all goroutines of the term have ended, and all messages are back in the queue.
func (f *Fleet) serveTerm(ctx context.Context, receive func(ctx context.Context)) {
	t := &term{Fleet: f, ctx: ctx, instances: map[string]*instance{}, queue: workqueue.NewTypedDelayingQueue[string]()}
	f.opts.Log.Info("this process leads: it receives messages and drains nodes")
	f.term.Store(t)
	var receiving sync.WaitGroup
	receiving.Go(func() { receive(ctx) })
	for range reconcilers {
		t.work.Go(t.reconcile)
	}
	t.work.Go(t.poll)
	<-ctx.Done()
	t.mu.Lock() // Take, which has looked at ctx under the mutex, begins nothing from here on.
	f.term.Store(nil)
	t.queue.ShutDown()
	t.mu.Unlock()
	t.work.Wait()
	t.returnAll()
	receiving.Wait() // receive returns when every message was deleted or returned.
}

// returnAll puts the messages of all hints back into the queue. It runs after the end of the term's context, since when addHint returns messages at
// once.
func (t *term) returnAll() {
	of := map[*hint]*instance{}
	t.mu.Lock()
	for _, inst := range t.instances {
		for _, h := range inst.hints {
			of[h] = inst
		}
	}
	t.mu.Unlock()
	for h, inst := range of {
		t.endHint(inst, h, 0)
	}
}

// instanceOn returns the ID of the instance that a Node is on: the one in spec.providerID, or the one whose last look found this Node. It
// returns "" if neither names one.
func (t *term) instanceOn(n node) string {
	if n.instance != "" {
		return n.instance
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, inst := range t.instances {
		if inst.node.uid == n.uid {
			return inst.id
		}
	}
	return ""
}

// nodeChanged ends the session of a Node that is gone, or that belongs to another machine now, and has the instance of the Node looked at. The watch
// calls it when a Node was added, changed or deleted.
func (t *term) nodeChanged(n node) {
	id := t.instanceOn(n)
	now, exists := t.nodes.now(n)
	t.mu.Lock()
	defer t.mu.Unlock()
	if inst := t.instances[id]; inst != nil {
		s := inst.drain
		isOfNode := s != nil && s.node.uid == n.uid
		if isOfNode && (!exists || now.machine != s.node.machine) {
			s.stop()
			if s.stage == waiting { // No agent runs that would remove the session at its end.
				inst.drain = nil
			}
			s.stage = max(s.stage, ending)
		}
		t.queue.Add(id)
		return
	}
	if !n.silent || id != "" { // The Node's instance is known, and nothing is announced for it.
		return
	}
	for _, inst := range t.instances { // A silent Node may be of any instance that has hints and no Node yet.
		if inst.node.uid == "" && len(inst.hints) > 0 {
			t.queue.Add(inst.id)
		}
	}
}
