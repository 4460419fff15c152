// Package event describes what has been announced for this machine.
//
// Sources (pkg/imds, pkg/logind) translate documents of the metadata service, and what logind says, into Events. All other packages know only
// Events. An Event is plain data: it carries no clients, no closures and no decision. pkg/policy decides what to do about an Event. Start with
// Event; the table of kinds is in kinds.go.
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
	// Manual: an operator has asked for a drain with "nth drain". The event lasts, also over reboots, until the operator undoes it.
	Manual Kind = "manual"
)

// State is the state of an announced event, as its source reports it.
type State string

// The states of an event. Only scheduled maintenance is ever Canceled or Completed.
const (
	// Pending: what is announced is going to happen, or is happening.
	Pending State = "pending"
	// Canceled: the source has called the event off.
	Canceled State = "canceled"
	// Completed: what was announced has happened.
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
	// LeftAlone: the node is not drained although the rule asks for it, because the Node's annotation limits what nth may do. Or an operator
	// lifted the cordon while the rule asked for no drain.
	LeftAlone Outcome = "left-alone"
)

// Event is one announcement. Events are values: copy them freely.
type Event struct {
	// ID identifies the event across polls, restarts and reboots. It is made from the document's content, never from the clock. If the
	// content has no identity of its own, it is made from the boot ID, too.
	ID   string `json:"id"`
	Kind Kind   `json:"kind"`
	// Code is the source's own word for what will happen: the spot action ("terminate", "stop", "hibernate"), the maintenance code (such as
	// "system-reboot"), or the target lifecycle state. For StatusCheck, it is the check that fails ("instance" or "system"). Unknown codes are
	// kept as they are.
	Code  string `json:"code,omitempty"`
	State State  `json:"state,omitempty"`
	// Description is the source's free text; empty if it has none.
	Description string `json:"description,omitempty"`
	// Noticed is when the source gave notice; zero if the document does not say.
	Noticed time.Time `json:"noticed,omitzero"`
	// Deadline is when the machine is acted upon, such as the time in a spot notice, NotBefore of a maintenance event, or the end of the
	// inhibitor delay of a shutdown. It is zero if the source gives none. It is by the clock of the source's documents. For Local kinds, and the end of
	// a lifecycle hook, it has a reading of the monotonic clock.
	Deadline time.Time `json:"deadline,omitzero"`
	// Until is the end of a maintenance window (NotAfter); zero if the document has none.
	Until time.Time `json:"until,omitzero"`
	// Instance is the ID of the instance, if the source knows it and the time of the action depends on it.
	Instance string `json:"instance,omitempty"`
}

// TimeLayout is how nth shows a time to operators. The time must be in UTC.
const TimeLayout = "15:04:05 UTC on 2 Jan 2006"

// Summary says in words what is announced, and for when if EC2 has set a time. It fills in KindInfo.Says, such as "EC2 will {interrupt} this
// spot instance", where the event's code replaces the braces.
func (e Event) Summary() string {
	summary, rest, hasCode := strings.Cut(e.Kind.Info().Says, "{")
	if hasCode {
		withoutCode, after, _ := strings.Cut(rest, "}")
		summary += cmp.Or(e.Code, withoutCode) + after
	}
	if summary == "" { // The kind is not in the table, such as "label", which drain.Node.Claim makes up.
		return string(e.Kind)
	}
	if setByEC2 := !e.Kind.Local() && e.Kind != Manual; setByEC2 && !e.Deadline.IsZero() {
		summary += " at " + e.Deadline.UTC().Format(TimeLayout)
	}
	return summary
}

// ContentID makes an ID for an event whose document has no ID: the kind, with a digest of content. content is what distinguishes the event
// from others of its kind. So the same content always has the same ID.
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

// CredibleTime returns t in UTC. If the year is before 1970 or after 2199, the result is zero: the span to such a time may not fit a Duration. If t
// has a reading of the monotonic clock, CredibleTime returns t itself, with that reading and in its zone.
func CredibleTime(t time.Time) time.Time {
	utc := t.UTC()
	if y := utc.Year(); y < 1970 || y > 2199 {
		return time.Time{}
	}
	if t != t.Round(0) { // t has a monotonic reading, which UTC has dropped.
		return t
	}
	return utc
}

// Credible returns the event with its times as CredibleTime returns them: a time that is not credible is zero.
func (e Event) Credible() Event {
	e.Noticed, e.Deadline, e.Until = CredibleTime(e.Noticed), CredibleTime(e.Deadline), CredibleTime(e.Until)
	return e
}

// Snapshot is everything that a source knows of one kind at one moment. It replaces the previous snapshot of that kind; an empty
// one means that nothing of that kind is announced.
type Snapshot struct {
	Kind   Kind
	Events []Event
	// Clock is the time by the source's own clock when the snapshot is delivered; zero if the source does not say. The times in Events are
	// by that clock. The true reading is between Clock and Clock plus Within.
	Clock  time.Time
	Within time.Duration
}

// Sink receives what a source finds. Its methods may be called from several goroutines and do not block.
type Sink interface {
	// Snapshot receives what a source has found when it asked for events of a kind, and got an answer.
	Snapshot(Snapshot)
	// Trouble receives the error of a source that got no answer, or cannot understand the answer. The last snapshot of that kind remains
	// valid: an error never means that nothing is announced.
	Trouble(Kind, error)
}
