// Package drain does the work on one node: it closes the node, ends its pods, keeps it so, and takes back what it set.
//
// A Guard pursues a Goal for as long as it is told to: it cordons, evicts, escalates, tells when the node is empty, and
// goes on watching. The goal may change while it does. Uncordon takes back what is ours.
//
// It is given a client and a node's name and works with the rights of that node's kubelet, which are narrow. What of
// k8s.io/kubectl/pkg/drain holds with them is used: its filters decide which pods a drain concerns, run over a client
// that answers from memory (concerns.go). The rest is our own, because with this identity it fails or falls short:
//
//   - kubectl looks up the DaemonSet of every DaemonSet pod; a kubelet may not, and one refusal fails the whole drain.
//     We judge by the controller's ownerReference.
//   - kubectl polls each evicted pod until the answer is 404; a kubelet is told 403 once the pod has left its node, so
//     kubectl reports failure after success. We decide "gone" by a watch on the node's own pods.
//   - kubectl's cordon patches spec.unschedulable alone; we set it and the annotation that owns it in one request.
//   - kubectl never stops evicting politely; we switch to deleting while a pod's grace still fits before the deadline.
//   - kubectl ends when the node is empty; pods that were bound late come after that.
//
// The node's name is a value: nothing here knows which node is its own.
package drain

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// Keys that nth writes on a Node. docs/node-contract.md says who may write and read them.
const (
	// CordonAnnotation holds a Claim as JSON while a cordon is ours.
	CordonAnnotation = KeyPrefix + "cordon"
	// ExcludeLabel takes a node out of the target sets of external load balancers; its value is the writer when ours.
	ExcludeLabel = "node.kubernetes.io/exclude-from-external-load-balancers"
)

// Keys by which people hold nth back. nth reads them, at any time, and never writes them.
const (
	// ActionAnnotation on a Node names the most that is done to it: LeaveNode and its like, or OnlyCordon. Anything else
	// means nothing.
	ActionAnnotation = KeyPrefix + "action"
	// EvictAnnotation on a Pod says when it may be evicted: AtDeadline, AfterRestart or Never. Anything else means nothing.
	EvictAnnotation = KeyPrefix + "evict"
)

// The values of the two.
const (
	LeaveNode  = "ignore"
	OnlyNotify = "notify"
	OnlyCordon = "cordon"
	// AtDeadline lets the pod run until just its grace is left before the deadline. Without a deadline it is left alone.
	AtDeadline = "at-deadline"
	// AfterRestart has the pod's workload make another one in its place first, where Options.Restart can. Elsewhere it means nothing.
	AfterRestart = "after-restart"
	// Never leaves the pod to end with the machine.
	Never = "never"
)

// The writers of claims.
const (
	// Host is nth on the machine. A claim without a writer is from a version that did not name it.
	Host = "nth"
	// Queue is nth-queue.
	Queue = "nth-queue"
	// ByHand is "nth drain", by which people drain the machine's node. It takes over a cordon of Host's, which would be lifted with its
	// event.
	ByHand = "nth-drain"
)

// Options are the settings that hold for every drain of a node. The zero value drains at once, with each pod's own
// grace, and protects nothing.
type Options struct {
	// Writer is who writes, Host unless set. What others wrote is left alone.
	Writer string
	// Scripts, if set, are run once the node is closed, and each time that pods are to go anew, and evictions wait for them, for ScriptsWait and
	// a quarter of the time before a hard deadline at most. What becomes of them changes nothing else.
	Scripts     Scripts
	ScriptsWait time.Duration
	// EvictAfter holds evictions back for so long after the cordon, but never past what the deadline allows.
	EvictAfter time.Duration
	// Margin is kept free before a hard deadline, so that the last pod's end can still be seen.
	Margin time.Duration
	// GracePeriod replaces each pod's own termination grace period; nil leaves it.
	GracePeriod *time.Duration
	// ProtectEmptyDir and ProtectUnmanaged leave pods with emptyDir volumes, and pods without a controller, alone.
	ProtectEmptyDir  bool
	ProtectUnmanaged bool
	// ExcludeFromLoadBalancers labels the node with ExcludeLabel after the cordon; LoadBalancerWait is how long
	// evictions then wait for the load balancers to follow.
	ExcludeFromLoadBalancers bool
	LoadBalancerWait         time.Duration
	// LoadBalancers, if set, are asked when they are done with the node. Then evictions wait for that, until half of the time before the
	// deadline is over, and LoadBalancerWait holds only where it cannot be told.
	LoadBalancers LoadBalancers
	// VolumeWait bounds the wait for volumes to be unmounted after the last pod is gone.
	VolumeWait time.Duration
	// Restart, if set, is asked to have the workload of a pod replace its pods, as "kubectl rollout restart" does, if the pod's annotation wants
	// that: once for each pod, before its first eviction. It returns in words which workload does so, or "" for a pod that is to be evicted as any
	// other, and tells by itself why. RestartWait is for how long the pod is then not evicted while it is there, half of the time before a
	// deadline at most.
	Restart     func(ctx context.Context, pod *corev1.Pod) (workload string)
	RestartWait time.Duration
	// Last, as "namespace/name", is a pod that goes when no other is left, whatever the deadline: the one that the drain itself runs in.
	// "" is none.
	Last string
	// Gate, if set, is shared with the drains of other nodes, for evictions and deletions, and Requests for what is asked of Nodes and
	// written to them. Urgent, if set, tells whether the node is among those that are urgent there; it may be called from any goroutine.
	Gate, Requests *Gate
	Urgent         func() bool
}

// LoadBalancers know when they are done with a machine.
type LoadBalancers interface {
	// Out waits until the machine is a target of none any more, and no pod is that was on it, by their addresses. It returns nil then,
	// and otherwise why it waits no longer: ctx has ended, it cannot be told, or nobody takes them out. labeled tells that the Node has
	// the label by which the machine is to be taken out. tell is called with what is waited for, in words, whenever that changes.
	Out(ctx context.Context, labeled bool, addresses []string, tell func(left string)) error
}

// Node is one node, seen with the rights of the client it was made with.
type Node struct {
	client kubernetes.Interface
	name   string
	opts   Options
}

// New returns the node of that name. It makes no request.
func New(client kubernetes.Interface, name string, opts Options) *Node {
	opts.Writer = cmp.Or(opts.Writer, Host)
	return &Node{client: client, name: name, opts: opts}
}

// Goal is what a node is to come to, and by when: closed, and empty with Evict.
type Goal struct {
	// Number tells goals apart: what is told carries the number of the goal under which it was so.
	Number int
	// Claim goes into the node's annotation if the node is to be cordoned.
	Claim Claim
	// Events are the IDs of all events that want it, the claim's among them, and Kinds what sorts of events those are. Unclosed are
	// those that the node was not closed for yet, as far as is known without looking at it, and Anew those of them that have begun anew
	// since, so that what a claim on the Node says of them is over.
	Events, Kinds, Unclosed, Anew []string
	// Evict tells that pods are to go.
	Evict bool
	// Hard is when the machine is gone: what resists is deleted in time. Soft is when the work should have ended. Both are
	// compared with the monotonic clock where they have its reading; zero means never.
	Hard, Soft time.Time
	// TimeEnds is when the next event runs out of its time, if that is to come: volumes are waited for until a margin before that.
	TimeEnds time.Time
	// Reopened is set if someone uncordoned the node for all events that pods are to go for: when it had been set. Pods that came
	// since stay. Open tells that it was lifted for all events, so that the node is not cordoned again.
	Reopened time.Time
	Open     bool
	// NodeSeen tells that there has been a Node in this boot, so that a missing one was deleted.
	NodeSeen bool
	// Limited tells that people wanted its pods left alone when the Node was looked at last, before the guard was set. That stands until
	// a look of the guard's own shows how it is now.
	Limited bool
}

// Guard pursues a goal for a node and keeps it.
type Guard interface {
	// Run works until ctx ends. Everything that fails is tried again.
	Run(ctx context.Context)
	// Adjust changes the goal. It may be called from any goroutine, and does not block.
	Adjust(goal Goal)
	// Result is how far it has come. It may be called from any goroutine, also after Run has ended.
	Result() Result
}

// What says which thing happened.
type What string

// The things that are told.
const (
	// NodeCordoned and NodeCordonFound: the node takes no more pods, by us or already by somebody else.
	NodeCordoned    What = "cordoned"
	NodeCordonFound What = "cordon-found"
	// NodeReopened: someone uncordoned the node.
	NodeReopened What = "reopened"
	// NodeLeft: people want nothing done to this node.
	NodeLeft What = "left-alone"
	// NodeExcluded: the load balancer label is set.
	NodeExcluded What = "excluded"
	// NodeMissing: there is no Node, for the reason in Detail.
	NodeMissing What = "missing"
	// Unclosable: the cordon was refused, for the reason in Detail; it will be tried again.
	Unclosable What = "unclosable"
	// Holding: evictions wait for the time in Detail.
	Holding What = "holding"
	// Unscripted: evictions begin although something is wrong with the scripts, which Detail says.
	Unscripted What = "unscripted"
	// TargetsLeft: load balancers are not done with the node, as Detail says. Evictions wait for that, or the end of the drain.
	// TargetsOut: that wait is over; Detail says why it is if they are not done.
	TargetsLeft What = "targets-left"
	TargetsOut  What = "targets-out"
	// Found: the pods to evict have been counted. Arrived: another one has come.
	Found   What = "found"
	Arrived What = "arrived"
	// Evicted and Deleted: the API server accepted the eviction, or the deletion that replaced it.
	Evicted What = "evicted"
	Deleted What = "deleted"
	// Held: a disruption budget, named in Detail, refuses the eviction for now.
	Held What = "held"
	// Refused: an attempt failed for another reason, given in Detail; it will be repeated.
	Refused What = "refused"
	// Restarting: the workload in Detail makes another pod in place of this one, which is not evicted meanwhile.
	Restarting What = "restarting"
	// Overdue: the pod is terminating and should have ended; critical pods wait for it no longer.
	Overdue What = "overdue"
	// Returning: the controller in Detail keeps bringing pods back to the cordoned node, which are evicted ever more
	// slowly. LeftToReturn: they are left there.
	Returning    What = "returning"
	LeftToReturn What = "left-to-return"
	// Gone: the pod is no longer on the node.
	Gone What = "gone"
	// Volumes: the pods are gone, and volumes are still in use.
	Volumes What = "volumes"
	// Drained: nothing is left that has to go. The guard stands on.
	Drained What = "drained"
	// Standing: the goal was changed; how things stand is in State.
	Standing What = "standing"
)

// Progress is one thing that happened, and how things stand then.
type Progress struct {
	What What
	// Goal is the number of the goal.
	Goal int
	// State is what is known of the node.
	State State
	// Pod is "namespace/name"; empty for what concerns the node.
	Pod string
	// PodUID and PodLabels are that pod's. Nobody may change the labels.
	PodUID    string
	PodLabels map[string]string
	// Events are those of the goal for which the node was closed, with NodeReopened. For others it is closed again.
	Events []string
	// Detail names the budget, the reason or the time that belongs to What.
	Detail string
	// Total and Left count the pods to evict: all that were met, and those still on the node.
	Total, Left int
}

// State is what is known of a node.
type State struct {
	// Closed: it takes no more pods. Ours: something on it is ours to take back.
	Closed, Ours bool
	// Left: people want nothing done to it.
	Left bool
	// Seen: there is a Node, or was one. Ready: the kubelet of the claim's boot has reported it Ready.
	Seen, Ready bool
	// Drained: nothing is left that has to go.
	Drained bool
	// Looked: the Node has been looked at since the last event of the goal came. Limited: people want its pods left alone, as the last
	// look has shown; then it is not drained.
	Looked, Limited bool
	// Trouble says why it cannot be closed; empty if it can.
	Trouble string
}

// Result is what was done. Pod names are "namespace/name".
type Result struct {
	Cordon CordonResult
	// Evicted, Deleted and Skipped count pods: whose eviction was accepted, that had to be deleted, and that a drain
	// does not concern (DaemonSet pods, mirror pods) or that a setting protects.
	Evicted, Deleted, Skipped int
	// Left names the evictable pods that are there, sorted.
	Left []string
	// HeldBy names, for pods in Left, what holds them: a disruption budget, the restart of their workload or the last refusal.
	HeldBy map[string]string
	// NodeGone tells that the Node object was deleted.
	NodeGone bool
	// Limited tells that people want this node's pods left alone, by its ActionAnnotation; none are evicted.
	Limited bool
	// VolumesInUse counts volumes that were still in use when the wait for them ended, or is VolumesUnknown.
	VolumesInUse int
}

// VolumesUnknown is how many volumes are in use of a Node that could not be read.
const VolumesUnknown = -1
