package metrics

import (
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// monitors are what aws-node-termination-handler calls the looks for a kind of event.
var monitors = map[event.Kind]string{
	event.SpotInterruption:        "SPOT_ITN_MONITOR",
	event.RebalanceRecommendation: "REBALANCE_RECOMMENDATION_MONITOR",
	event.ScheduledMaintenance:    "SCHEDULED_EVENT_MONITOR",
	event.ASGTermination:          "ASG_LIFECYCLE_MONITOR",
}

// peerActions are its names for the steps.
var peerActions = map[string]string{"cordon": "cordon", "drain": "cordon-and-drain", "uncordon": "uncordon"}

// hearAsPeer counts as aws-node-termination-handler does: a task before each cordon or drain, which has nothing to do
// here and always succeeds, the step itself, and each failed look.
func (m *Metrics) hearAsPeer(h record.Happening) {
	if m.series.peerActions == nil {
		return
	}
	count := func(action, status string) { m.series.peerActions.WithLabelValues(action, status).Inc() }
	switch h.What {
	case record.Begun:
		if h.Action != "uncordon" {
			count("pre-drain", "success")
		}
	case record.Done:
		count(peerActions[h.Action], "success")
	case record.Failed, record.RanOut:
		count(peerActions[h.Action], "error")
	case record.SourceLost:
		if monitor, has := monitors[h.Entry.Event.Kind]; has {
			m.series.peerEventsErrors.WithLabelValues(monitor).Inc()
		}
	}
}
