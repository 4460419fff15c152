package metrics

import (
	"strconv"
	"time"

	"github.com/nth-project/nth/pkg/state"
)

// draining is the name of a drain in state.Transition.Action.
const draining = "drain"

// OnTransition implements agent.Listener: it counts what happens to an event and to pods, and exports the pods of the drain under way.
func (m *Metrics) OnTransition(t state.Transition) {
	s := m.series
	switch t.Kind {
	case state.Announced:
		s.events.WithLabelValues(string(t.Entry.Event.Kind)).Inc()
	case state.NodeCordoned:
		s.cordonTook.Observe(t.Took.Seconds())
	case state.PodEvicted:
		s.evicted.Inc()
	case state.PodDeleted:
		s.deleted.Inc()
	case state.Done, state.Failed, state.RanOut, state.CalledBack, state.LeftAlone:
		m.countStepEnd(t)
	}
	if t.Action == draining && !m.opts.Queue { // nth-queue drains many nodes, and has no gauges of one drain.
		s.pods.Set(float64(t.Total))
		s.left.Set(float64(t.Left))
	}
}

// countStepEnd counts a step that has ended, or that has failed and is tried again. For a drain that is done or out of time, it also observes
// how long the drain took, and how much time was left.
func (m *Metrics) countStepEnd(t state.Transition) {
	m.series.actions.WithLabelValues(t.Action, string(t.Kind)).Inc()
	if finished := t.Kind == state.Done || t.Kind == state.RanOut; t.Action != draining || !finished {
		return
	}
	m.series.drainTook.Observe(t.Took.Seconds())
	if !t.Deadline.IsZero() {
		m.series.timeLeft.WithLabelValues(string(t.Entry.Event.Kind)).Set(t.Deadline.Sub(t.At).Seconds())
	}
}

// The outcomes of a notice.
const delivered, lost = "delivered", "lost"

// Noticed counts a notice that was delivered or, if isLost is set, will never be.
func (m *Metrics) Noticed(isLost bool) {
	outcome := delivered
	if isLost {
		outcome = lost
	}
	m.series.notices.WithLabelValues(outcome).Inc()
}

// seconds returns a time as Prometheus shows times: in seconds since 1970.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// Polled counts a request for a document of the metadata service, named by its path. result says how it ended: "ok", "absent" or "error".
func (m *Metrics) Polled(document, result string) {
	m.series.imdsRequests.WithLabelValues(document, result).Inc()
}

// HookRequests creates the counter of HookRequested for an action and a result, at 0. So Prometheus sees the first request as an increase.
func (m *Metrics) HookRequests(action, result string) {
	m.series.hookRequests.WithLabelValues(action, result)
}

// HookRequested counts a request about a waiting lifecycle hook, by its action and result.
func (m *Metrics) HookRequested(action, result string) {
	m.series.hookRequests.WithLabelValues(action, result).Inc()
}

// Requested counts a request to the API server. code is the HTTP status of the answer; 0 if there was no answer.
func (m *Metrics) Requested(method string, code int) {
	answer := "none"
	if code != 0 {
		answer = strconv.Itoa(code)
	}
	m.series.apiRequests.WithLabelValues(method, answer).Inc()
}
