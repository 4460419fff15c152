// Package drain does the work on one node: cordon, evict, escalate, wait, uncordon.
//
// It is given a client and a node's name and works with the rights of that node's kubelet, which are narrow. What of
// k8s.io/kubectl/pkg/drain holds with them is used: its filters decide which pods a drain concerns, run over a client
// that answers from memory (judge.go). The rest is our own, because with this identity it fails or falls short:
//
//   - kubectl looks up the DaemonSet of every DaemonSet pod; a kubelet may not, and one refusal fails the whole drain.
//     We judge by the controller's ownerReference.
//   - kubectl polls each evicted pod until the answer is 404; a kubelet is told 403 once the pod has left its node, so
//     kubectl reports failure after success. We decide "gone" by a watch on the node's own pods.
//   - kubectl's cordon patches spec.unschedulable alone; we set it and the annotation that owns it in one request.
//   - kubectl never stops evicting politely; we switch to deleting while a pod's grace still fits before the deadline.
//
// The deadline of a Drain is its context. The node's name is a value: nothing here knows which node is its own.
package drain

import (
	"context"
	"time"

	"k8s.io/client-go/kubernetes"
)

// Keys that nth writes on a Node. docs/node-contract.md says who may write and read them.
const (
	// CordonAnnotation holds a Claim as JSON while a cordon is ours.
	CordonAnnotation = "nth/cordon"
	// ExcludeLabel takes a node out of the target sets of external load balancers; its value is ExcludeValue when ours.
	ExcludeLabel = "node.kubernetes.io/exclude-from-external-load-balancers"
	ExcludeValue = "nth"
)

// Options are the settings that hold for every drain of a node. The zero value drains at once, with each pod's own
// grace, and protects nothing.
type Options struct {
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
	// VolumeWait bounds the wait for volumes to be unmounted after the last pod is gone.
	VolumeWait time.Duration
	// Gate, if set, is shared with the drains of other nodes.
	Gate *Gate
}

// Node is one node, seen with the rights of the client it was made with.
type Node struct {
	client kubernetes.Interface
	name   string
	opts   Options
}

// New returns the node of that name. It makes no request.
func New(client kubernetes.Interface, name string, opts Options) *Node {
	return &Node{client: client, name: name, opts: opts}
}

// Name is the name of the node.
func (n *Node) Name() string { return n.name }

// What says which thing happened in the course of a drain.
type What string

// The things that are told while a drain goes on.
const (
	// NodeCordoned and NodeCordonFound: the node takes no more pods, by us or already by somebody else.
	NodeCordoned    What = "cordoned"
	NodeCordonFound What = "cordon-found"
	// NodeReopened: somebody has lifted the cordon that was set for the same event before.
	NodeReopened What = "reopened"
	// NodeLeft: people want nothing done to this node.
	NodeLeft What = "left-alone"
	// NodeExcluded: the load balancer label is set.
	NodeExcluded What = "excluded"
	// Holding: evictions wait until the time in Detail.
	Holding What = "holding"
	// Found: the pods to evict have been counted.
	Found What = "found"
	// Evicted and Deleted: the API server accepted the eviction, or the deletion that replaced it.
	Evicted What = "evicted"
	Deleted What = "deleted"
	// Held: a disruption budget, named in Detail, refuses the eviction for now.
	Held What = "held"
	// Refused: an attempt failed for another reason, given in Detail; it will be repeated.
	Refused What = "refused"
	// Overdue: the pod is terminating and should have ended; critical pods wait for it no longer.
	Overdue What = "overdue"
	// Returning: the controller in Detail keeps bringing pods back to the cordoned node, which are evicted ever more
	// slowly. LeftToReturn: they are left there, since there is no deadline.
	Returning    What = "returning"
	LeftToReturn What = "left-to-return"
	// Gone: the pod is no longer on the node.
	Gone What = "gone"
	// spared: the pod may stay after all; nobody is told.
	spared What = "spared"
	// Volumes: the pods are gone, and volumes are still in use.
	Volumes What = "volumes"
)

// Progress is one thing that happened, and how far the drain has come.
type Progress struct {
	What What
	// Pod is "namespace/name"; empty for what concerns the node.
	Pod string
	// PodUID and PodLabels are that pod's. Nobody may change the labels.
	PodUID    string
	PodLabels map[string]string
	// Detail names the budget, the reason or the time that belongs to What.
	Detail string
	// Total and Left count the pods to evict: all that were met, and those still on the node.
	Total, Left int
}

// Plan says what a drain is for.
type Plan struct {
	// Claim goes into the node's annotation.
	Claim Claim
	// Hard tells that the machine is gone at the context's deadline, which makes it worth deleting what resists.
	Hard bool
	// Tell is called for everything that happens, from one goroutine. It must not block. It may be nil.
	Tell func(Progress)
}

// Result is what a drain did. Pod names are "namespace/name".
type Result struct {
	Cordon CordonResult
	// Evicted, Deleted and Skipped count pods: whose eviction was accepted, that had to be deleted, and that a drain
	// does not concern (DaemonSet pods, mirror pods) or that a setting protects.
	Evicted, Deleted, Skipped int
	// Left names the evictable pods that were still there at the end, sorted.
	Left []string
	// HeldBy names, for pods in Left, what held them: a disruption budget or the last refusal.
	HeldBy map[string]string
	// NodeGone tells that the Node object did not exist (any more), so that there was nothing to drain.
	NodeGone bool
	// Limited tells that people want this node's pods left alone, by its ActionAnnotation; none were evicted.
	Limited bool
	// VolumesInUse counts volumes that were still in use when the wait for them ended.
	VolumesInUse int
}

// Drain cordons the node and evicts its pods, and returns when none is left, or when ctx ends: then with what is left
// and the context's error. Everything that can be retried is, until then; an error with a context that has not ended
// is final.
func (n *Node) Drain(ctx context.Context, plan Plan) (Result, error) {
	d := newDrainer(n, plan)
	return d.run(ctx)
}
