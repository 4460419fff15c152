package record

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// Phase is how far nth has come with an event.
type Phase string

// The phases of an entry. Each is on disk before the work it names begins, so that whoever reads the record after a
// crash knows what may have been done.
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
	// ListedIn is the boot in which the event was last found announced. It may be empty in records of earlier versions.
	ListedIn string `json:"listed_in,omitempty"`
	// Missing is since when the event is no longer announced, although its source answers; zero while it is.
	Missing time.Time `json:"missing,omitzero"`
	// Cordon is true while a cordon set for this event may be ours to lift.
	Cordon bool `json:"cordon,omitempty"`
	// CordonedAt is when the node was cordoned for this event; zero where it never was.
	CordonedAt time.Time `json:"cordoned_at,omitzero"`
	// ActedFor is the event's deadline as it was when the node was last acted upon; a deadline that moves later than
	// this was rescheduled.
	ActedFor time.Time `json:"acted_for,omitzero"`
	// Ending says why a closed entry was closed.
	Ending Ending `json:"ending,omitempty"`
	// Failures counts attempts that ended in Error since the last one that did not.
	Failures int `json:"failures,omitempty"`
	// Result is what the last drain did, and Error why it ended early.
	Result *Result `json:"result,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// Acted tells whether something may have been done to the node for this entry that still stands there.
func (e Entry) Acted() bool {
	switch e.Phase {
	case Cordoning, Cordoned, Draining, Drained, Incomplete, Undoing:
		return true
	case Seen, Closed:
	}
	return false
}

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
	// Expired: the cordon's time to live ended.
	Expired Ending = "expired"
)

// Result counts what a drain did. Names are "namespace/name".
type Result struct {
	Evicted int      `json:"evicted"`
	Deleted int      `json:"deleted"`
	Skipped int      `json:"skipped"`
	Left    []string `json:"left,omitempty"`
	// HeldBy names, for pods that are left, the disruption budget that held them.
	HeldBy map[string]string `json:"held_by,omitempty"`
}
