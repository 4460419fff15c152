package state

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// StatusVersion is the version of Status. It grows with changes that an older reader would misunderstand, not with new fields.
const StatusVersion = 1

// Status is how the daemon does, for operators and programs. It is about the present process; what must be remembered is in
// an Entry. All times are by the clock of the boot (record.Store.Now).
type Status struct {
	Version int `json:"version"`
	// Program is nth's version, and PID its process ID.
	Program string `json:"program"`
	PID     int    `json:"pid"`
	// Started is when the process began to watch, and Updated when this Status was written. Stopped is when the process stopped, as it was
	// asked to; zero while it runs.
	Started time.Time `json:"started"`
	Updated time.Time `json:"updated"`
	Stopped time.Time `json:"stopped,omitzero"`
	DryRun  bool      `json:"dry_run"`
	// Node is the node's name; empty until the API server has said whose credential it is.
	Node string `json:"node"`
	// Sentence is the one that "systemctl status" shows.
	Sentence string         `json:"sentence"`
	Identity IdentityStatus `json:"identity"`
	// Step is what is being done to the node now; nil if nothing is.
	Step *StepStatus `json:"step"`
	// Events are the events that are not closed, the one that was seen first at the front.
	Events []EventStatus `json:"events"`
	// TargetState is the target lifecycle state that the metadata service reports; empty if it reports none. Hook is what was last
	// learned about the Auto Scaling group's lifecycle hooks; empty if nothing was asked.
	TargetState string `json:"target_lifecycle_state,omitempty"`
	Hook        string `json:"lifecycle_hook,omitempty"`
	// Documents has one element for each kind that is looked for.
	Documents []DocumentStatus `json:"documents"`
	// Off is what is switched off, and why.
	Off []OffStatus `json:"off"`
	// Degraded has one line for each fault in settings of notices and the like; nth works as if these were not set.
	Degraded []string `json:"degraded,omitempty"`
}

// IdentityStatus says which of the kubelet's credentials nth uses, and whether it works.
type IdentityStatus struct {
	// Credential says in words what the credential is. Source is the kubeconfig, and Server the API server's address. All are empty
	// until nth has found a credential.
	Credential string `json:"credential"`
	Source     string `json:"source"`
	Server     string `json:"server"`
	// Trouble is why the identity cannot be used at present; empty if it can.
	Trouble string `json:"trouble"`
}

// StepStatus is what is being done to the node.
type StepStatus struct {
	Action string     `json:"action"`
	Event  string     `json:"event"`
	Kind   event.Kind `json:"kind"`
	Reason string     `json:"reason"`
	Began  time.Time  `json:"began"`
	// Deadline is when the step must have ended; zero if never. Hard: the machine is gone then.
	Deadline time.Time `json:"deadline,omitzero"`
	Hard     bool      `json:"hard"`
	// PodsTotal counts the pods that a drain has found, and PodsLeft those of them that are still on the node.
	PodsTotal int `json:"pods_total"`
	PodsLeft  int `json:"pods_left"`
	// HeldBy says for pods, as "namespace/name", what holds them back.
	HeldBy map[string]string `json:"held_by,omitempty"`
	// Targets says which load balancers the drain waits for; empty if it waits for none.
	Targets string `json:"targets,omitempty"`
}

// EventStatus is an event that is not closed, and how far nth has come with it.
type EventStatus struct {
	ID string `json:"id"`
	// Node is the node's name, in the status of nth-queue; empty in nth's.
	Node      string     `json:"node,omitempty"`
	Kind      event.Kind `json:"kind"`
	Code      string     `json:"code"`
	Phase     Phase      `json:"phase"`
	FirstSeen time.Time  `json:"first_seen"`
	Deadline  time.Time  `json:"deadline,omitzero"`
	// Missing is since when the event is no longer announced; zero while it is announced.
	Missing time.Time `json:"missing,omitzero"`
	// LeftAlone: the Node's annotation does not allow what the rule asks for.
	LeftAlone bool `json:"left_alone,omitempty"`
	// Released: an operator has uncordoned the node since it was cordoned for the event.
	Released bool `json:"released,omitempty"`
	// Plan says in words what is announced and what will be done.
	Plan string `json:"plan"`
	// Error is why the last attempt failed.
	Error string `json:"error,omitempty"`
}

// Status returns an entry as a Status shows it. plan is for EventStatus.Plan; pkg/policy makes that text.
func (e Entry) Status(plan string) EventStatus {
	return EventStatus{
		ID: e.Event.ID, Kind: e.Event.Kind, Code: e.Event.Code, Phase: e.Phase, FirstSeen: e.FirstSeen, Deadline: e.Event.Deadline,
		Missing: e.Missing, LeftAlone: e.LeftAlone, Released: e.Released(), Plan: plan, Error: e.Error,
	}
}

// DocumentStatus says whether nth can ask for one kind of event.
type DocumentStatus struct {
	Kind event.Kind `json:"kind"`
	// LastGood is when the source last answered; zero if it never has.
	LastGood time.Time `json:"last_good,omitzero"`
	// Trouble is why requests have failed since the time Since; empty if the last one succeeded.
	Trouble string    `json:"trouble,omitempty"`
	Since   time.Time `json:"since,omitzero"`
}

// OffStatus is something that does not work or is switched off: a kind of event, "nth drain", or writing to the cluster.
type OffStatus struct {
	What string `json:"what"`
	Why  string `json:"why"`
}
