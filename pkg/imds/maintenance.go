package imds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// The two lists of planned maintenance, of the same shape:
//
//	[{"NotBefore": "21 Jan 2019 09:00:43 GMT", "Code": "system-reboot", "Description": "scheduled reboot",
//	  "EventId": "instance-event-0d59937288b749b32", "NotAfter": "21 Jan 2019 09:17:23 GMT", "State": "active"}]
//
// An event that is ahead or under way stands in the first. Once it is canceled or completed, EC2 moves it to the second,
// where its State says which and its Description begins with [Canceled] or [Completed]; that may take an hour. An
// empty list is [] or absent. NotAfter may be missing.
const (
	scheduledPath = "events/maintenance/scheduled"
	historyPath   = "events/maintenance/history"
)

// dateLayout is how EC2 writes dates in these lists.
const dateLayout = "2 Jan 2006 15:04:05 GMT"

// maintenance looks for planned maintenance and remembers what it found, because a list of which a part could not be
// read must not make an event vanish: that would look like its end.
type maintenance struct {
	client *client
	last   []event.Event
	// instance is the machine's ID, once something is announced for it. Machines begin one after another by it.
	instance string
}

// scheduledMaintenance looks for planned maintenance in both lists.
func scheduledMaintenance(c *client) look {
	return (&maintenance{client: c}).look
}

// look reads both lists. Without the first there is no good look. If the second fails or either has entries without a
// readable identity, events of the last look that are not listed now stand as they were.
func (m *maintenance) look(ctx context.Context) (reading, error) {
	scheduled, err := read(ctx, m.client, scheduledPath, parseList)
	if err != nil {
		return reading{}, err
	}
	history, err := read(ctx, m.client, historyPath, parseList)
	events := merge(scheduled.events, slices.DeleteFunc(history.events, isPending))
	if err != nil || scheduled.lost || history.lost {
		events = merge(events, m.last)
	}
	m.last = events
	m.name(ctx, events)
	return reading{slices.Clone(events), errors.Join(
		flawOf(scheduledPath, scheduled.flaw), flawOf(historyPath, history.flaw), err)}, nil
}

// name puts the instance's ID into events. Where it cannot be read, they go without, and it is asked for at the next look: the
// events count all the same.
func (m *maintenance) name(ctx context.Context, events []event.Event) {
	if len(events) > 0 && m.instance == "" {
		m.instance, _ = read(ctx, m.client, instancePath, parseText) // what is wrong is counted
	}
	for i := range events {
		events[i].Instance = m.instance
	}
}

func isPending(e event.Event) bool { return e.State == event.Pending }

// flawOf names the list that has the flaw.
func flawOf(path string, flaw error) error {
	if flaw == nil {
		return nil
	}
	return fmt.Errorf("reading %q: %w", path, flaw)
}

// merge returns the events of both lists, each once. Where both have an event, the first list counts, unless only the
// second says that it was canceled or completed: EC2 never revives an event, so the list that says pending is the older.
func merge(first, second []event.Event) []event.Event {
	var merged []event.Event
	at := map[string]int{}
	for _, e := range slices.Concat(first, second) {
		i, seen := at[e.ID]
		switch {
		case !seen:
			at[e.ID] = len(merged)
			merged = append(merged, e)
		case isPending(merged[i]) && !isPending(e):
			merged[i] = e
		}
	}
	return merged
}

// list is one of the two lists, as far as it could be read.
type list struct {
	events []event.Event
	flaw   error // what could not be read
	lost   bool  // an entry could not even be told from others
}

// parseList reads a list. A bad entry is a flaw and hides no other.
func parseList(body []byte) (list, error) {
	if len(strings.TrimSpace(string(body))) == 0 {
		return list{}, nil
	}
	var entries []json.RawMessage
	if err := json.Unmarshal(body, &entries); err != nil {
		return list{}, fmt.Errorf("decoding %d bytes: %w", len(body), err)
	}
	if entries == nil {
		return list{}, errors.New("decoding a list: it is null")
	}
	var l list
	var flaws []error
	for i, raw := range entries {
		e, err := parseEntry(raw)
		if err != nil {
			flaws = append(flaws, fmt.Errorf("entry %d: %w", i+1, err))
		}
		if e.ID == "" {
			l.lost = true
			continue
		}
		l.events = append(l.events, e)
	}
	l.events = merge(l.events, nil)
	l.flaw = errors.Join(flaws...)
	return l, nil
}

// parseEntry reads one entry. An entry that can be told from others is returned even if it has an error: without a
// readable NotBefore, its event has no deadline. One that has neither an EventId nor a Code has no ID.
func parseEntry(raw json.RawMessage) (event.Event, error) {
	var doc struct{ EventID, Code, Description, State, NotBefore, NotAfter string }
	if err := decode(raw, &doc); err != nil {
		return event.Event{}, err
	}
	e := event.Event{
		ID:          strings.TrimSpace(doc.EventID),
		Kind:        event.ScheduledMaintenance,
		Code:        strings.TrimSpace(doc.Code),
		State:       parseState(doc.State, doc.Description),
		Description: strings.TrimSpace(doc.Description),
	}
	if e.ID == "" && e.Code == "" {
		return event.Event{}, errors.New("it has neither an EventId nor a Code")
	}
	if e.ID == "" {
		e.ID = contentID(e.Kind, e.Code, doc.NotBefore)
	}
	var flaws []error
	var err error
	if e.Deadline, err = parseDate(doc.NotBefore); err != nil {
		flaws = append(flaws, fmt.Errorf("NotBefore of %q: %w", e.ID, err))
	}
	if e.Until, err = parseDate(doc.NotAfter); err != nil && doc.NotAfter != "" {
		flaws = append(flaws, fmt.Errorf("NotAfter of %q: %w", e.ID, err))
	}
	return e, errors.Join(flaws...)
}

// parseState reads how far an event has come. The description's prefix counts as much as the state, and a state that is
// neither canceled nor completed is pending: what is not known to be over is still to come.
func parseState(state, description string) event.State {
	state = strings.ToLower(strings.TrimSpace(state))
	description = strings.ToLower(strings.TrimSpace(description))
	switch {
	case state == "canceled", state == "cancelled",
		strings.HasPrefix(description, "[canceled]"), strings.HasPrefix(description, "[cancelled]"):
		return event.Canceled
	case state == "completed", strings.HasPrefix(description, "[completed]"):
		return event.Completed
	default:
		return event.Pending
	}
}

// parseDate reads a date as EC2 writes it in these lists, or as it writes them elsewhere.
func parseDate(text string) (time.Time, error) {
	text = strings.TrimSpace(text)
	for _, layout := range []string{dateLayout, time.RFC3339} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no date like %q", text, "21 Jan 2019 09:00:43 GMT")
}
