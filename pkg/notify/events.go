package notify

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	recordutil "k8s.io/client-go/tools/record/util"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

// maxMessage is how many bytes the message of an Event or a condition may have: as many as events.k8s.io allows.
const maxMessage = 1024

// eventMessage returns the message that creates the Event of a notice. Each namespace has a line: if its admission webhook hangs, Events of
// other namespaces and of the Node do not wait.
func (k *Kubernetes) eventMessage(n notice) *message {
	what, namespace := "Events", ""
	if aboutPod(n) {
		namespace, _, _ = strings.Cut(n.Pod, "/")
		what = text.Visible("Events about pods in "+namespace, text.Line)
	}
	var event *corev1.Event // that all attempts send; nil before the first
	return &message{line: namespace, event: what, gate: &k.gate, deliver: func(ctx context.Context) error {
		return k.write(ctx, false, func(id Identity) error {
			if event == nil {
				event = k.newEvent(n, id.Node)
			}
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			_, err := id.Client.CoreV1().Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
			return err
		})
	}}
}

// newEvent returns the Event of a notice: about the pod that was evicted or deleted, or about the Node.
func (k *Kubernetes) newEvent(n notice, node string) *corev1.Event {
	e := &corev1.Event{
		Type: corev1.EventTypeNormal, Reason: n.reason, Count: 1,
		FirstTimestamp: metav1.NewTime(n.At.Round(0)), LastTimestamp: metav1.NewTime(n.At.Round(0)),
		Source:              corev1.EventSource{Component: k.opts.Source, Host: node},
		ReportingController: k.opts.Source, ReportingInstance: node,
	}
	if n.severity == Warning || n.severity == Critical {
		e.Type = corev1.EventTypeWarning
	}
	kind := string(n.Entry.Event.Kind)
	e.Annotations = map[string]string{"node": node, kube.KeyPrefix + "event": n.Entry.Event.ID, kube.KeyPrefix + "kind": kind}
	if aboutPod(n) {
		namespace, name, _ := strings.Cut(n.Pod, "/")
		e.InvolvedObject = corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: types.UID(n.PodUID)}
		e.Namespace, e.Message = namespace, text.Visible(n.text, maxMessage)
	} else {
		// Like the kubelet, nth uses the Node's name as the UID: "kubectl describe node" looks for that, and a node that registers again
		// keeps its history.
		e.InvolvedObject = corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
		e.Namespace = metav1.NamespaceDefault // of Events about cluster-scoped objects
		e.Message = text.Visible(kind+": "+n.text, maxMessage)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.eventNumber++
	e.Name = recordutil.GenerateEventName(e.InvolvedObject.Name, e.FirstTimestamp.UnixNano()+k.eventNumber)
	return e
}

// aboutPod reports whether a notice is about a pod, and not about the Node.
func aboutPod(n notice) bool { return n.Kind == state.PodEvicted || n.Kind == state.PodDeleted }
