// Package storm is many nodes that are interrupted at once: it makes them, watches them go, and says when the last one was
// cordoned and the last pod gone. Bare drains them with the least that a client can do, to compare with.
package storm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
)

// Storm is a number of nodes with as many pods each, that nothing else runs on.
type Storm struct {
	// Instances are the nodes' instances, in EC2's words; Nodes their names, in the same order.
	Instances, Nodes []string

	cp        *lab.ControlPlane
	namespace string
	label     string
	pods      int
	grace     time.Duration
	// plain tells that nothing plays the kubelets, and stays that pods are not gone when they are evicted then.
	plain, stays bool
}

// labels are those by which kwok plays the kubelet.
const (
	simulated  = "lab.nth/simulated"
	terminates = "lab.nth/terminates"
	stormed    = "lab.nth/storm"
)

var number atomic.Int64

// New makes the nodes and their pods, which go at once when they are evicted or, with a grace period of whole seconds, use that up, and
// waits until all run. They end with the test.
func New(t lab.TB, cp *lab.ControlPlane, r *region.Region, nodes, podsPerNode int, grace time.Duration) *Storm {
	t.Helper()
	s := &Storm{cp: cp, grace: grace, label: fmt.Sprintf("storm-%d-%s", number.Add(1), rand.String(4)), pods: nodes * podsPerNode}
	s.namespace = s.label
	t.Cleanup(func() { s.remove(t) })
	s.name(r, nodes)
	if err := s.make(t.Context(), podsPerNode); err != nil {
		t.Fatalf("making %d nodes of %d pods: %v", nodes, podsPerNode, err)
	}
	return s
}

func (s *Storm) make(ctx context.Context, podsPerNode int) error {
	if err := s.makeNamespace(ctx); err != nil {
		return err
	}
	if err := s.makeNodes(ctx); err != nil {
		return err
	}
	// kwok overlooks some of the pods that are there before their nodes are Ready.
	if err := s.await(ctx, "nodes are not Ready", s.unready); err != nil {
		return err
	}
	if err := s.makePods(ctx, podsPerNode); err != nil {
		return err
	}
	return s.await(ctx, "pods do not run", s.waiting)
}

func (s *Storm) makeNamespace(ctx context.Context) error {
	core, no := s.cp.Admin.CoreV1(), false
	_, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}, AutomountServiceAccountToken: &no}
	_, err = core.ServiceAccounts(s.namespace).Create(ctx, account, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // a controller makes it, too
		return nil
	}
	return err
}

func (s *Storm) makeNodes(ctx context.Context) error {
	return inParallel(len(s.Nodes), func(i int) error {
		_, err := s.cp.Admin.CoreV1().Nodes().Create(ctx, s.node(i), metav1.CreateOptions{})
		return err
	})
}

func (s *Storm) makePods(ctx context.Context, podsPerNode int) error {
	return inParallel(s.pods, func(i int) error {
		_, err := s.cp.Admin.CoreV1().Pods(s.namespace).Create(ctx, s.pod(i, s.Nodes[i/podsPerNode]), metav1.CreateOptions{})
		return err
	})
}

func (s *Storm) node(i int) *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("250"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: s.Nodes[i], Labels: map[string]string{stormed: s.label, corev1.LabelHostname: s.Nodes[i]}},
		Spec:       corev1.NodeSpec{ProviderID: region.ProviderID(s.Instances[i])},
		Status:     corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
	if s.plain {
		fill(node)
	} else {
		node.Labels[simulated] = "true"
	}
	return node
}

func (s *Storm) pod(i int, node string) *corev1.Pod {
	grace, labels := int64(30), map[string]string{"app": "storm"}
	switch {
	case s.plain && !s.stays:
		grace = 0
	case s.grace > 0:
		grace, labels[terminates] = int64(s.grace/time.Second), "at-grace"
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Labels: labels},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "main", Image: "registry.invalid/sleep:1"}},
		},
	}
}

// await waits until nothing is counted any more.
func (s *Storm) await(ctx context.Context, what string, count func(context.Context) (int, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		left, err := count(ctx)
		if err != nil || left == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d %s: %w", left, what, ctx.Err())
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// waiting counts the pods that do not run.
func (s *Storm) waiting(ctx context.Context) (int, error) {
	pods, err := s.cp.Admin.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermNotEqualSelector("status.phase", "Running").String(),
	})
	if err != nil {
		return 0, err
	}
	return len(pods.Items), nil
}

// unready counts the nodes that are not Ready.
func (s *Storm) unready(ctx context.Context) (int, error) {
	nodes, err := s.cp.Admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: stormed + "=" + s.label})
	if err != nil {
		return 0, err
	}
	ready := func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	nodes.Items = slices.DeleteFunc(nodes.Items, func(n corev1.Node) bool { return slices.ContainsFunc(n.Status.Conditions, ready) })
	return len(nodes.Items), nil
}

// Messages are one spot interruption for each node.
func (s *Storm) Messages() []string {
	var all []string
	for _, i := range s.Instances {
		all = append(all, region.Spot(i))
	}
	return all
}

func (s *Storm) remove(t lab.TB) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	defer cancel()
	core, now := s.cp.Admin.CoreV1(), *metav1.NewDeleteOptions(0)
	err := errors.Join(
		core.Pods(s.namespace).DeleteCollection(ctx, now, metav1.ListOptions{}),
		core.Nodes().DeleteCollection(ctx, now, metav1.ListOptions{LabelSelector: stormed + "=" + s.label}),
		core.Namespaces().Delete(ctx, s.namespace, metav1.DeleteOptions{}),
	)
	if err != nil {
		t.Logf("removing a storm: %v", err)
	}
}

// inParallel does count things, a few at a time.
func inParallel(count int, do func(int) error) error {
	var next atomic.Int64
	var mu sync.Mutex
	var first error
	var writers sync.WaitGroup
	for range 32 {
		writers.Go(func() {
			for i := int(next.Add(1)) - 1; i < count; i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					mu.Lock()
					first = errors.Join(first, err)
					mu.Unlock()
					return
				}
			}
		})
	}
	writers.Wait()
	return first
}
