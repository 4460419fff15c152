// Package state has the values in which nth describes its own state. An Entry is what nth remembers of one event, a Transition is one thing
// that happened, and a Status is how the daemon does. They are plain data: pkg/record keeps entries on disk, and pkg/agent makes transitions
// and passes them on. Start with Entry.
//
// These words have one meaning in all packages:
//
//   - An entry is closed when its event is over, and nothing of it is left on the node.
//   - An event is released when an operator has uncordoned the node in spite of it. nth does not cordon the node for it again.
//   - A node is left alone if nth does less for an event than the rule asks, because the Node's annotation limits what nth may do.
//   - The guard is the part of pkg/drain that keeps the node cordoned and evicts pods, as long as an event needs that.
package state

import (
	"errors"
	"fmt"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// Phase is how far nth has come with an event.
type Phase string

// The phases of an entry. nth writes each to disk before it does the work of that phase. So the record says after a crash what may have been
// done. Only a disk that hangs does not delay the work.
const (
	// Seen: the event was announced; nothing has been done to the node.
	Seen Phase = "seen"
	// Cordoning: a cordon for this event may or may not have reached the API server.
	Cordoning Phase = "cordoning"
	// Cordoned: the node is cordoned, and no more is to be done for now.
	Cordoned Phase = "cordoned"
	// Draining: the node is, or is about to be, cordoned; evictions may have been sent.
	Draining Phase = "draining"
	// Drained: the drain ended with no evictable pod left.
	Drained Phase = "drained"
	// Incomplete: the deadline came before the drain was done.
	Incomplete Phase = "incomplete"
	// Undoing: the event is over, or is due later; nth is taking back what it did for the event.
	Undoing Phase = "undoing"
	// Closed: the event is over, and nothing that nth did for it is left on the node.
	Closed Phase = "closed"
)

// Entry is what nth remembers of one event. Entries are values.
type Entry struct {
	Event event.Event `json:"event"`
	Phase Phase       `json:"phase"`
	// BootID is the boot in which nth last cordoned or drained the node for the event; before that, the boot in which the event was first
	// seen. Undoing and closing do not change BootID, so that it shows whether the machine has rebooted since.
	BootID string `json:"boot_id"`
	// FirstSeen is when the event was first seen. Changed is when the phase last changed, the work was allowed again, an uncordon last failed
	// or, in Seen, the deadline moved. All times are by the clock of the boot (record.Store.Now).
	FirstSeen time.Time `json:"first_seen"`
	Changed   time.Time `json:"changed"`
	// Missing is since when the event is no longer announced, although its source answers; zero while it is announced.
	Missing time.Time `json:"missing,omitzero"`
	// OnNode: the cordon or the load balancer label that nth has set for this event may be on the Node. nth has to take it back.
	OnNode bool `json:"cordon,omitempty"`
	// ReleasedAt is when it became known that an operator has uncordoned the node while this event wanted it cordoned; zero if nobody
	// has. The node is not cordoned again for this event. Only pkg/policy sets it.
	ReleasedAt time.Time `json:"released_at,omitzero"`
	// LeftAlone: when nth last read the Node, its annotation did not allow the drain or cordon that the rule asks for. The phase stays what
	// it was.
	LeftAlone bool `json:"left_alone,omitempty"`
	// CordonedAt is when the node was first found cordoned for this event; zero if it never was.
	CordonedAt time.Time `json:"cordoned_at,omitzero"`
	// CordonStamp is when that cordon was set by the API server's clock, which pods' times are by; zero if the Node did not say.
	CordonStamp time.Time `json:"cordon_stamp,omitzero"`
	// ActedAt is when nth last began to cordon or drain the node for the event. If the event is due later now, it was moved.
	ActedAt time.Time `json:"acted_at,omitzero"`
	// RebootAt is when nth recorded that it requests a reboot of the machine for the event; zero if it never has. It requests no second one.
	RebootAt time.Time `json:"reboot_at,omitzero"`
	// Ending says why a closed entry was closed.
	Ending Ending `json:"ending,omitempty"`
	// Result is what the last drain did; nil once the entry is closed. Nobody changes what it points to.
	Result *Result `json:"result,omitempty"`
	// Error is why the last attempt failed; empty once one succeeds.
	Error string `json:"error,omitempty"`
}

// Acted reports whether something that was done to the node for this entry may still be in effect.
func (e Entry) Acted() bool {
	return e.Phase != "" && e.Phase != Seen && e.Phase != Closed // "": there is no entry.
}

// OnlyClaimed reports whether all that is known of the event is from the claim on the Node, which has neither its code nor its state.
func (e Entry) OnlyClaimed() bool { return e.Event.State == "" }

// Released reports whether an operator has uncordoned the node while the event wanted it cordoned.
func (e Entry) Released() bool { return !e.ReleasedAt.IsZero() }

// UnderWay reports whether the node is being cordoned or drained for the event, and the outcome is not known yet.
func (e Entry) UnderWay() bool { return e.Phase == Cordoning || e.Phase == Draining }

// Ending says why an entry was closed.
type Ending string

// The endings of an entry.
const (
	// Withdrawn: the event disappeared from its document.
	Withdrawn Ending = "withdrawn"
	// Canceled and Completed: the source reported the event's state as such.
	Canceled  Ending = "canceled"
	Completed Ending = "completed"
	// Rebooted: the machine is back from what was announced.
	Rebooted Ending = "rebooted"
	// Expired: the cordon's time to live expired.
	Expired Ending = "expired"
	// Ignored: the rules ignore the event now.
	Ignored Ending = "ignored"
)

// endings say in words why an event no longer stands.
var endings = map[Ending]string{
	Withdrawn: "the event was withdrawn",
	Canceled:  "the event was canceled",
	Completed: "the event is over",
	Rebooted:  "the machine is back after its reboot",
	Expired:   "the time in the setting cordon_for is over",
	Ignored:   "the settings now ignore this kind of event",
}

// Text says in words why an event no longer stands.
func (e Ending) Text() string { return endings[e] }

// Endings lists all endings.
func Endings() []Ending { return []Ending{Withdrawn, Canceled, Completed, Rebooted, Expired, Ignored} }

// Result counts what a drain did. Names are "namespace/name".
type Result struct {
	Evicted int      `json:"evicted"`
	Deleted int      `json:"deleted"`
	Skipped int      `json:"skipped"`
	Left    []string `json:"left,omitempty"`
	// HeldBy says for pods in Left what held them: a disruption budget or the last refusal.
	HeldBy map[string]string `json:"held_by,omitempty"`
}

// Validate returns an error for an entry that nth cannot have written.
func (e Entry) Validate() error {
	if e.Event.ID == "" {
		return errors.New("the event has no ID")
	}
	switch e.Phase {
	case Seen, Cordoning, Cordoned, Draining, Drained, Incomplete, Undoing, Closed:
		return nil
	}
	return fmt.Errorf("the phase %q is unknown", e.Phase)
}
