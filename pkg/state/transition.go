package state

import "time"

// TransitionKind says which thing happened. Its text never changes: people meet it in metrics and in webhook templates.
type TransitionKind string

// The things that happen.
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

// Transition is one thing that happened, told to whoever passes it on. Happenings are values.
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
	// Took is the time since the step began, for what happens within a step or ends it.
	Took time.Duration
	// Pod is "namespace/name", and PodUID and PodLabels are that pod's, for what happens to a pod. Nobody may change the
	// labels.
	Pod       string
	PodUID    string
	PodLabels map[string]string
	// Total and Left count the pods to evict, as far as they are known.
	Total, Left int
	// Detail is what belongs to TransitionKind: the disruption budget that holds a pod; with an uncordon that is Done, who still
	// needs the cordon, so that it was left; empty if nobody does.
	Detail string
	// Err is why something failed.
	Err error
}
