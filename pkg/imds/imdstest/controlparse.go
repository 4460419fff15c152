package imdstest

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What EC2 says. The control API takes nothing else, because whoever rehearses wants to hear of a typing error. Tests
// that need other words use a Simulator's methods or the document route.
var (
	spotActions      = []string{"terminate", "stop", "hibernate"}
	maintenanceCodes = []string{
		"instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop",
	}
	maintenanceStates = []string{"active", "canceled", "completed"}
	lifecycleStates   = []string{
		"Detached", "InService", "Standby", "Terminated",
		"Warmed:Hibernated", "Warmed:Running", "Warmed:Stopped", "Warmed:Terminated",
	}
)

// How long before EC2 acts a notice is given, unless said otherwise.
const (
	spotNotice        = 2 * time.Minute
	maintenanceNotice = time.Hour
	maintenanceLength = 2 * time.Hour
)

func (s *Simulator) parseSpot(r *http.Request) (change, error) {
	q := r.URL.Query()
	action, err := oneOf("action", q.Get("action"), "terminate", spotActions)
	if err != nil {
		return change{}, err
	}
	in, err := duration(q, "in", spotNotice)
	if err != nil {
		return change{}, err
	}
	return change{
		text:  fmt.Sprintf("spot interruption: %s %v after the notice", action, in),
		apply: func() { s.SetSpot(action, time.Now().Add(in)) },
	}, nil
}

func (s *Simulator) parseRebalance(*http.Request) (change, error) {
	return change{text: "rebalance recommendation", apply: func() { s.SetRebalance(time.Now()) }}, nil
}

func (s *Simulator) parseLifecycle(r *http.Request) (change, error) {
	state, err := oneOf("state", r.URL.Query().Get("state"), "", lifecycleStates)
	if err != nil {
		return change{}, err
	}
	return change{
		text:  "target lifecycle state: " + state,
		apply: func() { s.SetLifecycleState(state) },
	}, nil
}

func (s *Simulator) parseMaintenance(r *http.Request) (change, error) {
	q := r.URL.Query()
	event := MaintenanceEvent{EventId: q.Get("id")}
	if known := s.isScheduled(event.EventId); !known || q.Has("code") {
		code, err := oneOf("code", q.Get("code"), "", maintenanceCodes)
		if err != nil {
			return change{}, err
		}
		event.Code = code
	}
	state, err := oneOf("state", q.Get("state"), "active", maintenanceStates)
	if err != nil {
		return change{}, err
	}
	event.State = state
	in, err := duration(q, "in", maintenanceNotice)
	if err != nil {
		return change{}, err
	}
	length, err := duration(q, "for", maintenanceLength)
	if err != nil {
		return change{}, err
	}
	if event.EventId == "" {
		event.EventId = fmt.Sprintf("instance-event-0%016x", rand.Uint64())
	}
	// An event that is only reported as over keeps the times it was announced with.
	keepTimes := event.Code == "" && !q.Has("in")
	return change{
		text: strings.TrimSuffix(fmt.Sprintf("maintenance %s: %s %s", event.EventId, state, event.Code), " "),
		apply: func() {
			if !keepTimes {
				event.NotBefore = time.Now().Add(in)
				event.NotAfter = event.NotBefore.Add(length)
			}
			s.AddMaintenance(event)
		},
	}, nil
}

func (s *Simulator) isScheduled(id string) bool {
	s.announcing.Lock()
	defer s.announcing.Unlock()
	return indexOf(s.scheduled, id) >= 0
}

func (s *Simulator) parseWithdrawMaintenance(r *http.Request) (change, error) {
	q := r.URL.Query()
	id := q.Get("id")
	if id != "" && !s.isScheduled(id) {
		return change{}, fmt.Errorf("no maintenance event %q is scheduled", id)
	}
	history, err := oneOf("history", q.Get("history"), "yes", []string{"yes", "no"})
	if err != nil {
		return change{}, err
	}
	text := "all scheduled maintenance withdrawn"
	if id != "" {
		text = "maintenance " + id + " withdrawn"
	}
	return change{text: text, apply: func() { s.WithdrawMaintenance(id, history == "no") }}, nil
}

func (s *Simulator) parseFault(r *http.Request) (change, error) {
	q := r.URL.Query()
	kind, err := oneOf("kind", q.Get("kind"), "", kindNames())
	if err != nil {
		return change{}, err
	}
	fault := Fault{Kind: Kind(kind), Path: q.Get("path")}
	if fault.Over, err = duration(q, "over", 0); err != nil {
		return change{}, err
	}
	if fault.For, err = duration(q, "for", 0); err != nil {
		return change{}, err
	}
	if fault.Status, err = number(q.Get("status"), "status", 0, 400, 599); err != nil {
		return change{}, err
	}
	if fault.Times, err = number(q.Get("times"), "times", 0, 1, 1<<30); err != nil {
		return change{}, err
	}
	if fault.Kind == Refuse && fault.For == 0 {
		return change{}, fmt.Errorf("refuse also closes the port to whoever would lift it: say for how long, such as for 12s")
	}
	fault = fault.complete()
	return change{text: "fault: " + fault.String(), apply: func() { s.Fault(fault) }}, nil
}

func kindNames() []string {
	var names []string
	for _, kind := range Kinds() {
		names = append(names, string(kind))
	}
	return names
}

// oneOf reads a parameter that takes one of a few words.
func oneOf(name, text, otherwise string, words []string) (string, error) {
	if text == "" {
		text = otherwise
	}
	if !slices.Contains(words, text) {
		return "", fmt.Errorf("%s is %q: want one of %s", name, text, strings.Join(words, ", "))
	}
	return text, nil
}

func number(text, name string, otherwise, least, most int) (int, error) {
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s is %q: want a number from %d to %d", name, text, least, most)
	}
	return n, nil
}
