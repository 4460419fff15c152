package evict

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	kubectl "k8s.io/kubectl/pkg/drain"

	"github.com/nth-project/nth/pkg/loop"
)

// concerns reports whether a drain removes a pod, by kubectl's filters: mirror pods stay, finished pods go, and pods that a setting protects
// stay. Unlike with kubectl, a DaemonSet's pods stay even if they have finished. Their controller would replace them without end, since a
// kubelet that shuts down fails each replacement, too. The kind counts in any API group: OpenKruise, for example, has DaemonSets of its own.
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

// inMemory is a client that knows one pod. It answers the only request that kubectl's filters make: the list of the node's pods. If a later
// version of kubectl makes other requests, the nil interfaces panic in the tests.
type inMemory struct {
	kubernetes.Interface
	coreclient.CoreV1Interface
	coreclient.PodInterface
	pod *corev1.Pod
}

func (m inMemory) CoreV1() coreclient.CoreV1Interface  { return m }
func (m inMemory) Pods(string) coreclient.PodInterface { return m }

// List answers the filters' only request.
func (m inMemory) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	return &corev1.PodList{Items: []corev1.Pod{*m.pod}}, nil
}

// Stays reports whether a pod need not go under these terms: a drain does not concern it, its annotation protects it, or it came after Terms.Since.
func (o Options) Stays(pod *corev1.Pod, terms Terms) bool {
	return !o.concerns(pod) || o.staysByAnnotation(pod, terms) || cameAfter(pod, terms.Since)
}

// The annotations of Options.RespectDoNotDisrupt.
const (
	karpenterAnnotation  = "karpenter.sh/do-not-disrupt"
	autoscalerAnnotation = "cluster-autoscaler.kubernetes.io/safe-to-evict"
)

// when returns the value of Annotation. Without it, and with Options.RespectDoNotDisrupt, a pod that Karpenter or Cluster Autoscaler may not
// disrupt counts as one with AtDeadline. "" means at any time. Karpenter's annotation may also be a duration after the pod's start; nth
// ignores that.
func (o Options) when(pod *corev1.Pod) string {
	when, found := pod.Annotations[Annotation]
	if !found && o.RespectDoNotDisrupt &&
		(pod.Annotations[karpenterAnnotation] == "true" || pod.Annotations[autoscalerAnnotation] == "false") {
		return AtDeadline
	}
	return when
}

// staysByAnnotation reports whether an annotation lets the pod stay for good. Never does, and AtDeadline in a drain without a deadline.
func (o Options) staysByAnnotation(pod *corev1.Pod, terms Terms) bool {
	hasDeadline := !terms.Hard.IsZero() || !terms.Soft.IsZero()
	return o.when(pod) == Never || o.waitsForDeadline(pod) && !hasDeadline
}

// waitsForDeadline reports whether an annotation lets the pod run until limits.evictBy. A pod that has finished does not run.
func (o Options) waitsForDeadline(pod *corev1.Pod) bool {
	return o.when(pod) == AtDeadline && !finished(pod)
}

// finished reports whether the pod's containers have ended for good.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// critical reports whether a pod is one that other pods may need until they are gone, such as cluster DNS.
func critical(pod *corev1.Pod) bool {
	return pod.Spec.PriorityClassName == "system-node-critical" || pod.Spec.PriorityClassName == "system-cluster-critical"
}

// lastRank is the rank of Options.Last.
const lastRank = 2

// rank orders evictions: pods of a higher rank wait for those of a lower one.
func (o Options) rank(pod *corev1.Pod) int {
	switch {
	case o.Last != "" && Name(pod) == o.Last:
		return lastRank
	case critical(pod):
		return 1
	}
	return 0
}

// grace returns the grace period that the pod should get: Options.GracePeriod, or else the pod's own. It is a second at least, so that a pod
// without a grace is also evicted before the deadline.
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

// seconds converts a grace period that the API server gives in seconds. It is bounded by loop.Forever, so that it does not overflow a Duration. A
// negative one counts as 1, as in the API server (BeforeDelete in pkg/registry/rest/delete.go of k8s.io/apiserver).
func seconds(n int64) time.Duration {
	if n < 0 {
		n = 1
	}
	return time.Duration(min(n, int64(loop.Forever/time.Second))) * time.Second
}

// cameAfter reports whether a pod was created, or bound to the node, after the time since. It is false if since is zero.
func cameAfter(pod *corev1.Pod, since time.Time) bool {
	came := pod.CreationTimestamp.Time
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(came) {
			came = c.LastTransitionTime.Time
		}
	}
	return !since.IsZero() && came.After(since)
}

// Going lists the node's pods once, from the API server's cache. It returns the pods that have to go under these terms, and how many stay. A dry
// run uses it.
func (e *Evictor) Going(ctx context.Context, terms Terms) (going []corev1.Pod, staying int, err error) {
	list, err := e.listPods(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, 0, fmt.Errorf("listing the pods of node %q: %w", e.name, err)
	}
	all := len(list.Items)
	going = slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return e.opts.Stays(&pod, terms) })
	return going, all - len(going), nil
}
