package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// NotesAnnotation on a Node says how far the events have come that EC2 lists for its instance, as the JSON of notes. Without it, each
// process, and each after a restart, would announce them again and drain the node again.
const NotesAnnotation = drain.KeyPrefix + "queue-events"

// note says how far one event has come.
type note struct {
	Event string `json:"event"`
	Code  string `json:"code,omitempty"`
	// At is the deadline that the event had: if it is moved, it begins anew.
	At time.Time `json:"at,omitzero"`
	// Done is set if nothing is left to be done for the event. Otherwise it was announced, and its time has not come. Over is set if its end
	// was reported, too.
	Done bool `json:"done,omitempty"`
	Over bool `json:"over,omitempty"`
	// Action is what the rules asked for: if they ask for more later, that is still to be done.
	Action policy.Action `json:"action,omitempty"`
	// Phase is how far the node has come for the event, unless it is left alone.
	Phase state.Phase `json:"phase,omitempty"`
	// Instance is set on a Node that does not tell its instance, so that EC2 can be asked about it when the message is done.
	Instance string `json:"instance,omitempty"`
}

// toEvent returns the event of a note, as far as it is noted.
func (n note) toEvent() event.Event {
	ev := event.Event{ID: n.Event, Kind: event.ScheduledMaintenance, Code: n.Code, Deadline: n.At, Instance: n.Instance}
	if strings.HasPrefix(n.Event, string(event.StatusCheck)+"-") {
		ev.Kind = event.StatusCheck
	}
	return ev
}

type notes []note

func notesOf(text string) notes {
	var all notes
	if text == "" || json.Unmarshal([]byte(text), &all) != nil {
		return nil
	}
	return all
}

// of returns the note with that event ID; an empty one if there is none.
func (all notes) of(id string) note {
	i := slices.IndexFunc(all, func(known note) bool { return known.Event == id })
	if i < 0 {
		return note{}
	}
	return all[i]
}

// machine returns the instance in the notes, if any.
func (all notes) machine() string {
	for _, known := range all {
		if known.Instance != "" {
			return known.Instance
		}
	}
	return ""
}

// fallsShort reports whether the rules ask for more than was done. A note of a version that did not note the action counts as done.
func (n note) fallsShort(asked policy.Action) bool {
	return !n.Done || n.Action != "" && asked.Exceeds(n.Action)
}

// fromMessage reports whether an event's ID was derived from a message, and is not EC2's.
func fromMessage(id string) bool {
	return strings.HasPrefix(id, string(event.ScheduledMaintenance)+"-")
}

// matches reports whether a note is about an event, which may have had the ID of its message when it was noted.
func (n note) matches(ev event.Event) bool {
	return n.Event == ev.ID || fromMessage(n.Event) && n.Code == ev.Code && n.At.Equal(ev.Deadline)
}

// find returns the note about an event.
func (all notes) find(ev event.Event) (note, bool) {
	i := slices.IndexFunc(all, func(known note) bool { return known.matches(ev) })
	if i < 0 {
		return note{}, false
	}
	return all[i], true
}

// addNote prepares the note of an event about which nothing is to be done any more, or not before a time. f.mu is held.
func (s *session) addNote(ev event.Event, entry state.Entry, again time.Time) {
	if ev.Kind != event.ScheduledMaintenance && ev.Kind != event.StatusCheck {
		return
	}
	if s.notes == nil {
		s.notes = map[string]*note{}
	}
	s.notes[ev.ID] = nil
	if ev.State != event.Pending {
		return
	}
	s.notes[ev.ID] = &note{
		Event: ev.ID, Code: ev.Code, At: ev.Deadline, Done: again.IsZero(), Over: entry.Phase == state.Closed,
		Action: s.rules.Asks(state.Entry{Event: ev}),
	}
	if entry.OnNode && !entry.LeftAlone {
		s.notes[ev.ID].Phase = entry.Phase
	}
	if on, _ := s.fleet.nodes.find(s.node); on.instance == "" {
		s.notes[ev.ID].Instance = on.machine
	}
}

// writeNotes writes the session's notes to the Node.
func (s *session) writeNotes(ctx context.Context) {
	f := s.fleet
	f.mu.Lock()
	fresh := maps.Clone(s.notes)
	f.mu.Unlock()
	if len(fresh) == 0 || f.opts.DryRun {
		return
	}
	if err := f.changeNotes(ctx, s.node, fresh); err != nil {
		f.opts.Log.WithField(fieldNode, s.node).Warnf("what is done for it may be done again: %s", err)
	}
}

// changeNotes updates the notes on a Node, and removes those of events that are over, unless the node is still cordoned for them. The
// process that removes a note reports that its event is over.
func (f *Fleet) changeNotes(ctx context.Context, name string, fresh map[string]*note) error {
	var dropped notes
	err := persistently(ctx, func() error {
		dropped = nil
		err := f.claims.change(ctx, name, nil, func(there *corev1.Node) map[string]any {
			n := f.nodes.parse(there)
			known, _ := f.nodes.find(name)
			n.machine = cmp.Or(n.machine, known.machine)
			after, gone := f.updateNotes(n, fresh)
			if slices.EqualFunc(n.notes, after, sameNote) {
				return nil
			}
			dropped = gone
			return annotationPatch(there.ResourceVersion, drain.KeyPatch(there.Annotations, NotesAnnotation, after.text()))
		})
		if drain.NotFound(err) {
			dropped = nil
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("noting what was done for node %q: %w", name, err)
	}
	for _, known := range dropped {
		f.reportClosed(name, state.Entry{Event: known.toEvent(), Ending: state.Withdrawn})
	}
	return nil
}

// updateNotes returns the new notes of a node, and the removed ones whose end was not reported yet.
func (f *Fleet) updateNotes(n node, fresh map[string]*note) (after, dropped notes) {
	events := f.eventsOf(n)
	for _, old := range n.notes {
		if _, renewed := fresh[old.Event]; renewed {
			continue
		}
		if f.stands(n, old, events) {
			after = append(after, old)
		} else if !old.Over {
			dropped = append(dropped, old)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(fresh)) {
		if one := fresh[id]; one != nil {
			after = append(after, *one)
		}
	}
	return after, dropped
}

func sameNote(a, b note) bool {
	at := a.At.Equal(b.At)
	a.At = b.At
	return at && a == b
}

// text is the value of the annotation; nil, which removes it, without notes.
func (all notes) text() any {
	if len(all) == 0 {
		return nil
	}
	text, _ := json.Marshal(all) // texts and credible times always encode
	return string(text)
}

// stands reports whether a note's event is not over, or the node is cordoned for it.
func (f *Fleet) stands(n node, known note, events []event.Event) bool {
	if _, asked := f.maintenance.of(n.machine); !asked || n.cordon.Event == known.Event {
		return true
	}
	state := event.State("")
	for _, ev := range events {
		if known.matches(ev) {
			state = ev.State
		}
	}
	ev := known.toEvent()
	if state == "" && !listable(ev) {
		return time.Now().Before(known.At)
	}
	return f.endedAs(n, ev, state) == event.Pending
}

// otherEntries returns the state of the events in the notes of a node that are not over and not among the known ones. No session works on
// them, but the conditions of the node depend on them.
func (f *Fleet) otherEntries(name string, known []state.Entry) []state.Entry {
	n, _ := f.nodes.find(name)
	events := f.eventsOf(n)
	var all []state.Entry
	for _, noted := range n.notes {
		same := func(e state.Entry) bool { return noted.matches(e.Event) }
		if !noted.Over && !slices.ContainsFunc(known, same) && f.stands(n, noted, events) {
			all = append(all, n.entry(noted, events))
		}
	}
	return all
}

// entry returns the state of the event of a note, as EC2 describes the event now, if it does.
func (n node) entry(noted note, events []event.Event) state.Entry {
	e := state.Entry{Event: noted.toEvent(), Phase: state.Seen, BootID: n.bootID, ListedIn: n.bootID}
	e.Event.State = event.Pending
	if i := slices.IndexFunc(events, noted.matches); i >= 0 {
		e.Event = events[i]
	}
	if noted.Phase != "" && n.ours {
		since := event.CredibleTime(n.cordon.Since)
		e.Phase, e.OnNode, e.Reopened, e.FirstSeen, e.Changed, e.CordonedAt = noted.Phase, true, !n.unschedulable, since, since, since
	}
	return e
}

// removeOldNotes removes the notes of events that are over.
func (f *Fleet) removeOldNotes(n node, events []event.Event) {
	old := func(known note) bool { return !f.stands(n, known, events) }
	if f.opts.DryRun || !slices.ContainsFunc(n.notes, old) {
		return
	}
	p := f.maintenance.attemptsFor(n.name, "notes")
	if pause, begun := p.begin(time.Time{}, time.Time{}, ""); begun {
		f.background(func(ctx context.Context) {
			if err := f.changeNotes(ctx, n.name, nil); err != nil && ctx.Err() == nil {
				f.opts.Log.WithField(fieldNode, n.name).Debug(err)
			}
			p.Return(max(pause, reconcileInterval))
		})
	}
}
