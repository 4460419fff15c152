package lab

import (
	"fmt"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// image is never pulled.
const image = "registry.invalid/sleep:1"

// An Option changes the pods of a workload.
type Option func(*workload)

// A workload is some pods that share a name.
type workload struct {
	name     string
	labels   map[string]string
	template corev1.PodTemplateSpec
	budget   *int32 // minAvailable
}

// Grace sets the pods' grace period; the default is 30 s. It is rounded down
// to seconds.
func Grace(d time.Duration) Option {
	return func(w *workload) { *w.template.Spec.TerminationGracePeriodSeconds = int64(d / time.Second) }
}

// GoesAtGrace makes a deleted pod stay until its grace period is over, instead
// of going at once. The API server keeps that moment in whole seconds, so the
// pod goes up to one second before it.
func GoesAtGrace() Option { return labelled(TerminatesLabel, "at-grace") }

// NeverGoes makes a deleted pod stay until it is deleted with no grace at all.
func NeverGoes() Option { return labelled(TerminatesLabel, "never") }

// MinAvailable guards the pods with a PodDisruptionBudget of the workload's name.
func MinAvailable(pods int32) Option {
	return func(w *workload) { w.budget = &pods }
}

// Edit changes the pods in any other way.
func Edit(change func(*corev1.PodTemplateSpec)) Option {
	return func(w *workload) { change(&w.template) }
}

func labelled(key, value string) Option {
	return func(w *workload) { w.template.Labels[key] = value }
}

// newWorkload describes pods that run on any node of the pool of n.
func (n *Node) newWorkload(name string, options []Option) *workload {
	grace := int64(30)
	labels := map[string]string{appLabel: name}
	w := &workload{
		name:   name,
		labels: labels,
		template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(labels)},
			Spec: corev1.PodSpec{
				TerminationGracePeriodSeconds: &grace,
				NodeSelector:                  map[string]string{poolLabel: n.pool},
				Containers:                    []corev1.Container{{Name: "main", Image: image}},
			},
		},
	}
	for _, option := range options {
		option(w)
	}
	return w
}

func (w *workload) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: w.name, Labels: w.labels}
}

func (w *workload) selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: w.labels}
}

// AddDeployment makes a Deployment and waits until its pods are ready. The
// pods that replace evicted ones stay pending unless there is a spare.
func (n *Node) AddDeployment(t TB, name string, replicas int32, options ...Option) {
	t.Helper()
	w := n.newWorkload(name, options)
	_, err := n.cp.Admin.AppsV1().Deployments(n.Namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: w.meta(),
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: w.selector(), Template: w.template},
	}, metav1.CreateOptions{})
	n.settle(t, w, int(replicas), err)
}

// Scale changes how many pods a Deployment has, and does not wait for them.
func (n *Node) Scale(t TB, name string, replicas int) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	_, err := n.cp.Admin.AppsV1().Deployments(n.Namespace).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("scaling %s: %v", name, err)
	}
}

// AddStatefulSet makes a StatefulSet, whose pods keep their names when they are
// made anew, and waits until its pods are ready.
func (n *Node) AddStatefulSet(t TB, name string, replicas int32, options ...Option) {
	t.Helper()
	w := n.newWorkload(name, options)
	_, err := n.cp.Admin.AppsV1().StatefulSets(n.Namespace).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: w.meta(),
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: w.selector(), Template: w.template,
			PodManagementPolicy: appsv1.ParallelPodManagement,
		},
	}, metav1.CreateOptions{})
	n.settle(t, w, int(replicas), err)
}

// AddDaemonSet makes a DaemonSet and waits until its pod on n is ready.
func (n *Node) AddDaemonSet(t TB, name string, options ...Option) {
	t.Helper()
	w := n.newWorkload(name, options)
	_, err := n.cp.Admin.AppsV1().DaemonSets(n.Namespace).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: w.meta(),
		Spec:       appsv1.DaemonSetSpec{Selector: w.selector(), Template: w.template},
	}, metav1.CreateOptions{})
	n.settle(t, w, 1, err)
}

// AddPod makes a pod without a controller and waits until it is ready.
func (n *Node) AddPod(t TB, name string, options ...Option) {
	t.Helper()
	n.AddPods(t, name, 1, options...)
}

// AddLatePod makes a pod without a controller and does not wait for it: an nth that guards the node may evict it at once.
func (n *Node) AddLatePod(t TB, name string, options ...Option) {
	t.Helper()
	if err := n.createPods(t, n.newWorkload(name, options), 1); err != nil {
		t.Fatalf("making %s: %v", name, err)
	}
}

// AddPods makes many pods without a controller and waits until all are ready.
// A single one is called name, several are called name-0, name-1 and so on.
func (n *Node) AddPods(t TB, name string, count int, options ...Option) {
	t.Helper()
	w := n.newWorkload(name, options)
	n.settle(t, w, count, n.createPods(t, w, count))
}

// AddFinishedPod makes a pod that has ended, in phase Succeeded or Failed.
func (n *Node) AddFinishedPod(t TB, name string, phase corev1.PodPhase) {
	t.Helper()
	n.AddPod(t, name)
	patch := fmt.Appendf(nil, `{"status":{"phase":%q}}`, phase)
	_, err := n.cp.Admin.CoreV1().Pods(n.Namespace).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatalf("ending %s: %v", name, err)
	}
}

// AddMirrorPod makes the API server's image of a static pod, with the node's
// own credential and owned by the Node, as a kubelet does.
func (n *Node) AddMirrorPod(t TB, name string) {
	t.Helper()
	owner, yes := n.Object(t), true
	w := n.newWorkload(name, nil)
	pod := w.pod(n, name)
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "lab"}
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Node", Name: owner.Name, UID: owner.UID, Controller: &yes,
	}}
	_, err := n.Client.CoreV1().Pods(n.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	n.settle(t, w, 1, err)
}

// createPods makes pods that are bound to n from the start.
func (n *Node) createPods(t TB, w *workload, count int) error {
	var making errgroup.Group
	making.SetLimit(16)
	for i := range count {
		name := w.name
		if count > 1 {
			name = fmt.Sprintf("%s-%d", w.name, i)
		}
		making.Go(func() error {
			_, err := n.cp.Admin.CoreV1().Pods(n.Namespace).Create(t.Context(), w.pod(n, name), metav1.CreateOptions{})
			return err
		})
	}
	return making.Wait()
}

func (w *workload) pod(n *Node, name string) *corev1.Pod {
	template := w.template.DeepCopy()
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Spec.NodeName = name, n.Name
	return pod
}

// settle waits until the pods of a workload are ready and its budget, if it
// has one, has counted them. err is that of making the workload.
func (n *Node) settle(t TB, w *workload, pods int, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("making %s: %v", w.name, err)
	}
	n.waitReady(t, w.name, pods)
	if w.budget == nil {
		return
	}
	_, err = n.cp.Admin.PolicyV1().PodDisruptionBudgets(n.Namespace).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: w.meta(),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &intstr.IntOrString{Type: intstr.Int, IntVal: *w.budget},
			Selector:     w.selector(),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("making a budget for %s: %v", w.name, err)
	}
	n.waitCounted(t, w.name, int32(pods))
}
