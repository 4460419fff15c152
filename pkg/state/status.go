package state

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// StatusVersion is the version of Status. A change that a reader of an older one would misread takes the next number; a
// new field does not.
const StatusVersion = 1

// Status is how the daemon stands, for people and programs. It is of the present run only; what must be remembered is in
// an Entry. All times are wall time.
type Status struct {
	Version int `json:"version"`
	// Program is nth's version, and PID its process.
	Program string `json:"program"`
	PID     int    `json:"pid"`
	// Started is when the process began to watch, Updated when this was written, and Stopped when it stopped as it was
	// asked to; zero while it runs.
	Started time.Time `json:"started"`
	Updated time.Time `json:"updated"`
	Stopped time.Time `json:"stopped,omitzero"`
	DryRun  bool      `json:"dry_run"`
	// Node is empty until the API server has said whose credential it is.
	Node string `json:"node"`
	// Sentence is what "systemctl status" shows.
	Sentence string         `json:"sentence"`
	Identity IdentityStatus `json:"identity"`
	// Step is what is being done to the node now; nil if nothing is.
	Step *StepStatus `json:"step"`
	// Events are those that are not closed, the one that was seen first at the front.
	Events []EventStatus `json:"events"`
	// TargetState is the one that the Auto Scaling group wants the instance to be in, as the metadata service tells it; empty if it tells
	// none. Hook is what was last learned of the group's lifecycle hooks; empty if nothing was asked.
	TargetState string `json:"target_lifecycle_state,omitempty"`
	Hook        string `json:"lifecycle_hook,omitempty"`
	// Documents tell of each kind that the metadata service is asked for.
	Documents []DocumentStatus `json:"documents"`
	// Off is what is switched off, and why.
	Off []OffStatus `json:"off"`
	// Degraded is what is wrong with settings of what is only told, one line for each fault; nth works as if they were not set.
	Degraded []string `json:"degraded,omitempty"`
}

// IdentityStatus is how the kubelet's identity stands.
type IdentityStatus struct {
	// Credential says in words what proves it, Source is the kubeconfig and Server the API server's address; empty until
	// there has been one.
	Credential string `json:"credential"`
	Source     string `json:"source"`
	Server     string `json:"server"`
	// Trouble is why it cannot be used at present; empty if it can.
	Trouble string `json:"trouble"`
}

// StepStatus is the step in flight.
type StepStatus struct {
	Action string     `json:"action"`
	Event  string     `json:"event"`
	Kind   event.Kind `json:"kind"`
	Reason string     `json:"reason"`
	Began  time.Time  `json:"began"`
	// Deadline is when it must have ended; zero if it has none. Hard tells that the machine is gone then.
	Deadline time.Time `json:"deadline,omitzero"`
	Hard     bool      `json:"hard"`
	// PodsTotal counts the pods that a drain met and PodsLeft those that are still there.
	PodsTotal int `json:"pods_total"`
	PodsLeft  int `json:"pods_left"`
	// HeldBy says for pods, as "namespace/name", what holds them back.
	HeldBy map[string]string `json:"held_by,omitempty"`
	// Targets says what load balancers are waited for; empty if they are not.
	Targets string `json:"targets,omitempty"`
}

// EventStatus is an event that is not over, and how far nth has come with it.
type EventStatus struct {
	ID string `json:"id"`
	// Node is the node that it is for, where a daemon looks after several.
	Node      string     `json:"node,omitempty"`
	Kind      event.Kind `json:"kind"`
	Code      string     `json:"code"`
	Phase     Phase      `json:"phase"`
	FirstSeen time.Time  `json:"first_seen"`
	Deadline  time.Time  `json:"deadline,omitzero"`
	// Missing is since when it is no longer announced; zero while it is.
	Missing time.Time `json:"missing,omitzero"`
	// LeftAlone tells that people want the node left alone, so that it is not drained for the event.
	LeftAlone bool `json:"left_alone,omitempty"`
	// Plan says in words what is announced and what will be done.
	Plan string `json:"plan"`
	// Error is why the last attempt at it ended early, and Failures counts such attempts in a row.
	Error    string `json:"error,omitempty"`
	Failures int    `json:"failures,omitempty"`
}

// Status is how an entry is shown, with what will be done about its event in words.
func (e Entry) Status(plan string) EventStatus {
	return EventStatus{
		ID: e.Event.ID, Kind: e.Event.Kind, Code: e.Event.Code, Phase: e.Phase, FirstSeen: e.FirstSeen, Deadline: e.Event.Deadline,
		Missing: e.Missing, LeftAlone: e.LeftAlone, Plan: plan, Error: e.Error, Failures: e.Failures,
	}
}

// DocumentStatus is how well one kind of event can be told of.
type DocumentStatus struct {
	Kind event.Kind `json:"kind"`
	// LastGood is the last look that succeeded; zero if none has.
	LastGood time.Time `json:"last_good,omitzero"`
	// Trouble is what is wrong since Since; empty if nothing is.
	Trouble string    `json:"trouble,omitempty"`
	Since   time.Time `json:"since,omitzero"`
}

// OffStatus is something that is switched off: a kind of event, or the writing to the cluster.
type OffStatus struct {
	What string `json:"what"`
	Why  string `json:"why"`
}
