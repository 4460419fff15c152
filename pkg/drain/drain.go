// Package drain drains one node: it cordons the node, evicts its pods, keeps it empty, and takes back what it has set.
//
// A guard (Node.Guard) pursues the Goal of a Task until it is stopped: it cordons, evicts, deletes before a hard deadline, reports when the node
// is empty, and continues watching. The goal may change meanwhile. Node.Uncordon takes back what is ours.
//
// Words:
//   - A generation is a goal with its reasons. The next generation begins when a further reason, an event, joins.
//   - A look is one read of the Node, with the cordon if that is missing (Node.look).
//   - A node is cordoned when it takes no pods, no matter who has set the cordon. It was uncordoned when somebody else has taken the cordon off.
//   - A claim says whose a cordon is, in an annotation (Claim). Ours is what this program, Options.Writer, has set.
//   - An operator opts a node out with ActionAnnotation: then nth may not cordon it, or may not evict its pods.
//
// The package is given a client and a node's name, and needs only the rights of that node's kubelet. It does not know on which node it runs.
// The node's pods are pkg/evict's. Newcomers begin with guard.advance.
package drain

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/wait"
)

// Keys that nth writes on a Node. docs/node-contract.md says who may write and read them.
const (
	// CordonAnnotation holds a Claim as JSON while a cordon is ours.
	CordonAnnotation = kube.KeyPrefix + "cordon"
	// ExcludeLabel takes a node out of the target sets of external load balancers. Its value is the writer if it is ours.
	ExcludeLabel = "node.kubernetes.io/exclude-from-external-load-balancers"
)

// ActionAnnotation on a Node names the most that nth does to it: LeaveNode, OnlyNotify or OnlyCordon. Any other value is ignored. Only operators
// write it. A change takes effect at any time.
const ActionAnnotation = kube.KeyPrefix + "action"

// The values of ActionAnnotation.
const (
	LeaveNode  = "ignore"
	OnlyNotify = "notify"
	OnlyCordon = "cordon"
)

// The writers of claims.
const (
	// Host is nth on the machine.
	Host = "nth"
	// Queue is nth-queue. A leader of it adds to that what its Lease has in its name.
	Queue = "nth-queue"
)

// Options are the settings that hold for every drain of a node. The zero value drains at once, with each pod's own
// grace, and protects nothing.
type Options struct {
	// Writer is the program that writes to the Node, Host if empty. What other writers have set is left alone.
	Writer string
	// UID, if set, is the UID of the only Node that is acted upon. If there is no Node of that UID any more, it counts as deleted, and its
	// pods are left alone: a Node of the same name may be another machine's.
	UID types.UID
	// Scripts, if set, are run once the node is cordoned, and again for each drain that begins later. Evictions wait for the scripts: at most for
	// ScriptsWait, and for a quarter of the time before a hard deadline. A failure is reported and has no other consequence.
	Scripts     wait.Blocker
	ScriptsWait time.Duration
	// Options are the settings that hold for pods. If Options.Urgent returns true, requests for the Node are urgent, too.
	evict.Options
	// ExcludeFromLoadBalancers labels the node with ExcludeLabel after the cordon. LoadBalancerWait is how long evictions wait after the
	// cordon for the load balancers to follow, but no pod beyond the time that leaves it its grace before the deadline.
	ExcludeFromLoadBalancers bool
	LoadBalancerWait         time.Duration
	// LoadBalancers, if set, is waited for before evictions, until load balancers have removed the machine: at most for half of the time before
	// the deadline. LoadBalancerWait then applies only if it cannot be found out whether they have.
	LoadBalancers wait.Blocker
	// VolumeWait bounds the wait for volumes to be unmounted after the last pod is gone.
	VolumeWait time.Duration
	// Requests, if set, limits reads and writes of Nodes. It is shared with the drains of other nodes.
	Requests *kube.Gate
	// Watched, if set, returns the Node as a watch of all Nodes shows it; nil if the watch does not show it. A guard takes that instead of
	// reading the Node. The Node needs the managed fields that CordonedBy keeps.
	Watched func() *corev1.Node
	// OwnTaint, if set, reports whether a taint is the Writer's: it is taken off together with its cordon.
	OwnTaint func(corev1.Taint) bool
}

// Node is one node, reached with the rights of its client.
type Node struct {
	*evict.Evictor
	client rest.Interface
	name   string
	opts   Options
}

// New returns the node of that name. It makes no request.
func New(client kubernetes.Interface, name string, opts Options) *Node {
	opts.Writer = cmp.Or(opts.Writer, Host)
	core := client.CoreV1().RESTClient()
	return &Node{Evictor: evict.New(core, name, opts.Options), client: core, name: name, opts: opts}
}

// Forecast says how a drain would go if the machine was gone a duration notice after its notice. It lists the node's pods once.
func (n *Node) Forecast(ctx context.Context, notice time.Duration) (evict.Forecast, error) {
	scripts := min(n.opts.ScriptsWait, notice/4) // Before a hard deadline, a guard waits no longer for scripts: see awaitScripts.
	return n.Evictor.Forecast(ctx, notice, n.opts.LoadBalancerWait+scripts)
}

// OptedOut reads the Node, and reports whether its ActionAnnotation forbids evictions.
func (n *Node) OptedOut(ctx context.Context) (bool, error) {
	node, err := n.get(ctx, kube.InTurn)
	if err != nil {
		return false, fmt.Errorf("reading node %q: %w", n.name, err)
	}
	return MayNotEvict(node), nil
}

// Goal is the state that a guard brings its node to, and by when. pkg/agent makes it from a policy.Goal.
type Goal struct {
	// Generation grows when a reason for the goal joins. Then the guard looks at the Node again, and cordons it again if somebody has uncordoned
	// it. It is at least 1. Progress.Generation refers to it.
	Generation int
	// Claim goes into CordonAnnotation if the node has to be cordoned.
	Claim Claim
	// Cordon: the node is to be cordoned. It is false if somebody has uncordoned it for each of the goal's reasons.
	Cordon bool
	// Evict: pods have to go. Before limits that to pods that came before this time; zero means all pods.
	Evict  bool
	Before time.Time
	// Shutdown: the machine shuts down by itself.
	Shutdown bool
	// Hard is when the machine is gone: pods that are left are deleted in time. Soft is when the drain should have ended. Both are
	// compared by the monotonic clock if they have its reading; zero means never.
	Hard, Soft time.Time
	// TimeEnds is when the next event runs out of its time; zero for never. The wait for volumes ends a margin before that.
	TimeEnds time.Time
	// NodeSeen: there has been a Node in this boot. If it is missing now, it was deleted.
	NodeSeen bool
	// MayNotEvict: when the Node was last read, before this guard, operators had opted its pods out. It applies until the guard has read the Node.
	MayNotEvict bool
}

// Task is a goal that a guard is to pursue (Node.Guard). Its owner may change the goal meanwhile, and ask for the result so far. The methods may
// be called from any goroutine, and do not block.
type Task struct {
	goal    atomic.Pointer[Goal]
	changed chan struct{} // has an element if the goal has changed since the guard last received
	result  atomic.Pointer[func() Result]
}

// NewTask returns a task for Node.Guard.
func NewTask(goal Goal) *Task {
	t := &Task{changed: make(chan struct{}, 1)}
	t.goal.Store(&goal)
	return t
}

// Goal returns the goal as it is now.
func (t *Task) Goal() Goal { return *t.goal.Load() }

// Adjust changes the goal.
func (t *Task) Adjust(goal Goal) {
	t.goal.Store(&goal)
	loop.Nudge(t.changed)
}

// Changed receives when the goal has changed. Only the guard that works on the task may receive.
func (t *Task) Changed() <-chan struct{} { return t.changed }

// Result returns what the last guard of the task has done so far, also after its end.
func (t *Task) Result() Result {
	if result := t.result.Load(); result != nil {
		return (*result)()
	}
	return Result{} // No guard has begun.
}

// SetResult has Result call a guard's function, from any goroutine.
func (t *Task) SetResult(result func() Result) { t.result.Store(&result) }

// Progress is one thing that happened, and the state after it.
type Progress struct {
	Kind state.TransitionKind
	// Generation is that of the goal for which State was found out.
	Generation int
	// State is what is known of the node after this.
	State State
	// Pod is "namespace/name"; empty for what concerns the node.
	Pod string
	// PodUID is that pod's.
	PodUID string
	// Claim, with NodeUncordoned, is the claim on the Node: it says for which events the node was cordoned.
	Claim Claim
	// Detail names the budget, the reason or the time that belongs to Kind.
	Detail string
	// Total and Left count the pods to evict: all that there were, and those still on the node.
	Total, Left int
}

// State is what is known of a node.
type State struct {
	// Cordoned: the node takes no more pods. Uncordoned: somebody has uncordoned it, and it stays so in this generation. Ours: it is
	// cordoned, and that cordon is ours.
	Cordoned, Uncordoned, Ours bool
	// MayNotCordon: operators opted the node out.
	MayNotCordon bool
	// UID is that of the Node that was seen last; empty if none was.
	UID types.UID
	// CordonStamp is when the node was cordoned, by the API server's clock; zero if the Node does not say.
	CordonStamp time.Time
	// Drained: no pod is left that has to go.
	Drained bool
	// Looked: the Node has been read since the generation began. MayNotEvict: the last look showed that operators opted its pods out; then it is
	// not drained.
	Looked, MayNotEvict bool
	// Trouble says why the node cannot be cordoned, or why its pods cannot be listed; empty if both can be done.
	Trouble string
}

// Result is what was done. Pod names are "namespace/name".
type Result struct {
	Cordon CordonResult
	// Evicted counts the pods whose eviction was accepted, Deleted those that had to be deleted, and Skipped those that stay, such as pods
	// of DaemonSets, mirror pods, and pods that a setting protects.
	Evicted, Deleted, Skipped int
	// Left names the pods that have to go and are still there, sorted.
	Left []string
	// HeldBy names, for pods in Left, what holds them: a disruption budget or the last refusal.
	HeldBy map[string]string
	// NodeGone: the Node object was deleted.
	NodeGone bool
	// MayNotEvict: operators opted the node's pods out with its ActionAnnotation, so no pods are evicted.
	MayNotEvict bool
}

// DryRun is a Node whose guard and Uncordon only read, and report what would be done.
type DryRun struct{ *Node }

// NewDryRun returns a dry run for a node.
func NewDryRun(n *Node) *DryRun { return &DryRun{n} }

// Guard is Node.Guard, but changes nothing. It calls report with each step of a real guard, as if the step succeeded at once. It looks once for
// each goal, and again after a look that failed. It reports all steps at first, and again when it finds another cordon, or pods would go that stayed.
func (d *DryRun) Guard(ctx context.Context, task *Task, report func(Progress)) {
	var last *foreseen // what was reported last; nil if nothing was
	var seen memory
	var trouble kube.Trouble
	var pause time.Duration
	for more := true; more; more = loop.Await(ctx, task.changed, pause) { // more is false when ctx has ended.
		goal := task.Goal()
		reportWith := func(s State, p Progress) {
			p.Generation, p.State = goal.Generation, s
			report(p)
		}
		would, err := d.foresee(ctx, goal, &seen)
		if err != nil {
			pause = lookEvery
			if why := trouble.Note(err); why != "" && ctx.Err() == nil {
				why = fmt.Sprintf("cannot read node %q and its pods: %s", d.name, why)
				reportWith(State{Trouble: why}, Progress{Kind: state.NodeCordonFailed, Detail: why})
			}
			continue
		}
		trouble, pause = kube.Trouble{}, loop.Forever
		task.SetResult(func() Result { return would.result })
		sameSteps := last != nil && would.result.Cordon == last.result.Cordon && (last.state.Drained || !would.state.Drained)
		if sameSteps {
			would.steps = []Progress{{Kind: state.StateChanged}} // The agent needs the state under the new goal.
		}
		for _, p := range would.steps {
			reportWith(would.state, p)
		}
		last = &would
	}
}

// foreseen is what would be done to a node: the result, the state after it, and the steps to report.
type foreseen struct {
	result Result
	state  State
	steps  []Progress
}

// foresee reads the Node and its pods, and returns what a real guard would do. Result.Left stays empty, as if all pods had left. seen is what
// earlier looks have found out, and becomes what this one has.
func (d *DryRun) foresee(ctx context.Context, goal Goal, seen *memory) (foreseen, error) {
	node, err := d.get(ctx, kube.InTurn)
	if kube.NotFound(err) && goal.NodeSeen {
		return foreseen{
			result: Result{NodeGone: true},
			state:  State{Drained: goal.Evict, Looked: true},
			steps:  []Progress{{Kind: state.StateChanged}}, // Nothing would be done.
		}, nil
	}
	if err != nil {
		return foreseen{}, err
	}
	if seen.sawAnother(node.UID) {
		*seen = memory{} // It is about the Node before.
	}
	v := d.viewOf(node, goal, *seen)
	if seen.view = v; v.uncordoned {
		seen.uncordonedIn = goal.Generation
	}
	uncordoned := v.cordon == Uncordoned
	ours := v.cordon == CordonNone || v.cordon == CordonSet || v.cordon == CordonKept // CordonNone: a real guard would cordon it.
	adjustsFirst := uncordoned && goal.Cordon                                         // The agent first adjusts the goal.
	evicts := goal.Evict && !v.mayNotEvict && !adjustsFirst
	would := foreseen{
		result: Result{Cordon: v.cordon, MayNotEvict: v.mayNotEvict},
		state: State{
			Cordoned: ours || v.cordon == CordonForeign, Uncordoned: uncordoned, Ours: ours, MayNotCordon: v.cordon == CordonOptedOut, UID: v.uid,
			Drained: evicts, Looked: true, MayNotEvict: v.mayNotEvict,
		},
		steps: []Progress{v.cordon.progress()},
	}
	would.steps[0].Claim, _ = parseClaim(node.Annotations[CordonAnnotation]) // Without a valid annotation, the claim names no events.
	if !evicts {
		return would, nil
	}
	terms := evict.Terms{Evict: true, Hard: goal.Hard, Soft: goal.Soft, Since: goal.Before}
	if uncordoned { // Pods that came after the cordon stay.
		terms.Since = cmp.Or(v.cordonStamp, goal.Before)
	}
	going, staying, err := d.Going(ctx, terms)
	if err != nil {
		return foreseen{}, err
	}
	would.result.Evicted, would.result.Skipped = len(going), staying
	for i := range going {
		evicted := aboutPod(state.PodEvicted, &going[i], "")
		evicted.Total = len(going)
		would.steps = append(would.steps, evicted)
	}
	would.steps = append(would.steps, Progress{Kind: state.NodeEmpty, Total: len(going)})
	return would, nil
}

// Uncordon returns what Node.Uncordon would do now. It does not wait until the Node is Ready.
func (d *DryRun) Uncordon(ctx context.Context, _ Booted) (UncordonResult, error) {
	const write = false
	return d.uncordon(ctx, nil, write)
}
