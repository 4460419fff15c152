package notify

import (
	"context"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientrecord "k8s.io/client-go/tools/record"
	recordutil "k8s.io/client-go/tools/record/util"
)

// queueLimit is how many Events wait to be written at most: those of two full drains, and some.
const queueLimit = 256

// newCorrelator returns client-go's correlator, which turns a repetition into a count on the Event that is there, many
// alike into one, and limits each object and reason to 25 Events and then one in five minutes. Its broadcaster is not
// used, as it can neither be flushed nor be told to wait for a cordon.
func newCorrelator() *clientrecord.EventCorrelator {
	return clientrecord.NewEventCorrelatorWithOptions(clientrecord.CorrelatorOptions{
		LRUCacheSize: queueLimit, // its own is for a program that watches a whole cluster
		SpamKeyFunc: func(e *corev1.Event) string {
			o := e.InvolvedObject
			return strings.Join([]string{o.Kind, o.Namespace, o.Name, string(o.UID), e.Reason}, "/")
		},
	})
}

// correlated is an Event on its way, and what the correlator made of it.
type correlated struct {
	*clientrecord.EventCorrelateResult
	area area
}

// enqueue appends notices. In an outage so long that the queue is full, the oldest are dropped.
func (k *Kubernetes) enqueue(notices []notice) {
	k.queue = append(k.queue, notices...)
	if over := len(k.queue) - queueLimit; over > 0 {
		k.queue = append(k.queue[:0], k.queue[over:]...)
		k.dropped(over)
	}
}

// dropped tells that Events are not going to be written.
func (k *Kubernetes) dropped(events int) {
	if k.opts.Dropped != nil && events > 0 {
		k.opts.Dropped(events)
	}
}

// sendEvent writes the Event under way, or makes one of the first notice.
func (k *Kubernetes) sendEvent(ctx context.Context, id Identity) error {
	if k.sending == nil {
		n, found := k.take()
		if !found {
			return nil
		}
		if k.sending = k.correlate(k.eventOf(ctx, n, id.Node)); k.sending == nil {
			return nil
		}
	}
	there, err := k.put(ctx, id.Client)
	v, err := k.settle(ctx, k.sending.area, err)
	switch {
	case v == unanswered:
		return err
	case v == accepted && there != nil && there.Name != "": // nothing comes back of one that was there already
		k.correlator.UpdateState(there)
	case v == forbidden && k.sending.area == eventArea:
		k.mute()
	}
	k.sending = nil
	return nil
}

// correlate returns nil for an Event that is one of too many, or cannot be encoded.
func (k *Kubernetes) correlate(ev *corev1.Event) *correlated {
	made, err := k.correlator.EventCorrelate(ev)
	if err != nil || made.Skip {
		return nil
	}
	if ev.InvolvedObject.Kind == "Pod" {
		return &correlated{made, podEventArea}
	}
	return &correlated{made, eventArea}
}

// take takes the first notice out of the queue.
func (k *Kubernetes) take() (notice, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.queue) == 0 {
		return notice{}, false
	}
	n := k.queue[0]
	k.queue = k.queue[1:]
	if len(k.queue) == 0 {
		k.queue = nil // and the array with it
	}
	return n, true
}

// mute gives up on Events for a while.
func (k *Kubernetes) mute() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropped(len(k.queue) + 1) // and the one that was refused
	k.queue, k.muted = nil, time.Now().Add(refusedFor)
}

// put creates the Event under way, or counts one up that is there. An Event that is counted up may have been forgotten
// by the API server meanwhile; then it is created.
func (k *Kubernetes) put(ctx context.Context, client kubernetes.Interface) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	ev := k.sending.Event
	events := client.CoreV1().Events(ev.Namespace)
	if ev.Count > 1 {
		there, err := events.Patch(ctx, ev.Name, types.StrategicMergePatchType, k.sending.Patch, metav1.PatchOptions{})
		if !recordutil.IsKeyNotFoundError(err) {
			return there, err
		}
	}
	ev.ResourceVersion = ""
	return events.Create(ctx, ev, metav1.CreateOptions{})
}

// eventOf makes an Event of a notice.
func (k *Kubernetes) eventOf(ctx context.Context, n notice, node string) *corev1.Event {
	about, annotations := reference(node), map[string]string{}
	namespace := metav1.NamespaceDefault // of Events about what has none
	if n.pod != "" {
		namespace = n.namespace
		about = corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: n.namespace, Name: n.pod, UID: types.UID(n.podUID)}
	} else if k.opts.Describe != nil {
		ctx, cancel := context.WithTimeout(ctx, describeTime)
		maps.Copy(annotations, k.opts.Describe(ctx))
		cancel()
	}
	maps.Copy(annotations, n.annotations)
	maps.Copy(annotations, k.opts.Annotations)
	at := metav1.NewTime(n.at.Round(0))
	k.named++
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      recordutil.GenerateEventName(about.Name, n.at.UnixNano()+k.named),
			Namespace: namespace, Annotations: annotations,
		},
		InvolvedObject: about, Type: kindOf(n.warning), Reason: n.reason, Message: n.message,
		Source: corev1.EventSource{Component: k.opts.Source, Host: node}, ReportingController: k.opts.Source, ReportingInstance: node,
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}
}
