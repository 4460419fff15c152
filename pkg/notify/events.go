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

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

const (
	// maxEvents is how many Events wait to be written at most, which is enough for two drains of full nodes.
	maxEvents = 256
	// eventInterval is the pause between two Events, so that those of a full node reach etcd over seconds.
	eventInterval = 50 * time.Millisecond
	// maxMessage is how many bytes the message of an Event or a condition may have: as many as events.k8s.io allows.
	maxMessage = 1024
	// describeTimeout is how long an Event waits for the machine's description.
	describeTimeout = 3 * time.Second
)

// eventMessage is a notice for an Event about the Node or one of its pods.
type eventMessage struct {
	kubernetes *Kubernetes
	notice     notice
	sending    *clientrecord.EventCorrelateResult // the Event that all attempts send; nil before the first attempt
}

// deliver creates the Event, or increments the count of an existing one. The queue of Events calls it for each attempt, and judges the error
// as that of message.deliver.
func (m *eventMessage) deliver(ctx context.Context) error {
	k := m.kubernetes
	if time.Now().Before(k.mutedUntil(eventArea)) {
		return refusedError{"Events are refused"}
	}
	a := eventArea
	if aboutPod(m.notice) {
		a = podEventArea
	}
	return k.write(ctx, a, func(id Identity) error {
		if m.sending == nil {
			result, err := k.correlator.EventCorrelate(k.newEvent(ctx, m.notice, id.Node))
			if err != nil || result.Skip {
				return errNothing // The correlator allows no more of these Events now.
			}
			m.sending = result
		}
		written, err := m.put(ctx, id.Client)
		if err == nil && written.Name != "" { // An answer without a name is not an Event.
			k.correlator.UpdateState(written)
		}
		return err
	})
}

// put sends the Event, and returns what the API server has then. An Event whose count grows may have expired in the API server: then put
// creates it.
func (m *eventMessage) put(ctx context.Context, client kubernetes.Interface) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	event := m.sending.Event
	events := client.CoreV1().Events(event.Namespace)
	if event.Count > 1 {
		patched, err := events.Patch(ctx, event.Name, types.StrategicMergePatchType, m.sending.Patch, metav1.PatchOptions{})
		if !recordutil.IsKeyNotFoundError(err) {
			return patched, err
		}
	}
	event.ResourceVersion = "" // The API server refuses an object with one.
	return events.Create(ctx, event, metav1.CreateOptions{})
}

// newCorrelator returns client-go's correlator. It turns a repetition into a count on the existing Event, and many similar Events into one.
// It limits each object and reason to 25 Events, and then one in five minutes. client-go's broadcaster does not do: it can neither be flushed
// nor wait for a cordon.
func newCorrelator() *clientrecord.EventCorrelator {
	return clientrecord.NewEventCorrelatorWithOptions(clientrecord.CorrelatorOptions{
		LRUCacheSize: maxEvents, // the default is for a program that watches a whole cluster
		SpamKeyFunc: func(e *corev1.Event) string {
			o := e.InvolvedObject
			return strings.Join([]string{o.Kind, o.Namespace, o.Name, string(o.UID), e.Reason}, "/")
		},
	})
}

// newEvent returns the Event of a notice: about the pod that was evicted or deleted, or about the Node.
func (k *Kubernetes) newEvent(ctx context.Context, n notice, node string) *corev1.Event {
	e := &corev1.Event{
		Type: corev1.EventTypeNormal, Reason: n.reason, Message: n.text, Count: 1,
		FirstTimestamp: metav1.NewTime(n.At.Round(0)), LastTimestamp: metav1.NewTime(n.At.Round(0)),
		Source:              corev1.EventSource{Component: k.opts.Source, Host: node},
		ReportingController: k.opts.Source, ReportingInstance: node,
	}
	if n.severity == Warning || n.severity == Critical {
		e.Type = corev1.EventTypeWarning
	}
	kind := string(n.Entry.Event.Kind)
	own := map[string]string{} // These annotations replace equal ones of a pod's labels, which its author chooses.
	if id := n.Entry.Event.ID; id != "" {
		own[kube.KeyPrefix+"event"], own[kube.KeyPrefix+"kind"] = id, kind
	}
	e.Annotations = map[string]string{}
	if aboutPod(n) {
		namespace, name, _ := strings.Cut(n.Pod, "/")
		e.InvolvedObject = corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID(n.PodUID)}
		e.Namespace = namespace
		maps.Copy(e.Annotations, n.PodLabels)
		own["node"] = n.Node
	} else {
		e.Message = kind + ": " + e.Message
		// Like the kubelet, nth uses the Node's name as the UID: "kubectl describe node" looks for that, and a node that registers again
		// keeps its history.
		e.InvolvedObject = corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
		e.Namespace = metav1.NamespaceDefault // of Events about cluster-scoped objects
		limited, cancel := context.WithTimeout(ctx, describeTimeout)
		maps.Copy(e.Annotations, k.opts.Machine(limited).annotations())
		cancel()
	}
	maps.Copy(e.Annotations, own)
	e.Message = text.Visible(e.Message, maxMessage)
	k.eventNumber++ // It makes the names of Events unique.
	e.Name = recordutil.GenerateEventName(e.InvolvedObject.Name, e.FirstTimestamp.UnixNano()+k.eventNumber)
	return e
}

// aboutPod reports whether a notice is about a pod, and not about the Node.
func aboutPod(n notice) bool { return n.Kind == state.PodEvicted || n.Kind == state.PodDeleted }
