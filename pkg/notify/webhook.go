package notify

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

const (
	// maxCordonWait is how long notices wait for a cordon that is under way.
	maxCordonWait = 5 * time.Second
	// defaultBacklog is how many transitions of one node wait at most until a notice is made of them, which takes moments.
	defaultBacklog = 256
	// maxPods is how many pods of one event a notice names at most.
	maxPods = 512
)

// Phase is the stage of an event at which a notice is made.
type Phase string

// The phases of a notice.
const (
	// Announced: the event is new.
	Announced Phase = "announced"
	// Ended: the work on the node is done, or its time is over, or it has failed.
	Ended Phase = "ended"
	// Over: the event no longer stands, and nothing of it is left on the node.
	Over Phase = "over"
)

// The outcomes in the phase Ended. The outcome in the phase Announced has the same name, and those in the phase Over are the endings of
// an entry of the record, and Moved.
const (
	Cordoned   = "cordoned"
	Drained    = "drained"
	Incomplete = "incomplete"
	Failed     = "failed"
	// LeftAlone: people want the node left alone, so it is not drained or, if no more was asked for, not cordoned.
	LeftAlone = string(event.LeftAlone)
	// Moved: the event was put off, and nothing is done for it until then.
	Moved = "moved"
)

// Outcomes lists all outcomes, in the order of the phases.
func Outcomes() []string {
	outcomes := []string{string(Announced), Cordoned, Drained, Incomplete, Failed, LeftAlone, Moved}
	for _, ending := range state.Endings() {
		outcomes = append(outcomes, string(ending))
	}
	return outcomes
}

func phaseOf(outcome string) Phase {
	switch outcome {
	case string(Announced):
		return Announced
	case Cordoned, Drained, Incomplete, Failed, LeftAlone:
		return Ended
	}
	return Over
}

// outcomeOf returns the outcome of a transition; "" if it is not worth a notice.
func outcomeOf(t state.Transition) string {
	switch t.Kind {
	case state.Announced:
		return string(Announced)
	case state.ClosedWith:
		return string(t.Entry.Ending)
	case state.RanOut:
		return Incomplete
	case state.Failed:
		if t.Entry.Failures > 1 { // The first was reported, perhaps before a restart.
			return ""
		}
		return Failed
	case state.LeftAlone:
		return LeftAlone
	case state.PutOff:
		return Moved
	case state.Done:
		switch {
		case t.Action == string(policy.Drain):
			return Drained
		case t.Action == string(policy.Cordon) && t.Entry.LeftOpen():
			return LeftAlone
		case t.Action == string(policy.Cordon):
			return Cordoned
		case t.Entry.Phase == state.Closed:
			return string(t.Entry.Ending)
		}
		return Moved
	}
	return ""
}

// isNews reports whether an outcome is news after the outcomes that were told of the event, the oldest first. An announcement
// stands until the event is over. The same outcome again, as of a repeated attempt, is no news, unless the event
// was announced or over in between. After LeftAlone any other outcome is news, and the other way round.
func isNews(told []string, outcome string) bool {
	phase := phaseOf(outcome)
	for _, before := range slices.Backward(told) {
		switch {
		case before == outcome:
			return false
		case phase == Ended && (before == LeftAlone || outcome == LeftAlone):
			return true
		case phase == Announced && phaseOf(before) == Over && before != Moved:
			return true
		case phase == Ended && phaseOf(before) != Ended, phase == Over && phaseOf(before) != Over:
			return true
		}
	}
	return true
}

// WebhookSettings are the settings of a Webhook, which can be replaced.
type WebhookSettings struct {
	// Post sends one message; see Destination.Post.
	Post     func(ctx context.Context, id, text string) error
	Template *Template
	// ContentType returns the content type of messages. It may read a file.
	ContentType func() string
	// Cluster names the cluster; empty is the name that eksctl has given the Node as a label, if any.
	Cluster string
	// AtDetection, AtEnd and AtClose enable the phases Announced, Ended and Over.
	AtDetection, AtEnd, AtClose bool
}

func (s *WebhookSettings) wants(phase Phase) bool {
	return phase == Announced && s.AtDetection || phase == Ended && s.AtEnd || phase == Over && s.AtClose
}

// WebhookOptions are the options of a Webhook. All are required unless they say otherwise.
type WebhookOptions struct {
	// Machine describes the machine, and Node returns its Node's name and labels, as far as they can be read before the
	// context ends. node is the node's name; "" is the one that nth runs on.
	Machine func(ctx context.Context, node string) Machine
	Node    func(ctx context.Context, node string) (name string, labels map[string]string)
	// Told is called with the result of each attempt to deliver a notice, one call at a time.
	Told func(DeliveryResult)
	// Degraded is called when a template fails when it is tried, and nth's own takes its place.
	Degraded func(error)
	// DryRun marks every notice.
	DryRun bool
	// Backlog is how many transitions wait at most until a notice is made of them, and how many notices until they are delivered; 0 is
	// enough for one node.
	Backlog int
}

// DeliveryResult is the result of an attempt to deliver a notice.
type DeliveryResult struct {
	Notice Notice
	// Err is why it was not delivered; nil if it was.
	Err error
	// GivenUp is set if it never will be.
	GivenUp bool
	// Again is set if the attempt before failed, too.
	Again bool
	// Alike counts further notices with the same result.
	Alike int
}

// Webhook is the listener that posts notices to an endpoint. Make one with NewWebhook.
//
// The notices of one event are posted in order, one at a time; of several events the newest goes first. While the endpoint
// fails, one notice at a time probes whether it is back, and new ones are tried once without waiting for that.
type Webhook struct {
	opts WebhookOptions
	wake chan struct{}

	reporting sync.Mutex // held while Told is called

	mu       sync.Mutex // for all that follows
	settings *WebhookSettings
	tried    bool                   // its template
	nodes    map[string]*nodeState  // by name; "" is one whose name is not known yet
	queues   map[string]*eventQueue // by event
	pods     map[string]*podList    // by event
	outbox   outbox
	dropped  DeliveryResult // transitions that were dropped since the last report
	endpoint endpoint
	rendering,
	posting int
	lastPost time.Time // when it began
	stopping bool
}

// nodeState is what is needed while a node is being looked after.
type nodeState struct {
	gate gate
	nodeInfo
}

// nodeInfo is what was last known of a machine and its Node.
type nodeInfo struct {
	machine Machine
	name    string
	labels  map[string]string
}

// eventQueue has what is to be told about one event, in order.
type eventQueue struct {
	node        string
	busy        bool   // a worker renders or posts one of its notices
	posting     string // the ID of the notice that is being posted; empty if none is
	transitions []pendingTransition
	notices     []pendingNotice
}

// pendingTransition is a transition that a notice is to be made of.
type pendingTransition struct {
	state.Transition
	outcome string
	pods    []string
	deleted map[string]string
}

// pendingNotice is a notice that is to be posted.
type pendingNotice struct {
	Notice
	queued      time.Time
	tries       int
	triedAtStop bool
}

// age is how old a notice is. Setting the clock while it waits does not change that.
func (n pendingNotice) age() time.Duration { return time.Since(n.queued) }

// podList has the pods that a drain for an event has evicted, deleted, or waits for.
type podList struct {
	node string
	pods []string
	deletions
}

// deletions knows the pods that a drain has deleted, and which disruption budget held each.
type deletions struct{ heldBy, deleted map[string]string }

// observe notes a pod, by "namespace/name".
func (d *deletions) observe(t state.Transition) {
	if d.deleted == nil {
		d.heldBy, d.deleted = map[string]string{}, map[string]string{}
	}
	switch {
	case t.Kind == state.PodHeld && t.Outcome != state.Refused && len(d.heldBy) < maxPods:
		d.heldBy[t.Pod] = t.Detail
	case t.Kind == state.PodDeleted && len(d.deleted) < maxPods:
		d.deleted[t.Pod] = d.heldBy[t.Pod]
	}
}

// NewWebhook returns a Webhook that is off until it gets its settings from Use.
func NewWebhook(opts WebhookOptions) *Webhook {
	return &Webhook{
		opts: opts, outbox: outbox{most: opts.Backlog}, wake: make(chan struct{}, 1),
		nodes: map[string]*nodeState{}, queues: map[string]*eventQueue{}, pods: map[string]*podList{},
	}
}

// queue returns an event's queue.
func (w *Webhook) queue(id, node string) *eventQueue {
	q := w.queues[id]
	if q == nil {
		q = &eventQueue{}
		w.queues[id] = q
	}
	q.node = cmp.Or(node, q.node)
	return q
}

// Use replaces the settings; nil turns the webhook off. Undelivered notices go where the new settings say. Run tries the template before
// it uses it, which holds up nobody else.
func (w *Webhook) Use(settings *WebhookSettings) {
	w.mu.Lock()
	w.settings, w.tried = settings, false
	w.endpoint = endpoint{} // It may be another one.
	w.mu.Unlock()
	wake(w.wake)
}

// Waiting counts what is to be delivered.
func (w *Webhook) Waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.backlog() + len(w.outbox.waiting)
}

// backlog counts the transitions of which no notice has been made yet.
func (w *Webhook) backlog() (count int) {
	for _, q := range w.queues {
		count += len(q.transitions)
	}
	return count
}

// OnTransition implements agent.Listener.
func (w *Webhook) OnTransition(t state.Transition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := t.Entry.Event.ID
	if t.Kind == state.Begun {
		w.pods[id] = &podList{node: t.Node}
	}
	w.node(t.Node).gate.observe(t)
	if w.settings == nil {
		return
	}
	w.notePod(t)
	if outcome := outcomeOf(t); outcome != "" {
		pending := pendingTransition{Transition: t, outcome: outcome}
		if list := w.pods[id]; list != nil {
			pending.pods, pending.deleted = slices.Clone(list.pods), maps.Clone(list.deleted)
		}
		w.enqueue(pending)
	}
	if t.Entry.Phase == state.Closed {
		delete(w.pods, id)
	}
	wake(w.wake)
}

// node returns the state of a node. The first node with a name takes over what was noted before the name was known.
func (w *Webhook) node(name string) *nodeState {
	if nameless := w.nodes[""]; nameless != nil && name != "" && w.nodes[name] == nil {
		w.nodes[name] = nameless
		w.nodes[""] = &nodeState{nodeInfo: nameless.nodeInfo} // for notices of transitions without a name
	}
	if w.nodes[name] == nil {
		w.nodes[name] = &nodeState{}
	}
	return w.nodes[name]
}

// enqueue keeps what a notice is to be made of, or counts it as dropped.
func (w *Webhook) enqueue(t pendingTransition) {
	id := t.Entry.Event.ID
	if w.backlog() < cmp.Or(w.opts.Backlog, defaultBacklog) {
		q := w.queue(id, t.Node)
		q.transitions = append(q.transitions, t)
		return
	}
	if w.dropped.GivenUp {
		w.dropped.Alike++
		return
	}
	n := Notice{Event: id, Node: t.Node, What: t.outcome}
	w.dropped = DeliveryResult{Notice: n, GivenUp: true, Err: errors.New("too much happens at once")}
}

// Forget drops the state of a node for which nothing more is done. Its notices are still delivered.
func (w *Webhook) Forget(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.nodes, node)
	maps.DeleteFunc(w.pods, func(_ string, list *podList) bool { return list.node == node })
	wake(w.wake)
}

// notePod notes a drain's pod, without its namespace. A drain is one for all events of the node, and reports a pod once.
func (w *Webhook) notePod(t state.Transition) {
	if t.Pod == "" || t.Kind == state.PodGone {
		return
	}
	_, name, ok := strings.Cut(t.Pod, "/")
	if !ok {
		name = t.Pod
	}
	if id := t.Entry.Event.ID; w.pods[id] == nil {
		w.pods[id] = &podList{node: t.Node}
	}
	for _, list := range w.pods {
		here := list.node == t.Node || list.node == "" // its name was not known yet
		if here {
			list.observe(t)
		}
		if here && len(list.pods) < maxPods && !slices.Contains(list.pods, name) {
			list.pods = append(list.pods, name)
		}
	}
}
