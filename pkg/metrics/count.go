package metrics

import (
	"strconv"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// draining is a drain in state.Transition.Action.
const draining = "drain"

// OnTransition counts what happens. It implements agent.Listener.
func (m *Metrics) OnTransition(h state.Transition) {
	s := m.series
	switch h.Kind {
	case state.Announced:
		s.events.WithLabelValues(string(h.Entry.Event.Kind)).Inc()
	case state.NodeCordoned:
		m.cordoned(h)
	case state.PodEvicted:
		s.evicted.Inc()
	case state.PodDeleted:
		s.deleted.Inc()
	case state.Done, state.Failed, state.RanOut, state.CalledBack, state.LeftAlone:
		m.ended(h)
	}
	if h.Action == draining {
		m.countDrain(h)
	}
	m.countCompatible(h)
	m.touch()
}

// cordoned observes how long the node was still open. Maintenance is announced days ahead and waited for, so for that it
// is the time since the step began. A cordon that continues earlier work, of this process or the last one, says nothing.
func (m *Metrics) cordoned(h state.Transition) {
	took := h.At.Sub(h.Entry.FirstSeen)
	if h.Entry.Event.Kind == event.ScheduledMaintenance {
		took = h.Took
	}
	if h.Entry.FirstSeen.Before(m.began.Round(0)) || !h.Entry.CordonedAt.IsZero() && h.Entry.CordonedAt.Before(h.At.Add(-h.Took)) {
		return
	}
	m.series.cordonTook.Observe(max(took, 0).Seconds())
}

// ended counts work that has ended, or failed and goes on. The duration of a drain that was canceled, or left to people,
// says nothing about drains.
func (m *Metrics) ended(h state.Transition) {
	m.series.actions.WithLabelValues(h.Action, string(h.Kind)).Inc()
	if h.Action != draining || h.Kind == state.CalledBack || h.Kind == state.Failed || h.Kind == state.LeftAlone {
		return
	}
	m.series.drainTook.Observe(h.Took.Seconds())
	if !h.Deadline.IsZero() {
		m.series.timeLeft.WithLabelValues(string(h.Entry.Event.Kind)).Set(h.Deadline.Sub(h.At).Seconds())
	}
}

// The outcomes of a notice.
const delivered, lost = "delivered", "lost"

// Noticed counts a notice that was delivered.
func (m *Metrics) Noticed() {
	m.series.notices.WithLabelValues(delivered).Inc()
	m.touch()
}

// NoticesLost counts notices that will never be delivered.
func (m *Metrics) NoticesLost(n int) {
	m.series.notices.WithLabelValues(lost).Add(float64(n))
	m.touch()
}

// EventsDropped counts Events that were not written to the cluster.
func (m *Metrics) EventsDropped(n int) {
	m.series.eventsDropped.Add(float64(n))
	m.touch()
}

// touch has the file written soon.
func (m *Metrics) touch() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// seconds is a time as Prometheus wants it.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// Polled counts a request for a document of the metadata service, named by its path.
func (m *Metrics) Polled(document, result string, took time.Duration) {
	m.series.imdsRequests.WithLabelValues(document, result).Inc()
	m.series.imdsTook.Observe(took.Seconds())
}

// Renewed counts a request for a session token of the metadata service; err says why it failed.
func (m *Metrics) Renewed(err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.series.imdsTokens.WithLabelValues(result).Inc()
}

// HookRequests creates the counters of these requests about lifecycle hooks, so that an increase is seen from the first one on.
func (m *Metrics) HookRequests(actions, results []string) {
	for _, action := range actions {
		for _, result := range results {
			m.series.hookRequests.WithLabelValues(action, result)
		}
	}
}

// HookRequested counts a request about a waiting lifecycle hook, by its action and result.
func (m *Metrics) HookRequested(action, result string) {
	m.series.hookRequests.WithLabelValues(action, result).Inc()
	m.touch()
}

// Requested counts a request to the API server. code is the answer's status; 0 if there was none.
func (m *Metrics) Requested(method string, code int) {
	answer := "none"
	if code != 0 {
		answer = strconv.Itoa(code)
	}
	m.series.apiRequests.WithLabelValues(method, answer).Inc()
}

// drains are the current drains, by node. On a machine there is one at most; nth-queue has many.
type drains struct {
	mu      sync.Mutex
	running map[string]*drainProgress
}

// drainProgress is the drainProgress of one drain.
type drainProgress struct {
	events      map[string]bool // those that the drain is still for
	total, left int
	blocked     map[string]bool // pods
}

// countDrain follows a drain. The gauges have the sum of the current drains; if there is none, they keep the values of the
// last one, to which a late pod may still be added.
func (m *Metrics) countDrain(h state.Transition) {
	d := &m.drains
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.of(h); p != nil {
		p.follow(h)
		if len(p.events) == 0 {
			delete(d.running, h.Node)
		}
	}
	sum, blocked := drainProgress{total: h.Total, left: h.Left}, 0
	if len(d.running) > 0 {
		sum = drainProgress{}
	}
	for _, p := range d.running {
		sum.total, sum.left, blocked = sum.total+p.total, sum.left+p.left, blocked+len(p.blocked)
	}
	m.series.draining.Set(float64(len(d.running)))
	m.series.pods.Set(float64(sum.total))
	m.series.left.Set(float64(sum.left))
	if m.opts.Queue { // The status of one node tells it better.
		m.series.held.Set(float64(blocked))
	}
}

// of returns the drain that a happening belongs to; nil if there is none.
func (d *drains) of(h state.Transition) *drainProgress {
	if d.running == nil {
		d.running = map[string]*drainProgress{}
	}
	if p := d.running[""]; p != nil && d.running[h.Node] == nil { // It began before the node's name was known.
		delete(d.running, "")
		d.running[h.Node] = p
	}
	if h.Kind == state.Begun && d.running[h.Node] == nil {
		d.running[h.Node] = &drainProgress{events: map[string]bool{}, blocked: map[string]bool{}}
	}
	return d.running[h.Node]
}

func (p *drainProgress) follow(h state.Transition) {
	p.total, p.left = h.Total, h.Left
	switch h.Kind { // The others neither begin nor end a drain, nor block or unblock a pod.
	case state.Begun:
		p.events[h.Entry.Event.ID] = true
	case state.Done, state.RanOut, state.CalledBack, state.LeftAlone: // A failed drain goes on.
		delete(p.events, h.Entry.Event.ID)
	case state.PodHeld:
		p.blocked[h.Pod] = true
	case state.PodEvicted, state.PodDeleted, state.PodGone:
		delete(p.blocked, h.Pod)
	}
}

// compatibleActions are aws-node-termination-handler's names for the steps.
var compatibleActions = map[string]string{"cordon": "cordon", "drain": "cordon-and-drain", "uncordon": "uncordon"}

// countCompatible counts as aws-node-termination-handler does: a task before each cordon or drain, which does nothing here
// and always succeeds, the step itself, and each failed poll.
func (m *Metrics) countCompatible(h state.Transition) {
	if m.series.compatibleActions == nil {
		return
	}
	count := func(action, status string) { m.series.compatibleActions.WithLabelValues(action, status).Inc() }
	switch h.Kind {
	case state.Begun:
		if h.Action != "uncordon" {
			count("pre-drain", "success")
		}
	case state.Done:
		count(compatibleActions[h.Action], "success")
	case state.Failed, state.RanOut:
		count(compatibleActions[h.Action], "error")
	case state.SourceLost:
		if monitor := h.Entry.Event.Kind.Info().Handler.Monitor; monitor != "" {
			m.series.compatibleErrors.WithLabelValues(monitor).Inc()
		}
	}
}
