package notify

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/state"
)

const (
	// maxNotices is how many notices wait at most, unless the options say otherwise.
	maxNotices = 64
	// maxPosts is how many notices are rendered and posted at a time.
	maxPosts = 64
	// maxNoticeAge is the age at which a notice is given up.
	maxNoticeAge = 24 * time.Hour
	// lookupTimeout is how long a notice waits for the descriptions of the machine and of its Node. It leaves time to post it at a stop.
	lookupTimeout = flushTimeout / 2
)

// WebhookSettings are the settings of a Webhook, which can be replaced.
type WebhookSettings struct {
	// Post sends one message; see Destination.Post.
	Post     func(ctx context.Context, id, text string) error
	Template *Template
	// ContentType returns the content type of messages. It may read a file.
	ContentType func() string
	// Cluster names the cluster; empty is the name that eksctl has given the Node as a label, if any.
	Cluster string
	// At lists the phases whose notices are posted.
	At []Phase
}

// WebhookOptions are the options of a Webhook.
type WebhookOptions struct {
	// Reported is called with the result of each attempt to deliver a notice, from several goroutines.
	Reported func(DeliveryResult)
	// DryRun marks every notice.
	DryRun bool
	// Limit is how many notices wait at most until they are delivered; 0 is enough for one node.
	Limit int
}

// Webhook posts notices to an endpoint. Make one with NewWebhook, and call its Run. Node returns the listener for one node.
type Webhook struct {
	opts  WebhookOptions
	queue *queue

	mu       sync.Mutex        // for all that follows
	settings *WebhookSettings  // nil if the webhook is off
	reported map[string]string // the last outcome of events, so that none is posted twice
}

// NewWebhook returns a Webhook that is off until it gets its settings from Use.
func NewWebhook(opts WebhookOptions) *Webhook {
	limit := cmp.Or(opts.Limit, maxNotices)
	return &Webhook{opts: opts, queue: newQueue(limit, maxPosts, opts.Reported), reported: map[string]string{}}
}

// Use replaces the settings; nil turns the webhook off. Undelivered notices go where the new settings say.
func (w *Webhook) Use(settings *WebhookSettings) {
	w.mu.Lock()
	w.settings = settings
	w.mu.Unlock()
	w.queue.retry() // The pauses were for the earlier endpoint.
}

// current returns the settings; nil if the webhook is off.
func (w *Webhook) current() *WebhookSettings {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.settings
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

// WebhookNode is the agent.Listener that has the notices of one node posted.
type WebhookNode struct {
	webhook *Webhook
	subject Subject
	gate    gate

	mu      sync.Mutex // for all that follows
	builder builder
	labels  map[string]string // of the Node, when they could last be read
}

// Node returns a listener for the node that subject describes. Its notices are delivered even after the caller has dropped the listener.
func (w *Webhook) Node(subject Subject) *WebhookNode {
	return &WebhookNode{webhook: w, subject: subject}
}

// OnTransition implements agent.Listener: it queues a notice of each outcome that the settings ask for.
func (n *WebhookNode) OnTransition(t state.Transition) {
	w := n.webhook
	n.gate.observe(t)
	n.mu.Lock()
	defer n.mu.Unlock()
	if built := n.builder.build(t); w.wants(built) {
		post := &webhookNotice{node: n, notice: built, made: time.Now()}
		w.queue.add(&message{deliver: post.deliver, line: t.Entry.Event.ID, event: t.Entry.Event.ID, outcome: built.outcome, gate: &n.gate})
	}
}

// maxReported is how many events have their last outcome remembered.
const maxReported = 4096

// wants reports whether a notice is to be posted: it has an outcome, the webhook is on, the outcome is not the one that was reported last of its
// event, and the settings ask for its phase. It remembers the outcome as reported.
func (w *Webhook) wants(n notice) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := n.Entry.Event.ID
	if n.outcome == "" || w.settings == nil || w.reported[id] == n.outcome {
		return false
	}
	if len(w.reported) >= maxReported {
		clear(w.reported)
	}
	w.reported[id] = n.outcome
	return slices.Contains(w.settings.At, phaseOf(n.outcome))
}

// webhookNotice is a notice for the endpoint. Each attempt to post it renders it again, so that a notice that waits takes little memory.
type webhookNotice struct {
	node   *WebhookNode
	notice notice
	made   time.Time // with a monotonic reading, so that a change of the clock does not age the notice
	fields *Fields   // nil until the node and its machine are described
}

// deliver renders and posts the notice. The queue calls it for each attempt, and judges the error as that of message.deliver.
func (p *webhookNotice) deliver(ctx context.Context) error {
	w := p.node.webhook
	settings := w.current()
	if settings == nil {
		return refusedError{"the webhook is off"}
	}
	if time.Since(p.made) >= maxNoticeAge {
		return refusedError{"it is older than a day"}
	}
	if p.fields == nil {
		f := newFields(p.notice, p.node.describe(ctx, settings.Cluster, p.notice.Node), w.opts.DryRun)
		p.fields = &f
	}
	text, err := settings.Template.message(*p.fields, settings.ContentType())
	if err != nil { // It failed for none of the samples, and does for this notice.
		f := *p.fields
		f.Text += jsonSafe("; nth's own template is used: "+err.Error(), maxMessage)
		text, err = ownTemplate.Render(f)
	}
	switch {
	case err != nil:
		return fmt.Errorf("making a message: %w", err)
	case text == "":
		return errNothing // The template wants no such notice.
	}
	return settings.Post(ctx, p.fields.NoticeID, text)
}

// describe describes the node and its machine, as far as that can be read within lookupTimeout. If the labels cannot be read, as the Node is
// gone, it returns those that it read last.
func (n *WebhookNode) describe(ctx context.Context, cluster, name string) description {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	about := description{cluster: cluster}
	var asking sync.WaitGroup
	asking.Go(func() { about.machine = n.subject.Machine(ctx) })
	about.name, about.labels = n.subject.Node(ctx)
	asking.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if about.labels == nil {
		about.labels = n.labels
	}
	n.labels = about.labels
	return about
}
