package imdstest

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/imds/standin"
)

const (
	rebalancePath = "meta-data/events/recommendations/rebalance"
	lifecyclePath = "meta-data/autoscaling/target-lifecycle-state"
)

// SetRebalance announces a rebalance recommendation with this time.
func (s *Server) SetRebalance(noticeTime time.Time) {
	s.Set(rebalancePath, fmt.Sprintf(`{"noticeTime": %q}`, standin.Timestamp(noticeTime)))
}

// ClearRebalance withdraws the rebalance recommendation.
func (s *Server) ClearRebalance() { s.Unset(rebalancePath) }

// SetLifecycleState sets the state into which Auto Scaling is bringing the instance, such as "InService" or
// "Terminated". The document is absent until it is first set.
func (s *Server) SetLifecycleState(state string) { s.Set(lifecyclePath, state) }

// ClearLifecycleState removes the target lifecycle state, as outside of an Auto Scaling group.
func (s *Server) ClearLifecycleState() { s.Unset(lifecyclePath) }

const (
	scheduledPath = "meta-data/events/maintenance/scheduled"
	historyPath   = "meta-data/events/maintenance/history"
)

// MaintenanceEvent is one entry of events/maintenance/scheduled and events/maintenance/history.
type MaintenanceEvent struct {
	// NotBefore and NotAfter bound the time of the maintenance. Zero times are left out.
	NotBefore, NotAfter time.Time
	// Code is instance-reboot, system-reboot, system-maintenance, instance-retirement or instance-stop on EC2. Any
	// text is served.
	Code string
	// Description is by default EC2's sentence for the Code and State.
	Description string
	// EventId is by default made from Code and NotBefore, so that the same event keeps its ID.
	EventId string //nolint:revive,staticcheck // EC2 spells it so
	// State is active by default. EC2's others are canceled and completed.
	State string
}

// AddMaintenance schedules an event, or updates the scheduled event with the same EventId. An event that is canceled or completed also enters the
// history; an active event leaves it. AddMaintenance returns the event as it is served.
func (s *Server) AddMaintenance(event MaintenanceEvent) MaintenanceEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := indexOf(s.scheduled, event.EventId); i >= 0 {
		event = event.updating(s.scheduled[i])
	}
	event = event.withDefaults()
	s.setScheduled(put(s.scheduled, event))
	if event.State != "active" {
		s.setHistory(put(s.history, event))
	} else if past := indexOf(s.history, event.EventId); past >= 0 {
		s.setHistory(slices.Delete(slices.Clone(s.history), past, past+1))
	}
	return event
}

// WithdrawMaintenance cancels the scheduled event with this ID, or all if id is "", as EC2 does: an event leaves the schedule and enters the
// history as canceled. If noHistory is true, the event only leaves the schedule, as EC2 may change the history up to an hour later.
// WithdrawMaintenance returns the IDs of the canceled events.
func (s *Server) WithdrawMaintenance(id string, noHistory bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var kept []MaintenanceEvent
	var withdrawn []string
	history := s.history
	for _, event := range s.scheduled {
		if id != "" && event.EventId != id {
			kept = append(kept, event)
			continue
		}
		withdrawn = append(withdrawn, event.EventId)
		if event.State == "active" {
			event.Description = "[Canceled] " + event.Description
			event.State = "canceled"
		}
		history = put(history, event)
	}
	if len(withdrawn) == 0 {
		return nil
	}
	s.setScheduled(kept)
	if !noHistory {
		s.setHistory(history)
	}
	return withdrawn
}

// setScheduled changes the scheduled events, and serves them. s.mu is held.
func (s *Server) setScheduled(events []MaintenanceEvent) {
	s.scheduled = events
	s.Set(scheduledPath, list(events))
}

// setHistory changes the history, and serves it. s.mu is held.
func (s *Server) setHistory(events []MaintenanceEvent) {
	s.history = events
	s.Set(historyPath, list(events))
}

// withDefaults returns the event with defaults for its empty fields.
func (e MaintenanceEvent) withDefaults() MaintenanceEvent {
	e.State = cmp.Or(e.State, "active")
	if e.Description == "" {
		e.Description = describe(e.Code, e.State)
	}
	if e.EventId == "" {
		sum := sha256.Sum256([]byte(e.Code + maintenanceDate(e.NotBefore)))
		e.EventId = fmt.Sprintf("instance-event-0%x", sum[:8])
	}
	return e
}

// updating returns e. Its empty Code, NotBefore and NotAfter are taken from an earlier version of the event.
func (e MaintenanceEvent) updating(earlier MaintenanceEvent) MaintenanceEvent {
	e.Code = cmp.Or(e.Code, earlier.Code)
	if e.NotBefore.IsZero() {
		e.NotBefore = earlier.NotBefore
	}
	if e.NotAfter.IsZero() {
		e.NotAfter = earlier.NotAfter
	}
	return e
}

// describe returns EC2's description of an event.
func describe(code, state string) string {
	text := cmp.Or(map[string]string{
		"instance-reboot":     "scheduled reboot",
		"system-reboot":       "scheduled reboot",
		"system-maintenance":  "scheduled maintenance",
		"instance-retirement": "The instance is running on degraded hardware",
		"instance-stop":       "The instance is running on degraded hardware",
	}[code], code)
	switch state {
	case "canceled":
		return "[Canceled] " + text
	case "completed":
		return "[Completed] " + text
	}
	return text
}

// maintenanceDate formats a time as EC2 does in the lists of maintenance, and only in these. The zero time is empty.
func maintenanceDate(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2 Jan 2006 15:04:05 GMT")
}

// MarshalJSON renders the event as EC2 does.
func (e MaintenanceEvent) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		NotBefore   string `json:",omitempty"`
		Code        string
		Description string
		EventID     string `json:"EventId"`
		NotAfter    string `json:",omitempty"`
		State       string
	}{maintenanceDate(e.NotBefore), e.Code, e.Description, e.EventId, maintenanceDate(e.NotAfter), e.State})
}

// list returns the document for a list of events.
func list(events []MaintenanceEvent) string {
	if len(events) == 0 {
		return "[]"
	}
	return standin.Indented(events)
}

// put returns a copy of events with event in it: in place of the event with the same ID, or at the end.
func put(events []MaintenanceEvent, event MaintenanceEvent) []MaintenanceEvent {
	events = slices.Clone(events)
	if i := indexOf(events, event.EventId); i >= 0 {
		events[i] = event
		return events
	}
	return append(events, event)
}

// indexOf returns the index of the event with this ID; -1 if there is none.
func indexOf(events []MaintenanceEvent, id string) int {
	return slices.IndexFunc(events, func(e MaintenanceEvent) bool { return e.EventId == id })
}
