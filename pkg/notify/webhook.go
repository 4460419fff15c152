package notify

import (
	"context"
	"slices"
	"sync"

	"github.com/nth-project/nth/pkg/state"
)

// lookupTimeout is how long a notice waits for the descriptions of the machine and of its Node. When nth stops, the other half of flushTimeout
// is left to post the notice.
const lookupTimeout = flushTimeout / 2

// WebhookOptions are the options of a Webhook.
type WebhookOptions struct {
	// Post sends one message; see Endpoint.Post.
	Post     func(ctx context.Context, id, text string) error
	Template *Template
	// Cluster names the cluster. If it is empty, notices have the name in the Node's label that eksctl sets, if any.
	Cluster string
	// At lists the phases whose notices are posted. If there is none, the webhook is off.
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
}

// NewWebhook returns a Webhook that has not posted anything yet.
func NewWebhook(opts WebhookOptions) *Webhook {
	return &Webhook{opts: opts, queue: newQueue(func(_ string, r DeliveryResult) { opts.Reported(r) })}
}

// Run posts notices until ctx ends. Then it tries each notice that is left once more, for flushTimeout at most. Call it once.
func (w *Webhook) Run(ctx context.Context) { w.queue.run(ctx) }

// Subject has functions that describe a node. They leave empty what they cannot read before the context ends.
type Subject struct {
	// Machine describes the node's machine.
	Machine func(context.Context) Machine
	// Node returns the Node's name and labels.
	Node func(context.Context) (name string, labels map[string]string)
}

// WebhookNode is the agent.Listener that queues the notices about one node. Its OnTransition is called by one goroutine at a time.
type WebhookNode struct {
	webhook *Webhook
	subject Subject
	builder builder
}

// Node returns a listener for the node that subject describes. Its notices are delivered even after the caller has dropped the listener.
func (w *Webhook) Node(subject Subject) *WebhookNode {
	return &WebhookNode{webhook: w, subject: subject}
}

// OnTransition implements agent.Listener: it queues the notice about a transition, if there is one and the options ask for its phase.
func (n *WebhookNode) OnTransition(t state.Transition) {
	w, built := n.webhook, n.builder.build(t)
	if built.outcome != "" && slices.Contains(w.opts.At, built.phase()) {
		w.queue.add(w.message(built, n.subject), 0)
	}
}

// message returns the message that posts a notice. about describes the notice's node. The first attempt reads that description and renders the
// text. The notices of one event are posted in sequence: they wait in one line.
func (w *Webhook) message(n notice, about Subject) *message {
	var id, text string // the same for all attempts; text is "" before the first
	return &message{line: n.Entry.Event.ID, about: DeliveryResult{Event: n.Entry.Event.ID, Node: n.Node, Outcome: n.outcome}, deliver: func(ctx context.Context) (err error) {
		if text == "" {
			f := newFields(n, about.describe(ctx, w.opts.Cluster), w.opts.DryRun)
			id = f.NoticeID
			text, err = w.opts.Template.Render(f)
			switch {
			case err != nil: // The template fails for this notice, although it did for no sample: it would fail again.
				return refusedError{err.Error()}
			case text == "":
				return errNothing // The template wants no such notice.
			}
		}
		return w.opts.Post(ctx, id, text)
	}}
}

// describe reads the description of the node and, at the same time, of its machine. What cannot be read within lookupTimeout is empty.
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
