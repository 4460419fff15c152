package notify

import (
	"cmp"
	"context"
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

// WebhookOptions are what a Webhook is made of. All fields are needed.
type WebhookOptions struct {
	// Outbox keeps the notices.
	Outbox *record.Outbox
	// Machine describes the machine, and Node its Node by name and labels, as far as they can be asked before the context
	// ends.
	// They are asked about the node that something happened to; "" is the one whose machine this is.
	Machine func(ctx context.Context, node string) Machine
	Node    func(ctx context.Context, node string) (name string, labels map[string]string)
	// Told is called from Run with what became of notices.
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
}

// Webhook is the listener that posts to people's own endpoints. Make one with NewWebhook.
type Webhook struct {
	opts WebhookOptions
	// wake has an element when there is something new to look at.
	wake chan struct{}

	mu       sync.Mutex // for these, which Hear and Use use, too
	settings *WebhookSettings
	gate     gate
	begun    time.Time // since when the gate is closed for a cordon
	heard    []heard
	pods     map[string]*met // by event

	// These belong to Run's goroutine.
	asked    string // about which node machine, node and labels are
	machine  Machine
	node     string
	labels   map[string]string
	failures int
	retry    time.Time // nothing that failed is tried again before
	tried    map[string]bool
}

// met are the pods that a drain for an event has met.
type met struct {
	node string
	pods []string
}

// heard is a happening that a notice is to be made of.
type heard struct {
	record.Happening
	outcome string
	pods    []string
}

// NewWebhook returns a Webhook that is off until it is told what to Use.
func NewWebhook(opts WebhookOptions) *Webhook {
	return &Webhook{opts: opts, wake: make(chan struct{}, 1), pods: map[string]*met{}, tried: map[string]bool{}}
}

// Use replaces the settings; nil turns the webhook off. What has not been delivered yet goes where they say.
func (w *Webhook) Use(settings *WebhookSettings) {
	w.mu.Lock()
	w.settings = settings
	w.mu.Unlock()
	w.nudge()
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
		w.begun = time.Now()
		w.pods[h.Entry.Event.ID] = &met{node: h.Node}
	}
	w.gate.hear(h)
	if w.settings == nil {
		return
	}
	w.meet(h)
	if outcome := outcomeOf(h); outcome != "" {
		var pods []string
		if m := w.pods[h.Entry.Event.ID]; m != nil {
			pods = slices.Clone(m.pods)
		}
		w.heard = append(w.heard, heard{h, outcome, pods})
		w.heard = w.heard[max(0, len(w.heard)-cmp.Or(w.opts.Backlog, keepHeard)):]
	}
	if h.Entry.Phase == record.Closed {
		delete(w.pods, h.Entry.Event.ID)
	}
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
			h := record.Happening{At: now, Entry: e, Plan: describe(e)}
			w.heard = append(w.heard, heard{h, outcome, nil})
		}
	}
	w.gate.hold(now.Add(decisionTime)) // A step that was begun before is begun again at once.
	w.nudge()
}

// standing lists the outcomes that an entry should have been told with. What is over and was never announced is not worth a
// word: it was before there was a webhook.
func (w *Webhook) standing(e record.Entry, now time.Time) []string {
	outcomes := []string{Announced.String()}
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
