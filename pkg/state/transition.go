package state

import "time"

// TransitionKind says which thing happened. The text of those that are of an event never changes: people meet it in metrics and
// in webhook templates.
type TransitionKind string

// What happens to an event, in a step that is taken for it, and to a source. Everybody who listens is told.
const (
	// Announced: an event was met for the first time, or again after it had been closed. Changed: its document says
	// something else of it now. Missed: its document no longer has it, which may pass.
	Announced TransitionKind = "announced"
	Changed   TransitionKind = "changed"
	Missed    TransitionKind = "missed"
	// Begun: a step (a cordon, a drain, an uncordon) begins.
	Begun TransitionKind = "begun"
	// NodeCordoned and CordonFound: the node takes no more pods, by nth or already by somebody else.
	NodeCordoned TransitionKind = "cordoned"
	CordonFound  TransitionKind = "cordon-found"
	// PodEvicted and PodDeleted: the API server accepted it. PodHeld: it refused, for the reason in Detail; nth asks
	// again. PodGone: the pod is no longer on the node.
	PodEvicted TransitionKind = "pod-evicted"
	PodDeleted TransitionKind = "pod-deleted"
	PodHeld    TransitionKind = "pod-held"
	PodGone    TransitionKind = "pod-gone"
	// Done: the step did what it was to do. Failed: it ended in Err and will be taken again. RanOut: its deadline came
	// first. CalledBack: it was stopped, as another one (or none) is to be taken now.
	Done   TransitionKind = "done"
	Failed TransitionKind = "failed"
	// LeftAlone: people want the node's pods left alone, so that it is not drained. Once they do not any more, it begins anew.
	LeftAlone  TransitionKind = "left-alone"
	RanOut     TransitionKind = "deadline-exceeded"
	CalledBack TransitionKind = "preempted"
	// PutOff: the node was acted upon for the event, which begins anew later: its time was moved, or the rules ask for less. The
	// action is "uncordon" where the node takes pods again, and empty where it is left as it is. Of the one event whose taking
	// back is Done it is told with that.
	PutOff TransitionKind = "put-off"
	// ClosedWith: the event no longer stands and nothing is left to undo; the entry says how it ended.
	ClosedWith TransitionKind = "closed"
	// SourceLost and SourceBack: a look for a kind of event failed, for the reason in Err (told for each), or looks are
	// good again.
	SourceLost TransitionKind = "source-lost"
	SourceBack TransitionKind = "source-back"
)

// What happens to the node and its pods in detail, whatever events it is for. The journal and the status are told.
const (
	// NodeClosed and NodeFoundClosed: the node takes no more pods, by nth or already by somebody else. Each event for which that is so
	// is told of with NodeCordoned or CordonFound.
	NodeClosed      TransitionKind = "node-closed"
	NodeFoundClosed TransitionKind = "node-found-closed"
	// NodeReopened: someone uncordoned the node.
	NodeReopened TransitionKind = "node-reopened"
	// NodeOptedOut: people want nothing done to this node.
	NodeOptedOut TransitionKind = "node-opted-out"
	// NodeExcluded: the load balancer label is set.
	NodeExcluded TransitionKind = "node-excluded"
	// NodeMissing: there is no Node, for the reason in Detail.
	NodeMissing TransitionKind = "node-missing"
	// NodeUnclosable: the cordon was refused, for the reason in Detail; it will be tried again.
	NodeUnclosable TransitionKind = "node-unclosable"
	// NodeUncordoned: what nth had set was taken back, as Outcome says, or not, for the reason in Err.
	NodeUncordoned TransitionKind = "node-uncordoned"
	// EvictionsDelayed: evictions wait for the time in Detail.
	EvictionsDelayed TransitionKind = "evictions-delayed"
	// ScriptsFailed: evictions begin although something is wrong with the scripts, which Detail says.
	ScriptsFailed TransitionKind = "scripts-failed"
	// TargetsLeft: load balancers are not done with the node, as Detail says. Evictions wait for that, or the end of the drain.
	// TargetsOut: that wait is over; Detail says why it is if they are not done.
	TargetsLeft TransitionKind = "targets-left"
	TargetsOut  TransitionKind = "targets-out"
	// PodsFound: the pods to evict have been counted. PodArrived: another one has come.
	PodsFound  TransitionKind = "pods-found"
	PodArrived TransitionKind = "pod-arrived"
	// PodRefused: an attempt failed for another reason than a disruption budget, given in Detail; it will be repeated. Where it is one
	// pod's, it is told of as PodHeld with the Outcome Refused.
	PodRefused TransitionKind = "pod-refused"
	// PodRestarting: the workload in Detail makes another pod in place of this one, which is not evicted meanwhile.
	PodRestarting TransitionKind = "pod-restarting"
	// PodOverdue: the pod is terminating and should have ended; critical pods wait for it no longer.
	PodOverdue TransitionKind = "pod-overdue"
	// PodsReturning: the controller in Detail keeps bringing pods back to the cordoned node, which are evicted ever more
	// slowly. PodsLeftToReturn: they are left there.
	PodsReturning    TransitionKind = "pods-returning"
	PodsLeftToReturn TransitionKind = "pods-left-to-return"
	// VolumesInUse: the pods are gone, and volumes are still in use, as Detail says.
	VolumesInUse TransitionKind = "volumes-in-use"
	// NodeEmpty: nothing is left that has to go. The guard stands on.
	NodeEmpty TransitionKind = "node-empty"
	// GoalChanged: the guard pursues another goal.
	GoalChanged TransitionKind = "goal-changed"
	// LeftAloneNoMore: people do not want the node's pods left alone any more.
	LeftAloneNoMore TransitionKind = "left-alone-no-more"
	// CordonAdopted: a cordon of nth's is on the Node, of which the record did not know.
	CordonAdopted TransitionKind = "cordon-adopted"
)

// What happens to nth itself. The journal is told.
const (
	// Started and Stopped: it watches, or does no more as it was asked to.
	Started TransitionKind = "started"
	Stopped TransitionKind = "stopped"
	// SourceStalled: a source has come to a stop, for the reason in Err.
	SourceStalled TransitionKind = "source-stalled"
	// RecordUnwritten: the record could not be written, for the reason in Err.
	RecordUnwritten TransitionKind = "record-unwritten"
	// IdentityFound: the credential works. IdentityWaiting: it does not, for the reason in Err.
	IdentityFound   TransitionKind = "identity-found"
	IdentityWaiting TransitionKind = "identity-waiting"
	// ClockStepped: somebody has set the clock, by Took.
	ClockStepped TransitionKind = "clock-stepped"
)

// The outcomes of a Transition, beside those of an uncordon, which pkg/drain has.
const (
	// NodeGone: the Node no longer exists. NeverClosed: the drain has ended, and the node was never closed.
	NodeGone    = "node-gone"
	NeverClosed = "never-closed"
	// Refused: the pod is held by a refusal, not by a disruption budget.
	Refused = "refused"
)

// Transition is one thing that happened, told to whoever passes it on. Transitions are values.
type Transition struct {
	Kind TransitionKind
	// At is when, by wall time.
	At time.Time
	// Node is the node's name; empty as long as there is no identity.
	Node string
	// Entry is the event's entry as it is now. Of SourceLost and SourceBack only Entry.Event.Kind is set.
	Entry Entry
	// Plan says in words what is going to be done about the event.
	Plan string
	// Action is the step's, "cordon", "drain" or "uncordon", and Reason why it is taken. Deadline is when the step must
	// have ended (wall time), zero where it has none; Hard tells that the machine is gone then. For what happens within
	// a step or ends it.
	Action   string
	Reason   string
	Deadline time.Time
	Hard     bool
	// Took is the time since the step began, for what happens within a step or ends it, and how long the trouble was with SourceBack.
	Took time.Duration
	// Pod is "namespace/name", and PodUID and PodLabels are that pod's, for what happens to a pod. Nobody may change the
	// labels.
	Pod       string
	PodUID    string
	PodLabels map[string]string
	// Total and Left count the pods to evict, as far as they are known.
	Total, Left int
	// Detail is what belongs to Kind: the disruption budget that holds a pod; with an uncordon that is Done, who still
	// needs the cordon, so that it was left; empty if nobody does.
	Detail string
	// Outcome says in a word how it came out, where Kind has more than one way.
	Outcome string
	// Until is the nearest deadline of all that the node is worked on for, where a drain has Begun; zero if there is none.
	Until time.Time
	// Err is why something failed.
	Err error
}
