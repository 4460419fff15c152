package notify

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/state"
)

const (
	// maxNotices is how many notices of one node wait at most, unless the options say otherwise.
	maxNotices = 64
	// reportedPerNotice is how many outcomes are remembered for each notice that may wait.
	reportedPerNotice = 4
	// maxPosts is how many notices are rendered and posted at a time.
	maxPosts = 64
	// youngPause and oldPause are the longest pauses between two posts of a young notice, and of another.
	youngPause, oldPause = 15 * time.Second, 5 * time.Minute
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

// WebhookOptions are the options of a Webhook. All are required unless they say otherwise.
type WebhookOptions struct {
	// Machine describes the machine, and Node returns its Node's name and labels, as far as they can be read before the
	// context ends. node is the node's name; "" is the one that nth runs on.
	Machine func(ctx context.Context, node string) Machine
	Node    func(ctx context.Context, node string) (name string, labels map[string]string)
	// Reported is called with the result of each attempt to deliver a notice, from several goroutines.
	Reported func(DeliveryResult)
	// Degraded is called when a template fails when it is tried, and nth's own takes its place.
	Degraded func(error)
	// DryRun marks every notice.
	DryRun bool
	// Limit is how many notices wait at most until they are delivered; 0 is enough for one node.
	Limit int
}

// Webhook is the listener that posts notices to an endpoint. Make one with NewWebhook.
type Webhook struct {
	opts  WebhookOptions
	queue *queue

	mu       sync.Mutex // for all that follows
	settings *triedSettings
	nodes    map[string]*webhookNode // by name; "" is one whose name is not known yet
	reported reported
}

// webhookNode is what is remembered of a node.
type webhookNode struct {
	gate    gate
	builder builder
	labels  map[string]string // of the Node, when they could last be read
}

// triedSettings are settings whose template is tried before they are used.
type triedSettings struct {
	WebhookSettings
	tried chan struct{} // closed after that
}

// NewWebhook returns a Webhook that is off until it gets its settings from Use.
func NewWebhook(opts WebhookOptions) *Webhook {
	if opts.Limit == 0 {
		opts.Limit = maxNotices
	}
	return &Webhook{
		opts: opts, nodes: map[string]*webhookNode{},
		queue: newQueue(opts.Limit, maxPosts, 0, youngPause, oldPause, opts.Reported),
	}
}

// Use replaces the settings; nil turns the webhook off. Undelivered notices go where the new settings say. The template is tried in a
// goroutine of its own, and nth's own template takes the place of one that fails.
func (w *Webhook) Use(settings *WebhookSettings) {
	var used *triedSettings
	if settings != nil {
		used = &triedSettings{*settings, make(chan struct{})}
		go func() {
			defer close(used.tried)
			if err := used.Template.Try(used.ContentType()); err != nil {
				used.Template, _ = CompileTemplate("", "") // It always compiles.
				w.opts.Degraded(fmt.Errorf("webhook: %w; nth's own template is used", err))
			}
		}()
	}
	w.mu.Lock()
	w.settings = used
	w.mu.Unlock()
	w.queue.retry() // It may be another endpoint.
}

// current returns the settings once their template has been tried or ctx has ended; nil if the webhook is off.
func (w *Webhook) current(ctx context.Context) *triedSettings {
	w.mu.Lock()
	settings := w.settings
	w.mu.Unlock()
	if settings == nil {
		return nil
	}
	select {
	case <-settings.tried:
	case <-ctx.Done():
	}
	return settings
}

// Run waits until ctx ends, and until each notice that is left then was tried once more, for a moment. Call it once.
func (w *Webhook) Run(ctx context.Context) { w.queue.run(ctx) }

// OnTransition implements agent.Listener.
func (w *Webhook) OnTransition(t state.Transition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	node := w.node(t.Node)
	if node.gate.observe(t) {
		w.queue.wake()
	}
	for _, n := range node.builder.build(t) {
		event := t.Entry.Event.ID
		if w.settings == nil || n.outcome == "" || !w.reported.isNews(event, n.outcome, reportedPerNotice*w.opts.Limit) || !slices.Contains(w.settings.At, phaseOf(n.outcome)) {
			continue
		}
		id := noticeID(n)
		w.queue.add(&parcel{
			message: &webhookMessage{webhook: w, node: node, notice: n},
			Notice:  Notice{ID: id, Event: event, Outcome: n.outcome},
			line:    event, gate: &node.gate,
		})
	}
}

// node returns what is remembered of a node. The first node with a name is the one whose name was not known before.
func (w *Webhook) node(name string) *webhookNode {
	if nameless := w.nodes[""]; nameless != nil && name != "" && w.nodes[name] == nil {
		w.nodes[name] = nameless
		delete(w.nodes, "")
	}
	if w.nodes[name] == nil {
		w.nodes[name] = &webhookNode{}
	}
	return w.nodes[name]
}

// Forget drops what is remembered of a node for which nothing more is done. Its notices are still delivered.
func (w *Webhook) Forget(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.nodes, node)
}

// webhookMessage is a notice for the webhook. It is rendered for each post, so that what waits takes little memory.
type webhookMessage struct {
	webhook *Webhook
	node    *webhookNode
	notice  notice
	fields  *Fields // once the node and its machine are described
}

// deliver renders and posts the notice.
func (m *webhookMessage) deliver(ctx context.Context) error {
	settings := m.webhook.current(ctx)
	if settings == nil {
		return refusedError{"the webhook is off"}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if m.fields == nil {
		f := newFields(m.notice, m.subject(ctx, settings.Cluster), m.webhook.opts.DryRun)
		if ctx.Err() != nil {
			return ctx.Err() // The last attempt describes the node.
		}
		m.fields, m.notice = &f, notice{}
	}
	text, err := settings.Template.Render(*m.fields)
	switch {
	case err != nil:
		return refusedError{fmt.Sprintf("making a message: %s", err)}
	case text == "":
		return errNothing // The template wants no such notice.
	}
	return settings.Post(ctx, m.fields.NoticeID, text)
}

// subject describes the node and its machine, as far as that can be read in time. A Node that is gone has the labels that it had.
func (m *webhookMessage) subject(ctx context.Context, cluster string) subject {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	about, node := subject{cluster: cluster}, m.notice.Node
	var asking sync.WaitGroup
	asking.Go(func() { about.machine = m.webhook.opts.Machine(ctx, node) })
	about.name, about.labels = m.webhook.opts.Node(ctx, node)
	asking.Wait()
	m.webhook.mu.Lock()
	defer m.webhook.mu.Unlock()
	if about.labels == nil {
		about.labels = m.node.labels
	}
	m.node.labels = about.labels
	return about
}
