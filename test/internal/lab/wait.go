package lab

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Patience bounds every wait of the lab: more than the two minutes that EC2
// leaves after a notice, so that what it allows is never judged too early, and
// what a linter of packages takes on a busy host.
const Patience = 5 * time.Minute

// Await waits until condition is true, which what describes, and fails the test
// if that does not come. It is for what cannot be watched.
func Await(t TB, what string, condition func() bool) {
	t.Helper()
	for limit := time.Now().Add(Patience); !condition(); time.Sleep(10 * time.Millisecond) {
		if t.Context().Err() != nil || time.Now().After(limit) {
			t.Fatalf("waiting until %s: it does not come", what)
		}
	}
}

// WaitFor waits until the Node is as condition wants it, and fails the test if
// it does not get there. what completes "waiting until the node is".
func (n *Node) WaitFor(t TB, what string, condition func(*corev1.Node) bool) {
	t.Helper()
	err := await(t.Context(), n.watchNode(), func(nodes []*corev1.Node) bool {
		return len(nodes) == 1 && condition(nodes[0])
	})
	if err != nil {
		t.Fatalf("waiting until %s is %s: %v\n%s", n.Name, what, err, n.describe(t))
	}
}

// WaitForPods waits until the pods that are bound to the node are as condition
// wants them, and fails the test if they do not get there.
func (n *Node) WaitForPods(t TB, what string, condition func([]*corev1.Pod) bool) {
	t.Helper()
	if err := await(t.Context(), n.watchPods(), condition); err != nil {
		t.Fatalf("waiting until, on %s, %s: %v\n%s", n.Name, what, err, n.describe(t))
	}
}

// WaitCordoned waits until the node is unschedulable.
func (n *Node) WaitCordoned(t TB) {
	t.Helper()
	n.WaitFor(t, "cordoned", func(node *corev1.Node) bool { return node.Spec.Unschedulable })
}

// WaitUncordoned waits until the node is schedulable.
func (n *Node) WaitUncordoned(t TB) {
	t.Helper()
	n.WaitFor(t, "schedulable", func(node *corev1.Node) bool { return !node.Spec.Unschedulable })
}

// WaitEmpty waits until only pods that a drain leaves alone are on the node:
// those of DaemonSets and mirrors of static pods.
func (n *Node) WaitEmpty(t TB) {
	t.Helper()
	n.WaitForPods(t, "all pods that can be evicted are gone", func(pods []*corev1.Pod) bool {
		for _, pod := range pods {
			if Evictable(pod) {
				return false
			}
		}
		return true
	})
}

// Evictable reports whether a drain has to remove the pod.
func Evictable(pod *corev1.Pod) bool {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return false
	}
	controller := metav1.GetControllerOf(pod)
	return controller == nil || controller.Kind != "DaemonSet"
}

// waitReady waits until a workload has so many ready pods, on any node.
func (n *Node) waitReady(t TB, app string, count int) {
	t.Helper()
	err := await(t.Context(), n.ofApp("pods", n.cp.Admin.CoreV1().RESTClient(), app), func(pods []*corev1.Pod) bool {
		ready := 0
		for _, pod := range pods {
			if podReady(pod) {
				ready++
			}
		}
		return ready >= count
	})
	if err != nil {
		t.Fatalf("waiting until %d pods of %s are ready: %v\n%s", count, app, err, n.describe(t))
	}
}

// waitCounted waits until the budget knows the workload's pods.
func (n *Node) waitCounted(t TB, app string, count int32) {
	t.Helper()
	err := await(t.Context(), n.ofApp("poddisruptionbudgets", n.cp.Admin.PolicyV1().RESTClient(), app), func(budgets []*policyv1.PodDisruptionBudget) bool {
		return len(budgets) == 1 && budgets[0].Status.CurrentHealthy >= count
	})
	if err != nil {
		t.Fatalf("waiting until the budget has counted %d pods of %s: %v\n%s", count, app, err, n.describe(t))
	}
}

func podReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (n *Node) watchNode() cache.ListerWatcher {
	return n.selected("nodes", fields.OneTermEqualSelector("metadata.name", n.Name))
}

func (n *Node) watchPods() cache.ListerWatcher {
	return n.selected("pods", fields.OneTermEqualSelector("spec.nodeName", n.Name))
}

func (n *Node) selected(resource string, selector fields.Selector) cache.ListerWatcher {
	return cache.NewListWatchFromClient(n.cp.Admin.CoreV1().RESTClient(), resource, "", selector)
}

// ofApp are the objects of a workload.
func (n *Node) ofApp(resource string, client rest.Interface, app string) cache.ListerWatcher {
	return cache.NewFilteredListWatchFromClient(client, resource, n.Namespace, func(options *metav1.ListOptions) {
		options.LabelSelector = labels.Set{appLabel: app}.String()
	})
}

// await watches objects until condition holds for all of them together.
func await[T any, P interface {
	*T
	runtime.Object
}](ctx context.Context, source cache.ListerWatcher, condition func([]P) bool) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	changed := make(chan struct{}, 1)
	change := func() {
		select {
		case changed <- struct{}{}:
		default: // the one in the channel stands for this one too
		}
	}
	store, stop, err := follow(ctx, source, P(new(T)), cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { change() },
		UpdateFunc: func(any, any) { change() },
		DeleteFunc: func(any) { change() },
	})
	defer stop()
	if err != nil {
		return err
	}
	for {
		var all []P
		for _, object := range store.List() {
			all = append(all, object.(P))
		}
		if condition(all) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// describe says how things stand, for the message of a wait that failed.
func (n *Node) describe(t TB) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
	defer cancel()
	var b strings.Builder
	core := n.cp.Admin.CoreV1()
	if node, err := core.Nodes().Get(ctx, n.Name, metav1.GetOptions{}); err != nil {
		fmt.Fprintln(&b, "node:", err)
	} else {
		fmt.Fprintf(&b, "node: ready=%t unschedulable=%t taints=%v\n", isReady(node), node.Spec.Unschedulable, node.Spec.Taints)
	}
	pods, err := core.Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Fprintln(&b, "pods:", err)
	} else {
		for _, pod := range pods.Items {
			if pod.Spec.NodeName == n.Name || pod.Namespace == n.Namespace {
				fmt.Fprintf(&b, "pod %s on %q: %s deletion=%v\n", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.DeletionTimestamp)
			}
		}
	}
	fmt.Fprintf(&b, "logs: %s", n.cp.Dir)
	return b.String()
}
