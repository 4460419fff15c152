package fleet

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// isListed reports whether EC2 lists events of a kind as long as they stand.
func isListed(kind event.Kind) bool {
	return kind == event.ScheduledMaintenance || kind == event.StatusCheck
}

// entriesOf returns what was done for the events of an instance's Node, as the record of this term says. Where that does not know why the Node
// is closed, the cordon's claim says it: an earlier leader has written that. An open node was uncordoned by an operator, for all events that it had been closed for. What is neither on the Node nor
// announced needs no entry.
func (t *term) entriesOf(in *instance, on node, announced []event.Event) []state.Entry {
	t.mu.Lock()
	recorded := in.record
	t.mu.Unlock()
	var entries []state.Entry
	if recorded != nil {
		entries = recorded.Entries()
	}
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

// claimed returns the entries of the events that the claim on the Node names, apart from those that are recorded. An event that is announced, and
// for which the node is still closed, has no entry: it begins again, and finds its cordon.
func (t *term) claimed(on node, recorded []state.Entry, announced []event.Event) (entries []state.Entry) {
	since := event.CredibleTime(on.cordon.Since)
	if since.IsZero() {
		since = time.Now().UTC().Round(0)
	}
	for _, id := range append([]string{on.cordon.Event}, on.cordon.Events...) {
		at := slices.IndexFunc(announced, func(ev event.Event) bool { return ev.ID == id })
		_, known := policy.Find(slices.Concat(recorded, entries), id)
		if known || at < 0 && id != on.cordon.Event { // The claim does not say its kind.
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

// claimOf returns the claim that a Node needs so that the next leader knows of these entries: the node is closed for their events, or was
// uncordoned during them. needed is false if the claim on the Node says so already, or if the Node needs none. The first event is not one that
// EC2 lists, if there is another: of the others, the next leader would not know.
func (n *nodes) claimOf(now *corev1.Node, entries []state.Entry) (text string, needed bool) {
	claim, own := n.cordonOf(now.Annotations[drain.CordonAnnotation])
	var events []event.Event
	for _, e := range entries {
		if e.Phase != state.Closed && (e.Released() && !now.Spec.Unschedulable || own && e.OnNode) {
			events = append(events, e.Event)
		}
	}
	names := func(ev event.Event) bool { return claim.Names(ev.ID) }
	isFirst := func(ev event.Event) bool { return claim.Event == ev.ID }
	fromMessage := slices.IndexFunc(events, func(ev event.Event) bool { return !isListed(ev.Kind) })
	switch first := slices.IndexFunc(events, isFirst); {
	case len(events) == 0:
		return "", false
	case !own:
		claim = drain.Claim{Writer: n.lease, BootID: now.Status.NodeInfo.BootID, Since: time.Now().UTC()}
	case first < 0, isListed(events[first].Kind) && fromMessage >= 0: // The claim is to name another event first.
	case !slices.ContainsFunc(events, func(ev event.Event) bool { return !names(ev) }):
		return "", false
	default:
		fromMessage = first
	}
	first := events[max(fromMessage, 0)]
	claim.Event, claim.Kind, claim.Events = first.ID, string(first.Kind), nil
	for _, ev := range events {
		claim.Events = append(claim.Events, ev.ID)
	}
	encoded, _ := json.Marshal(claim) // texts and a time always encode
	return string(encoded), true
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
