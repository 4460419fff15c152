package apitest

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Elsewhere is the node to which pods are bound that do not come to ours.
const Elsewhere = "node-2"

// Workload is what a controller keeps running, from when it is added until the test ends.
type Workload struct {
	Namespace, Name string // "default" without a namespace
	// Pods is how many there are; 0 is one.
	Pods int
	// Pod changes what each of its pods is made of.
	Pod func(*corev1.Pod)
	// Ending is that of each pod.
	Ending Ending
	// Tolerates: its pods come to the node even if that is cordoned. Without it, pods that are made while the node is cordoned are bound to
	// Elsewhere. A cordon does not change where a pod goes that is made already.
	Tolerates bool
	// Delay is the time from when a pod is made until it is bound, and Starts the time from then until it is Ready.
	Delay, Starts time.Duration
}

// workload is a workload and its controller's memory.
type workload struct {
	Workload
	kind   string
	made   int
	pause  time.Duration // before the next pod that failed is replaced
	failed types.UID     // the failed pod that is replaced after pause
}

// AddReplicaSet adds a ReplicaSet and its pods. A pod that begins to end is replaced (FilterActivePods in
// pkg/controller/controller_utils.go of Kubernetes).
func (s *Server) AddReplicaSet(w Workload) { s.addWorkload("ReplicaSet", w) }

// AddStatefulSet adds a StatefulSet and its pods. A pod is replaced once it is gone, under its name; one that has failed is
// deleted first (pkg/controller/statefulset/stateful_set_control.go).
func (s *Server) AddStatefulSet(w Workload) { s.addWorkload("StatefulSet", w) }

// AddDaemonSet adds a DaemonSet and its pod on the node, which is replaced once it is gone, cordon or not. One that has
// failed is deleted first, after ever longer pauses (podsShouldBeOnNode in pkg/controller/daemon/daemon_controller.go).
func (s *Server) AddDaemonSet(w Workload) {
	w.Tolerates, w.Pods = true, 1
	s.addWorkload("DaemonSet", w)
}

func (s *Server) addWorkload(kind string, w Workload) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.Namespace == "" {
		w.Namespace = "default"
	}
	w.Pods = max(w.Pods, 1)
	s.workloads = append(s.workloads, &workload{Workload: w, kind: kind, pause: time.Second})
	s.look(w.Namespace)
}

// RemoveWorkload ends what a controller does. Its pods stay.
func (s *Server) RemoveWorkload(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workloads = slices.DeleteFunc(s.workloads, func(w *workload) bool { return w.Name == name })
}

func (w *workload) owner() types.UID { return types.UID(w.kind + "-" + w.Name) }

// reconcile is one look of a controller at its pods.
func (s *Server) reconcile(w *workload) {
	var own []*corev1.Pod
	for _, o := range sorted(s.pods) {
		if owner := metav1.GetControllerOf(o.pod); owner != nil && owner.UID == w.owner() && o.pod.Namespace == w.Namespace {
			own = append(own, o.pod)
		}
	}
	if w.kind == "ReplicaSet" {
		active := 0
		for _, pod := range own {
			if !finished(pod) && pod.DeletionTimestamp == nil {
				active++
			}
		}
		for range w.Pods - active {
			w.made++
			s.create(w, fmt.Sprintf("%s-%d", w.Name, w.made))
		}
		return
	}
	for _, pod := range own {
		if finished(pod) && pod.DeletionTimestamp == nil {
			s.replaceFailed(w, pod)
		}
	}
	for i := range w.Pods - len(own) {
		if w.kind == "DaemonSet" {
			w.made++
			s.create(w, fmt.Sprintf("%s-%d", w.Name, w.made))
			continue
		}
		s.create(w, w.freeName(own, i))
	}
}

// freeName returns the i-th of a StatefulSet's names that no pod has.
func (w *workload) freeName(own []*corev1.Pod, i int) string {
	for n := range w.Pods {
		name := fmt.Sprintf("%s-%d", w.Name, n)
		if slices.ContainsFunc(own, func(p *corev1.Pod) bool { return p.Name == name }) {
			continue
		}
		if i == 0 {
			return name
		}
		i--
	}
	return ""
}

// replaceFailed deletes a pod that has ended by itself.
func (s *Server) replaceFailed(w *workload, pod *corev1.Pod) {
	if w.kind == "StatefulSet" {
		s.delete(key(pod), metav1.DeleteOptions{})
		return
	}
	if w.failed == pod.UID {
		return
	}
	w.failed = pod.UID
	s.later(w.pause, func() {
		if o := s.pods[key(pod)]; o != nil && o.pod.UID == pod.UID && o.pod.DeletionTimestamp == nil {
			s.delete(key(pod), metav1.DeleteOptions{})
		}
	})
	w.pause = min(2*w.pause, 15*time.Minute)
}

// create makes a pod, which the scheduler binds later.
func (s *Server) create(w *workload, name string) {
	if s.pods[w.Namespace+"/"+name] != nil {
		return // Another controller's pod has the name.
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.Namespace, Name: name, UID: types.UID(fmt.Sprintf("%s-%d", name, s.version)),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: w.kind, Name: w.Name, UID: w.owner(), Controller: new(true),
			}},
		},
		Spec:   corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(corev1.DefaultTerminationGracePeriodSeconds))},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if w.Tolerates {
		pod.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}}
	}
	if w.Pod != nil {
		w.Pod(pod)
	}
	to := Elsewhere
	ready := !s.shutting || w.kind == "DaemonSet" // A kubelet that goes down reports its node NotReady, which others do not tolerate.
	if s.node != nil && ready && (w.Tolerates || !s.node.node.Spec.Unschedulable) {
		to = Node
	}
	pod = s.addPod(pod, w.Ending, false)
	s.bindLater(pod, to, w.Delay, w.Starts)
}
