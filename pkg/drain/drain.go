// Package drain does the work on one node: it closes the node, ends its pods, keeps it so, and takes back what it set.
//
// A Guard pursues a Goal for as long as it is told to: it cordons, evicts, escalates, tells when the node is empty, and
// goes on watching. The goal may change while it does. Uncordon takes back what is ours.
//
// It is given a client and a node's name and works with the rights of that node's kubelet, which are narrow. What of
// k8s.io/kubectl/pkg/drain holds with them is used: its filters decide which pods a drain concerns, run over a client
// that answers from memory. The rest is our own, because with this identity it fails or falls short:
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
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	kubectl "k8s.io/kubectl/pkg/drain"

	"github.com/nth-project/nth/pkg/state"
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

// Progress is one thing that happened, and how things stand then.
type Progress struct {
	Kind state.TransitionKind
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
	// Detail names the budget, the reason or the time that belongs to Kind.
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

// concerns tells whether a drain has to remove a pod, by kubectl's filters: mirror pods stay, finished pods go, and what a
// setting protects stays. A DaemonSet's pods stay in any phase; kubectl removes the finished ones. Their controller makes
// others, and a kubelet that goes down fails those as well, so that there would be no end to it.
func (o Options) concerns(pod *corev1.Pod) bool {
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "DaemonSet" && strings.HasPrefix(owner.APIVersion, "apps/") {
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

// inMemory is a client that knows one pod. It answers the one question that is left to kubectl's filters to ask: which pods are on
// the node. Any other call would be a change in kubectl, and fails loudly in the tests.
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

// stays tells whether people want the pod left alone in a drain with or without a deadline.
func stays(pod *corev1.Pod, deadline bool) bool {
	when, _ := KeyValue(pod.Annotations, EvictAnnotation)
	return when == Never || when == AtDeadline && !deadline
}

// waits tells whether the pod may run until the deadline needs it gone.
func waits(pod *corev1.Pod) bool {
	when, _ := KeyValue(pod.Annotations, EvictAnnotation)
	return when == AtDeadline
}

// finished tells whether the pod's containers have ended for good.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// critical tells whether other pods may need this one until they are gone.
func critical(pod *corev1.Pod) bool {
	return pod.Spec.PriorityClassName == "system-node-critical" || pod.Spec.PriorityClassName == "system-cluster-critical"
}

// lastRank is that of the pod that goes when no other is left.
const lastRank = 2

// rank orders the pods that go: those of a higher one go when none of a lower one is left that can be waited for.
func (o Options) rank(pod *corev1.Pod) int {
	switch {
	case o.Last != "" && podName(pod) == o.Last:
		return lastRank
	case critical(pod):
		return 1
	}
	return 0
}

// grace is the pod's own, or the one that replaces it.
func (o Options) grace(pod *corev1.Pod) time.Duration {
	switch {
	case o.GracePeriod != nil:
		return *o.GracePeriod
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return seconds(*pod.Spec.TerminationGracePeriodSeconds)
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// forever is longer than any node stands.
const forever = 365 * 24 * time.Hour

// seconds is a duration of so many, but none that is too long for one: the API server takes any grace.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, int64(forever/time.Second))) * time.Second
}

func podName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// Forecast is how a drain of a node would come along if it began now, if each pod took all of the grace that it gets, and no disruption
// budget held any.
type Forecast struct {
	// Pods counts those that would have to go, and Needs is how long that would take, from the notice on.
	Pods  int
	Needs time.Duration
	// Cut are the pods that would get less than their own grace, in the order of their names.
	Cut []Cut
}

// Cut is a pod, as "namespace/name", that would get less than its own grace before the deadline.
type Cut struct {
	Pod         string
	Grace, Gets time.Duration
}

// Forecast looks at the node's pods, and says how a drain for a machine would come along that is gone so long after the notice. It asks
// once, and is content with what the API server has in memory.
func (n *Node) Forecast(ctx context.Context, notice time.Duration) (Forecast, error) {
	list, err := n.listPods(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return Forecast{}, fmt.Errorf("listing the pods of node %q: %w", n.name, err)
	}
	return n.opts.forecast(list.Items, notice), nil
}

// forecast goes by the rules of plan, limits and gated, with an API server that answers at once.
func (o Options) forecast(pods []corev1.Pod, notice time.Duration) Forecast {
	opens, end := o.EvictAfter, notice-o.Margin
	if o.ExcludeFromLoadBalancers {
		opens = max(opens, o.LoadBalancerWait)
	}
	opens += min(o.ScriptsWait, notice/4)
	var f Forecast
	others := time.Duration(0) // when those are gone that critical pods wait for
	for _, last := range []bool{false, true} {
		for i := range pods {
			pod := &pods[i]
			if critical(pod) != last || !o.concerns(pod) || stays(pod, true) {
				continue
			}
			asked := opens
			if last {
				asked = max(opens, others)
			}
			gone, cut := o.foresee(pod, asked, end)
			f.Pods, f.Needs = f.Pods+1, max(f.Needs, gone)
			if cut != nil {
				f.Cut = append(f.Cut, *cut)
			}
		}
		others = f.Needs
	}
	slices.SortFunc(f.Cut, func(a, b Cut) int { return strings.Compare(a.Pod, b.Pod) })
	return f
}

// foresee says when a pod would be gone that may be asked for from a time on, and has to be gone by the end.
func (o Options) foresee(pod *corev1.Pod, asked, end time.Duration) (gone time.Duration, cut *Cut) {
	if finished(pod) {
		return 0, nil
	}
	if pod.DeletionTimestamp != nil {
		return min(given(pod), max(end, 0)), nil
	}
	grace := o.grace(pod)
	turn := max(end-grace, 0)
	if asked = min(asked, turn); waits(pod) {
		asked = turn
	}
	if left := max(end-asked, time.Second); left < grace {
		left = left.Truncate(time.Second)
		return asked + left, &Cut{Pod: podName(pod), Grace: grace, Gets: left}
	}
	return asked + grace, nil
}

// Rehearsal is what came of an eviction that was only rehearsed.
type Rehearsal struct {
	// Pod is "namespace/name" of the pod; empty if none on the node would have to go.
	Pod string
	// HeldBy is the disruption budget that would hold the pod back now; empty if none would.
	HeldBy string
}

// Rehearse asks the API server to evict one of the node's pods, as a dry run: it says what it would do, admission
// included, and does nothing. It asks once.
func (n *Node) Rehearse(ctx context.Context) (Rehearsal, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	list, err := n.listPods(ctx, metav1.ListOptions{})
	if err != nil {
		return Rehearsal{}, fmt.Errorf("listing the pods of node %q: %w", n.name, err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.DeletionTimestamp != nil || !n.opts.concerns(pod) {
			continue
		}
		rehearsed := Rehearsal{Pod: podName(pod)}
		err := n.remove(ctx, state.PodEvicted, pod, &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}, attemptTimeout)
		if budget, held := heldBy(err); held {
			rehearsed.HeldBy, err = budget, nil
		}
		if err != nil {
			return rehearsed, fmt.Errorf("rehearsing the eviction of %s: %s", rehearsed.Pod, plain(err))
		}
		return rehearsed, nil
	}
	return Rehearsal{}, nil
}

// DryRun is a Node that is only looked at: its methods tell what would be done and write nothing.
type DryRun struct{ *Node }

// NewDryRun returns the looked-at twin of a node.
func NewDryRun(n *Node) *DryRun { return &DryRun{n} }

// Guard returns a guard that tells what would be done, as if all went well at once, and stands then.
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
	told, evicted, trouble := false, false, ""
	for more := true; more; more = Await(ctx, g.adjusted, pause) {
		g.mu.Lock()
		goal := g.goal
		g.mu.Unlock()
		told = told && (evicted || !goal.Evict) // What a drain would do is told when it comes to one.
		var news []Progress
		err := retry(ctx, func(ctx context.Context) (err error) {
			news, err = g.look(ctx, goal)
			return err
		})
		if pause = forever; err != nil {
			pause = lookEvery
		}
		if err != nil && ctx.Err() == nil && !Alike(err.Error(), trouble) {
			trouble = err.Error()
			g.tell(Progress{Kind: state.NodeUnclosable, Goal: goal.Number, State: State{Trouble: trouble}, Detail: trouble})
		}
		if told && err == nil { // It is the state under the new goal that counts.
			g.tell(Progress{Kind: state.GoalChanged, Goal: goal.Number, State: news[0].State})
		}
		for _, p := range news {
			if p.Kind == state.NodeEmpty || !told {
				g.tell(p)
			}
		}
		if err == nil {
			told, evicted = true, evicted || goal.Evict
		}
	}
}

// look tells what would be done. Left stays empty, as if all had gone.
func (g *dryGuard) look(ctx context.Context, goal Goal) ([]Progress, error) {
	node, err := g.node.get(ctx, false)
	gone := apierrors.IsNotFound(err) && goal.NodeSeen
	result, found := Result{NodeGone: gone}, State{Closed: true, Ours: true, Seen: err == nil || gone, Drained: goal.Evict, Looked: true}
	if result.NodeGone {
		return g.done(result, []Progress{{Kind: state.NodeEmpty, Goal: goal.Number, State: found}}), nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading node %q: %w", g.node.name, err)
	}
	lifted := g.node.liftedFor(node, goal, memory{})
	result.Cordon, result.Limited = g.node.cordonOf(node, goal, memory{}, lifted), onlyCordon(node)
	found.Ours = result.Cordon == CordonNone || result.Cordon == CordonOurs
	found.Closed = found.Ours || result.Cordon == CordonForeign
	found.Left, found.Limited = result.Cordon == CordonLeft, result.Limited
	found.Drained = found.Drained && !result.Limited
	cordon := result.Cordon.progress()
	cordon.Goal, cordon.State = goal.Number, found
	if result.Cordon == CordonLifted {
		cordon.Events = goal.Events
	}
	news := []Progress{cordon}
	if !goal.Evict || result.Limited {
		return g.done(result, news), nil
	}
	pods, err := g.node.listPods(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of node %q: %w", g.node.name, err)
	}
	all, stay := len(pods.Items), g.stay(node, goal, result.Cordon)
	left := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return stay(&p) })
	result.Evicted, result.Skipped = len(left), all-len(left)
	for i := range left {
		evicted := aboutPod(state.PodEvicted, &left[i], "")
		evicted.Goal, evicted.State, evicted.Total = goal.Number, found, len(left)
		news = append(news, evicted)
	}
	return g.done(result, append(news, Progress{Kind: state.NodeEmpty, Goal: goal.Number, State: found, Total: result.Evicted})), nil
}

// stay returns what tells which pods would stay on a Node that was found so.
func (g *dryGuard) stay(node *corev1.Node, goal Goal, found CordonResult) func(*corev1.Pod) bool {
	deadline, since := !goal.Hard.IsZero() || !goal.Soft.IsZero(), goal.Reopened
	if since.IsZero() && found == CordonLifted {
		since = g.node.viewOf(node, found).cordonedAt
	}
	return func(pod *corev1.Pod) bool {
		return !g.node.opts.concerns(pod) || stays(pod, deadline) || cameAfter(pod, since)
	}
}

func (g *dryGuard) done(result Result, news []Progress) []Progress {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.result = result
	return news
}

// Uncordon tells whether there is a cordon of ours to lift.
func (d *DryRun) Uncordon(ctx context.Context, _ func(string) bool) (result UncordonResult, err error) {
	err = retry(ctx, func(ctx context.Context) error {
		node, err := d.get(ctx, false)
		if result = UncordonNodeGone; err == nil {
			result = d.uncordonOf(node)
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("reading node %q: %w", d.name, err)
	}
	return result, nil
}
