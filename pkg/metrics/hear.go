package metrics

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// draining is the action of a drain, as happenings have it.
const draining = "drain"

// Hear counts something that happens.
func (m *Metrics) Hear(h record.Happening) {
	s := m.series
	switch h.What {
	case record.Announced:
		s.events.WithLabelValues(string(h.Entry.Event.Kind)).Inc()
	case record.NodeCordoned:
		m.cordoned(h)
	case record.PodEvicted:
		s.evicted.Inc()
	case record.PodDeleted:
		s.deleted.Inc()
	case record.Done, record.Failed, record.RanOut, record.CalledBack, record.LeftAlone:
		m.ended(h)
	}
	if h.Action == draining {
		m.drained(h)
	}
	m.hearAsPeer(h)
	m.touch()
}

// cordoned notes how long the node was still open. Maintenance is announced days ahead, and waited for: what counts is
// the time since the step began. Of what an earlier process has begun, or this one before, nothing new is learned.
func (m *Metrics) cordoned(h record.Happening) {
	took := h.At.Sub(h.Entry.FirstSeen)
	if h.Entry.Event.Kind == event.ScheduledMaintenance {
		took = h.Took
	}
	if h.Entry.FirstSeen.Before(m.began.Round(0)) || !h.Entry.CordonedAt.IsZero() && h.Entry.CordonedAt.Before(h.At.Add(-h.Took)) {
		return
	}
	m.series.cordonTook.Observe(max(took, 0).Seconds())
}

// ended counts work that has ended, or failed and goes on. How long a drain took that was called back, or left to people, says nothing
// about drains.
func (m *Metrics) ended(h record.Happening) {
	m.series.actions.WithLabelValues(h.Action, string(h.What)).Inc()
	if h.Action != draining || h.What == record.CalledBack || h.What == record.Failed || h.What == record.LeftAlone {
		return
	}
	m.series.drainTook.Observe(h.Took.Seconds())
	if !h.Deadline.IsZero() {
		m.series.spare.WithLabelValues(string(h.Entry.Event.Kind)).Set(h.Deadline.Sub(h.At).Seconds())
	}
}

// What becomes of a notice in the end.
const delivered, lost = "delivered", "lost"

// Noticed counts a notice that was delivered.
func (m *Metrics) Noticed() {
	m.series.notices.WithLabelValues(delivered).Inc()
	m.touch()
}

// NoticesLost counts notices that never will be delivered.
func (m *Metrics) NoticesLost(n int) {
	m.series.notices.WithLabelValues(lost).Add(float64(n))
	m.touch()
}

// EventsDropped counts Events that were not written to the cluster.
func (m *Metrics) EventsDropped(n int) {
	m.series.eventsDropped.Add(float64(n))
	m.touch()
}

// touch asks for the file to be written.
func (m *Metrics) touch() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// seconds is a time as Prometheus has it.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
