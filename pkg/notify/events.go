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
)

const (
	// maxPodEvents is how many pods of one drain get an Event of their own. The others share one about the Node, so that
	// the number of objects in etcd does not grow with the number of pods.
	maxPodEvents = 50
	// outageTolerated is how long a source may fail before that is worth an Event.
	outageTolerated = 30 * time.Second
	// maxQueue is how many Events wait to be written at most: those of two full drains, and some.
	maxQueue = 256
	// maxMessage is how many bytes a message may have: as many as events.k8s.io allows.
	maxMessage = 1024
)

// The reasons of Events, as in aws-node-termination-handler if it has them, too.
const (
	reasonOver     = "InterruptionOver"
	reasonDraining = "Draining"
	reasonEviction = "PodEviction"
	reasonAlone    = "NodeLeftAlone"
	reasonMonitor  = "MonitorError"
	errorSuffix    = "Error"
)

// actionReasons are the reasons of Events about a step that has ended; with errorSuffix if it has not ended well.
var actionReasons = map[string]string{
	string(policy.Cordon):   "Cordon",
	string(policy.Drain):    "CordonAndDrain",
	string(policy.Uncordon): "Uncordon",
}

// eventDraft is what an Event is made of. It is about the Node or, if pod is set, about a pod.
type eventDraft struct {
	at                     time.Time
	warning                bool
	reason, message        string
	annotations            map[string]string
	namespace, pod, podUID string
}

// eventBuilder turns happenings into Events. It remembers what it needs of the current work and of outages.
type eventBuilder struct {
	events        map[string]bool // the IDs of those that the work is for
	cordoned      bool
	foreignCordon bool // somebody else had cordoned the node
	pods          map[string]bool
	unreported    []string // pods that were evicted without an Event of their own
	outages       map[event.Kind]time.Time
}

// build returns the Events that a happening is worth.
func (b *eventBuilder) build(h state.Transition, rules policy.Settings) []eventDraft {
	switch h.Kind {
	case state.Announced, state.Changed:
		return announcement(h, rules)
	case state.ClosedWith:
		if rules.Ignores(h.Entry) {
			return nil
		}
		return []eventDraft{nodeEvent(h, false, reasonOver, fmt.Sprintf("%s: %s; nothing to undo", h.Entry.Event.Kind, h.Entry.Ending))}
	case state.Begun:
		if len(b.events) == 0 {
			b.events, b.cordoned, b.foreignCordon, b.pods, b.unreported = map[string]bool{}, false, false, map[string]bool{}, nil
		}
		b.events[h.Entry.Event.ID] = true
	case state.NodeCordoned, state.CordonFound:
		b.cordoned, b.foreignCordon = true, h.Kind == state.CordonFound
		if h.Action == string(policy.Drain) {
			return []eventDraft{nodeEvent(h, false, reasonDraining, fmt.Sprintf("%s; draining it: %s", b.cordonText(), h.Plan))}
		}
	case state.PodEvicted, state.PodDeleted:
		return b.podEvent(h)
	case state.Done, state.Failed, state.RanOut, state.CalledBack, state.LeftAlone:
		if h.Kind != state.Failed || h.Action == string(policy.Uncordon) { // A failed drain goes on.
			delete(b.events, h.Entry.Event.ID)
		}
		return append(b.remainingPods(h), b.stepEnd(h)...)
	case state.SourceLost, state.SourceBack:
		return b.sourceOutage(h)
	case state.Missed, state.PutOff, state.PodHeld, state.PodGone: // The first two are also told as a change or an end.
	}
	return nil
}

func nodeEvent(h state.Transition, warning bool, reason, message string) eventDraft {
	d := eventDraft{at: h.At, warning: warning, reason: reason, message: truncate(message)}
	if id := h.Entry.Event.ID; id != "" {
		d.annotations = map[string]string{drain.KeyPrefix + "event": id, drain.KeyPrefix + "kind": string(h.Entry.Event.Kind)}
	}
	return d
}

func announcement(h state.Transition, rules policy.Settings) []eventDraft {
	reason := h.Entry.Event.Kind.Info().EventReason
	if rules.Ignores(h.Entry) || reason == "" {
		return nil
	}
	if h.Kind == state.Changed {
		return []eventDraft{nodeEvent(h, false, reason, "changed: "+h.Plan)}
	}
	return []eventDraft{nodeEvent(h, false, reason, h.Plan)}
}

func (b *eventBuilder) cordonText() string {
	if b.foreignCordon {
		return "the node was already cordoned by someone else"
	}
	return "cordoned the node"
}

// podEvent returns an Event about an evicted pod, or counts it.
func (b *eventBuilder) podEvent(h state.Transition) []eventDraft {
	if b.pods == nil || b.pods[h.Pod] || h.Pod == "" {
		return nil
	}
	b.pods[h.Pod] = true
	if len(b.pods) > maxPodEvents {
		b.unreported = append(b.unreported, h.Pod)
		return nil
	}
	d := nodeEvent(h, false, reasonEviction, "evicted from node "+h.Node+": "+h.Reason)
	if h.Kind == state.PodDeleted {
		d.warning, d.message = true, truncate("deleted from node "+h.Node+", as it could not be evicted in time: "+h.Reason)
	}
	d.namespace, d.pod, _ = strings.Cut(h.Pod, "/")
	d.podUID = h.PodUID
	maps.Copy(d.annotations, h.PodLabels)
	d.annotations["node"] = h.Node
	return []eventDraft{d}
}

// remainingPods returns, at the end of a step, one Event about the pods that were only counted.
func (b *eventBuilder) remainingPods(h state.Transition) []eventDraft {
	pods := b.unreported
	b.unreported = nil
	if len(pods) == 0 {
		return nil
	}
	slices.Sort(pods)
	return []eventDraft{nodeEvent(h, false, reasonEviction, fmt.Sprintf("and %d more pods: %s", len(pods), strings.Join(pods, ", ")))}
}

// stepEnd says how a step ended. One that was canceled is followed by another one, or by the end of nth.
func (b *eventBuilder) stepEnd(h state.Transition) []eventDraft {
	reason := actionReasons[h.Action]
	took := h.Took.Round(time.Millisecond)
	switch {
	case reason == "" || h.Kind == state.CalledBack:
		return nil
	case h.Kind == state.Failed:
		return []eventDraft{nodeEvent(h, true, reason+errorSuffix, fmt.Sprintf("%s after %s: %v; retrying", h.Action, took, h.Err))}
	case h.Kind == state.LeftAlone:
		return []eventDraft{nodeEvent(h, false, reasonAlone, "the node is left alone, as its annotation "+drain.KeyPrefix+"action asks; its pods are not evicted: "+h.Reason)}
	case h.Kind == state.RanOut:
		return []eventDraft{nodeEvent(h, true, reason+errorSuffix, fmt.Sprintf("the %s ran out of time after %s: %s", h.Action, took, podsLeft(h.Entry.Result)))}
	case h.Action == string(policy.Uncordon) && h.Detail != "":
		return []eventDraft{nodeEvent(h, false, reason, "the cordon is left to "+h.Detail+", who still needs it: "+h.Reason)}
	case h.Action == string(policy.Uncordon):
		return []eventDraft{nodeEvent(h, false, reason, "our cordon is already gone: "+h.Reason)}
	case !b.cordoned:
		return []eventDraft{nodeEvent(h, false, reasonAlone, "nothing was done to the node, as its annotation asks or it is gone: "+h.Reason)}
	case h.Action == string(policy.Cordon):
		return []eventDraft{nodeEvent(h, false, reason, b.cordonText()+": "+h.Reason)}
	}
	return []eventDraft{nodeEvent(h, false, reason, fmt.Sprintf("cordoned and drained after %s: %s", took, podCounts(h.Entry.Result)))}
}

func podCounts(r *state.Result) string {
	if r == nil {
		return "what became of the pods is not known"
	}
	return fmt.Sprintf("%d pods evicted, %d deleted, %d left in place", r.Evicted, r.Deleted, r.Skipped)
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

// sourceOutage reports once an outage that lasts. It hears of each failed poll, so it needs no clock.
func (b *eventBuilder) sourceOutage(h state.Transition) []eventDraft {
	kind := h.Entry.Event.Kind
	if h.Kind == state.SourceBack {
		delete(b.outages, kind)
		return nil
	}
	if b.outages == nil {
		b.outages = map[event.Kind]time.Time{}
	}
	since, known := b.outages[kind]
	switch {
	case !known:
		b.outages[kind] = h.At
	case !since.IsZero() && h.At.Sub(since) >= outageTolerated:
		b.outages[kind] = time.Time{} // reported
		return []eventDraft{nodeEvent(h, true, reasonMonitor, fmt.Sprintf("cannot read %s since %s: %v; keeping last known state",
			kind, since.UTC().Format(time.RFC3339), h.Err))}
	}
	return nil
}

func truncate(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	const end = "…"
	return strings.ToValidUTF8(message[:maxMessage-len(end)], "") + end
}

// newCorrelator returns client-go's correlator, which turns a repetition into a count on the existing Event, many similar
// ones into one, and limits each object and reason to 25 Events and then one in five minutes. Its broadcaster is not
// used, as it can neither be flushed nor be told to wait for a cordon.
func newCorrelator() *clientrecord.EventCorrelator {
	return clientrecord.NewEventCorrelatorWithOptions(clientrecord.CorrelatorOptions{
		LRUCacheSize: maxQueue, // the default is for a program that watches a whole cluster
		SpamKeyFunc: func(e *corev1.Event) string {
			o := e.InvolvedObject
			return strings.Join([]string{o.Kind, o.Namespace, o.Name, string(o.UID), e.Reason}, "/")
		},
	})
}

// correlatedEvent is the Event that is being sent, and what the correlator made of it.
type correlatedEvent struct {
	*clientrecord.EventCorrelateResult
	area area
}

// enqueue appends drafts. In an outage so long that the queue is full, the oldest are dropped.
func (k *Kubernetes) enqueue(drafts []eventDraft) {
	k.queue = append(k.queue, drafts...)
	if over := len(k.queue) - maxQueue; over > 0 {
		k.queue = append(k.queue[:0], k.queue[over:]...)
		k.dropped(over)
	}
}

func (k *Kubernetes) dropped(events int) {
	if k.opts.Dropped != nil && events > 0 {
		k.opts.Dropped(events)
	}
}

// sendEvent sends the Event that is under way, or makes one of the first draft.
func (k *Kubernetes) sendEvent(ctx context.Context, id Identity) error {
	if k.sending == nil {
		draft, ok := k.dequeue()
		if !ok {
			return nil
		}
		if k.sending = k.correlate(k.newEvent(ctx, draft, id.Node)); k.sending == nil {
			return nil
		}
	}
	written, err := k.putEvent(ctx, id.Client)
	v, err := k.handleResult(ctx, k.sending.area, err)
	switch {
	case v == retryable:
		return err
	case v == accepted && written != nil && written.Name != "": // nothing comes back for one that existed already
		k.correlator.UpdateState(written)
	case v == forbidden && k.sending.area == eventArea:
		k.muteEvents()
	}
	k.sending = nil
	return nil
}

// correlate returns nil for an Event that is one too many, or cannot be encoded.
func (k *Kubernetes) correlate(ev *corev1.Event) *correlatedEvent {
	result, err := k.correlator.EventCorrelate(ev)
	if err != nil || result.Skip {
		return nil
	}
	if ev.InvolvedObject.Kind == "Pod" {
		return &correlatedEvent{result, podEventArea}
	}
	return &correlatedEvent{result, eventArea}
}

func (k *Kubernetes) dequeue() (eventDraft, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.queue) == 0 {
		return eventDraft{}, false
	}
	draft := k.queue[0]
	k.queue = k.queue[1:]
	if len(k.queue) == 0 {
		k.queue = nil // frees the array
	}
	return draft, true
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

func (k *Kubernetes) newEvent(ctx context.Context, draft eventDraft, node string) *corev1.Event {
	object, annotations := nodeReference(node), map[string]string{}
	namespace := metav1.NamespaceDefault // of Events about cluster-scoped objects
	if draft.pod != "" {
		namespace = draft.namespace
		object = corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: draft.pod, UID: types.UID(draft.podUID)}
	} else if k.opts.Describe != nil {
		ctx, cancel := context.WithTimeout(ctx, describeTimeout)
		maps.Copy(annotations, k.opts.Describe(ctx))
		cancel()
	}
	maps.Copy(annotations, draft.annotations)
	maps.Copy(annotations, k.opts.Annotations)
	severity := corev1.EventTypeNormal
	if draft.warning {
		severity = corev1.EventTypeWarning
	}
	at := metav1.NewTime(draft.at.Round(0))
	k.eventNumber++
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      recordutil.GenerateEventName(object.Name, draft.at.UnixNano()+k.eventNumber),
			Namespace: namespace, Annotations: annotations,
		},
		InvolvedObject: object, Type: severity, Reason: draft.reason, Message: draft.message,
		Source: corev1.EventSource{Component: k.opts.Source, Host: node}, ReportingController: k.opts.Source, ReportingInstance: node,
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}
}
