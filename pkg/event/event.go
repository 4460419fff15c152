// Package event describes what has been announced for this machine.
//
// Sources (pkg/imds, pkg/logind) translate documents and signals into Events; all other packages know Events only. An Event is
// plain data: it carries no clients, no closures and no decision. pkg/policy decides what to do about it.
package event

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
)

// Kind is the sort of interruption that an Event announces. Its text is used in the configuration, on the Node and in the
// journal, and never changes.
type Kind string

// The kinds of events. More about each is in the table in kinds.go.
const (
	// SpotInterruption: EC2 takes a spot instance back, with about two minutes' notice.
	SpotInterruption Kind = "spot-interruption"
	// RebalanceRecommendation: a spot instance is at elevated risk of interruption.
	RebalanceRecommendation Kind = "rebalance-recommendation"
	// ScheduledMaintenance: EC2 has planned a reboot, stop, retirement or maintenance of the machine.
	ScheduledMaintenance Kind = "scheduled-maintenance"
	// ASGTermination: the Auto Scaling group has chosen the instance for termination.
	ASGTermination Kind = "asg-termination"
	// Shutdown: the operating system is going down, no matter who asked for it.
	Shutdown Kind = "shutdown"
	// Hibernation: the machine is going to sleep, with all processes on it. EC2 saves its memory to a disk and stops it.
	Hibernation Kind = "hibernation"
	// ReservationEnd: the capacity reservation that the instance runs in ends.
	ReservationEnd Kind = "reservation-end"
	// StateChange: EC2 reports that the instance is being stopped or terminated, no matter who asked for it.
	StateChange Kind = "state-change"
	// StatusCheck: EC2's status check of the instance, or of the system below it, has been failing for some time.
	StatusCheck Kind = "status-check"
	// Manual: an operator has asked for a drain with "nth drain". It stands, also over reboots, until that is undone.
	Manual Kind = "manual"
)

// State is the state of an announced event, as its source reports it.
type State string

// The states of an event. Only scheduled maintenance is ever Canceled or Completed.
const (
	// Pending: it is going to happen, or is happening.
	Pending State = "pending"
	// Canceled: it was called off.
	Canceled State = "canceled"
	// Completed: it has happened.
	Completed State = "completed"
)

// Outcome is how the work for an event ended; empty while something is still to be done.
type Outcome string

// The outcomes of an event.
const (
	// Drained: the node was drained, as the rule asks.
	Drained Outcome = "drained"
	// NoDrain: the rule asks for a cordon at most, and that is done or out of time.
	NoDrain Outcome = "no-drain"
	// OutOfTime: the time for the event ended before the work did.
	OutOfTime Outcome = "out-of-time"
	// LeftAlone: the node is not drained although the rule asks for it, because operators limit by its annotation what is done to it,
	// or lifted the cordon while the rule asked for no drain.
	LeftAlone Outcome = "left-alone"
)

// Event is one announcement. Events are values: copy them freely.
type Event struct {
	// ID identifies the event across polls, restarts and reboots. It is made from the document's content, and the boot ID if
	// that has no identity of its own, but never from the clock.
	ID   string `json:"id"`
	Kind Kind   `json:"kind"`
	// Code is the source's own word for what will happen: the spot action ("terminate", "stop", "hibernate"), the
	// maintenance code ("system-reboot", ...; unknown ones are kept as they are), the target lifecycle state, or the status
	// check that fails ("instance" or "system").
	Code  string `json:"code,omitempty"`
	State State  `json:"state,omitempty"`
	// Description is the source's free text; empty if it has none.
	Description string `json:"description,omitempty"`
	// Noticed is when the source gave notice; zero if the document does not say.
	Noticed time.Time `json:"noticed,omitzero"`
	// Deadline is when the machine is acted upon: the time in a spot notice, NotBefore of a maintenance event, the end of the
	// inhibitor delay of a shutdown; zero if there is none. A source gives it by the clock of its documents; for Local kinds, and the
	// end of a lifecycle hook, with a reading of the monotonic clock.
	Deadline time.Time `json:"deadline,omitzero"`
	// Until is the end of a maintenance window (NotAfter); zero if the document has none.
	Until time.Time `json:"until,omitzero"`
	// Instance is the ID of the instance, if the source knows it and the time of the action depends on it.
	Instance string `json:"instance,omitempty"`
}

// TimeLayout is how operators get to see a time, which is in UTC.
const TimeLayout = "15:04:05 UTC on 2 Jan 2006"

// Summary says in words what is announced, and for when if EC2 has set a time.
func (e Event) Summary() string {
	said, rest, placed := strings.Cut(e.Kind.Info().Says, "{")
	if placed {
		code, after, _ := strings.Cut(rest, "}")
		said += cmp.Or(e.Code, code) + after
	}
	if said == "" { // such as "label", which drain.Node.Claim makes up
		return string(e.Kind)
	}
	if !e.Deadline.IsZero() && !e.Kind.Local() && e.Kind != Manual {
		said += " at " + e.Deadline.UTC().Format(TimeLayout)
	}
	return said
}

// ContentID makes an ID for an event whose document has none: the event's kind with a digest of what distinguishes the event from others of
// that kind. So the same content always has the same ID.
func ContentID(kind Kind, content ...string) string {
	digest := sha256.Sum256([]byte(strings.Join(content, "\n")))
	return string(kind) + "-" + hex.EncodeToString(digest[:8])
}

// StateIn returns the state of scheduled maintenance according to its description. EC2 puts "[Canceled]" or "[Completed]" before the
// description of an event that is over. Any other event is Pending.
func StateIn(description string) State {
	description = strings.ToLower(strings.TrimSpace(description))
	switch {
	case strings.HasPrefix(description, "[canceled]"), strings.HasPrefix(description, "[cancelled]"):
		return Canceled
	case strings.HasPrefix(description, "[completed]"):
		return Completed
	}
	return Pending
}

// CredibleTime returns t in UTC, or zero if its year is before 1970 or after 2199: the span to such a time may be longer than a Duration. A time
// with a reading of the monotonic clock keeps that, and its zone.
func CredibleTime(t time.Time) time.Time {
	utc := t.UTC()
	if y := utc.Year(); y < 1970 || y > 2199 {
		return time.Time{}
	}
	if t != t.Round(0) { // UTC has dropped the reading.
		return t
	}
	return utc
}

// Credible returns the event without those of its times that CredibleTime rejects.
func (e Event) Credible() Event {
	e.Noticed, e.Deadline, e.Until = CredibleTime(e.Noticed), CredibleTime(e.Deadline), CredibleTime(e.Until)
	return e
}

// Snapshot is everything that a source knows of one kind at one moment. It replaces the previous snapshot of that kind; an empty
// one means that nothing of that kind is announced.
type Snapshot struct {
	Kind   Kind
	Events []Event
	// Clock is what the source's own clock, by which the times in Events are, says when the snapshot is delivered; zero if the source
	// does not say. It may be later by up to Within.
	Clock  time.Time
	Within time.Duration
}

// Sink receives what a source finds. Its methods may be called from several goroutines and do not block.
type Sink interface {
	// Snapshot receives the result of a good look.
	Snapshot(Snapshot)
	// Trouble receives the error of a look that failed. The last good snapshot of that kind stands: a failed look never means
	// that nothing is announced.
	Trouble(Kind, error)
}
