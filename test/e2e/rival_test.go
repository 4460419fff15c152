package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/nth-project/nth/test/internal/lab"
)

// A rival is a stand-in for another program that empties nodes, with an administrator's rights. It does to the Node what
// that program is documented to do, and evicts its pods in that program's order. What it evicts was not ending before: it
// asks for each pod as it saw it last.
type rival struct {
	node *lab.Node
	core typedcorev1.CoreV1Interface

	// patch is how it closes the node; deletes tells that it deletes the Node before it evicts, and ends that it takes the
	// Node away at last.
	patch         map[string]any
	deletes, ends bool
	// ordered tells that critical pods wait until no other is left.
	ordered bool
	// grace is the most that it gives a pod; 0 leaves each its own.
	grace int64

	mu      sync.Mutex
	evicted map[string]int // by pod's name; what was accepted
	first   chan struct{}  // closed with the first of them
	done    chan error
}

// The rivals, by name.
var rivals = map[string]func(*rival){
	"Karpenter": func(r *rival) {
		r.patch = closing("karpenter.sh/disrupted", "")
		r.patch["metadata"] = map[string]any{"labels": map[string]string{corev1.LabelNodeExcludeBalancers: "karpenter"}}
		r.deletes, r.ends, r.ordered = true, true, true
	},
	"Cluster Autoscaler": func(r *rival) {
		r.patch = closing("ToBeDeletedByClusterAutoscaler", strconv.FormatInt(time.Now().Unix(), 10))
		r.ends, r.grace = true, 600
	},
	"a managed node group": func(r *rival) { r.patch = map[string]any{"spec": map[string]any{"unschedulable": true}} },
	"the update of a managed node group": func(r *rival) {
		r.patch = closing("eks.amazonaws.com/nodegroup", "unschedulable")
	},
}

// closing is the patch that puts a taint on a node.
func closing(key, value string) map[string]any {
	return map[string]any{"spec": map[string]any{
		"taints": []corev1.Taint{{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule}},
	}}
}

const karpenterFinalizer = "karpenter.sh/termination"

// newRival makes a rival that does nothing yet. A Node that it will delete bears its finalizer all along.
func newRival(t *testing.T, node *lab.Node, name string) *rival {
	t.Helper()
	r := &rival{
		node: node, core: lab.Shared(t).Admin.CoreV1(),
		evicted: map[string]int{}, first: make(chan struct{}), done: make(chan error, 1),
	}
	rivals[name](r)
	if r.deletes {
		if err := r.patchNode(t.Context(), finalizers(karpenterFinalizer)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.patchNode(context.WithoutCancel(t.Context()), finalizers()) })
	}
	return r
}

func finalizers(names ...string) map[string]any {
	return map[string]any{"metadata": map[string]any{"finalizers": names}}
}

func (r *rival) patchNode(ctx context.Context, patch map[string]any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = r.core.Nodes().Patch(ctx, r.node.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: "rival"})
	return err
}

// start lets it go to work.
func (r *rival) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.done <- r.work(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

// closeNode does what it does to the Node before it evicts.
func (r *rival) closeNode(ctx context.Context) error {
	if r.deletes {
		if err := r.core.Nodes().Delete(ctx, r.node.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return r.patchNode(ctx, r.patch)
}

func (r *rival) work(ctx context.Context) error {
	if err := r.closeNode(ctx); err != nil {
		return err
	}
	for {
		left, err := r.round(ctx)
		if err != nil {
			return err
		}
		if left == 0 {
			break
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	switch {
	case r.deletes:
		return r.patchNode(ctx, finalizers())
	case r.ends:
		return r.core.Nodes().Delete(ctx, r.node.Name, metav1.DeleteOptions{})
	}
	return nil
}

// round evicts what is to be evicted now, and counts what is left on the node.
func (r *rival) round(ctx context.Context) (left int, err error) {
	list, err := r.core.Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + r.node.Name})
	if err != nil {
		return 0, err
	}
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !lab.Evictable(&p) })
	left = len(pods)
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	if r.ordered && slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !critical(p) }) {
		pods = slices.DeleteFunc(pods, critical)
	}
	for _, pod := range pods {
		err = errors.Join(err, r.evict(ctx, pod))
	}
	return left, err
}

func critical(pod corev1.Pod) bool { return pod.Spec.PriorityClassName == systemCritical }

// evict asks once for a pod's eviction. A budget may refuse it, and somebody else may have been faster.
func (r *rival) evict(ctx context.Context, pod corev1.Pod) error {
	options := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
	options.Preconditions.ResourceVersion = &pod.ResourceVersion
	if r.grace > 0 {
		options.GracePeriodSeconds = new(min(r.grace, *pod.Spec.TerminationGracePeriodSeconds))
	}
	err := r.core.Pods(pod.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: options,
	})
	if apierrors.IsTooManyRequests(err) || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.evicted) == 0 {
		close(r.first)
	}
	r.evicted[pod.Name]++
	return nil
}

// accepted returns how often each pod's eviction was accepted.
func (r *rival) accepted() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.evicted)
}

// await waits until it has closed the node and evicted its first pod.
func (r *rival) await(t *testing.T) {
	t.Helper()
	r.waitFor(t, r.first, "evict a pod")
}

// mustFinish waits until it has done its work, and judges how it leaves the Node.
func (r *rival) mustFinish(t *testing.T) {
	t.Helper()
	var err error
	done := make(chan struct{})
	go func() { err = <-r.done; close(done) }()
	r.waitFor(t, done, "finish")
	if err != nil {
		t.Fatalf("the other drainer: %v", err)
	}
	node, err := r.core.Nodes().Get(t.Context(), r.node.Name, metav1.GetOptions{})
	switch {
	case r.ends && !apierrors.IsNotFound(err):
		t.Errorf("the Node is still there, or cannot be told: %v", err)
	case !r.ends && err != nil:
		t.Errorf("the Node cannot be read: %v", err)
	case !r.ends && !node.Spec.Unschedulable:
		t.Error("the node is schedulable at the end")
	}
}

func (r *rival) waitFor(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(150 * time.Second):
		t.Fatalf("the other drainer does not %s", what)
	}
}
