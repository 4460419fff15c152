package fleet

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/policy"
)

// NotesAnnotation on a Node says which of the events that EC2 lists for its instance were reported or done, as the JSON of notes. Without it,
// they would be reported and done again after each restart.
const NotesAnnotation = kube.KeyPrefix + "queue-events"

// note says how far one event has come.
type note struct {
	Event string `json:"event"`
	Code  string `json:"code,omitempty"`
	// At is the deadline that the event had: if it is moved, it begins again.
	At time.Time `json:"at,omitzero"`
	// Action is what was done because the rules asked for it; "" while the event's time has not come.
	Action policy.Action `json:"action,omitempty"`
}

// notes are those of one Node.
type notes []note

// notesOf reads the notes in an annotation; none if it cannot be parsed.
func notesOf(text string) notes {
	var all notes
	if text == "" || json.Unmarshal([]byte(text), &all) != nil {
		return nil
	}
	return all
}

// of returns the note about an event. It may have had the ID of its message when it was noted.
func (all notes) of(ev event.Event) (note, bool) {
	i := slices.IndexFunc(all, func(n note) bool {
		return n.Event == ev.ID || fromMessage(n.Event) && n.Code == ev.Code && n.At.Equal(ev.Deadline)
	})
	if i < 0 {
		return note{}, false
	}
	return all[i], true
}

// event is the event of a note, as far as it is noted.
func (n note) event() event.Event {
	ev := event.Event{ID: n.Event, Kind: event.ScheduledMaintenance, Code: n.Code, Deadline: n.At, State: event.Pending}
	if strings.HasPrefix(n.Event, string(event.StatusCheck)+"-") {
		ev.Kind = event.StatusCheck
	}
	return ev
}

// text is the value of the annotation; nil, which removes it, without notes.
func (all notes) text() any {
	if len(all) == 0 {
		return nil
	}
	text, _ := json.Marshal(all) // texts and credible times always encode
	return string(text)
}

// isNoted reports whether events of a kind are noted: those that EC2 lists as long as they stand.
func isNoted(kind event.Kind) bool {
	return kind == event.ScheduledMaintenance || kind == event.StatusCheck
}

// fromMessage reports whether an event's ID was derived from a message of AWS Health, and is not EC2's.
func fromMessage(id string) bool {
	return strings.HasPrefix(id, string(event.ScheduledMaintenance)+"-")
}
