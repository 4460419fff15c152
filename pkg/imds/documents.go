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

// lookForSpot is the look of the spot notice's poller.
func lookForSpot(ctx context.Context, r *reader) (found, error) {
	return readEvents(ctx, r, spotPath, shortDocument, parseSpot)
}

// readEvents reads a document that announces events. It says in which document something could not be read.
func readEvents(ctx context.Context, r *reader, path string, size int, parse func([]byte) (found, error)) (found, error) {
	f, err := read(ctx, r, path, size, parse)
	if f.partial != nil {
		f.partial = readingError(path, f.partial)
	}
	return f, err
}

// parseSpot reads the notice of a spot interruption. A known action or a readable time is enough for an event; found.partial then says what
// could not be read. With neither, the document is an error. An event without a readable time has no deadline.
func parseSpot(body []byte) (found, error) {
	var doc struct{ Action, Time string }
	if err := decode(body, &doc); err != nil {
		return found{}, err
	}
	action := strings.TrimSpace(doc.Action)
	at, timeErr := parseTime(doc.Time)
	if timeErr != nil && !slices.Contains(spotActions, action) {
		return found{}, fmt.Errorf("neither the action %s nor the time %s can be read", shown(doc.Action), shown(doc.Time))
	}
	// The time is not part of the ID: amazon-ec2-metadata-mock computes it again at each look.
	e := event.Event{ID: event.ContentID(event.SpotInterruption, action), Kind: event.SpotInterruption, State: event.Pending, Deadline: at}
	partial := errors.New("it names no action")
	if action != "" {
		e.Code, partial = parseCode(action)
	}
	if timeErr != nil {
		partial = fmt.Errorf("its time: %w", timeErr)
	}
	return found{[]event.Event{e}, partial}, nil
}

// rebalancePath is the recommendation to move work off a spot instance:
//
//	{"noticeTime": "2020-10-27T08:22:00Z"}
//
// It is absent until EC2 sees an elevated risk of interruption. EC2 is not known to withdraw it.
const rebalancePath = "events/recommendations/rebalance"

// lookForRebalance is the look of the rebalance recommendation's poller.
func lookForRebalance(ctx context.Context, r *reader) (found, error) {
	return readEvents(ctx, r, rebalancePath, shortDocument, parseRebalance)
}

// parseRebalance reads the recommendation. The document has nothing but a time. A document without a readable time is an error.
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

// The two lists of planned maintenance, of the same shape:
//
//	[{"NotBefore": "21 Jan 2019 09:00:43 GMT", "Code": "system-reboot", "Description": "scheduled reboot",
//	  "EventId": "instance-event-0d59937288b749b32", "NotAfter": "21 Jan 2019 09:17:23 GMT", "State": "active"}]
//
// An event that is ahead or under way is in the first. Once it is canceled or completed, EC2 moves it to the second,
// where its State says which and its Description begins with [Canceled] or [Completed]; that may take an hour. An
// empty list is [] or absent. NotAfter may be missing.
const (
	scheduledPath = "events/maintenance/scheduled"
	historyPath   = "events/maintenance/history"
)

// maintenanceLayout is how EC2 writes dates in these lists.
const maintenanceLayout = "2 Jan 2006 15:04:05 GMT"

// maintenance looks for planned maintenance.
type maintenance struct {
	// instance is the machine's ID; "" before something is announced. The policy needs it to spread the machines of a fleet over time.
	instance string
}

// look reads both lists and returns their events; found.partial says what could not be read. If the list of scheduled events cannot be read,
// look fails. An event that is missing because the history or an entry could not be read is not over: the policy waits for what follows.
func (m *maintenance) look(ctx context.Context, r *reader) (found, error) {
	scheduled, err := readEvents(ctx, r, scheduledPath, longDocument, parseMaintenance)
	if err != nil {
		return found{}, err
	}
	history, err := readEvents(ctx, r, historyPath, longDocument, parseMaintenance)
	over := slices.DeleteFunc(history.events, func(e event.Event) bool { return e.State == event.Pending })
	events := mergeMaintenance(scheduled.events, over)
	m.addInstance(ctx, r, events)
	return found{events, errors.Join(scheduled.partial, history.partial, err)}, nil
}

// addInstance puts the instance's ID into the events. It requests the ID the first time that there are events. If that fails, the events have
// no ID until the next look.
func (m *maintenance) addInstance(ctx context.Context, r *reader, events []event.Event) {
	if len(events) > 0 && m.instance == "" {
		m.instance, _ = read(ctx, r, instancePath, shortDocument, parseText) // Options.Observe gets the error.
	}
	for i := range events {
		events[i].Instance = m.instance
	}
}

// mergeMaintenance returns the events of both lists, each once, by their IDs. If both lists have an event, the first list wins. The exception
// is an event that is over according to the second list only: EC2 never revives an event, so what the first list says is out of date.
func mergeMaintenance(first, second []event.Event) []event.Event {
	var merged []event.Event
	index := map[string]int{}
	for _, e := range slices.Concat(first, second) {
		i, seen := index[e.ID]
		switch {
		case !seen:
			index[e.ID] = len(merged)
			merged = append(merged, e)
		case merged[i].State == event.Pending && e.State != event.Pending:
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

// parseMaintenance reads one of the two lists. An entry that cannot be read is in found.partial, and hides no other entry. The returned error
// means that the document is not a list. An empty document is an empty list.
func parseMaintenance(body []byte) (found, error) {
	if len(strings.TrimSpace(string(body))) == 0 {
		return found{}, nil
	}
	var entries []json.RawMessage
	if err := json.Unmarshal(body, &entries); err != nil {
		return found{}, fmt.Errorf("decoding %d bytes: %w", len(body), err)
	}
	if entries == nil {
		return found{}, errors.New("decoding a list: it is null")
	}
	var events []event.Event
	var errs []error
	if len(entries) > mostEntries {
		errs = append(errs, fmt.Errorf("it has %d entries, of which %d are read", len(entries), mostEntries))
		entries = entries[:mostEntries]
	}
	for i, raw := range entries {
		e, err := parseMaintenanceEvent(raw)
		if err != nil {
			errs = append(errs, fmt.Errorf("entry %d: %w", i+1, err))
		}
		if e.ID != "" {
			events = append(events, e)
		}
	}
	return found{mergeMaintenance(events, nil), errors.Join(errs[:min(len(errs), mostFaults)]...)}, nil
}

// parseMaintenanceEvent reads one entry of a list. It may return both an event and an error, which says what could not be read: for example,
// without a readable NotBefore the event has no deadline. An event without an ID is to be ignored: the entry is not an object, or has neither an
// EventId nor a Code.
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
		if err != nil { // Callers pass the result of each field, which is mostly nil.
			errs = append(errs, fmt.Errorf("%s of %q: %w", field, e.ID, err))
		}
	}
	var err error
	if id == "" { // Code and time have to tell the event apart from others.
		e.ID = event.ContentID(e.Kind, code, doc.NotBefore)
	} else if _, err = parseCode(id); err != nil { // An EventId of another shape is not used, but tells events apart.
		e.ID = event.ContentID(e.Kind, id, code, doc.NotBefore)
		addError("EventId", err)
	}
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

// parseMaintenanceState returns the state of a maintenance event. The description counts if the state does not say that the event is over. An
// event that is not known to be over is still to come.
func parseMaintenanceState(state, description string) event.State {
	switch strings.ToLower(strings.TrimSpace(state)) {
	case "canceled", "cancelled":
		return event.Canceled
	case "completed":
		return event.Completed
	}
	return event.StateIn(description)
}

// parseMaintenanceDate reads a date as EC2 writes it in these lists, or in its other documents (RFC 3339), and returns it in UTC.
func parseMaintenanceDate(date string) (time.Time, error) {
	date = strings.TrimSpace(date)
	for _, layout := range []string{maintenanceLayout, time.RFC3339} {
		if at, err := time.Parse(layout, date); err == nil {
			return at.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%s is no date like %q", shown(date), "21 Jan 2019 09:00:43 GMT")
}

// targetStatePath is the state that the instance's Auto Scaling group wants it to be in, as plain text: Detached,
// InService, Standby, Terminated, Warmed:Hibernated, Warmed:Running, Warmed:Stopped or Warmed:Terminated. It is absent
// outside a group and until the first transition. It has neither a time nor an identity.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/retrieving-target-lifecycle-state-through-imds.html
const targetStatePath = "autoscaling/target-lifecycle-state"

const inService = "InService"

// targetStates follows the target state during one boot. It is used by one goroutine.
//
// What a state means depends on the one before it. An instance that goes to the warm pool is being prepared, unless it
// was in service: then its node has to be empty before it is stopped, hibernated or reused. That is remembered for one
// boot, as an instance that is started again is prepared again.
//
// EC2 may add states, such as one for the replacement of the root volume: for an instance in service, an unknown state
// is a departure, too. To drain for nothing does less harm than to lose the pods.
type targetStates struct {
	opts   Options
	served bool   // the instance was in service, in this boot
	state  string // what the last good look has found
}

// look is the look of the target state's poller.
func (t *targetStates) look(ctx context.Context, r *reader) (found, error) {
	state, err := read(ctx, r, targetStatePath, shortDocument, parseTargetState)
	if err != nil {
		return found{}, err
	}
	return t.follow(state), nil
}

var stateName = regexp.MustCompile(`^([A-Z][a-z]+)+(:([A-Z][a-z]+)+){0,2}$`)

// longestState is the length of the longest target lifecycle state that is taken for one, in bytes.
const longestState = 64

// parseTargetState reads a target state. It accepts any text that looks like a state, as EC2 may add some. Anything else, such as an error
// page, is an error.
func parseTargetState(body []byte) (string, error) {
	state := strings.TrimSpace(string(body))
	if len(state) > longestState || !stateName.MatchString(state) {
		return "", fmt.Errorf("%d bytes that are no lifecycle state", len(body))
	}
	return state, nil
}

// follow takes the target state that a look has found; "" if there is none. It returns the instance's departure if the state means that the
// instance leaves, and otherwise no event.
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
	case "", inService, "Detached", "Standby":
		leaves = false
	case "Terminated", "Warmed:Terminated":
		// An instance of the warm pool may have joined the cluster while it was being prepared, and then its node goes away just the same.
		leaves = true
	}
	if !leaves {
		return found{}
	}
	// An Auto Scaling group may stop an instance in its warm pool, start it, and take it out of service again, which is another event.
	id := event.ContentID(event.ASGTermination, state, t.opts.BootID)
	return found{events: []event.Event{{ID: id, Kind: event.ASGTermination, Code: state, State: event.Pending}}}
}

// decode decodes JSON into the struct that into points to. It ignores unknown fields. A field of the wrong type stays empty, without an error:
// callers check the fields that they need. A body that is not JSON is an error.
func decode(body []byte, into any) error {
	err := json.Unmarshal(body, into)
	if wrongType := new(json.UnmarshalTypeError); err != nil && !errors.As(err, &wrongType) {
		return fmt.Errorf("decoding %d bytes: %w", len(body), err)
	}
	return nil
}

// parseTime reads a time as EC2 writes it in the documents of a spot notice and a rebalance recommendation (RFC 3339), and returns it in UTC.
func parseTime(value string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(value))
	if err != nil {
		return time.Time{}, fmt.Errorf("%s is no time like 2017-09-18T08:22:00Z", shown(value))
	}
	return at.UTC(), nil
}

// The longest texts of a document that are taken over or shown, in bytes.
const (
	longestCode        = 64
	longestDescription = 256
)

// codeShape is what codes and IDs look like, such as "system-reboot" and "instance-event-0d59937288b749b32".
var codeShape = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// parseCode returns the text if it looks like a code or an ID of EC2. Otherwise it returns "" and an error that shows the text: no event
// contains it then.
func parseCode(value string) (string, error) {
	if len(value) > longestCode || !codeShape.MatchString(value) {
		return "", fmt.Errorf("%s is no code of letters, digits, - and _", shown(value))
	}
	return value, nil
}

// shown returns a text from a document as an error may quote it: printable, and of limited length.
func shown(value string) string { return `"` + text.Visible(value, longestCode) + `"` }
