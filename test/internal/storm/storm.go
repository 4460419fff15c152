// Package storm is many nodes that are interrupted at once: it makes them, watches them go, and says when the last one was
// cordoned and the last pod gone. Bare drains them with the least that a client can do, to compare with.
package storm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
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

// stormed is the label of a storm's nodes.
const stormed = "lab.nth/storm"

var number atomic.Int64

// pause is the one between two looks at all nodes or pods, which is work for the control plane.
const pause = 250 * time.Millisecond

// New makes the nodes and their pods, which go at once when they are evicted or, with a grace period of whole seconds, use that up, and
// waits until all run. They end with the test.
func New(t lab.TB, cp *lab.ControlPlane, r *region.Region, nodes, podsPerNode int, grace time.Duration) *Storm {
	t.Helper()
	s := &Storm{cp: cp, grace: grace, label: fmt.Sprintf("storm-%d-%s", number.Add(1), rand.String(4)), pods: nodes * podsPerNode}
	s.namespace = s.label
	t.Cleanup(func() { s.remove(t) })
	s.name(r, nodes)
	cp.AddNamespace(t, s.namespace)
	s.makeNodes(t)
	// kwok overlooks some of the pods that are there before their nodes are Ready.
	lab.Await(t, "all nodes are Ready", func() bool { time.Sleep(pause); return s.unready(t) == 0 })
	s.makePods(t)
	lab.Await(t, "all pods run", func() bool { time.Sleep(pause); return s.waiting(t) == 0 })
	return s
}

func (s *Storm) makeNodes(t lab.TB) {
	t.Helper()
	inParallel(t, len(s.Nodes), func(i int) error {
		_, err := s.cp.Admin.CoreV1().Nodes().Create(t.Context(), s.node(i), metav1.CreateOptions{})
		return err
	})
}

func (s *Storm) makePods(t lab.TB) {
	t.Helper()
	podsPerNode := s.pods / len(s.Nodes)
	inParallel(t, s.pods, func(i int) error {
		_, err := s.cp.Admin.CoreV1().Pods(s.namespace).Create(t.Context(), s.pod(i, s.Nodes[i/podsPerNode]), metav1.CreateOptions{})
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
		node.Labels[lab.SimulatedLabel] = "true"
	}
	return node
}

func (s *Storm) pod(i int, node string) *corev1.Pod {
	grace, labels := int64(30), map[string]string{"app": "storm"}
	switch {
	case s.plain && !s.stays:
		grace = 0
	case s.grace > 0:
		grace, labels[lab.TerminatesLabel] = int64(s.grace/time.Second), "at-grace"
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Labels: labels},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "main", Image: "registry.invalid/sleep:1"}},
		},
	}
}

// waiting counts the pods that do not run.
func (s *Storm) waiting(t lab.TB) int {
	t.Helper()
	pods, err := s.cp.Admin.CoreV1().Pods(s.namespace).List(t.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermNotEqualSelector("status.phase", "Running").String(),
	})
	if err != nil {
		t.Fatalf("counting pods: %v", err)
	}
	return len(pods.Items)
}

// unready counts the nodes that are not Ready.
func (s *Storm) unready(t lab.TB) int {
	t.Helper()
	nodes, err := s.cp.Admin.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: stormed + "=" + s.label})
	if err != nil {
		t.Fatalf("counting nodes: %v", err)
	}
	ready := func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	nodes.Items = slices.DeleteFunc(nodes.Items, func(n corev1.Node) bool { return slices.ContainsFunc(n.Status.Conditions, ready) })
	return len(nodes.Items)
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
func inParallel(t lab.TB, count int, do func(int) error) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(32)
	for i := range count {
		group.Go(func() error { return do(i) })
	}
	if err := group.Wait(); err != nil {
		t.Fatalf("making a storm: %v", err)
	}
}
