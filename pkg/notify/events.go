package notify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientrecord "k8s.io/client-go/tools/record"
	recordutil "k8s.io/client-go/tools/record/util"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

const (
	// maxPodEvents is how many pods of one drain get an Event of their own. The others share one about the Node, so that
	// the number of objects in etcd does not grow with the number of pods.
	maxPodEvents = 50
	// outageTolerated is how long a source may fail before that is worth an Event.
	outageTolerated = 30 * time.Second
	// maxQueue is how many Events wait to be written at most, which is enough for two drains of full nodes.
	maxQueue = 256
	// maxMessage is how many bytes a message may have: as many as events.k8s.io allows.
	maxMessage = 1024
)

// The reasons of Events; where aws-node-termination-handler has such an Event, the reason is the same.
const (
	reasonOver     = "InterruptionOver"
	reasonDraining = "Draining"
	reasonEviction = "PodEviction"
	reasonAlone    = "NodeLeftAlone"
	reasonMonitor  = "MonitorError"
	errorSuffix    = "Error"
)

// actionReasons are the reasons of Events about the end of a step; with errorSuffix if it has failed or run out of time.
var actionReasons = map[string]string{
	string(policy.Cordon):   "Cordon",
	string(policy.Drain):    "CordonAndDrain",
	string(policy.Uncordon): "Uncordon",
}

// eventBuilder makes Events of transitions. It remembers what it needs of the current work and of outages. newEvent completes an
// Event when it is sent.
type eventBuilder struct {
	events        map[string]bool // the IDs of the events that the work is for
	cordoned      bool
	foreignCordon bool // somebody else had cordoned the node
	pods          map[string]bool
	deletions
	unreported []string // pods that were evicted without an Event of their own
	outages    map[event.Kind]time.Time
}

// build returns the Events that a transition is worth.
func (b *eventBuilder) build(t state.Transition, rules policy.Settings) (events []*corev1.Event) {
	add := func(e *corev1.Event) {
		if e != nil {
			events = append(events, e)
		}
	}
	switch t.Kind {
	case state.Announced, state.Changed:
		add(announcement(t, rules))
	case state.ClosedWith:
		if !rules.Ignores(t.Entry) {
			add(normal(t, reasonOver, fmt.Sprintf("%s: %s; nothing to undo", t.Entry.Event.Kind, t.Entry.Ending)))
		}
	case state.Begun:
		if len(b.events) == 0 {
			b.events, b.cordoned, b.foreignCordon, b.pods, b.unreported, b.deletions = map[string]bool{}, false, false, map[string]bool{}, nil, deletions{}
		}
		b.events[t.Entry.Event.ID] = true
	case state.NodeCordoned, state.CordonFound:
		b.cordoned, b.foreignCordon = true, t.Kind == state.CordonFound
		if t.Action == string(policy.Drain) {
			add(normal(t, reasonDraining, fmt.Sprintf("%s; draining it: %s", b.cordonText(), t.Plan)))
		}
	case state.PodHeld:
		b.observe(t)
	case state.PodEvicted, state.PodDeleted:
		b.observe(t)
		add(b.podEvent(t))
	case state.Done, state.Failed, state.RanOut, state.CalledBack, state.LeftAlone:
		if t.Kind != state.Failed || t.Action == string(policy.Uncordon) { // A failed drain goes on.
			delete(b.events, t.Entry.Event.ID)
		}
		add(b.remainingPods(t))
		add(b.stepEnd(t))
	case state.SourceLost, state.SourceBack:
		add(b.sourceOutage(t))
	case state.Missed, state.PutOff, state.PodGone: // The first two are also told as a change or an end.
	}
	return events
}

// normal returns an Event about the Node.
func normal(t state.Transition, reason, message string) *corev1.Event {
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}},
		Type:       corev1.EventTypeNormal, Reason: reason, Message: text.Visible(message, maxMessage), FirstTimestamp: metav1.NewTime(t.At.Round(0)),
	}
	if id := t.Entry.Event.ID; id != "" {
		e.Annotations[drain.KeyPrefix+"event"], e.Annotations[drain.KeyPrefix+"kind"] = id, string(t.Entry.Event.Kind)
	}
	return e
}

func warning(t state.Transition, reason, message string) *corev1.Event {
	e := normal(t, reason, message)
	e.Type = corev1.EventTypeWarning
	return e
}

func announcement(t state.Transition, rules policy.Settings) *corev1.Event {
	reason := t.Entry.Event.Kind.Info().EventReason
	if rules.Ignores(t.Entry) || reason == "" {
		return nil
	}
	if t.Kind == state.Changed {
		return normal(t, reason, "changed: "+t.Plan)
	}
	return normal(t, reason, t.Plan)
}

func (b *eventBuilder) cordonText() string {
	if b.foreignCordon {
		return "the node was already cordoned by someone else"
	}
	return "cordoned the node"
}

// podEvent returns an Event about an evicted pod, or only notes the pod for remainingPods.
func (b *eventBuilder) podEvent(t state.Transition) *corev1.Event {
	if b.pods == nil || b.pods[t.Pod] || t.Pod == "" {
		return nil
	}
	b.pods[t.Pod] = true
	if len(b.pods) > maxPodEvents {
		b.unreported = append(b.unreported, t.Pod)
		return nil
	}
	e := normal(t, reasonEviction, "evicted from node "+t.Node+": "+t.Reason)
	if t.Kind == state.PodDeleted {
		e = warning(t, reasonEviction, "deleted from node "+t.Node+", as it could not be evicted in time: "+t.Reason)
	}
	namespace, name, _ := strings.Cut(t.Pod, "/")
	e.InvolvedObject = corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID(t.PodUID)}
	own := e.Annotations // They win: whoever makes a pod chooses its labels.
	own["node"] = t.Node
	e.Annotations = maps.Clone(t.PodLabels)
	if e.Annotations == nil {
		e.Annotations = map[string]string{}
	}
	maps.Copy(e.Annotations, own)
	return e
}

// remainingPods returns, at the end of a step, one Event about the pods that have none of their own.
func (b *eventBuilder) remainingPods(t state.Transition) *corev1.Event {
	pods := b.unreported
	b.unreported = nil
	if len(pods) == 0 {
		return nil
	}
	slices.Sort(pods)
	return normal(t, reasonEviction, fmt.Sprintf("and %d more pods: %s", len(pods), strings.Join(pods, ", ")))
}

// stepEnd says how a step ended. A canceled step has no Event: another step follows, or the end of nth.
func (b *eventBuilder) stepEnd(t state.Transition) *corev1.Event {
	reason := actionReasons[t.Action]
	took := t.Took.Round(time.Millisecond)
	switch {
	case reason == "" || t.Kind == state.CalledBack:
		return nil
	case t.Kind == state.Failed:
		return warning(t, reason+errorSuffix, fmt.Sprintf("%s after %s: %v; retrying", t.Action, took, t.Err))
	case t.Kind == state.LeftAlone:
		return normal(t, reasonAlone, "the node is left alone, as its annotation "+drain.KeyPrefix+"action asks; its pods are not evicted: "+t.Reason)
	case t.Kind == state.RanOut:
		return warning(t, reason+errorSuffix, fmt.Sprintf("the %s ran out of time after %s: %s", t.Action, took, podsLeft(t.Entry.Result)))
	case t.Action == string(policy.Uncordon) && t.Detail != "":
		return normal(t, reason, "the cordon is left to "+t.Detail+", who still needs it: "+t.Reason)
	case t.Action == string(policy.Uncordon):
		return normal(t, reason, "our cordon is already gone: "+t.Reason)
	case !b.cordoned:
		return normal(t, reasonAlone, "nothing was done to the node, as its annotation asks or it is gone: "+t.Reason)
	case t.Action == string(policy.Cordon):
		return normal(t, reason, b.cordonText()+": "+t.Reason)
	}
	drained := fmt.Sprintf("cordoned and drained after %s: %s", took, podCounts(t.Entry.Result))
	if r := t.Entry.Result; r != nil && r.Deleted > 0 {
		return warning(t, reason, drained+listDeleted(b.deleted))
	}
	return normal(t, reason, drained)
}

func podCounts(r *state.Result) string {
	if r == nil {
		return "what became of the pods is not known"
	}
	return fmt.Sprintf("%s evicted, %d deleted, %d left in place", text.Pods(r.Evicted), r.Deleted, r.Skipped)
}

// podsLeft says which pods a drain left, and what blocked them.
func podsLeft(r *state.Result) string {
	if r == nil || len(r.Left) == 0 {
		return podCounts(r)
	}
	left := slices.Clone(r.Left)
	for i, pod := range left {
		if by := r.HeldBy[pod]; by != "" {
			left[i] += " (held by " + by + ")"
		}
	}
	return fmt.Sprintf("%s; %d left: %s", podCounts(r), len(left), strings.Join(left, ", "))
}

// sourceOutage reports an outage once, if it lasts. It is called for each failed poll, so it needs no clock.
func (b *eventBuilder) sourceOutage(t state.Transition) *corev1.Event {
	kind := t.Entry.Event.Kind
	if t.Kind == state.SourceBack {
		delete(b.outages, kind)
		return nil
	}
	if b.outages == nil {
		b.outages = map[event.Kind]time.Time{}
	}
	since, known := b.outages[kind]
	switch {
	case !known:
		b.outages[kind] = t.At
	case !since.IsZero() && t.At.Sub(since) >= outageTolerated:
		b.outages[kind] = time.Time{} // reported
		return warning(t, reasonMonitor, fmt.Sprintf("cannot read %s since %s: %v; keeping last known state",
			kind, since.UTC().Format(time.RFC3339), t.Err))
	}
	return nil
}

// newCorrelator returns client-go's correlator, which turns a repetition into a count on the existing Event and many similar
// Events into one, and limits each object and reason to 25 Events and then one in five minutes. client-go's broadcaster is not
// used, as it can neither be flushed nor wait for a cordon.
func newCorrelator() *clientrecord.EventCorrelator {
	return clientrecord.NewEventCorrelatorWithOptions(clientrecord.CorrelatorOptions{
		LRUCacheSize: maxQueue, // the default is for a program that watches a whole cluster
		SpamKeyFunc: func(e *corev1.Event) string {
			o := e.InvolvedObject
			return strings.Join([]string{o.Kind, o.Namespace, o.Name, string(o.UID), e.Reason}, "/")
		},
	})
}

// enqueue appends Events. In an outage so long that the queue is full, the oldest are dropped.
func (k *Kubernetes) enqueue(events []*corev1.Event) {
	k.queue = append(k.queue, events...)
	if over := len(k.queue) - maxQueue; over > 0 {
		k.queue = slices.Delete(k.queue, 0, over)
		k.dropped(over)
	}
}

func (k *Kubernetes) dropped(events int) {
	if k.opts.Dropped != nil {
		k.opts.Dropped(events)
	}
}

// sendEvent sends the Event that is under way, or else the first one of the queue.
func (k *Kubernetes) sendEvent(ctx context.Context, id Identity) error {
	if k.sending == nil {
		draft := k.dequeue()
		if draft == nil {
			return nil
		}
		if k.sending = k.correlate(k.newEvent(ctx, draft, id.Node)); k.sending == nil {
			return nil
		}
	}
	a := eventArea
	if k.sending.Event.InvolvedObject.Kind == "Pod" {
		a = podEventArea
	}
	written, err := k.putEvent(ctx, id.Client)
	v, err := k.handleResult(ctx, a, err)
	switch {
	case v == retryable:
		return err
	case v == accepted && written != nil && written.Name != "": // nothing comes back for one that existed already
		k.correlator.UpdateState(written)
	case v == forbidden && a == eventArea:
		k.muteEvents()
	}
	k.sending = nil
	return nil
}

// correlate returns nil for an Event that is over the limit, or cannot be encoded.
func (k *Kubernetes) correlate(e *corev1.Event) *clientrecord.EventCorrelateResult {
	if result, err := k.correlator.EventCorrelate(e); err == nil && !result.Skip {
		return result
	}
	return nil
}

// dequeue returns nil if the queue is empty.
func (k *Kubernetes) dequeue() *corev1.Event {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.queue) == 0 {
		return nil
	}
	first := k.queue[0]
	k.queue[0] = nil // for the garbage collector
	k.queue = k.queue[1:]
	return first
}

// muteEvents gives up on Events for a while.
func (k *Kubernetes) muteEvents() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropped(len(k.queue) + 1) // and the one that was refused
	k.queue, k.eventsMuted = nil, time.Now().Add(refusedFor)
}

// putEvent creates the Event, or increments the count of an existing one. That may have expired in the API server
// meanwhile; then it is created.
func (k *Kubernetes) putEvent(ctx context.Context, client kubernetes.Interface) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ev := k.sending.Event
	events := client.CoreV1().Events(ev.Namespace)
	if ev.Count > 1 {
		patched, err := events.Patch(ctx, ev.Name, types.StrategicMergePatchType, k.sending.Patch, metav1.PatchOptions{})
		if !recordutil.IsKeyNotFoundError(err) {
			return patched, err
		}
	}
	ev.ResourceVersion = ""
	return events.Create(ctx, ev, metav1.CreateOptions{})
}

// newEvent completes what a builder has made. What is not about a pod is about the Node.
func (k *Kubernetes) newEvent(ctx context.Context, e *corev1.Event, node string) *corev1.Event {
	annotations := map[string]string{}
	e.Namespace = e.InvolvedObject.Namespace
	if e.InvolvedObject.Kind == "" {
		e.InvolvedObject = nodeReference(node)
		e.Namespace = metav1.NamespaceDefault // of Events about cluster-scoped objects
		if k.opts.Describe != nil {
			ctx, cancel := context.WithTimeout(ctx, describeTimeout)
			maps.Copy(annotations, k.opts.Describe(ctx))
			cancel()
		}
	}
	maps.Copy(annotations, e.Annotations)
	maps.Copy(annotations, k.opts.Annotations)
	e.Annotations = annotations
	k.eventNumber++
	e.Name = recordutil.GenerateEventName(e.InvolvedObject.Name, e.FirstTimestamp.UnixNano()+k.eventNumber)
	e.Source, e.ReportingController, e.ReportingInstance = corev1.EventSource{Component: k.opts.Source, Host: node}, k.opts.Source, node
	e.LastTimestamp, e.Count = e.FirstTimestamp, 1
	return e
}
