// Package state says how far nth has come with each event, and what happened on the way, as values: an Entry is what is
// remembered of one event, a Transition is one thing that happened, and a Status is how the daemon stands. It has no effects:
// pkg/record keeps entries on disk, and pkg/agent makes transitions and tells them.
package state

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// Phase is how far nth has come with an event.
type Phase string

// The phases of an entry. Each is put before the work it names begins, and on disk by then unless the disk hangs, so that
// whoever reads the record after a crash knows what may have been done.
const (
	// Seen: the event was announced and told; nothing has been done to the node.
	Seen Phase = "seen"
	// Cordoning: a cordon for this event may or may not have reached the API server.
	Cordoning Phase = "cordoning"
	// Cordoned: the node is cordoned, and no more is to be done for now.
	Cordoned Phase = "cordoned"
	// Draining: the node is, or is about to be, cordoned; evictions may have been sent.
	Draining Phase = "draining"
	// Drained: the drain ended with no evictable pod left.
	Drained Phase = "drained"
	// Incomplete: the drain ran out of its deadline with pods left.
	Incomplete Phase = "incomplete"
	// Undoing: the event no longer stands, and what was done for it is being taken back.
	Undoing Phase = "undoing"
	// Closed: the event no longer stands, and nothing of nth's doing for it is left on the node.
	Closed Phase = "closed"
)

// Entry is what nth remembers of one event. Entries are values.
type Entry struct {
	Event event.Event `json:"event"`
	Phase Phase       `json:"phase"`
	// BootID is the boot in which the event was met or, once the node has been acted upon for it, last acted upon.
	// Undoing and closing leave it: it tells whether the machine has rebooted since.
	BootID string `json:"boot_id"`
	// FirstSeen and Changed are wall time: when the event was first met, and when the phase was last written.
	FirstSeen time.Time `json:"first_seen"`
	Changed   time.Time `json:"changed"`
	// Timeless is since when the event names no deadline, having named one before; zero if it names one, or never did.
	Timeless time.Time `json:"timeless,omitzero"`
	// ListedIn is the boot in which the event was last found announced. It may be empty in records of earlier versions.
	ListedIn string `json:"listed_in,omitempty"`
	// Missing is since when the event is no longer announced, although its source answers; zero while it is.
	Missing time.Time `json:"missing,omitzero"`
	// OnNode is true while something that nth has set for this event (the cordon, the load balancer label) may be on the
	// Node and is ours to take back. In the file it has the name that earlier versions know.
	OnNode bool `json:"cordon,omitempty"`
	// Reopened tells that someone uncordoned the node while this event wanted it. That is an order: the node is not
	// cordoned again for this event.
	Reopened bool `json:"reopened,omitempty"`
	// LeftAlone tells that people limit what is done to the Node, so that it is not drained for this event although its rule asks for
	// that, as a look at the Node has shown last. The phase stays what it was.
	LeftAlone bool `json:"left_alone,omitempty"`
	// CordonedAt is when the node was cordoned for this event; zero where it never was. ClosedIn is the boot in which it was last
	// found so: there was a Node then. It is empty in records of earlier versions.
	CordonedAt time.Time `json:"cordoned_at,omitzero"`
	ClosedIn   string    `json:"closed_in,omitempty"`
	// Anew tells that the event has begun anew: it was given up and is back, or what was done for it was taken back. That the node was
	// closed for it before means nothing any more, whatever a claim on the Node says.
	Anew bool `json:"anew,omitempty"`
	// ActedFor is when the event was due as the node was last acted upon. One that is due later than this was moved. Early
	// versions put the deadline there.
	ActedFor time.Time `json:"acted_for,omitzero"`
	// Ending says why a closed entry was closed.
	Ending Ending `json:"ending,omitempty"`
	// Failures counts attempts that ended in Error since the last one that did not.
	Failures int `json:"failures,omitempty"`
	// Result is what the last drain did, and Error why it ended early. An entry that has been closed for a while names no pods.
	Result *Result `json:"result,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// Acted tells whether something may have been done to the node for this entry that still stands there.
func (e Entry) Acted() bool {
	return e.Phase != "" && e.Phase != Seen && e.Phase != Closed
}

// UnderWay tells whether the node is being cordoned or drained for the event, and the outcome is not known yet.
func (e Entry) UnderWay() bool { return e.Phase == Cordoning || e.Phase == Draining }

// Ending says why an entry was closed.
type Ending string

// The endings of an entry.
const (
	// Withdrawn: the event disappeared from its document.
	Withdrawn Ending = "withdrawn"
	// Canceled and Completed: its source said so.
	Canceled  Ending = "canceled"
	Completed Ending = "completed"
	// Rebooted: the machine came back from what had been announced.
	Rebooted Ending = "rebooted"
	// Expired: the cordon's time to live expired.
	Expired Ending = "expired"
	// Ignored: the rules no longer ask for anything.
	Ignored Ending = "ignored"
)

// Endings lists all endings.
func Endings() []Ending { return []Ending{Withdrawn, Canceled, Completed, Rebooted, Expired, Ignored} }

// Result counts what a drain did. Names are "namespace/name".
type Result struct {
	Evicted int      `json:"evicted"`
	Deleted int      `json:"deleted"`
	Skipped int      `json:"skipped"`
	Left    []string `json:"left,omitempty"`
	// HeldBy names, for pods that are left, the disruption budget that held them.
	HeldBy map[string]string `json:"held_by,omitempty"`
}

// Validate tells what keeps an entry from being one of ours; nil if nothing does.
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

// Clone copies an entry, with what it refers to.
func (e Entry) Clone() Entry {
	if e.Result != nil {
		result := *e.Result
		result.Left = slices.Clone(result.Left)
		result.HeldBy = maps.Clone(result.HeldBy)
		e.Result = &result
	}
	return e
}
