package metrics

import (
	"strconv"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
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
	if t.Action == draining && !m.opts.Queue {
		s.pods.Set(float64(t.Total))
		s.left.Set(float64(t.Left))
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

// ended counts steps that have ended, or failed and are tried again. The duration of a drain that was canceled, or that an operator
// ended, is not observed.
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

// NoticeLost counts a notice that will never be delivered.
func (m *Metrics) NoticeLost() {
	m.series.notices.WithLabelValues(lost).Inc()
	m.touch()
}

// touch makes writeFiles write the file soon.
func (m *Metrics) touch() {
	loop.Nudge(m.changed)
}

// seconds is a time as Prometheus wants it.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// Polled counts a request for a document of the metadata service, named by its path. result says how it ended: "ok", "absent" or "error".
func (m *Metrics) Polled(document, result string) {
	m.series.imdsRequests.WithLabelValues(document, result).Inc()
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
