package imdstest

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/imds/standin"
)

const (
	scheduledPath = "meta-data/events/maintenance/scheduled"
	historyPath   = "meta-data/events/maintenance/history"
)

// MaintenanceEvent is one entry of events/maintenance/scheduled and events/maintenance/history.
type MaintenanceEvent struct {
	// NotBefore and NotAfter bound the time of the maintenance, and NotBeforeDeadline is up to when it can be
	// put off. Zero times are left out.
	NotBefore, NotAfter, NotBeforeDeadline time.Time
	// RawNotBefore and RawNotAfter are served in place of the times above, for dates that are not dates.
	RawNotBefore, RawNotAfter string
	// Code is instance-reboot, system-reboot, system-maintenance, instance-retirement or instance-stop on EC2. Any
	// text is served.
	Code string
	// Description is EC2's sentence for the Code and State unless given.
	Description string
	// EventId is made from Code and NotBefore unless given, so the same event keeps its identity.
	EventId string //nolint:revive,staticcheck // EC2 spells it so
	// State is active unless given; EC2 also knows canceled and completed.
	State string
}

// SetMaintenance serves these events, and no others, as scheduled. Without events the document is an empty list.
func (s *Simulator) SetMaintenance(events ...MaintenanceEvent) {
	s.announcing.Lock()
	defer s.announcing.Unlock()
	s.setScheduled(complete(events))
}

// SetHistory serves these events, and no others, as past ones. Without events the document is an empty list.
func (s *Simulator) SetHistory(events ...MaintenanceEvent) {
	s.announcing.Lock()
	defer s.announcing.Unlock()
	s.setHistory(complete(events))
}

// AddMaintenance schedules one more event. It replaces one with the same EventId, from which it takes what it leaves
// out. An event that is canceled or completed also enters the history; an active one is not in it. It returns the event
// as it is served.
func (s *Simulator) AddMaintenance(event MaintenanceEvent) MaintenanceEvent {
	s.announcing.Lock()
	defer s.announcing.Unlock()
	if i := indexOf(s.scheduled, event.EventId); i >= 0 {
		event = event.over(s.scheduled[i])
	}
	event = event.complete()
	s.setScheduled(put(s.scheduled, event))
	past := indexOf(s.history, event.EventId)
	switch {
	case event.State != "active":
		s.setHistory(put(s.history, event))
	case past >= 0:
		s.setHistory(slices.Delete(slices.Clone(s.history), past, past+1))
	}
	return event
}

// WithdrawMaintenance cancels the scheduled event with this ID, all of them if id is empty, as EC2 does: an event
// leaves the schedule and enters the history as canceled. With noHistory it only leaves the schedule; EC2's history
// may lag by an hour. It returns the IDs that were withdrawn.
func (s *Simulator) WithdrawMaintenance(id string, noHistory bool) []string {
	s.announcing.Lock()
	defer s.announcing.Unlock()
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

func (s *Simulator) setScheduled(events []MaintenanceEvent) {
	s.scheduled = events
	s.service.Set(scheduledPath, list(events))
	s.tellChange("scheduled maintenance: %s", summary(events))
}

func (s *Simulator) setHistory(events []MaintenanceEvent) {
	s.history = events
	s.service.Set(historyPath, list(events))
	s.tellChange("maintenance history: %s", summary(events))
}

func complete(events []MaintenanceEvent) []MaintenanceEvent {
	completed := make([]MaintenanceEvent, len(events))
	for i, event := range events {
		completed[i] = event.complete()
	}
	return completed
}

// complete fills what a test did not care to say.
func (e MaintenanceEvent) complete() MaintenanceEvent {
	e.State = cmp.Or(e.State, "active")
	if e.Description == "" {
		e.Description = describe(e.Code, e.State)
	}
	if e.EventId == "" {
		sum := sha256.Sum256([]byte(e.Code + e.notBefore()))
		e.EventId = fmt.Sprintf("instance-event-0%x", sum[:8])
	}
	return e
}

// over returns e with what it leaves out taken from an earlier version of the event.
func (e MaintenanceEvent) over(earlier MaintenanceEvent) MaintenanceEvent {
	e.Code = cmp.Or(e.Code, earlier.Code)
	if e.NotBefore.IsZero() && e.RawNotBefore == "" {
		e.NotBefore, e.RawNotBefore = earlier.NotBefore, earlier.RawNotBefore
	}
	if e.NotAfter.IsZero() && e.RawNotAfter == "" {
		e.NotAfter, e.RawNotAfter = earlier.NotAfter, earlier.RawNotAfter
	}
	if e.NotBeforeDeadline.IsZero() {
		e.NotBeforeDeadline = earlier.NotBeforeDeadline
	}
	return e
}

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

func (e MaintenanceEvent) notBefore() string {
	return cmp.Or(e.RawNotBefore, maintenanceDate(e.NotBefore))
}
func (e MaintenanceEvent) notAfter() string {
	return cmp.Or(e.RawNotAfter, maintenanceDate(e.NotAfter))
}

// maintenanceDate is a time as EC2 writes it in these two documents, and nowhere else; empty for the zero time.
func maintenanceDate(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2 Jan 2006 15:04:05 GMT")
}

// MarshalJSON renders the event as EC2 does.
func (e MaintenanceEvent) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		NotBefore         string `json:",omitempty"`
		Code              string
		Description       string
		EventID           string `json:"EventId"`
		NotAfter          string `json:",omitempty"`
		NotBeforeDeadline string `json:",omitempty"`
		State             string
	}{e.notBefore(), e.Code, e.Description, e.EventId, e.notAfter(), maintenanceDate(e.NotBeforeDeadline), e.State})
}

func list(events []MaintenanceEvent) string {
	if len(events) == 0 {
		return "[]"
	}
	return standin.Indented(events)
}

func summary(events []MaintenanceEvent) string {
	if len(events) == 0 {
		return "none"
	}
	parts := make([]string, len(events))
	for i, e := range events {
		parts[i] = fmt.Sprintf("%s %s not before %s (%s)", e.EventId, e.Code, cmp.Or(e.notBefore(), "?"), e.State)
	}
	return strings.Join(parts, ", ")
}

// put returns events with event in the place of the one with its ID, or at the end.
func put(events []MaintenanceEvent, event MaintenanceEvent) []MaintenanceEvent {
	events = slices.Clone(events)
	if i := indexOf(events, event.EventId); i >= 0 {
		events[i] = event
		return events
	}
	return append(events, event)
}

func indexOf(events []MaintenanceEvent, id string) int {
	return slices.IndexFunc(events, func(e MaintenanceEvent) bool { return e.EventId == id })
}
