package metrics

import (
	"strconv"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// draining is a drain in state.Transition.Action.
const draining = "drain"

// OnTransition implements agent.Listener.
func (m *Metrics) OnTransition(t state.Transition) {
	s := m.series
	switch t.Kind {
	case state.Announced:
		s.events.WithLabelValues(string(t.Entry.Event.Kind)).Inc()
	case state.NodeCordoned:
		m.cordoned(t)
	case state.PodEvicted:
		s.evicted.Inc()
	case state.PodDeleted:
		s.deleted.Inc()
	case state.Done, state.Failed, state.RanOut, state.CalledBack, state.LeftAlone:
		m.ended(t)
	}
	if t.Action == draining {
		m.countDrain(t)
	}
	m.countCompatible(t)
	m.touch()
}

// cordoned observes how long the node was still open. Maintenance is announced days ahead and waited for, so for maintenance it
// is the time since the step began. A cordon that continues earlier work, of this process or the last one, is not observed.
func (m *Metrics) cordoned(t state.Transition) {
	took := t.At.Sub(t.Entry.FirstSeen)
	if t.Entry.Event.Kind == event.ScheduledMaintenance {
		took = t.Took
	}
	if t.Entry.FirstSeen.Before(m.began.Round(0)) || !t.Entry.CordonedAt.IsZero() && t.Entry.CordonedAt.Before(t.At.Add(-t.Took)) {
		return
	}
	m.series.cordonTook.Observe(max(took, 0).Seconds())
}

// ended counts steps that have ended, or failed and go on. The duration of a drain that was canceled, or left to people,
// is not observed.
func (m *Metrics) ended(t state.Transition) {
	m.series.actions.WithLabelValues(t.Action, string(t.Kind)).Inc()
	if t.Action != draining || t.Kind == state.CalledBack || t.Kind == state.Failed || t.Kind == state.LeftAlone {
		return
	}
	m.series.drainTook.Observe(t.Took.Seconds())
	if !t.Deadline.IsZero() {
		m.series.timeLeft.WithLabelValues(string(t.Entry.Event.Kind)).Set(t.Deadline.Sub(t.At).Seconds())
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

// touch makes writeFiles write the file soon.
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

// HookRequests creates the counters for these actions and results, so that the first request is seen as an increase.
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

// drainProgress is the progress of one drain.
type drainProgress struct {
	events      map[string]bool // the IDs of the events that the drain is still for
	total, left int
	blocked     map[string]bool // pods
}

// countDrain follows a drain. The gauges are the sum over the current drains; if there is none, they keep the values of the
// last one, to which a late pod may still be added.
func (m *Metrics) countDrain(t state.Transition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.drainOf(t); p != nil {
		p.update(t)
		if len(p.events) == 0 {
			delete(m.drains, t.Node)
		}
	}
	total, left, blocked := 0, 0, 0
	for _, p := range m.drains {
		total, left, blocked = total+p.total, left+p.left, blocked+len(p.blocked)
	}
	if len(m.drains) == 0 {
		total, left = t.Total, t.Left
	}
	m.series.draining.Set(float64(len(m.drains)))
	m.series.pods.Set(float64(total))
	m.series.left.Set(float64(left))
	if m.opts.Queue { // Otherwise Show sets it.
		m.series.held.Set(float64(blocked))
	}
}

// drainOf returns the drain that a transition belongs to; nil if there is none.
func (m *Metrics) drainOf(t state.Transition) *drainProgress {
	if p := m.drains[""]; p != nil && m.drains[t.Node] == nil { // It began before the node's name was known.
		delete(m.drains, "")
		m.drains[t.Node] = p
	}
	if t.Kind == state.Begun && m.drains[t.Node] == nil {
		m.drains[t.Node] = &drainProgress{events: map[string]bool{}, blocked: map[string]bool{}}
	}
	return m.drains[t.Node]
}

func (p *drainProgress) update(t state.Transition) {
	p.total, p.left = t.Total, t.Left
	switch t.Kind { // The others neither begin nor end a drain, nor block or unblock a pod.
	case state.Begun:
		p.events[t.Entry.Event.ID] = true
	case state.Done, state.RanOut, state.CalledBack, state.LeftAlone: // A failed drain goes on.
		delete(p.events, t.Entry.Event.ID)
	case state.PodHeld:
		p.blocked[t.Pod] = true
	case state.PodEvicted, state.PodDeleted, state.PodGone, state.PodSpared:
		delete(p.blocked, t.Pod)
	}
}

// compatibleActions are aws-node-termination-handler's names for the steps.
var compatibleActions = map[string]string{"cordon": "cordon", "drain": "cordon-and-drain", "uncordon": "uncordon"}

// countCompatible counts as aws-node-termination-handler does: a "pre-drain" before each cordon or drain, which does nothing here
// and always succeeds, the step itself, and each failed poll.
func (m *Metrics) countCompatible(t state.Transition) {
	if m.series.compatibleActions == nil {
		return
	}
	count := func(action, status string) { m.series.compatibleActions.WithLabelValues(action, status).Inc() }
	switch t.Kind {
	case state.Begun:
		if t.Action != "uncordon" {
			count("pre-drain", "success")
		}
	case state.Done:
		count(compatibleActions[t.Action], "success")
	case state.Failed, state.RanOut:
		count(compatibleActions[t.Action], "error")
	case state.SourceLost:
		if monitor := t.Entry.Event.Kind.Info().Handler.Monitor; monitor != "" {
			m.series.compatibleErrors.WithLabelValues(monitor).Inc()
		}
	}
}
