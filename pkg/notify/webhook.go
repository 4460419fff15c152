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
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
)

const (
	// maxCordonWait is how long notices wait for a cordon that is under way.
	maxCordonWait = 5 * time.Second
	// defaultBacklog is how many happenings of one node wait at most until a notice is made of them, which takes moments.
	defaultBacklog = 256
	// maxPods is how many pods of one event are named.
	maxPods = 512
)

// Phase is the stage of an event at which a notice is made.
type Phase string

// The phases of a notice.
const (
	// Announced: the event is new.
	Announced Phase = "announced"
	// Ended: what was to be done about it was done, or its time is over, or it went wrong.
	Ended Phase = "ended"
	// Over: the event no longer stands, and what was done for it is undone.
	Over Phase = "over"
)

// String returns the phase's word.
func (p Phase) String() string { return string(p) }

// The outcomes that belong to the phase Ended. Announced is its own outcome, and Over has the endings of an entry of the
// record, and "moved".
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
	outcomes := []string{Announced.String(), Cordoned, Drained, Incomplete, Failed, LeftAlone, Moved}
	for _, ending := range state.Endings() {
		outcomes = append(outcomes, string(ending))
	}
	return outcomes
}

func phaseOf(outcome string) Phase {
	switch outcome {
	case Announced.String():
		return Announced
	case Cordoned, Drained, Incomplete, Failed, LeftAlone:
		return Ended
	}
	return Over
}

// outcomeOf returns the outcome of a happening; "" if it is not worth a notice.
func outcomeOf(h state.Transition) string {
	switch h.Kind {
	case state.Announced:
		return Announced.String()
	case state.ClosedWith:
		return string(h.Entry.Ending)
	case state.RanOut:
		return Incomplete
	case state.Failed:
		return Failed
	case state.LeftAlone:
		return LeftAlone
	case state.PutOff:
		return Moved
	case state.Done:
		switch {
		case h.Action == string(policy.Drain):
			return Drained
		case h.Action == string(policy.Cordon) && h.Entry.LeftOpen():
			return LeftAlone
		case h.Action == string(policy.Cordon):
			return Cordoned
		case h.Entry.Phase == state.Closed:
			return string(h.Entry.Ending)
		}
		return Moved
	}
	return ""
}

// isNews reports whether an outcome is news after those that were told of the event, the oldest first. An announcement
// stands until the event is over. An outcome that comes again, as that of a repeated attempt, is none, unless the event
// was announced or over in between. Between people's order to leave the node alone and anything else, the last one counts.
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

// WebhookSettings say what a Webhook posts, and where.
type WebhookSettings struct {
	// Post sends one message; see Destination.Post.
	Post     func(ctx context.Context, id, text string) error
	Template *Template
	// AtDetection, AtEnd and AtClose enable the phases Announced, Ended and Over.
	AtDetection, AtEnd, AtClose bool
}

func (s *WebhookSettings) wants(phase Phase) bool {
	return phase == Announced && s.AtDetection || phase == Ended && s.AtEnd || phase == Over && s.AtClose
}

// Outbox keeps notices until they are delivered, over restarts, as record.Outbox does, which documents it. Only Sync
// waits for the disk.
type Outbox interface {
	Waiting() []record.Notice
	Told(event string) []string
	Note(event, what string)
	Add(record.Notice) (givenUp []record.Notice, err error)
	Room() int
	Remove(id string)
	Sync() error
}

// WebhookOptions are what a Webhook is made of. All fields are needed but for those that say otherwise.
type WebhookOptions struct {
	Outbox Outbox
	// Machine describes the machine, and Node returns its Node's name and labels, as far as they can be read before the
	// context ends. node is the one that something happened to; "" is the one that nth runs on.
	Machine func(ctx context.Context, node string) Machine
	Node    func(ctx context.Context, node string) (name string, labels map[string]string)
	// Told is called with the result of each attempt to deliver a notice, one call at a time.
	Told func(DeliveryResult)
	// DryRun marks every notice.
	DryRun bool
	// Backlog is how many happenings wait at most until a notice is made of them; 0 is enough for one node.
	Backlog int
}

// DeliveryResult is the result of an attempt to deliver a notice.
type DeliveryResult struct {
	Notice record.Notice
	// Err is why it was not delivered; nil if it was.
	Err error
	// GivenUp is set if it never will be.
	GivenUp bool
	// Again is set if the attempt before failed, too.
	Again bool
	// Alike counts further notices with the same result.
	Alike int
}

// Webhook is the listener that posts to people's own endpoints. Make one with NewWebhook.
//
// The notices of one event are posted in order, one at a time; of several events the newest goes first. While the endpoint
// fails, one notice at a time probes whether it is back, and new ones are tried once without waiting for that.
type Webhook struct {
	opts WebhookOptions
	wake chan struct{}

	reporting sync.Mutex // held while Told is called

	mu       sync.Mutex // for all that follows
	settings *WebhookSettings
	gates    map[string]*gate       // by node
	queues   map[string]*eventQueue // by event
	backlog  int                    // happenings in all queues
	dropped  DeliveryResult         // happenings that were dropped since the last report
	pods     map[string]*podList    // by event
	nodes    map[string]nodeInfo    // by name
	endpoint endpoint
	rendering,
	posting int
	lastPost time.Time // when it began
	stopping bool
}

// eventQueue has what is to be told about one event, in order.
type eventQueue struct {
	node       string
	busy       bool   // a worker is at it
	posting    string // the ID of the notice that it posts; empty if it does not
	happenings []pendingHappening
	notices    []pendingNotice
}

// pendingHappening is one that a notice is to be made of.
type pendingHappening struct {
	state.Transition
	outcome string
	pods    []string
}

// pendingNotice is one that is to be posted.
type pendingNotice struct {
	record.Notice
	queued      time.Time     // in this process
	queuedAge   time.Duration // its age then
	tries       int           // of this process
	triedAtStop bool
}

// age is how old a notice is. Setting the clock while it waits does not change that.
func (n pendingNotice) age() time.Duration { return n.queuedAge + time.Since(n.queued) }

// podList has the pods that a drain for an event has evicted, or waits for.
type podList struct {
	node string
	pods []string
}

// nodeInfo is what was last known of a machine and its Node.
type nodeInfo struct {
	machine Machine
	name    string
	labels  map[string]string
}

// NewWebhook returns a Webhook that is off until it gets its settings from Use.
func NewWebhook(opts WebhookOptions) *Webhook {
	w := &Webhook{
		opts: opts, wake: make(chan struct{}, 1),
		gates: map[string]*gate{}, queues: map[string]*eventQueue{}, pods: map[string]*podList{}, nodes: map[string]nodeInfo{},
	}
	for _, n := range opts.Outbox.Waiting() {
		q := w.queue(n.Event, n.Node)
		q.notices = append(q.notices, pendingNotice{Notice: n, queued: time.Now(), queuedAge: max(time.Since(n.Made), 0)})
	}
	return w
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

// Use replaces the settings; nil turns the webhook off. Undelivered notices go where the new settings say.
func (w *Webhook) Use(settings *WebhookSettings) {
	w.mu.Lock()
	w.settings = settings
	w.endpoint = endpoint{} // It may be another one.
	w.mu.Unlock()
	wake(w.wake)
}

// Waiting counts what is to be delivered.
func (w *Webhook) Waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	count := w.backlog
	for _, q := range w.queues {
		count += len(q.notices)
	}
	return count
}

// OnTransition implements agent.Listener.
func (w *Webhook) OnTransition(h state.Transition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.Kind == state.Begun {
		w.pods[h.Entry.Event.ID] = &podList{node: h.Node}
	}
	w.gate(h.Node).hear(h)
	if w.settings == nil {
		return
	}
	w.notePod(h)
	if outcome := outcomeOf(h); outcome != "" {
		var pods []string
		if list := w.pods[h.Entry.Event.ID]; list != nil {
			pods = slices.Clone(list.pods)
		}
		w.enqueue(pendingHappening{h, outcome, pods})
	}
	if h.Entry.Phase == state.Closed {
		delete(w.pods, h.Entry.Event.ID)
	}
	wake(w.wake)
}

// gate returns the node's gate. The first named node takes over that of a node whose name was not known yet.
func (w *Webhook) gate(node string) *gate {
	if nameless := w.gates[""]; nameless != nil && node != "" && w.gates[node] == nil {
		w.gates[node] = nameless
		delete(w.gates, "")
	}
	g := w.gates[node]
	if g == nil {
		g = &gate{}
		w.gates[node] = g
	}
	return g
}

// enqueue keeps what a notice is to be made of, or counts it as dropped.
func (w *Webhook) enqueue(h pendingHappening) {
	id := h.Entry.Event.ID
	if w.backlog >= cmp.Or(w.opts.Backlog, defaultBacklog) {
		if w.dropped.GivenUp {
			w.dropped.Alike++
			return
		}
		n := record.Notice{Event: id, Node: h.Node, What: h.outcome}
		w.dropped = DeliveryResult{Notice: n, GivenUp: true, Err: errors.New("too much happens at once")}
		return
	}
	q := w.queue(id, h.Node)
	q.happenings = append(q.happenings, h)
	w.backlog++
}

// Forget forgets what is needed only while a node is being looked after. What is still to be told about it is told.
func (w *Webhook) Forget(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.gates, node)
	delete(w.nodes, node)
	maps.DeleteFunc(w.pods, func(_ string, list *podList) bool { return list.node == node })
	wake(w.wake)
}

// notePod notes a drain's pod, without its namespace. A drain is one for all events of the node, and reports a pod once.
func (w *Webhook) notePod(h state.Transition) {
	if h.Pod == "" || h.Kind == state.PodGone {
		return
	}
	_, name, ok := strings.Cut(h.Pod, "/")
	if !ok {
		name = h.Pod
	}
	if id := h.Entry.Event.ID; w.pods[id] == nil {
		w.pods[id] = &podList{node: h.Node}
	}
	for _, list := range w.pods {
		here := list.node == h.Node || list.node == "" // its name was not known yet
		if here && len(list.pods) < maxPods && !slices.Contains(list.pods, name) {
			list.pods = append(list.pods, name)
		}
	}
}

// Resume makes up for notices that were lost in a crash: it compares the record's entries with the outbox, which knows
// what was told. describe says what is going to be done about one. Call it after Use.
func (w *Webhook) Resume(entries []state.Entry, now time.Time, describe func(state.Entry) string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.settings == nil {
		return
	}
	for _, e := range entries {
		for _, outcome := range w.outcomesSoFar(e, now) {
			w.enqueue(pendingHappening{state.Transition{At: now, Entry: e, Plan: describe(e)}, outcome, nil})
		}
	}
	w.gate("").closeUntil(now.Add(decisionTime)) // A step that a crash has interrupted begins again at once.
	wake(w.wake)
}

// outcomesSoFar lists the outcomes that should have been told of an entry. An event that is over and was never announced
// is left out: it is older than the webhook.
func (w *Webhook) outcomesSoFar(e state.Entry, now time.Time) []string {
	outcomes := []string{Announced.String()}
	if e.LeftAlone {
		return append(outcomes, LeftAlone)
	}
	switch e.Phase {
	case state.Cordoned:
		outcomes = append(outcomes, Cordoned)
	case state.Drained:
		outcomes = append(outcomes, Drained)
	case state.Incomplete:
		outcomes = append(outcomes, Incomplete)
	case state.Closed:
		if isNews(w.opts.Outbox.Told(e.Event.ID), Announced.String()) || now.Sub(e.Changed) > maxNoticeAge {
			return nil
		}
		return []string{string(e.Ending)}
	case state.Seen, state.Cordoning, state.Draining, state.Undoing:
	}
	return outcomes
}
