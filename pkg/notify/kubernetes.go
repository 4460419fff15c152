package notify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	recordutil "k8s.io/client-go/tools/record/util"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

const (
	// requestTimeout bounds one request.
	requestTimeout = 5 * time.Second
	// longestWait is how long a request waits at the gate for those of drains.
	longestWait = time.Second
	// maxMessage is how many bytes the message of an Event or a condition may have: as many as events.k8s.io allows.
	maxMessage = 1024
)

// Identity is a client of the API server, and the Node to write to.
type Identity struct {
	Client kubernetes.Interface
	Node   string // the Node's name
	// UID, if set, is the Node's. A Node with the same name and another UID is another machine, whose condition is not written.
	UID string
	// Watched, if set, returns the Node as a watch shows it; nil if the watch does not show it. The condition then costs no read.
	Watched func() *corev1.Node
}

// KubernetesOptions are the options of a Kubernetes. All are required unless they say otherwise.
type KubernetesOptions struct {
	// Rules are the rules in effect.
	Rules policy.Settings
	// Condition and Events say whether to write the condition, and Events.
	Condition, Events bool
	// Labels enables KindLabel and MaintenanceLabel, which are kept with the condition.
	Labels bool
	// Heartbeat is how often the condition is written although nothing has changed, give or take a tenth. With it, the condition is
	// also on the Node if nothing was ever announced. With 0 there is no heartbeat: the condition is written from the first announcement
	// on, when it changes.
	Heartbeat time.Duration
	// Alive reports whether nth does its work; while it does not, there is no heartbeat. Alive is required with Heartbeat, and must not block.
	Alive func() bool
	// Brief keeps requests few when many nodes drain at once. Kubernetes then writes no Event about an eviction or the beginning of a drain,
	// and the condition does not say what nth does.
	Brief bool
	// DryRun says that nothing is done to the node. The condition then says so, and names no event.
	DryRun bool
	// Source is the component that Events name as their source. A condition that is True begins with it.
	Source string
	// MayWrite, if set, returns an error while another process keeps the conditions: then this process writes none.
	MayWrite func() error
	// Gate, if set, lets drains go first: it is that of their evictions.
	Gate *kube.Gate
	// Trouble is called with the first of several failures in a row, separately for conditions and for the Events of each namespace. Several
	// goroutines call it.
	Trouble func(error)
}

// Kubernetes writes to the cluster. Make one with NewKubernetes, and call its Run. Node returns the listener for one node.
type Kubernetes struct {
	opts KubernetesOptions
	// Two queues, as one kind of request may fail and not the other: Events have admission webhooks, and perhaps an etcd, of their own.
	conditions, events *queue

	mu      sync.Mutex
	failing map[string]bool // what cannot be written now, in the words of report; each was reported
}

// NewKubernetes returns a Kubernetes that has not written anything yet.
func NewKubernetes(opts KubernetesOptions) *Kubernetes {
	k := &Kubernetes{opts: opts, failing: map[string]bool{}}
	k.conditions, k.events = newQueue(k.report), newQueue(k.report)
	return k
}

// Run writes until ctx ends. Then it tries each message that is left once more, for flushTimeout at most. Call it once.
func (k *Kubernetes) Run(ctx context.Context) {
	var events sync.WaitGroup
	events.Go(func() { k.events.run(ctx) })
	k.conditions.run(ctx)
	events.Wait()
}

// KubernetesNode is the agent.Listener that writes about one node. Its OnTransition is called by one goroutine at a time.
type KubernetesNode struct {
	kubernetes *Kubernetes
	name       string
	identity   func(context.Context) (Identity, error)
	entries    func() []state.Entry
	builder    builder
	condition  *message // the update of the Node's condition, in the queue of conditions
	// version is the Node's resource version after the last read or write; "" if it is unknown what became of that. Only update uses it, and
	// update runs once at a time.
	version string
}

// Node returns a listener for a node, and queues the first update of the Node's condition, if the options ask for one. name differs from
// those of other listeners.
//
// identity returns the client and the Node. After an error of identity, Kubernetes tries again, and does not report the error: the identity's own
// package does. entries returns the entries of the record. Messages that the listener has queued are written even after the caller has dropped
// the listener.
func (k *Kubernetes) Node(name string, identity func(context.Context) (Identity, error), entries func() []state.Entry) *KubernetesNode {
	n := &KubernetesNode{kubernetes: k, name: name, identity: identity, entries: entries}
	n.condition = &message{line: name, what: "the node's condition " + kube.Condition, deliver: n.update}
	n.queueUpdate(startupDelay)
	return n
}

// OnTransition implements agent.Listener: it queues an Event, if the transition makes one, and an update of the condition.
func (n *KubernetesNode) OnTransition(t state.Transition) {
	opts := n.kubernetes.opts
	if opts.Brief && t.Kind == state.PodEvicted {
		return // Brief has no Events about evictions, and the condition does not change.
	}
	built := n.builder.build(t)
	// Steps are reported even if the rules ignore their event by now: something is done to the node.
	ofEvent := t.Kind == state.Announced || t.Kind == state.Changed || t.Kind == state.ClosedWith
	ignored := ofEvent && opts.Rules.Ignores(t.Entry)
	redundant := opts.Brief && built.eventReason == reasonDraining // The Event of the announcement has the plan already.
	if opts.Events && built.eventReason != "" && !redundant && !ignored {
		n.kubernetes.events.add(n.eventMessage(built), 0)
	}
	if t.Pod == "" { // Pods do not change the condition.
		n.queueUpdate(updateDelay)
	}
}

// write calls do, which makes requests, with the node's identity. The result is that of message.deliver: see deliveryError.
func (n *KubernetesNode) write(ctx context.Context, do func(context.Context, Identity) error) error {
	id, err := n.identity(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoIdentity, err)
	}
	entering, stop := context.WithTimeout(ctx, longestWait)
	leave, err := n.kubernetes.opts.Gate.Enter(entering, kube.Last)
	stop()
	if err == nil { // Otherwise the request goes without a place: reports of drains must not wait until drains end.
		defer leave()
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return deliveryError(do(ctx, id))
}

// errNoIdentity means that nth has no credential, or does not know its node yet. report passes over it, as pkg/identity reports the reason.
var errNoIdentity = errors.New("there is no identity")

// deliveryError converts the error of a request to one that message.deliver may return. nil: the message is delivered. errNothing: there is
// nothing to write. refusedError: the API server will not take the message. After any other error, the queue tries again.
func deliveryError(err error) error {
	switch {
	case apierrors.IsAlreadyExists(err): // An earlier attempt, whose answer was lost, has created the Event.
		return nil
	case kube.NotFound(err), apierrors.IsGone(err): // The Node, or the pod's namespace, no longer exists.
		return errNothing
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return refusedError{err.Error()}
	}
	return err
}

// report takes the result of each attempt to write something: what, in words. report calls KubernetesOptions.Trouble with the
// first of several failures in a row. It passes over errNoIdentity, which pkg/identity reports.
func (k *Kubernetes) report(what string, r DeliveryResult) {
	if errors.Is(r.Err, errNoIdentity) {
		return
	}
	k.mu.Lock()
	first := r.Err != nil && !k.failing[what]
	if r.Err != nil {
		k.failing[what] = true
	} else {
		delete(k.failing, what)
	}
	k.mu.Unlock()
	switch {
	case first && r.Lost:
		k.opts.Trouble(fmt.Errorf("cannot write %s: %w; not retrying; drains are not affected", what, r.Err))
	case first:
		k.opts.Trouble(fmt.Errorf("cannot write %s: %w; retrying", what, r.Err))
	}
}

// eventMessage returns the message that creates the Event of a notice. Each namespace has a line of its own: if an admission webhook for one
// namespace hangs, Events in other namespaces do not wait.
func (n *KubernetesNode) eventMessage(about notice) *message {
	what, namespace := "Events", ""
	if about.Pod != "" {
		namespace, _, _ = strings.Cut(about.Pod, "/")
		what = text.Visible("Events about pods in "+namespace, text.Line)
	}
	var object *corev1.Event // the same for all attempts; nil before the first, as the identity may not be known yet
	return &message{line: n.name + "/" + namespace, what: what, deliver: func(ctx context.Context) error {
		return n.write(ctx, func(ctx context.Context, id Identity) error {
			if object == nil {
				object = n.kubernetes.newEvent(about, id.Node)
			}
			_, err := id.Client.CoreV1().Events(object.Namespace).Create(ctx, object, metav1.CreateOptions{})
			return err
		})
	}}
}

// newEvent returns the Event of a notice: about the pod that was evicted or deleted, or about the Node.
func (k *Kubernetes) newEvent(n notice, node string) *corev1.Event {
	e := &corev1.Event{
		Type: corev1.EventTypeNormal, Reason: n.eventReason, Count: 1,
		FirstTimestamp: metav1.NewTime(n.At), LastTimestamp: metav1.NewTime(n.At),
		Source:              corev1.EventSource{Component: k.opts.Source, Host: node},
		ReportingController: k.opts.Source, ReportingInstance: node,
	}
	if severity := n.severity(); severity == Warning || severity == Critical {
		e.Type = corev1.EventTypeWarning
	}
	kind := string(n.Entry.Event.Kind)
	e.Annotations = map[string]string{"node": node, kube.KeyPrefix + "event": n.Entry.Event.ID, kube.KeyPrefix + "kind": kind}
	if n.Pod != "" {
		namespace, name, _ := strings.Cut(n.Pod, "/")
		e.InvolvedObject = corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID(n.PodUID)}
		e.Namespace, e.Message = namespace, text.Visible(n.text, maxMessage)
	} else {
		// Like the kubelet, nth uses the Node's name as the UID. "kubectl describe node" looks for that name, and a node that registers again
		// keeps its Events.
		e.InvolvedObject = corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
		e.Namespace = metav1.NamespaceDefault // of Events about cluster-scoped objects
		e.Message = text.Visible(kind+": "+n.text, maxMessage)
	}
	// Events about one object are created one after another. n.At may be the same for two of them.
	e.Name = recordutil.GenerateEventName(e.InvolvedObject.Name, time.Now().UnixNano())
	return e
}
