package fleet

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// RecordAnnotation returns the annotation in which the leader of a Lease keeps its record of a Node: the entries of events, as JSON, which
// the cordon's own annotation does not say. For one event that is neither listed by EC2 nor uncordoned by an operator, there is none.
func RecordAnnotation(lease string) string { return kube.KeyPrefix + lease }

// mostEntries and mostBytes bound what is read from an annotation.
const mostEntries, mostBytes = 64, 64 << 10

// readRecord reads the entries in an annotation, one for each event; none if it is not a record.
func readRecord(text string) (entries []state.Entry) {
	var found []state.Entry
	if text == "" || len(text) > mostBytes || json.Unmarshal([]byte(text), &found) != nil || len(found) > mostEntries {
		return nil
	}
	for _, e := range found {
		if _, twice := policy.Find(entries, e.Event.ID); e.Validate() == nil && !twice {
			entries = append(entries, e)
		}
	}
	return entries
}

// recordText is the annotation for these entries; "" if none is kept. Three kinds are kept. EC2 still lists the event. An operator has
// uncordoned the node during the event. Or nth-queue's cordon or label is on the Node for it, and the cordon's claim does not say so: it names
// one event only. claimed is that event's ID; "" if there is no claim, or it is not known yet.
func recordText(entries []state.Entry, claimed string) string {
	onNode := 0
	for _, e := range entries {
		if e.OnNode {
			onNode++
		}
	}
	var kept []state.Entry
	for _, e := range entries {
		open := e.Phase != state.Closed
		if isListed(e.Event.Kind) && e.Event.State == event.Pending || open && (e.Released() || e.OnNode && (onNode > 1 || claimed != "" && e.Event.ID != claimed)) {
			// They say how the work went. The next leader does without them, and the annotation stays short.
			e.Result, e.Error, e.Failures, e.Event.Description = nil, "", 0, ""
			kept = append(kept, e)
		}
	}
	if len(kept) == 0 {
		return ""
	}
	text, _ := json.Marshal(kept) // texts and credible times always encode
	return string(text)
}

// isListed reports whether EC2 lists events of a kind as long as they stand.
func isListed(kind event.Kind) bool {
	return kind == event.ScheduledMaintenance || kind == event.StatusCheck
}

// entriesOf is what the Node says of the events for which something was done: its record, and where that has none for which the node is
// closed, the cordon. A node that is schedulable all the same was uncordoned by an operator, for all of them. An event that was
// announced, and for which the node is cordoned, has no entry: it begins again, and finds its cordon. Nothing is done for an event of a
// message because of the record alone, which others can write too.
func (t *term) entriesOf(on node, announced []event.Event) []state.Entry {
	entries := slices.Clone(on.entries)
	if on.hasOwnCordon && !slices.ContainsFunc(entries, func(e state.Entry) bool { return e.OnNode && !e.Released() }) {
		entries = append(entries, t.claimed(on, entries, announced)...)
	}
	for i := range entries {
		e := &entries[i]
		e.OnNode = e.OnNode && on.hasOwnCordon
		if closed := !e.CordonedAt.IsZero(); closed && !on.unschedulable && !e.Released() && e.Acted() {
			e.ReleasedAt = e.CordonedAt
		}
	}
	return slices.DeleteFunc(entries, func(e state.Entry) bool {
		switch isAnnounced := slices.ContainsFunc(announced, func(ev event.Event) bool { return ev.ID == e.Event.ID }); {
		case isListed(e.Event.Kind):
			return false
		case e.Released():
			return e.BootID != on.bootID && e.Event.State == event.Pending
		default:
			return !e.OnNode && !isAnnounced
		}
	})
}

// claimed are the entries of the events that a cordon was set for, apart from those that are recorded.
func (t *term) claimed(on node, recorded []state.Entry, announced []event.Event) (entries []state.Entry) {
	since := event.CredibleTime(on.cordon.Since)
	if since.IsZero() {
		since = time.Now().UTC().Round(0)
	}
	for _, id := range append([]string{on.cordon.Event}, on.cordon.Events...) {
		at := slices.IndexFunc(announced, func(ev event.Event) bool { return ev.ID == id })
		_, known := policy.Find(slices.Concat(recorded, entries), id)
		if known || at < 0 && id != on.cordon.Event {
			continue
		}
		ev := event.Event{ID: id, Kind: event.Kind(on.cordon.Kind), State: event.Pending}
		if at >= 0 {
			ev = announced[at]
		}
		e := state.Entry{
			Event: ev, Phase: state.Cordoned, BootID: on.cordon.BootID,
			FirstSeen: since, Changed: since, CordonedAt: since, ActedFor: since, OnNode: true,
		}
		switch asks := t.policy().Asks(e); {
		case at >= 0 && announced[at].State == event.Pending && on.unschedulable && (asks == policy.Drain || asks == policy.Cordon):
			continue // It begins again.
		case at >= 0: // It is over, or an operator has uncordoned the node, or the rules want it open.
			e.Phase, e.Event.State = state.Draining, event.Pending // What is over by now, the policy takes in as news.
			e.FirstSeen = time.Now().UTC().Round(0)
		case asks == policy.Drain: // Its message was deleted when the drain had ended.
			e.Phase = state.Drained
		}
		entries = append(entries, e)
	}
	return entries
}

// record is an agent.Record in memory.
type record struct {
	changed chan struct{} // has an element when an entry was put

	mu      sync.Mutex
	entries []state.Entry
}

func newRecord(entries []state.Entry) *record {
	return &record{changed: make(chan struct{}, 1), entries: entries}
}

// Entries implements agent.Record.
func (r *record) Entries() []state.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.entries)
}

// Put implements agent.Record.
func (r *record) Put(written func(error), entries ...state.Entry) {
	r.mu.Lock()
	r.entries = merged(r.entries, entries)
	r.mu.Unlock()
	loop.Nudge(r.changed)
	written(nil)
}

// merged are the entries with those that have changed.
func merged(entries, changed []state.Entry) []state.Entry {
	entries = slices.Clone(entries)
	for _, e := range changed {
		if i := slices.IndexFunc(entries, func(other state.Entry) bool { return other.Event.ID == e.Event.ID }); i >= 0 {
			entries[i] = e
		} else {
			entries = append(entries, e)
		}
	}
	return entries
}

// Flush implements agent.Record.
func (r *record) Flush(context.Context) error { return nil }

func (r *record) entry(id string) state.Entry {
	e, _ := policy.Find(r.Entries(), id)
	return e
}
