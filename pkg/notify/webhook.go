package notify

import (
	"context"
	"slices"
	"sync"

	"github.com/nth-project/nth/pkg/state"
)

// lookupTimeout is how long a notice waits for the descriptions of the machine and of its Node. It leaves time to post it at a stop.
const lookupTimeout = flushTimeout / 2

// WebhookOptions are the options of a Webhook.
type WebhookOptions struct {
	// Post sends one message; see Endpoint.Post. Without it, the webhook is off.
	Post     func(ctx context.Context, id, text string) error
	Template *Template
	// Cluster names the cluster; empty is the name that eksctl has given the Node as a label, if any.
	Cluster string
	// At lists the phases whose notices are posted.
	At []Phase
	// DryRun marks every notice.
	DryRun bool
	// Reported is called with the result of each attempt to deliver a notice, from several goroutines.
	Reported func(DeliveryResult)
}

// Webhook posts notices to an endpoint. Make one with NewWebhook, and call its Run. Node returns the listener for one node.
type Webhook struct {
	opts  WebhookOptions
	queue *queue

	mu       sync.Mutex
	reported map[string]string // the last outcome of each event, so that none is posted twice
}

// NewWebhook returns a Webhook that has not posted anything yet.
func NewWebhook(opts WebhookOptions) *Webhook {
	return &Webhook{opts: opts, queue: newQueue(opts.Reported), reported: map[string]string{}}
}

// Run posts notices until ctx ends. Then it tries each notice that is left once more, and returns after flushTimeout at the latest. Call it
// once.
func (w *Webhook) Run(ctx context.Context) { w.queue.run(ctx) }

// Subject has functions that describe a node. What they cannot read before the context ends, they leave empty.
type Subject struct {
	// Machine describes the node's machine.
	Machine func(context.Context) Machine
	// Node returns the Node's name and labels.
	Node func(context.Context) (name string, labels map[string]string)
}

// WebhookNode is the agent.Listener that has the notices of one node posted. Its OnTransition is called by one goroutine at a time.
type WebhookNode struct {
	webhook *Webhook
	subject Subject
	builder builder
}

// Node returns a listener for the node that subject describes. Its notices are delivered even after the caller has dropped the listener.
func (w *Webhook) Node(subject Subject) *WebhookNode {
	return &WebhookNode{webhook: w, subject: subject}
}

// OnTransition implements agent.Listener: it queues a notice of each outcome that the options ask for.
func (n *WebhookNode) OnTransition(t state.Transition) {
	if built := n.builder.build(t); n.webhook.wants(built) {
		n.webhook.queue.add(n.webhook.message(built, n.subject), beforeCordon(t))
	}
}

// maxReported is how many events have their last outcome remembered.
const maxReported = 4096

// wants reports whether a notice is to be posted: the webhook is on, and the notice has an outcome, which is not the last one of its event,
// in a phase that the options ask for. It remembers the outcome.
func (w *Webhook) wants(n notice) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := n.Entry.Event.ID
	if w.opts.Post == nil || n.outcome == "" || w.reported[id] == n.outcome {
		return false
	}
	if len(w.reported) >= maxReported {
		clear(w.reported)
	}
	w.reported[id] = n.outcome
	return slices.Contains(w.opts.At, phaseOf(n.outcome))
}

// message returns the message that posts a notice about a node. It is rendered when it is first tried.
func (w *Webhook) message(n notice, about Subject) *message {
	var id, text string
	return &message{line: n.Entry.Event.ID, event: n.Entry.Event.ID, outcome: n.outcome, deliver: func(ctx context.Context) (err error) {
		if text == "" {
			f := newFields(n, about.describe(ctx, w.opts.Cluster), w.opts.DryRun)
			id = f.NoticeID
			text, err = w.opts.Template.Render(f)
			switch {
			case err != nil: // It fails for this notice, although it did for no sample.
				return refusedError{err.Error()}
			case text == "":
				return errNothing // The template wants no such notice.
			}
		}
		return w.opts.Post(ctx, id, text)
	}}
}

// describe describes the node and its machine, as far as that can be read within lookupTimeout.
func (s Subject) describe(ctx context.Context, cluster string) description {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	about := description{cluster: cluster}
	var asking sync.WaitGroup
	asking.Go(func() { about.machine = s.Machine(ctx) })
	about.name, about.labels = s.Node(ctx)
	asking.Wait()
	return about
}
