// Package event is the noun of nth: what has been announced for this machine.
//
// Sources (pkg/imds, pkg/logind) translate foreign documents and signals into Events once, at the border; everything
// after them speaks of Events only. An Event is plain data: it carries no clients, no closures and no decision.
// What to do about one is decided in pkg/policy.
package event

import "time"

// Kind says what sort of interruption an Event announces. Its text is used in the configuration, on the Node and in
// the journal, and never changes.
type Kind string

// The kinds of events nth knows: kinds.go has the table of them.
const (
	// SpotInterruption is EC2 taking a spot instance back, with about two minutes' notice.
	SpotInterruption Kind = "spot-interruption"
	// RebalanceRecommendation says that a spot instance runs an elevated risk of interruption.
	RebalanceRecommendation Kind = "rebalance-recommendation"
	// ScheduledMaintenance is a reboot, stop, retirement or maintenance that EC2 has planned for the machine.
	ScheduledMaintenance Kind = "scheduled-maintenance"
	// ASGTermination is the Auto Scaling group having chosen the instance for termination.
	ASGTermination Kind = "asg-termination"
	// Shutdown is the operating system going down, whoever asked for it.
	Shutdown Kind = "shutdown"
	// Hibernation is the machine being put to sleep, with all that runs on it: EC2 keeps its memory on a disk, and stops it.
	Hibernation Kind = "hibernation"
	// ReservationEnd is the end of the capacity reservation that the instance runs in.
	ReservationEnd Kind = "reservation-end"
	// StateChange is the instance stopping or terminating, whoever asked for it, as EC2 sees it.
	StateChange Kind = "state-change"
	// StatusCheck is EC2's status check of the instance, or of the system below it, failing for some time.
	StatusCheck Kind = "status-check"
)

// State is how far an announced event has come, as its source reports it.
type State string

// The states of an event. Only scheduled maintenance is ever reported as anything but Pending.
const (
	// Pending: it is going to happen, or is happening.
	Pending State = "pending"
	// Canceled: it was called off.
	Canceled State = "canceled"
	// Completed: it has happened.
	Completed State = "completed"
)

// Outcome is what has come of an event for the node, as far as that is known. The empty one says that something is still to be
// done.
type Outcome string

// The outcomes.
const (
	// Drained: its rule asks for a drain, and all that it asks for is done.
	Drained Outcome = "drained"
	// NoDrain: its rule asks for no drain, but for a cordon at most, and that is done or out of time.
	NoDrain Outcome = "no-drain"
	// OutOfTime: its time is over, and not all is done.
	OutOfTime Outcome = "out-of-time"
	// LeftAlone: people limit, on the Node, what is done to it, or have lifted the cordon when no drain was asked for, so that it is not
	// drained although the rule asks for it.
	LeftAlone Outcome = "left-alone"
)

// Event is one announcement. Events are values: copy them freely.
type Event struct {
	// ID identifies the event across polls, restarts and reboots. It is made from the document's content (and the boot
	// ID where the document has no identity of its own), never from the clock.
	ID   string `json:"id"`
	Kind Kind   `json:"kind"`
	// Code is the source's own word for what will happen: the spot action ("terminate", "stop", "hibernate"), the
	// maintenance code ("system-reboot", ...; unknown ones are kept as they are), the target lifecycle state, or which
	// status check fails ("instance" or "system").
	Code  string `json:"code,omitempty"`
	State State  `json:"state,omitempty"`
	// Description is the source's free text, if it has any.
	Description string `json:"description,omitempty"`
	// Noticed is when the source says it gave notice; zero where the document does not tell.
	Noticed time.Time `json:"noticed,omitzero"`
	// Deadline is when the machine is acted upon: the time in a spot notice, NotBefore of a maintenance event, the
	// end of the inhibitor delay of a shutdown. Zero where there is none. It is wall time; what the machine announces
	// itself has as long as it has, whatever the clock says: its source tells it with the monotonic clock's reading.
	Deadline time.Time `json:"deadline,omitzero"`
	// Until is the end of a maintenance window (NotAfter); zero where the document has none.
	Until time.Time `json:"until,omitzero"`
	// Instance is the ID of the instance that it is for, where the source knows it and the time of the action depends on it.
	Instance string `json:"instance,omitempty"`
}

// The years of times that are believed. Within them a time can be written as JSON in any zone, and so can what is counted from it.
const firstYear, lastYear = 1, 9998

// CredibleTime returns a time in UTC, or none where its year is one that nobody announces anything for. One with a reading of the
// monotonic clock keeps that, and its zone.
func CredibleTime(t time.Time) time.Time {
	utc := t.UTC()
	switch y := utc.Year(); {
	case y < firstYear || y > lastYear:
		return time.Time{}
	case t != t.Round(0): // UTC has taken the reading away.
		return t
	}
	return utc
}

// Credible returns the event with those of its times that can be believed.
func (e Event) Credible() Event {
	e.Noticed, e.Deadline, e.Until = CredibleTime(e.Noticed), CredibleTime(e.Deadline), CredibleTime(e.Until)
	return e
}

// Snapshot is everything that a source knows of one kind at one moment. A newer snapshot of a kind replaces the older
// one whole; an empty one says that nothing of that kind is announced.
type Snapshot struct {
	Kind   Kind
	Events []Event
}

// Sink takes what a source finds. Its methods may be called from several goroutines and do not block.
type Sink interface {
	// Snapshot takes the result of a good look.
	Snapshot(Snapshot)
	// Trouble takes the error of a look that failed. The last good snapshot of that kind stands: trouble never means
	// "nothing is announced".
	Trouble(Kind, error)
}
