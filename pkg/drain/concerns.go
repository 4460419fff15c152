package drain

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	kubectl "k8s.io/kubectl/pkg/drain"
)

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
