package metrics

import (
	"strconv"
	"time"

	"github.com/nth-project/nth/pkg/state"
)

// draining is the name of a drain in state.Transition.Action.
const draining = "drain"

// OnTransition implements agent.Listener: it counts what happens to an event and to pods.
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
		m.ended(t)
	}
	if t.Action == draining && !m.opts.Queue { // nth-queue drains many nodes, and has no gauges of one drain.
		s.pods.Set(float64(t.Total))
		s.left.Set(float64(t.Left))
	}
}

// ended counts a step that has ended, or that has failed and is tried again. It also observes how long a drain took.
func (m *Metrics) ended(t state.Transition) {
	m.series.actions.WithLabelValues(t.Action, string(t.Kind)).Inc()
	if t.Action != draining || t.Kind == state.CalledBack || t.Kind == state.Failed || t.Kind == state.LeftAlone {
		return // It is no drain, or one that was canceled, failed, or was ended by an operator.
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
}

// NoticeLost counts a notice that will never be delivered.
func (m *Metrics) NoticeLost() {
	m.series.notices.WithLabelValues(lost).Inc()
}

// seconds returns a time as Prometheus wants it: in seconds since 1970.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// Polled counts a request for a document of the metadata service, named by its path. result says how it ended: "ok", "absent" or "error".
func (m *Metrics) Polled(document, result string) {
	m.series.imdsRequests.WithLabelValues(document, result).Inc()
}

// HookRequests creates the counters of HookRequested for these actions and results. So Prometheus sees the first request as an increase.
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
}

// Requested counts a request to the API server. code is the answer's status; 0 if there was none.
func (m *Metrics) Requested(method string, code int) {
	answer := "none"
	if code != 0 {
		answer = strconv.Itoa(code)
	}
	m.series.apiRequests.WithLabelValues(method, answer).Inc()
}
