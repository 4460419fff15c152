package fleet

import (
	"cmp"
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

// find returns the event of that ID among some events.
func find(events []event.Event, id string) (ev event.Event, found bool) {
	at := slices.IndexFunc(events, func(ev event.Event) bool { return ev.ID == id })
	if at < 0 {
		return event.Event{}, false
	}
	return events[at], true
}

// announcedAt is when the event of an entry was announced. An entry that was made from a claim has only the time of the cordon.
func announcedAt(e state.Entry) time.Time { return cmp.Or(e.Event.Noticed, e.CordonedAt) }

// isListed reports whether EC2 lists events of a kind until they are over.
func isListed(kind event.Kind) bool {
	return kind == event.ScheduledMaintenance || kind == event.StatusCheck
}

// entriesOf returns the entries of an instance's Node: what was done for events. They are those in the record of this term, and those of the mark. If
// the record has none for the Node's own cordon, they are also those in the claim, which an earlier leader has written. If the node is not cordoned
// any more, an operator has uncordoned it for all of these events. An entry is left out if its event is not announced and nothing is on the Node.
func (t *term) entriesOf(inst *instance, on node, announced []event.Event) []state.Entry {
	t.mu.Lock()
	recorded := inst.record
	t.mu.Unlock()
	var entries []state.Entry
	if recorded != nil {
		entries = recorded.Entries()
	}
	cordonIsKnown := slices.ContainsFunc(entries, func(e state.Entry) bool { return e.OnNode && !e.Released() })
	entries = append(entries, on.entriesOfMark(entries, announced)...)
	if on.hasOwnCordon && !cordonIsKnown {
		entries = append(entries, t.claimed(on, entries, announced)...)
	}
	for i := range entries {
		e := &entries[i]
		e.OnNode = e.OnNode && on.hasOwnCordon // Without the claim, nothing of nth-queue's is on the Node.
		wasCordoned := !e.CordonedAt.IsZero() && e.Acted()
		if wasCordoned && !on.unschedulable && !e.Released() { // An operator has uncordoned the node.
			e.ReleasedAt = e.CordonedAt
		}
	}
	return slices.DeleteFunc(entries, func(e state.Entry) (dropped bool) {
		switch _, isAnnounced := find(announced, e.Event.ID); {
		case isListed(e.Event.Kind): // EC2 may list the event again.
			return false
		case e.Released(): // The uncordon is remembered until a reboot.
			return e.BootID != on.bootID && e.Event.State == event.Pending // What is over is still to be closed and reported.
		default:
			return !e.OnNode && !isAnnounced
		}
	})
}

// claimed returns entries for the events that the claim on the Node names, except for those in recorded. An event that is announced, and for which the
// node is still cordoned, gets no entry: the agent begins with the event again, and finds the cordon in place. Maintenance gets one: it may have begun
// at an hour that is over now, or before a reboot.
func (t *term) claimed(on node, recorded []state.Entry, announced []event.Event) (entries []state.Entry) {
	since := cmp.Or(event.CredibleTime(on.cordon.Since), time.Now().UTC().Round(0))
	for _, id := range append([]string{on.cordon.Event}, on.cordon.Events...) {
		ev, isAnnounced := find(announced, id)
		_, known := policy.Find(slices.Concat(recorded, entries), id)
		if known || id == "" || !isAnnounced && id != on.cordon.Event { // The claim has the kind of its first event only.
			continue
		}
		if !isAnnounced {
			ev = event.Event{ID: id, Kind: event.Kind(on.cordon.Kind), State: event.Pending}
		}
		e := state.Entry{
			Event: ev, Phase: state.Cordoned, BootID: on.cordon.BootID,
			FirstSeen: since, Changed: since, CordonedAt: since, ActedAt: since, OnNode: true,
		}
		asks := t.opts.Policy.Asks(e)
		wantsCordon := ev.State == event.Pending && (asks == policy.Drain || asks == policy.Cordon)
		switch {
		case isAnnounced && wantsCordon && on.unschedulable && ev.Kind != event.ScheduledMaintenance: // The agent begins with the event again.
			continue
		case isAnnounced: // The drain continues, or the event is over, or an operator has uncordoned the node, or the rules want the node open.
			e.Phase, e.Event.State = state.Draining, event.Pending // The policy learns from the announced event that the event is over.
		case asks == policy.Drain: // The message of the event was deleted, which is done after the drain.
			e.Phase = state.Drained
		}
		entries = append(entries, e)
	}
	return entries
}

// claimOf returns the claim, as JSON, that a Node needs so that the next leader knows these entries: the node is cordoned for their events, or was
// uncordoned by an operator. needed is false if the claim on the Node names all these events already, or if no entry needs a claim.
//
// The claim's first event comes from a message, if there is one. The next leader finds the others in EC2's list, and would know nothing of this one
// otherwise.
func (n *nodes) claimOf(now *corev1.Node, entries []state.Entry) (text string, needed bool) {
	claim, isOwn := n.cordonOf(now.Annotations[drain.CordonAnnotation])
	var events []event.Event
	for _, e := range entries {
		wasUncordoned := e.Released() && !now.Spec.Unschedulable
		isCordoned := isOwn && e.OnNode
		if e.Phase != state.Closed && (wasUncordoned || isCordoned) {
			events = append(events, e.Event)
		}
	}
	isUnnamed := func(ev event.Event) bool { return !claim.Names(ev.ID) }
	isFirst := func(ev event.Event) bool { return claim.Event == ev.ID }
	fromMessage := slices.IndexFunc(events, func(ev event.Event) bool { return !isListed(ev.Kind) })
	leading := fromMessage // the index of the event to name first; negative for the first of all
	switch first := slices.IndexFunc(events, isFirst); {
	case len(events) == 0:
		return "", false
	case !isOwn, claim.Event == "": // The Node needs a new claim, also in place of a broken one.
		claim = drain.Claim{Writer: n.lease, BootID: now.Status.NodeInfo.BootID, Since: time.Now().UTC()}
	case first < 0, isListed(events[first].Kind) && fromMessage >= 0: // The claim has to name another event first.
		claim.BootID = now.Status.NodeInfo.BootID // Only a boot from now on ends that event.
	case !slices.ContainsFunc(events, isUnnamed): // The claim on the Node is complete.
		return "", false
	default: // The claim lacks events, and its first event stays first.
		leading = first
	}
	lead := events[max(leading, 0)]
	claim.Event, claim.Kind, claim.Events = lead.ID, string(lead.Kind), nil
	for _, ev := range events {
		claim.Events = append(claim.Events, ev.ID)
	}
	encoded, _ := json.Marshal(claim) // Texts and a time always encode.
	return string(encoded), true
}

// record is an agent.Record in memory.
type record struct {
	changed chan struct{} // has an element when an entry was put

	mu      sync.Mutex
	entries []state.Entry
}

// newRecord returns a record that begins with these entries.
func newRecord(entries []state.Entry) *record {
	return &record{changed: make(chan struct{}, 1), entries: entries}
}

// Entries implements agent.Record.
func (r *record) Entries() []state.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.entries)
}

// Put implements agent.Record. It calls written before it returns, as nothing has to reach a disk.
func (r *record) Put(written func(error), entries ...state.Entry) {
	r.mu.Lock()
	r.entries = merged(r.entries, entries)
	r.mu.Unlock()
	loop.Nudge(r.changed)
	written(nil)
}

// merged returns a copy of entries in which each of changed replaces the entry of the same event, or is added.
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

// Flush implements agent.Record. It has nothing to write.
func (r *record) Flush(context.Context) error { return nil }

// entry returns the entry of the event with that ID; the zero value if the record has none.
func (r *record) entry(id string) state.Entry {
	e, _ := policy.Find(r.Entries(), id)
	return e
}
