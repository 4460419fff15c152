package metrics

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// Show exports a status. The loop calls it every few seconds, whether something has changed or not, which shows that the loop
// is alive.
func (m *Metrics) Show(status state.Status) {
	m.beat()
	m.showEvents(status.Events)
	m.series.degraded.Set(oneIf(len(status.Degraded) > 0))
	if !m.opts.Queue {
		m.showSources(status.Documents)
		m.showNode(status)
	}
	m.touch()
}

// showNode exports whether the node is being drained, how many pods are held back, and whether the identity works.
func (m *Metrics) showNode(status state.Status) {
	step := status.Step
	if step == nil {
		step = &state.StepStatus{}
	}
	m.series.draining.Set(oneIf(step.Action == draining))
	m.series.held.Set(float64(len(step.HeldBy)))
	m.series.credential.Set(oneIf(status.Node != "" && status.Identity.Trouble == ""))
}

// showEvents exports, for each kind, how many events are pending and the nearest of their deadlines.
func (m *Metrics) showEvents(events []state.EventStatus) {
	pending, nearest := map[event.Kind]int{}, map[event.Kind]time.Time{}
	for _, e := range events {
		if !e.Missing.IsZero() || e.Phase == state.Undoing || e.Phase == state.Closed {
			continue // It is no longer announced, or it is over.
		}
		pending[e.Kind]++
		if first := nearest[e.Kind]; !e.Deadline.IsZero() && (first.IsZero() || e.Deadline.Before(first)) {
			nearest[e.Kind] = e.Deadline
		}
	}
	for _, kind := range m.opts.kinds() {
		m.series.pending.WithLabelValues(string(kind)).Set(float64(pending[kind]))
		if deadline, has := nearest[kind]; has {
			m.series.deadline.WithLabelValues(string(kind)).Set(seconds(deadline))
		} else { // A 0 would be a deadline in 1970.
			m.series.deadline.DeleteLabelValues(string(kind))
		}
	}
}

// showSources exports the kinds that are polled. Other kinds have no series, as a 0 would look like an outage.
func (m *Metrics) showSources(documents []state.DocumentStatus) {
	looked := map[event.Kind]bool{}
	for _, d := range documents {
		looked[d.Kind] = true
		m.series.sourceUp.WithLabelValues(string(d.Kind)).Set(oneIf(d.Trouble == ""))
		if !d.LastGood.IsZero() {
			m.series.sourceGood.WithLabelValues(string(d.Kind)).Set(seconds(d.LastGood))
		}
	}
	for _, kind := range event.Kinds() {
		if !looked[kind] {
			m.series.sourceUp.DeleteLabelValues(string(kind))
			m.series.sourceGood.DeleteLabelValues(string(kind))
		}
	}
}

// Forecast exports how long a drain for a spot notice would take, and how many pods would get less than their own grace period.
// nth-queue does not call it.
func (m *Metrics) Forecast(needs time.Duration, cut int) {
	m.series.forecast.WithLabelValues().Set(needs.Seconds())
	m.series.forecastCut.WithLabelValues().Set(float64(cut))
	m.touch()
}

// QueueStatus is the status of nth-queue.
type QueueStatus struct {
	// InFlight is how many messages are held, and Oldest when the oldest of them was sent; zero if there is none.
	InFlight int
	Oldest   time.Time
	// Up is set if the last request for messages succeeded, or none is made as another process leads, and LastAnswer is when one last did; zero if never.
	Up         bool
	LastAnswer time.Time
	// Leads is set while this process leads.
	Leads bool
	// Known counts the nodes of the cluster; Draining and Waiting those that this process drains, or is going to.
	Known, Draining, Waiting int
}

// ShowQueue exports the status of nth-queue. Like Show, it is called every few seconds.
func (m *Metrics) ShowQueue(now QueueStatus) {
	q := m.series
	q.inFlight.Set(float64(now.InFlight))
	age := 0.0
	if !now.Oldest.IsZero() {
		age = max(time.Since(now.Oldest), 0).Seconds()
	}
	q.oldest.Set(age)
	q.queueUp.Set(oneIf(now.Up))
	q.leads.Set(oneIf(now.Leads))
	if !now.LastAnswer.IsZero() {
		q.lastAnswer.Set(seconds(now.LastAnswer))
	}
	for state, count := range map[string]int{"known": now.Known, "draining": now.Draining, "waiting": now.Waiting} {
		q.nodes.WithLabelValues(state).Set(float64(count))
	}
	m.touch()
}

// Messages creates the counters of these outcomes, so that the first message is seen as an increase.
func (m *Metrics) Messages(outcomes ...string) {
	for _, outcome := range outcomes {
		m.series.messages.WithLabelValues(outcome)
	}
}

// Message counts a message by its outcome.
func (m *Metrics) Message(outcome string) { m.series.messages.WithLabelValues(outcome).Inc() }

// Received observes how long a message was under way. It is called only when the message is received for the first time.
func (m *Metrics) Received(delay time.Duration) {
	m.series.delay.Observe(max(delay, 0).Seconds())
}
