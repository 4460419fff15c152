package notify

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/record"
)

const (
	// cordonTime is how long notices give way to a cordon that does not come about.
	cordonTime = 5 * time.Second
	// keepHeard is how many happenings of one node wait at most until a notice is made of them, which takes moments.
	keepHeard = 256
	// keepPods is how many pods of one event are named.
	keepPods = 512
)

// WebhookSettings say what a Webhook posts, and where.
type WebhookSettings struct {
	// Post sends one message; Destination has one.
	Post     func(ctx context.Context, id, text string) error
	Template *Template
	// AtDetection, AtEnd and AtClose switch the phases Announced, Ended and Over on.
	AtDetection, AtEnd, AtClose bool
}

// wants tells whether notices of a phase are to be made.
func (s *WebhookSettings) wants(phase Phase) bool {
	return phase == Announced && s.AtDetection || phase == Ended && s.AtEnd || phase == Over && s.AtClose
}

// Outbox keeps notices until they are delivered, over restarts, as record.Outbox does, which says more. Only Sync waits for the
// disk.
type Outbox interface {
	Waiting() []record.Notice
	Told(event string) []string
	Note(event, what string)
	Add(record.Notice) (givenUp []record.Notice, err error)
	Room() int
	Remove(id string)
	Sync() error
}

// WebhookOptions are what a Webhook is made of. All fields are needed.
type WebhookOptions struct {
	Outbox Outbox
	// Machine describes the machine, and Node its Node by name and labels, as far as they can be asked before the context
	// ends.
	// They are asked about the node that something happened to; "" is the one whose machine this is.
	Machine func(ctx context.Context, node string) Machine
	Node    func(ctx context.Context, node string) (name string, labels map[string]string)
	// Told is called, from one goroutine at a time, with what became of notices.
	Told func(Telling)
	// DryRun marks every notice.
	DryRun bool
	// Backlog is how many happenings wait at most until a notice is made of them; 0 is enough for one node.
	Backlog int
}

// Telling is what became of a notice.
type Telling struct {
	Notice record.Notice
	// Err is why it was not delivered; nil if it was.
	Err error
	// GivenUp tells that it never will be.
	GivenUp bool
	// Again tells that the one before went wrong, too.
	Again bool
	// Alike counts further notices of which the same is to be said.
	Alike int
}

// Webhook is the listener that posts to people's own endpoints. Make one with NewWebhook.
//
// What is about one event is told in order, by one worker at a time; of several events the newest goes first. While the endpoint
// fails, one notice at a time asks whether it is back, and what is announced meanwhile is tried once without waiting for that.
type Webhook struct {
	opts WebhookOptions
	// wake has an element when there is something new to look at.
	wake chan struct{}

	telling sync.Mutex // is held while Told is called

	mu       sync.Mutex // for all that follows
	settings *WebhookSettings
	gates    map[string]*gate // by node
	lanes    map[string]*lane // by event
	heard    int              // in all lanes
	lost     Telling          // of what was heard and dropped; not told yet
	pods     map[string]*met  // by event
	known    map[string]known // by node
	endpoint endpoint
	making   int       // notices that are being made
	posting  int       // posts under way
	begun    time.Time // the last post
	ending   bool
}

// A lane has what is to be told about one event, in order.
type lane struct {
	node    string
	busy    bool   // a worker is at it
	posted  string // the ID of the notice that it posts; empty if it does not
	heard   []heard
	waiting []waiting
}

// heard is a happening that a notice is to be made of.
type heard struct {
	record.Happening
	outcome string
	pods    []string
}

// waiting is a notice that is to be posted.
type waiting struct {
	record.Notice
	came  time.Time     // to this process
	old   time.Duration // as it came
	tries int           // of this process
	last  bool          // it was tried while stopping
}

// age is how old a notice is. To set the clock while it waits does not change that.
func (n waiting) age() time.Duration { return n.old + time.Since(n.came) }

// met are the pods that a drain for an event has met.
type met struct {
	node string
	pods []string
}

// known is what a machine and its Node are, as was last heard.
type known struct {
	machine Machine
	node    string
	labels  map[string]string
}

// NewWebhook returns a Webhook that is off until it is told what to Use.
func NewWebhook(opts WebhookOptions) *Webhook {
	w := &Webhook{
		opts: opts, wake: make(chan struct{}, 1),
		gates: map[string]*gate{}, lanes: map[string]*lane{}, pods: map[string]*met{}, known: map[string]known{},
	}
	for _, n := range opts.Outbox.Waiting() {
		l := w.lane(n.Event, n.Node)
		l.waiting = append(l.waiting, waiting{Notice: n, came: time.Now(), old: max(time.Since(n.Made), 0)})
	}
	return w
}

// lane returns an event's lane.
func (w *Webhook) lane(id, node string) *lane {
	l := w.lanes[id]
	if l == nil {
		l = &lane{}
		w.lanes[id] = l
	}
	l.node = cmp.Or(node, l.node)
	return l
}

// Use replaces the settings; nil turns the webhook off. What has not been delivered yet goes where they say.
func (w *Webhook) Use(settings *WebhookSettings) {
	w.mu.Lock()
	w.settings = settings
	w.endpoint = endpoint{} // It may be another one.
	w.mu.Unlock()
	w.nudge()
}

// Waiting counts what is to be told and has not been delivered.
func (w *Webhook) Waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	count := w.heard
	for _, l := range w.lanes {
		count += len(l.waiting)
	}
	return count
}

func (w *Webhook) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Hear implements agent.Listener.
func (w *Webhook) Hear(h record.Happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.What == record.Begun {
		w.pods[h.Entry.Event.ID] = &met{node: h.Node}
	}
	w.gate(h.Node).hear(h)
	if w.settings == nil {
		return
	}
	w.meet(h)
	if outcome := outcomeOf(h); outcome != "" {
		var pods []string
		if m := w.pods[h.Entry.Event.ID]; m != nil {
			pods = slices.Clone(m.pods)
		}
		w.take(heard{h, outcome, pods})
	}
	if h.Entry.Phase == record.Closed {
		delete(w.pods, h.Entry.Event.ID)
	}
	w.nudge()
}

// gate returns the node's gate. What was heard of a node before it had a name is the first one's that has.
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

// take takes in what a notice is to be made of. What there is no place for is lost, and counted.
func (w *Webhook) take(h heard) {
	id := h.Entry.Event.ID
	if w.heard >= cmp.Or(w.opts.Backlog, keepHeard) {
		if w.lost.GivenUp {
			w.lost.Alike++
			return
		}
		n := record.Notice{Event: id, Node: h.Node, What: h.outcome}
		w.lost = Telling{Notice: n, GivenUp: true, Err: errors.New("too much happens at once")}
		return
	}
	l := w.lane(id, h.Node)
	l.heard = append(l.heard, h)
	w.heard++
}

// Forget forgets what is only known for as long as a node is being looked after. What is still to be told about it is told.
func (w *Webhook) Forget(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.gates, node)
	delete(w.known, node)
	maps.DeleteFunc(w.pods, func(_ string, m *met) bool { return m.node == node })
	w.nudge()
}

// meet remembers the pods that a drain is about, without their namespaces. It is one for all events that the node is drained
// for, and tells of a pod once.
func (w *Webhook) meet(h record.Happening) {
	if h.Pod == "" || h.What == record.PodGone {
		return
	}
	id, name := h.Entry.Event.ID, withoutNamespace(h.Pod)
	if w.pods[id] == nil {
		w.pods[id] = &met{node: h.Node}
	}
	for _, m := range w.pods {
		here := m.node == h.Node || m.node == "" // It had no name yet.
		if here && len(m.pods) < keepPods && !slices.Contains(m.pods, name) {
			m.pods = append(m.pods, name)
		}
	}
}

// Resume makes up for notices that a crash has swallowed: it goes by the record's entries, of which the outbox knows
// whether they were told. describe says in words what is going to be done about one. Call it after Use.
func (w *Webhook) Resume(entries []record.Entry, now time.Time, describe func(record.Entry) string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.settings == nil {
		return
	}
	for _, e := range entries {
		for _, outcome := range w.standing(e, now) {
			w.take(heard{record.Happening{At: now, Entry: e, Plan: describe(e)}, outcome, nil})
		}
	}
	w.gate("").hold(now.Add(decisionTime)) // A step that was begun before is begun again at once.
	w.nudge()
}

// standing lists the outcomes that an entry should have been told with. What is over and was never announced is not worth a
// word: it was before there was a webhook.
func (w *Webhook) standing(e record.Entry, now time.Time) []string {
	outcomes := []string{Announced.String()}
	if e.LeftAlone {
		return append(outcomes, LeftAlone)
	}
	switch e.Phase {
	case record.Cordoned:
		outcomes = append(outcomes, Cordoned)
	case record.Drained:
		outcomes = append(outcomes, Drained)
	case record.Incomplete:
		outcomes = append(outcomes, Incomplete)
	case record.Closed:
		if due(w.opts.Outbox.Told(e.Event.ID), Announced.String()) || now.Sub(e.Changed) > oldest {
			return nil
		}
		return []string{string(e.Ending)}
	case record.Seen, record.Cordoning, record.Draining, record.Undoing:
	}
	return outcomes
}
