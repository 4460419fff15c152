package metrics

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
)

// Show exports a status. The daemon's loop calls Show every few seconds, also if nothing has changed: to Healthy, each call is a sign of life.
func (m *Metrics) Show(status state.Status) {
	m.beat()
	m.showEvents(status.Events)
	m.series.degraded.Set(oneIf(len(status.Degraded) > 0))
	if !m.opts.Queue {
		m.showSources(status.Documents)
		m.showNode(status)
	}
}

// showNode exports whether the node is being drained, how many evictions are being refused, and whether the kubelet's credential works.
func (m *Metrics) showNode(status state.Status) {
	step := status.Step
	if step == nil { // Nothing is being done, so both gauges are 0.
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
			continue // The event is no longer announced, or it is over; nth-queue's status may have one that was just closed.
		}
		pending[e.Kind]++
		if first := nearest[e.Kind]; !e.Deadline.IsZero() && (first.IsZero() || e.Deadline.Before(first)) {
			nearest[e.Kind] = e.Deadline
		}
	}
	for _, kind := range m.opts.kinds() {
		m.series.pending.WithLabelValues(string(kind)).Set(float64(pending[kind]))
		if deadline, found := nearest[kind]; found {
			m.series.deadline.WithLabelValues(string(kind)).Set(seconds(deadline))
		} else { // Without a deadline there is no series: a 0 would be a deadline in 1970.
			m.series.deadline.DeleteLabelValues(string(kind))
		}
	}
}

// showSources exports, for each kind of event that nth polls for, whether the last poll succeeded, and when a poll last did. Kinds that nth
// does not poll for have no series: a 0 would look like an outage.
func (m *Metrics) showSources(documents []state.DocumentStatus) {
	for _, d := range documents {
		m.series.sourceUp.WithLabelValues(string(d.Kind)).Set(oneIf(d.Trouble == ""))
		if !d.LastGood.IsZero() {
			m.series.sourceGood.WithLabelValues(string(d.Kind)).Set(seconds(d.LastGood))
		}
	}
}

// QueueStatus is the status of nth-queue.
type QueueStatus struct {
	// InFlight is how many messages nth-queue has received and not yet deleted. Oldest is when the oldest of them was sent; zero if it has
	// none.
	InFlight int
	Oldest   time.Time
	// Up is set if the last request for messages succeeded, or if this process makes none because another leads.
	Up bool
	// LastAnswer is when a request for messages last succeeded; zero if none has.
	LastAnswer time.Time
	// Leads is set while this process leads.
	Leads bool
	// Known counts the nodes of the cluster, Draining those that this process drains, and Waiting those that it will drain later.
	Known, Draining, Waiting int
}

// ShowQueue exports the status of nth-queue, which calls it every few seconds.
func (m *Metrics) ShowQueue(now QueueStatus) {
	s := m.series
	s.inFlight.Set(float64(now.InFlight))
	age := 0.0
	if !now.Oldest.IsZero() {
		age = max(time.Since(now.Oldest), 0).Seconds() // The clock of SQS may be ahead.
	}
	s.oldest.Set(age)
	s.queueUp.Set(oneIf(now.Up))
	s.leads.Set(oneIf(now.Leads))
	if !now.LastAnswer.IsZero() {
		s.lastAnswer.Set(seconds(now.LastAnswer))
	}
	for state, count := range map[string]int{"known": now.Known, "draining": now.Draining, "waiting": now.Waiting} {
		s.nodes.WithLabelValues(state).Set(float64(count))
	}
}

// Messages creates the counters of Message for these outcomes, at 0. So Prometheus sees the first message as an increase.
func (m *Metrics) Messages(outcomes ...string) {
	for _, outcome := range outcomes {
		m.series.messages.WithLabelValues(outcome)
	}
}

// Message counts a message of the queue by its outcome.
func (m *Metrics) Message(outcome string) { m.series.messages.WithLabelValues(outcome).Inc() }

// Received observes delay, the time from a message's sending to its first receipt. Call it only for that first receipt.
func (m *Metrics) Received(delay time.Duration) {
	m.series.delay.Observe(max(delay, 0).Seconds()) // The clocks of SQS and of this machine may differ.
}
