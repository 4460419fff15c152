// Package drain drains one node: it cordons the node, evicts its pods, keeps it empty, and takes back what it has set.
//
// A Guard pursues a Goal until it is stopped: it cordons, evicts, deletes before a hard deadline, reports when the node is empty, and goes on
// watching. The goal may change meanwhile. Node.Uncordon takes back what is ours.
//
// The package is given a client and a node's name, and gets by with the rights of that node's kubelet, which are narrow. It uses the filters
// of k8s.io/kubectl/pkg/drain, which decide which pods a drain concerns, with a client that answers from memory. The rest of that package
// fails with this identity, or does not do enough:
//
//   - kubectl looks up the DaemonSet of every DaemonSet pod; a kubelet may not, and one refusal fails the whole drain.
//     We go by the controller's ownerReference.
//   - kubectl polls each evicted pod until the answer is 404; a kubelet is told 403 once the pod has left its node, so that
//     kubectl reports failure after success. We watch the node's pods.
//   - kubectl's cordon patches spec.unschedulable alone; we set it together with the annotation that says whose it is.
//   - kubectl never stops evicting; we switch to deleting while a pod's grace still fits before the deadline.
//   - kubectl ends when the node is empty; we go on, as pods may be bound late.
//
// The package does not know on which node it runs.
package drain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	kubectl "k8s.io/kubectl/pkg/drain"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/wait"
)

// Keys that nth writes on a Node. docs/node-contract.md says who may write and read them.
const (
	// CordonAnnotation holds a Claim as JSON while a cordon is ours.
	CordonAnnotation = KeyPrefix + "cordon"
	// ExcludeLabel takes a node out of the target sets of external load balancers. Its value is the writer if it is ours.
	ExcludeLabel = "node.kubernetes.io/exclude-from-external-load-balancers"
)

// Keys by which people limit what nth does. nth never writes them, and heeds a change at any time.
const (
	// ActionAnnotation on a Node names the most that is done to it: LeaveNode, OnlyNotify or OnlyCordon. Any other value is ignored.
	ActionAnnotation = KeyPrefix + "action"
	// EvictAnnotation on a Pod says when it may be evicted: AtDeadline or Never. Any other value is ignored.
	EvictAnnotation = KeyPrefix + "evict"
)

// The values of ActionAnnotation and EvictAnnotation.
const (
	LeaveNode  = "ignore"
	OnlyNotify = "notify"
	OnlyCordon = "cordon"
	// AtDeadline lets the pod run until no more than its grace period is left before the deadline. Without a deadline the pod stays.
	AtDeadline = "at-deadline"
	// Never lets the pod run until the machine is gone.
	Never = "never"
)

// The writers of claims.
const (
	// Host is nth on the machine.
	Host = "nth"
	// Queue is nth-queue.
	Queue = "nth-queue"
	// ByHand is "nth drain", by which people drain the machine's node. It takes over a cordon of Host's, which Host would lift when its
	// event is over.
	ByHand = "nth-drain"
)

// Options are the settings that hold for every drain of a node. The zero value drains at once, with each pod's own
// grace, and protects nothing.
type Options struct {
	// Writer is the program that writes to the Node, Host if empty. What other writers have set is left alone.
	Writer string
	// UID, if set, is that of the only Node that is acted upon. Where there is none of that UID any more, it counts as deleted, and its
	// pods are left alone: a Node of the same name may be another machine's.
	UID types.UID
	// Scripts, if set, are run once the node is closed, and again for each drain that begins later. Evictions wait for them: at most for
	// ScriptsWait, and for a quarter of the time before a hard deadline. A failure is reported and has no other consequence.
	Scripts     wait.Blocker
	ScriptsWait time.Duration
	// EvictAfter delays evictions after the cordon, but no pod beyond the time that leaves it its grace before the deadline.
	EvictAfter time.Duration
	// Margin is how long before a deadline pods have to be gone, so that the last pod's end can still be seen.
	Margin time.Duration
	// GracePeriod replaces each pod's own termination grace period; nil leaves it.
	GracePeriod *time.Duration
	// ProtectEmptyDir and ProtectUnmanaged let pods with emptyDir volumes, and pods without a controller, stay.
	ProtectEmptyDir  bool
	ProtectUnmanaged bool
	// ExcludeFromLoadBalancers labels the node with ExcludeLabel after the cordon; LoadBalancerWait is how long
	// evictions then wait for the load balancers to follow.
	ExcludeFromLoadBalancers bool
	LoadBalancerWait         time.Duration
	// LoadBalancers, if set, are waited for until they are done with the machine before evictions, at most for half of the time before the
	// deadline, and with its pods before the node counts as drained. LoadBalancerWait applies only if that cannot be found out.
	LoadBalancers wait.Blocker
	// VolumeWait bounds the wait for volumes to be unmounted after the last pod is gone.
	VolumeWait time.Duration
	// Last is the pod in which the drain itself runs, as "namespace/name". It goes when no other is left, whatever the deadline. "" is none.
	Last string
	// Gate and Requests, if set, are shared with the drains of other nodes: Gate limits evictions and deletions, Requests reads and writes
	// of Nodes. Urgent, if set, tells whether this node's requests are urgent there. It may be called from any goroutine.
	Gate, Requests *kube.Gate
	Urgent         func() bool
	// Unchanged, if set, reports whether the Node still has a resource version, as far as a watch of all Nodes tells. It is not read again
	// while it has.
	Unchanged func(version string) bool
}

// delay is how long evictions wait after the cordon if load balancers cannot be asked.
func (o Options) delay() time.Duration {
	if o.ExcludeFromLoadBalancers {
		return max(o.EvictAfter, o.LoadBalancerWait)
	}
	return o.EvictAfter
}

// Node is one node, reached with the rights of its client.
type Node struct {
	client kubernetes.Interface
	name   string
	opts   Options
	reads  kube.Reads
}

// New returns the node of that name. It makes no request.
func New(client kubernetes.Interface, name string, opts Options) *Node {
	opts.Writer = cmp.Or(opts.Writer, Host)
	return &Node{client: client, name: name, opts: opts}
}

// Goal is what a node is to come to, and by when: closed, and also empty if Evict is set.
type Goal struct {
	// Number identifies the goal in Progress.
	Number int
	// Claim goes into CordonAnnotation if the node has to be cordoned.
	Claim Claim
	// Events are the IDs of all events that call for the goal, the claim's included, and Kinds are their kinds. Unclosed are those for
	// which the node has not been closed yet, as far as is known. Anew are those of Unclosed that have begun again since, so that a claim
	// on the Node that names them is out of date.
	Events, Kinds, Unclosed, Anew []string
	// Evict tells that pods are to go.
	Evict bool
	// Hard is when the machine is gone: pods that are left are deleted in time. Soft is when the drain should have ended. Both are
	// compared by the monotonic clock if they have its reading; zero means never.
	Hard, Soft time.Time
	// TimeEnds is when the next event runs out of its time, zero for never: the wait for volumes ends a margin before that.
	TimeEnds time.Time
	// Reopened is set if somebody uncordoned the node for all events that evict: to the time of the cordon. Pods that came since then stay.
	// Open tells that somebody uncordoned it for all events, so that the node is not cordoned again.
	Reopened time.Time
	Open     bool
	// NodeSeen tells that there has been a Node in this boot, so that a missing one was deleted.
	NodeSeen bool
	// Limited tells that people wanted its pods left alone when the Node was last read. It applies until the guard has read the Node.
	Limited bool
}

// Guard pursues a goal for a node, and maintains it.
type Guard interface {
	// Run works until ctx ends, and retries what fails.
	Run(ctx context.Context)
	// Adjust changes the goal. It may be called from any goroutine, and does not block.
	Adjust(goal Goal)
	// Result returns what has been done so far. It may be called from any goroutine, also after Run has ended.
	Result() Result
}

// Progress is one thing that happened, and the state after it.
type Progress struct {
	Kind state.TransitionKind
	// Goal is the number of the goal.
	Goal int
	// State is what is known of the node.
	State State
	// Pod is "namespace/name"; empty for what concerns the node.
	Pod string
	// PodUID and PodLabels are that pod's. The labels must not be changed.
	PodUID    string
	PodLabels map[string]string
	// Events, with NodeReopened, are those for which the node was closed until somebody uncordoned it. It is closed again for others.
	// With NodeClosed and NodeFoundClosed, they are those for which another Node is closed than the one that somebody may have uncordoned.
	Events []string
	// Detail names the budget, the reason or the time that belongs to Kind.
	Detail string
	// Total and Left count the pods to evict: all that there were, and those still on the node.
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
	// Drained: no pod is left that has to go.
	Drained bool
	// Looked: the Node has been read since the last event of the goal joined. Limited: people want its pods left alone, by the last
	// look; then it is not drained.
	Looked, Limited bool
	// Trouble says why it cannot be closed; empty if it can.
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
	// NodeGone tells that the Node object was deleted.
	NodeGone bool
	// Limited tells that people want this node's pods left alone, by its ActionAnnotation; none are evicted.
	Limited bool
	// VolumesInUse counts the volumes that were still in use when the wait for them ended, or is VolumesUnknown.
	VolumesInUse int
}

// VolumesUnknown is Result.VolumesInUse if the Node could not be read.
const VolumesUnknown = -1

// concerns tells whether a drain removes a pod, by kubectl's filters: mirror pods stay, finished pods go, and pods that a
// setting protects stay. A DaemonSet's pods stay in any phase, while kubectl removes the finished ones: their controller would replace
// them, and a kubelet that shuts down fails the replacements as well, so that there would be no end to it. The kind counts in any API
// group: there are other DaemonSets than those of apps/v1, such as OpenKruise's.
func (o Options) concerns(pod *corev1.Pod) bool {
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "DaemonSet" {
		return false
	}
	helper := kubectl.Helper{
		Client:              inMemory{pod: pod},
		Force:               !o.ProtectUnmanaged,
		IgnoreAllDaemonSets: true,
		DeleteEmptyDirData:  !o.ProtectEmptyDir,
	}
	list, protected := helper.GetPodsForDeletion(pod.Spec.NodeName)
	return len(protected) == 0 && list != nil && len(list.Pods()) > 0
}

// inMemory is a client that knows one pod. It answers the only request that kubectl's filters still make: the list of the node's pods. If
// kubectl comes to make others, the nil interfaces panic in the tests.
type inMemory struct {
	kubernetes.Interface
	coreclient.CoreV1Interface
	coreclient.PodInterface
	pod *corev1.Pod
}

func (m inMemory) CoreV1() coreclient.CoreV1Interface  { return m }
func (m inMemory) Pods(string) coreclient.PodInterface { return m }

func (m inMemory) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	return &corev1.PodList{Items: []corev1.Pod{*m.pod}}, nil
}

// stays tells whether EvictAnnotation lets the pod stay in a drain with or without a deadline.
func stays(pod *corev1.Pod, deadline bool) bool {
	when := pod.Annotations[EvictAnnotation]
	return when == Never || when == AtDeadline && !deadline
}

// waits tells whether EvictAnnotation lets the pod run until its turn before the deadline.
func waits(pod *corev1.Pod) bool {
	return pod.Annotations[EvictAnnotation] == AtDeadline
}

// finished tells whether the pod's containers have ended for good.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// critical tells whether other pods may need this one, such as cluster DNS, until they are gone.
func critical(pod *corev1.Pod) bool {
	return pod.Spec.PriorityClassName == "system-node-critical" || pod.Spec.PriorityClassName == "system-cluster-critical"
}

// lastRank is the rank of Options.Last.
const lastRank = 2

// rank orders evictions: pods of a higher rank wait for those of a lower one.
func (o Options) rank(pod *corev1.Pod) int {
	switch {
	case o.Last != "" && podName(pod) == o.Last:
		return lastRank
	case critical(pod):
		return 1
	}
	return 0
}

// grace is the pod's termination grace period, or Options.GracePeriod, but a second at least: the turn of a pod without any has to come
// before the deadline, too.
func (o Options) grace(pod *corev1.Pod) time.Duration {
	grace := corev1.DefaultTerminationGracePeriodSeconds * time.Second
	switch {
	case o.GracePeriod != nil:
		grace = *o.GracePeriod
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		grace = seconds(*pod.Spec.TerminationGracePeriodSeconds)
	}
	return max(grace, time.Second)
}

// forever is longer than any node stands.
const forever = 365 * 24 * time.Hour

// seconds converts a grace period, or another number of seconds that the API server gives. It accepts those that overflow a Duration, and
// takes a negative one for 1 (BeforeDelete in pkg/registry/rest/delete.go of k8s.io/apiserver).
func seconds(n int64) time.Duration {
	if n < 0 {
		n = 1
	}
	return time.Duration(min(n, int64(forever/time.Second))) * time.Second
}

func podName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// Forecast is how a drain of a node would go if it began now, each pod took all of its grace, and no disruption budget held any.
type Forecast struct {
	// Pods counts the pods that would have to go, and Needs is how long that would take, counted from the notice.
	Pods  int
	Needs time.Duration
	// Cut are the pods that would get less than their grace, sorted by name.
	Cut []Cut
}

// Cut is a pod, as "namespace/name", that would get less than its grace before the deadline.
type Cut struct {
	Pod         string
	Grace, Gets time.Duration
}

// Forecast lists the node's pods once, from the API server's cache, and says how a drain would go if the machine was gone so long after the
// notice.
func (n *Node) Forecast(ctx context.Context, notice time.Duration) (Forecast, error) {
	list, err := n.listPods(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return Forecast{}, fmt.Errorf("listing the pods of node %q: %w", n.name, err)
	}
	return n.opts.forecast(list.Items, notice), nil
}

// forecast follows the rules of guard.plan, with an API server that answers at once.
func (o Options) forecast(pods []corev1.Pod, notice time.Duration) Forecast {
	evictFrom, end := o.delay(), notice-o.Margin
	evictFrom += min(o.ScriptsWait, notice/4)
	var f Forecast
	for _, last := range []bool{false, true} {
		for i := range pods {
			pod := &pods[i]
			if critical(pod) != last || !o.concerns(pod) || stays(pod, true) {
				continue
			}
			gone, cut := o.foresee(pod, evictFrom, end)
			f.Pods, f.Needs = f.Pods+1, max(f.Needs, gone)
			if cut != nil {
				f.Cut = append(f.Cut, *cut)
			}
		}
		evictFrom = max(evictFrom, f.Needs) // Critical pods wait for the others.
	}
	slices.SortFunc(f.Cut, func(a, b Cut) int { return strings.Compare(a.Pod, b.Pod) })
	return f
}

// foresee returns when a pod would be gone that may be evicted from a time on, and has to be gone by the end. cut is not nil if that costs it
// some of its grace. Times are counted from the notice.
func (o Options) foresee(pod *corev1.Pod, evictFrom, end time.Duration) (gone time.Duration, cut *Cut) {
	if finished(pod) {
		return 0, nil
	}
	if pod.DeletionTimestamp != nil {
		return min(given(pod), max(end, 0)), nil
	}
	grace := o.grace(pod)
	turn := max(end-grace, 0)
	asked := min(evictFrom, turn)
	if waits(pod) {
		asked = turn
	}
	if left := max(end-asked, time.Second); left < grace {
		left = left.Truncate(time.Second)
		return asked + left, &Cut{Pod: podName(pod), Grace: grace, Gets: left}
	}
	return asked + grace, nil
}

// Rehearsal is the result of an eviction that was a dry run.
type Rehearsal struct {
	// Pod is "namespace/name" of the pod; empty if none on the node would have to go.
	Pod string
	// HeldBy is the disruption budget that would refuse the eviction now; empty if none would.
	HeldBy string
}

// Rehearse asks the API server, once, to evict one of the node's pods as a dry run. Admission is part of it; nothing is changed.
func (n *Node) Rehearse(ctx context.Context) (Rehearsal, error) {
	list, err := n.listPods(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return Rehearsal{}, fmt.Errorf("listing the pods of node %q: %w", n.name, err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.DeletionTimestamp != nil || !n.opts.concerns(pod) {
			continue
		}
		rehearsed := Rehearsal{Pod: podName(pod)}
		err := n.remove(ctx, state.PodEvicted, pod, &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}, kube.Write)
		if budget, held := heldBy(err); held {
			rehearsed.HeldBy, err = budget, nil
		}
		if err != nil {
			return rehearsed, fmt.Errorf("rehearsing the eviction of %s: %s", rehearsed.Pod, kube.Plain(err))
		}
		return rehearsed, nil
	}
	return Rehearsal{}, nil
}

// DryRun is a Node whose guard and Uncordon only read, and report what would be done.
type DryRun struct{ *Node }

// NewDryRun returns a dry run for a node.
func NewDryRun(n *Node) *DryRun { return &DryRun{n} }

// Guard returns a guard that reports what would be done, as if everything succeeded at once, and goes on until it is stopped.
func (d *DryRun) Guard(goal Goal, tell func(Progress)) Guard {
	return &dryGuard{node: d.Node, tell: tell, goal: goal, adjusted: make(chan struct{}, 1)}
}

type dryGuard struct {
	node     *Node
	tell     func(Progress)
	adjusted chan struct{}

	mu     sync.Mutex
	goal   Goal
	result Result
}

// Adjust implements Guard.
func (g *dryGuard) Adjust(goal Goal) {
	g.mu.Lock()
	g.goal = goal
	g.mu.Unlock()
	nudge(g.adjusted)
}

// Result implements Guard.
func (g *dryGuard) Result() Result {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.result
}

// Run implements Guard.
func (g *dryGuard) Run(ctx context.Context) {
	var pause time.Duration
	reported, evicted, trouble := false, false, ""
	for more := true; more; more = kube.Await(ctx, g.adjusted, pause) {
		g.mu.Lock()
		goal := g.goal
		g.mu.Unlock()
		reported = reported && (evicted || !goal.Evict) // Everything is reported again when evictions come in.
		var would dryLook
		err := kube.Retry(ctx, func(ctx context.Context) (err error) {
			would, err = g.look(ctx, goal)
			return err
		})
		if err != nil {
			pause = lookEvery
			if ctx.Err() == nil && !kube.Alike(err.Error(), trouble) {
				trouble = err.Error()
				g.tell(Progress{Kind: state.NodeUnclosable, Goal: goal.Number, State: State{Trouble: trouble}, Detail: trouble})
			}
			continue
		}
		g.mu.Lock()
		g.result = would.result
		g.mu.Unlock()
		if reported { // The agent needs the state under the new goal.
			g.tell(Progress{Kind: state.GoalChanged, Goal: goal.Number, State: would.state})
		}
		for _, p := range would.news {
			if p.Kind == state.NodeEmpty || !reported {
				p.Goal, p.State = goal.Number, would.state
				g.tell(p)
			}
		}
		reported, evicted, pause = true, evicted || goal.Evict, forever
	}
}

// dryLook is what would be done to a node: the result, the state after it, and what would be reported.
type dryLook struct {
	result Result
	state  State
	news   []Progress
}

// look reads the Node and its pods. Result.Left stays empty, as if all pods had gone.
func (g *dryGuard) look(ctx context.Context, goal Goal) (dryLook, error) {
	node, err := g.node.get(ctx, false)
	if kube.NotFound(err) && goal.NodeSeen {
		return dryLook{
			result: Result{NodeGone: true},
			state:  State{Closed: true, Ours: true, Seen: true, Drained: goal.Evict, Looked: true},
			news:   []Progress{{Kind: state.NodeEmpty}},
		}, nil
	}
	if err != nil {
		return dryLook{}, fmt.Errorf("reading node %q: %w", g.node.name, err)
	}
	cordon, limited := g.node.cordonOf(node, goal, memory{}, g.node.liftedFor(node, goal, memory{})), onlyCordon(node)
	ours := cordon == CordonNone || cordon == CordonOurs
	would := dryLook{
		result: Result{Cordon: cordon, Limited: limited},
		state: State{
			Closed: ours || cordon == CordonForeign, Ours: ours, Left: cordon == CordonLeft, Seen: true,
			Drained: goal.Evict && !limited, Looked: true, Limited: limited,
		},
		news: []Progress{cordon.progress()},
	}
	if cordon == CordonLifted {
		would.news[0].Events = goal.Events
	}
	if !goal.Evict || limited {
		return would, nil
	}
	pods, err := g.node.listPods(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return dryLook{}, fmt.Errorf("listing the pods of node %q: %w", g.node.name, err)
	}
	all, stay := len(pods.Items), g.stay(node, goal, cordon)
	left := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return stay(&p) })
	would.result.Evicted, would.result.Skipped = len(left), all-len(left)
	for i := range left {
		evicted := aboutPod(state.PodEvicted, &left[i], "")
		evicted.Total = len(left)
		would.news = append(would.news, evicted)
	}
	would.news = append(would.news, Progress{Kind: state.NodeEmpty, Total: len(left)})
	return would, nil
}

// stay returns a function that tells which pods would stay on the Node, given its cordon.
func (g *dryGuard) stay(node *corev1.Node, goal Goal, cordon CordonResult) func(*corev1.Pod) bool {
	deadline, since := !goal.Hard.IsZero() || !goal.Soft.IsZero(), goal.Reopened
	if cordon == CordonLifted {
		since = cmp.Or(g.node.viewOf(node, cordon, since).cordonedAt, since)
	}
	return func(pod *corev1.Pod) bool {
		return !g.node.opts.concerns(pod) || stays(pod, deadline) || cameAfter(pod, since)
	}
}

// Uncordon returns what Node.Uncordon would do.
func (d *DryRun) Uncordon(ctx context.Context, _ Booted) (result UncordonResult, err error) {
	err = kube.Retry(ctx, func(ctx context.Context) error {
		node, err := d.get(ctx, false)
		if kube.NotFound(err) {
			result = UncordonNodeGone
			return nil
		}
		if err == nil {
			result = d.uncordonOf(node)
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("reading node %q: %w", d.name, err)
	}
	return result, nil
}
