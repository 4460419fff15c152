package metrics

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// Show notes how things stand. The loop shows it every few seconds, whether something has changed or not: that it does
// is the sign that it goes on.
func (m *Metrics) Show(status record.Status) {
	m.pulse.beat()
	m.showEvents(status.Events)
	m.series.degraded.Set(oneIf(len(status.Degraded) > 0))
	if !m.opts.Queue {
		m.showSources(status.Documents)
		m.showNode(status)
	}
	m.touch()
}

// showNode tells of the one node there is.
func (m *Metrics) showNode(status record.Status) {
	held := 0
	if status.Step != nil {
		held = len(status.Step.HeldBy)
	}
	m.series.held.Set(float64(held))
	m.series.credential.Set(oneIf(status.Node != "" && status.Identity.Trouble == ""))
}

func (m *Metrics) showEvents(events []record.EventStatus) {
	pending, nearest := map[event.Kind]int{}, map[event.Kind]time.Time{}
	for _, e := range events {
		if !e.Missing.IsZero() || e.Phase == record.Undoing || e.Phase == record.Closed {
			continue
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
		} else {
			m.series.deadline.DeleteLabelValues(string(kind))
		}
	}
}

// showSources tells of the kinds that are looked for; those that are not, on this instance or by the settings, have no
// series that could look like an outage.
func (m *Metrics) showSources(documents []record.DocumentStatus) {
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
