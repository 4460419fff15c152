package imds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/text"
)

// spotPath is the notice of a spot interruption:
//
//	{"action": "terminate", "time": "2017-09-18T08:22:00Z"}
//
// It is absent until EC2 wants the instance back. The action is what EC2 does with it (terminate, stop or hibernate), and
// the time is about when.
const spotPath = "spot/instance-action"

// spotActions are the actions that EC2 documents.
var spotActions = []string{"terminate", "stop", "hibernate"}

// lookAt returns a look that reads one document of at most size bytes. Its errors, that in found.partial included, name the document.
func lookAt(path string, size int, parse func([]byte) (found, error)) func(context.Context, *reader) (found, error) {
	return func(ctx context.Context, r *reader) (found, error) {
		f, err := read(ctx, r, path, size, parse)
		if f.partial != nil {
			f.partial = readingError(path, f.partial)
		}
		return f, err
	}
}

// parseSpot reads the notice of a spot interruption. A known action or a readable time is enough for an event; found.partial says what could not
// be read. A document with neither is an error. An event without a readable time has no deadline.
func parseSpot(body []byte) (found, error) {
	var doc struct{ Action, Time string }
	if err := decode(body, &doc); err != nil {
		return found{}, err
	}
	action := strings.TrimSpace(doc.Action)
	at, timeErr := parseTime(doc.Time)
	if timeErr != nil && !slices.Contains(spotActions, action) {
		return found{}, fmt.Errorf("the spot notice has neither a known action (%s) nor a valid time (%s)", shown(doc.Action), shown(doc.Time))
	}
	// The time is not part of the ID: amazon-ec2-metadata-mock serves another time at each request.
	e := event.Event{ID: event.ContentID(event.SpotInterruption, action), Kind: event.SpotInterruption, State: event.Pending, Deadline: at}
	var partial error
	switch {
	case timeErr != nil: // Then the action is a known one.
		e.Code, partial = action, fmt.Errorf("the field \"time\": %w", timeErr)
	case action == "":
		partial = errors.New("the spot notice names no action")
	default:
		e.Code, partial = parseCode(action)
	}
	return found{[]event.Event{e}, partial}, nil
}

// rebalancePath is the recommendation to move work off a spot instance:
//
//	{"noticeTime": "2020-10-27T08:22:00Z"}
//
// It is absent until EC2 sees an elevated risk of interruption. EC2 is not known to withdraw it.
const rebalancePath = "events/recommendations/rebalance"

// parseRebalance reads a rebalance recommendation. The document has nothing but a time. A document without a readable time is an error.
func parseRebalance(body []byte) (found, error) {
	var doc struct{ NoticeTime string }
	if err := decode(body, &doc); err != nil {
		return found{}, err
	}
	noticed, err := parseTime(doc.NoticeTime)
	if err != nil {
		return found{}, err
	}
	return found{events: []event.Event{{
		ID:      event.ContentID(event.RebalanceRecommendation),
		Kind:    event.RebalanceRecommendation,
		State:   event.Pending,
		Noticed: noticed,
	}}}, nil
}

// The paths of the two lists of planned maintenance, which have the same form:
//
//	[{"NotBefore": "21 Jan 2019 09:00:43 GMT", "Code": "system-reboot", "Description": "scheduled reboot",
//	  "EventId": "instance-event-0d59937288b749b32", "NotAfter": "21 Jan 2019 09:17:23 GMT", "State": "active"}]
//
// An event that is ahead or under way is in the scheduled list. EC2 moves a canceled or completed event to the history, which may take an hour.
// Its State says which, and its Description begins with [Canceled] or [Completed]. An empty list is [] or absent. NotAfter may be missing.
const (
	scheduledPath = "events/maintenance/scheduled"
	historyPath   = "events/maintenance/history"
)

// maintenanceLayout is how EC2 writes dates in these lists.
const maintenanceLayout = "2 Jan 2006 15:04:05 GMT"

// maintenance looks for planned maintenance. One poller uses it.
type maintenance struct {
	// instance is the instance's ID; "" while nothing was announced. The policy needs the ID to spread the instances of a fleet over time.
	instance string
	// scheduled are the events of the scheduled list, by the last look.
	scheduled []event.Event
}

// look reads both lists and returns their events: of the scheduled list all, of the history those that are over. If the scheduled list cannot be
// read, look fails. If the history or an entry cannot be read, found.partial says so. What an unreadable entry may be about is as the last look found it.
func (m *maintenance) look(ctx context.Context, r *reader) (found, error) {
	scheduled, err := lookAt(scheduledPath, longDocument, parseMaintenance)(ctx, r)
	if err != nil {
		return found{}, err
	}
	if scheduled.partial != nil { // An unreadable entry may be about any event of the last look, so those stay.
		whole := slices.DeleteFunc(slices.Clone(scheduled.events), func(e event.Event) bool { return e.Code == "" || e.Deadline.IsZero() })
		scheduled.events = mergeMaintenance(whole, slices.Concat(m.scheduled, scheduled.events))
	}
	m.scheduled = scheduled.events
	history, err := lookAt(historyPath, longDocument, parseMaintenance)(ctx, r)
	over := slices.DeleteFunc(history.events, func(e event.Event) bool { return e.State == event.Pending })
	events := mergeMaintenance(scheduled.events, over)
	m.addInstance(ctx, r, events)
	return found{events, errors.Join(scheduled.partial, history.partial, err)}, nil
}

// addInstance sets the instance's ID in each event. It requests the ID when there are events for the first time. If that fails, the field stays
// empty until the next look.
func (m *maintenance) addInstance(ctx context.Context, r *reader, events []event.Event) {
	if len(events) > 0 && m.instance == "" {
		m.instance, _ = read(ctx, r, instancePath, shortDocument, parseText) // Options.Observe gets the error.
	}
	for i := range events {
		events[i].Instance = m.instance
	}
}

// mergeMaintenance returns the events of both lists, each ID once. If an ID is repeated, the first event counts. The exception is a later event
// that is over, while the first is not: EC2 never revives an event, so the first is out of date.
func mergeMaintenance(first, second []event.Event) []event.Event {
	var merged []event.Event
	index := map[string]int{}
	for _, e := range slices.Concat(first, second) {
		i, seen := index[e.ID]
		switch {
		case !seen:
			index[e.ID] = len(merged)
			merged = append(merged, e)
		case merged[i].State == event.Pending && e.State != event.Pending: // Only the later one is over.
			merged[i] = e
		}
	}
	return merged
}

// The most entries of a list that are read, and the most faults of a list that are reported.
const (
	mostEntries = 256
	mostFaults  = 3
)

// parseMaintenance reads one of the two lists. The error means that the document is not a list. An entry that cannot be read does not hide others:
// found.partial names it. An empty document is an empty list.
func parseMaintenance(body []byte) (found, error) {
	if len(strings.TrimSpace(string(body))) == 0 {
		return found{}, nil
	}
	var entries []json.RawMessage
	if err := json.Unmarshal(body, &entries); err != nil {
		return found{}, fmt.Errorf("the answer of %d bytes is not the expected JSON: %w", len(body), err)
	}
	if entries == nil { // The JSON is null.
		return found{}, errors.New("the answer is null, and must be a list")
	}
	var events []event.Event
	var errs []error
	if len(entries) > mostEntries {
		errs = append(errs, fmt.Errorf("the list has %d entries; nth reads only the first %d", len(entries), mostEntries))
		entries = entries[:mostEntries]
	}
	for i, raw := range entries {
		e, err := parseMaintenanceEvent(raw)
		if err != nil {
			errs = append(errs, fmt.Errorf("entry %d: %w", i+1, err))
		}
		if e.ID != "" { // An entry with an error may be an event, too.
			events = append(events, e)
		}
	}
	unique := mergeMaintenance(events, nil) // A list may have an ID twice.
	return found{unique, errors.Join(errs[:min(len(errs), mostFaults)]...)}, nil
}

// parseMaintenanceEvent reads one entry of a list. It may return both an event and an error, which says which fields could not be read: without a
// readable NotBefore, for example, the event has no deadline. An event with the ID "" does not count: the entry is not an object, or has neither
// an EventId nor a Code.
func parseMaintenanceEvent(raw json.RawMessage) (event.Event, error) {
	var doc struct{ EventID, Code, Description, State, NotBefore, NotAfter string }
	if err := decode(raw, &doc); err != nil {
		return event.Event{}, err
	}
	id, code := strings.TrimSpace(doc.EventID), strings.TrimSpace(doc.Code)
	if id == "" && code == "" {
		return event.Event{}, errors.New("it has neither an EventId nor a Code")
	}
	e := event.Event{
		ID:          id,
		Kind:        event.ScheduledMaintenance,
		State:       parseMaintenanceState(doc.State, doc.Description),
		Description: text.Visible(strings.TrimSpace(doc.Description), longestDescription),
	}
	var errs []error
	addError := func(field string, err error) {
		if err != nil { // It is nil for a field that could be read.
			errs = append(errs, fmt.Errorf("%s of %q: %w", field, e.ID, err))
		}
	}
	_, idErr := parseCode(id)
	switch {
	case id == "": // Code and time distinguish the event from others.
		e.ID = event.ContentID(e.Kind, code, doc.NotBefore)
	case idErr != nil: // e.ID must not contain this text, but a digest of the text distinguishes the event from others.
		e.ID = event.ContentID(e.Kind, id, code, doc.NotBefore)
		addError("EventId", idErr)
	}
	var err error
	if code != "" {
		e.Code, err = parseCode(code)
		addError("Code", err)
	}
	e.Deadline, err = parseMaintenanceDate(doc.NotBefore)
	addError("NotBefore", err)
	if doc.NotAfter != "" {
		e.Until, err = parseMaintenanceDate(doc.NotAfter)
		addError("NotAfter", err)
	}
	return e, errors.Join(errs...)
}

// parseMaintenanceState returns the state of a maintenance event. If the field State does not say that the event is over, its description may. If
// neither does, the event is Pending.
func parseMaintenanceState(state, description string) event.State {
	switch strings.ToLower(strings.TrimSpace(state)) {
	case "canceled", "cancelled":
		return event.Canceled
	case "completed":
		return event.Completed
	}
	return event.StateIn(description)
}

// parseMaintenanceDate reads a date as EC2 writes it in the lists of maintenance, or in its other documents (RFC 3339). It returns the date in UTC.
func parseMaintenanceDate(date string) (time.Time, error) {
	date = strings.TrimSpace(date)
	for _, layout := range []string{maintenanceLayout, time.RFC3339} {
		if at, err := time.Parse(layout, date); err == nil {
			return at.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%s is not a date in the form %q", shown(date), "21 Jan 2019 09:00:43 GMT")
}

// targetStatePath is the state that the instance's Auto Scaling group wants it to be in, as plain text: Detached,
// InService, Standby, Terminated, Warmed:Hibernated, Warmed:Running, Warmed:Stopped or Warmed:Terminated. It is absent
// outside a group and until the first transition. It has neither a time nor an identity.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/retrieving-target-lifecycle-state-through-imds.html
const targetStatePath = "autoscaling/target-lifecycle-state"

const inService = "InService"

// targetStates follows the target state during one boot. It is used by one goroutine.
//
// What a state means depends on the states before. An instance that goes to the warm pool is being prepared, unless it was in service: then its
// node has to be drained before the instance is stopped, hibernated or reused. served remembers that for one boot, as an instance that is started
// again is prepared again.
//
// EC2 may add states, such as one for the replacement of the root volume. An instance that was in service leaves it if the state is unknown: to
// drain for nothing does less harm than to lose the pods.
type targetStates struct {
	opts   Options
	served bool   // the instance was in service, in this boot
	state  string // the state at the last good look; "" if there was no state, or no look yet
}

// look reads the target state once. It is the look of a poller.
func (t *targetStates) look(ctx context.Context, r *reader) (found, error) {
	state, err := read(ctx, r, targetStatePath, shortDocument, parseTargetState)
	if err != nil {
		return found{}, err
	}
	return t.follow(state), nil
}

// stateName matches the name of a lifecycle state, such as "InService" and "Warmed:Pending:Wait".
var stateName = regexp.MustCompile(`^([A-Z][a-z]+)+(:([A-Z][a-z]+)+){0,2}$`)

// longestState is the longest lifecycle state that is accepted, in bytes.
const longestState = 64

// parseTargetState reads a target state. It accepts any text that looks like a state, as EC2 may add states. Any other text, such as an error
// page, is an error.
func parseTargetState(body []byte) (string, error) {
	state := strings.TrimSpace(string(body))
	if len(state) > longestState || !stateName.MatchString(state) {
		return "", fmt.Errorf("the answer of %d bytes is not a lifecycle state", len(body))
	}
	return state, nil
}

// follow takes the target state at a look, "" if there is none, and calls the callbacks in Options if it is new. It returns an ASG termination if
// the state means that the instance leaves service, and otherwise no event.
func (t *targetStates) follow(state string) found {
	if state != t.state && t.opts.TargetState != nil {
		t.opts.TargetState(state)
	}
	t.state = state
	if state == inService && !t.served {
		t.served = true
		if t.opts.InService != nil {
			t.opts.InService()
		}
	}
	leaves := t.served
	switch state {
	case "", inService, "Detached", "Standby": // The instance keeps running.
		leaves = false
	case "Terminated", "Warmed:Terminated":
		// Even an instance that was never in service may have a node: it may have joined the cluster while it was being prepared.
		leaves = true
	}
	if !leaves {
		return found{}
	}
	// The boot ID is part of the ID: a group may stop an instance in its warm pool, start it, and take it out of service again. That is another event.
	id := event.ContentID(event.ASGTermination, state, t.opts.BootID)
	return found{events: []event.Event{{ID: id, Kind: event.ASGTermination, Code: state, State: event.Pending}}}
}

// decode decodes JSON into the struct that into points to. It ignores unknown fields. A field of the wrong type stays empty, without an error:
// callers check the fields that they need. The error means that the body is not JSON.
func decode(body []byte, into any) error {
	err := json.Unmarshal(body, into)
	if _, wrongType := errors.AsType[*json.UnmarshalTypeError](err); err != nil && !wrongType {
		return fmt.Errorf("the answer of %d bytes is not the expected JSON: %w", len(body), err)
	}
	return nil
}

// parseTime reads a time as EC2 writes it in spot notices and rebalance recommendations (RFC 3339). It returns the time in UTC.
func parseTime(value string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(value))
	if err != nil {
		return time.Time{}, fmt.Errorf("%s is not a time in the form 2017-09-18T08:22:00Z", shown(value))
	}
	return at.UTC(), nil
}

// The longest texts of a document that are kept or shown, in bytes.
const (
	longestCode        = 64
	longestDescription = 256
)

// codeShape is what codes and IDs look like, such as "system-reboot" and "instance-event-0d59937288b749b32".
var codeShape = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// parseCode returns the text if it looks like a code or an ID of EC2. Otherwise it returns "", so that no event contains the text, and an error
// that shows the text.
func parseCode(value string) (string, error) {
	if len(value) > longestCode || !codeShape.MatchString(value) {
		return "", fmt.Errorf("%s is not a valid code or ID: it must have 1 to %d letters, digits, hyphens or underscores", shown(value), longestCode)
	}
	return value, nil
}

// shown quotes a text of a document, as an error may show it: printable, and of limited length.
func shown(value string) string { return `"` + text.Visible(value, longestCode) + `"` }
