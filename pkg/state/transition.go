package state

import "time"

// TransitionKind says what happened. Operators see the text of the first group in metrics and webhook templates: it never changes.
type TransitionKind string

// Transitions of an event, and of a step (a cordon, a drain or an uncordon) for it. All listeners get them.
const (
	// Announced: an event was seen for the first time, or again after its entry had been closed. Changed: the source describes the event
	// differently now. Missed: the source no longer announces the event, which may be temporary.
	Announced TransitionKind = "announced"
	Changed   TransitionKind = "changed"
	Missed    TransitionKind = "missed"
	// Begun: a step begins.
	Begun TransitionKind = "begun"
	// NodeCordoned: nth has cordoned the node. CordonFound: somebody else had already cordoned it. The journal has each once, without an Action;
	// listeners get it for each event.
	NodeCordoned TransitionKind = "cordoned"
	CordonFound  TransitionKind = "cordon-found"
	// PodEvicted and PodDeleted: the API server accepted the request. PodHeld: the API server refused the eviction, for the reason in
	// Detail; nth tries again. PodGone: the pod is no longer on the node.
	PodEvicted TransitionKind = "pod-evicted"
	PodDeleted TransitionKind = "pod-deleted"
	PodHeld    TransitionKind = "pod-held"
	PodGone    TransitionKind = "pod-gone"
	// Done: the step succeeded. Failed: the step failed with Err; nth tries again. RanOut: the deadline came before the step was done.
	// CalledBack: nth stopped the step, as it wants another step now, or none.
	Done       TransitionKind = "done"
	Failed     TransitionKind = "failed"
	RanOut     TransitionKind = "deadline-exceeded"
	CalledBack TransitionKind = "preempted"
	// LeftAlone: the Node's annotation no longer allows the step. When the annotation allows it again, the step begins again.
	LeftAlone TransitionKind = "left-alone"
	// PutOff: nth had acted on the node for the event, and acts again later. The event's time was moved, or the rules ask for less now.
	// Another event keeps the node cordoned.
	PutOff TransitionKind = "put-off"
	// ClosedWith: the event is over, and nothing is left to undo; the entry has its Ending.
	ClosedWith TransitionKind = "closed"
)

// Transitions of the node and its pods, no matter which events the work is for. They go to the journal only.
const (
	// NodeUncordoned: someone uncordoned the node.
	NodeUncordoned TransitionKind = "node-uncordoned"
	// NodeOptedOut: the Node's annotation asks nth to leave the node alone, so that nth has not cordoned it.
	NodeOptedOut TransitionKind = "node-opted-out"
	// NodeExcluded: the load balancer label is set.
	NodeExcluded TransitionKind = "node-excluded"
	// NodeMissing: there is no Node, for the reason in Detail.
	NodeMissing TransitionKind = "node-missing"
	// NodeCordonFailed: the cordon was refused, for the reason in Detail; it will be tried again.
	NodeCordonFailed TransitionKind = "node-cordon-failed"
	// EvictionsDelayed: evictions wait for the time in Detail.
	EvictionsDelayed TransitionKind = "evictions-delayed"
	// ScriptsFailed: evictions begin although scripts failed, as Detail says.
	ScriptsFailed TransitionKind = "scripts-failed"
	// TargetsLeft: evictions, or the end of the drain, wait for the load balancers in Detail. TargetsOut: that wait is over;
	// Detail says why if the load balancers have not deregistered the node.
	TargetsLeft TransitionKind = "targets-left"
	TargetsOut  TransitionKind = "targets-out"
	// PodsFound: the pods to evict have been counted. PodArrived: another one has been scheduled to the node.
	PodsFound  TransitionKind = "pods-found"
	PodArrived TransitionKind = "pod-arrived"
	// PodRefused: a request failed for the reason in Detail, which is no disruption budget; nth tries again. If the request concerns one
	// pod, the agent makes this a PodHeld with the Outcome Refused.
	PodRefused TransitionKind = "pod-refused"
	// PodOverdue: the pod is still there after its grace period; the eviction of critical pods no longer waits for it.
	PodOverdue TransitionKind = "pod-overdue"
	// PodsLeftToReturn: the controller in Detail keeps recreating pods on the cordoned node. They are left there.
	PodsLeftToReturn TransitionKind = "pods-left-to-return"
	// VolumesInUse: the pods are gone, and volumes are still in use, as Detail says.
	VolumesInUse TransitionKind = "volumes-in-use"
	// NodeEmpty: no pod is left that has to go. The guard continues.
	NodeEmpty TransitionKind = "node-empty"
	// Rebooting: nth requests a reboot of the machine. RebootFailed: the request failed with Err; nth makes no other one.
	Rebooting    TransitionKind = "rebooting"
	RebootFailed TransitionKind = "reboot-failed"
	// StateChanged: what the guard knows of the node or the number of its pods has changed, and no other kind says so.
	StateChanged TransitionKind = "state-changed"
)

// The outcomes of a Transition. Those of an uncordon are in pkg/drain.
const (
	// NodeGone: the Node no longer exists.
	NodeGone = "node-gone"
	// Refused: the pod is held by a refusal, not by a disruption budget.
	Refused = "refused"
)

// Transition is one thing that happened. Transitions are values.
type Transition struct {
	Kind TransitionKind
	// At is when it happened, by the clock of the boot.
	At time.Time
	// Node is the node's name; empty as long as there is no identity.
	Node string
	// Entry is the event's entry as it is now.
	Entry Entry
	// Plan says in words what is going to be done about the event.
	Plan string
	// Action is the step, "cordon", "drain" or "uncordon", and Reason says in words why nth takes it. Deadline is when a drain must have ended,
	// by the clock of the boot; zero if never, and for other steps. Hard: the machine is gone then. All four are set from a step's beginning to its end.
	Action   string
	Reason   string
	Deadline time.Time
	Hard     bool
	// Took is the time since the step began.
	Took time.Duration
	// Pod is "namespace/name" of a pod, and PodUID its UID.
	Pod    string
	PodUID string
	// Total and Left count the pods to evict, as far as they are known.
	Total, Left int
	// Detail depends on Kind: the disruption budget that holds a pod, for example. For an uncordon, Detail says who still needs the
	// cordon, so that nth did not lift it; empty if nobody does.
	Detail string
	// Outcome says how the step ended, if Kind leaves that open.
	Outcome string
	// Err is why something failed.
	Err error
}
