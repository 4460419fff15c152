package apitest

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AddPod puts a pod on the node, or on the node that its spec.nodeName says. If they are missing, the pod gets a UID, a time of creation and the
// node's name.
func (s *Server) AddPod(pod *corev1.Pod, ending Ending) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addPod(pod, ending, true).DeepCopy()
}

// IgnoreSelector has lists and watches of pods show those of other nodes as well.
func (s *Server) IgnoreSelector() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unselective = true
}

// Ready makes a pod one that runs and is Ready, which is healthy for a budget.
func Ready(pod *corev1.Pod) {
	pod.Status.Phase = corev1.PodRunning
	setCondition(pod, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
}

// AddPodLate adds a pod that the scheduler has chosen the node for, and that is bound to it only after a while. It is
// Pending until then, and Ready at once after that.
func (s *Server) AddPodLate(pod *corev1.Pod, in time.Duration, ending Ending) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod = pod.DeepCopy()
	pod.Status.Phase = corev1.PodPending
	pod = s.addPod(pod, ending, false)
	s.bindLater(pod, Node, in, 0)
	return pod.DeepCopy()
}

func (s *Server) addPod(pod *corev1.Pod, ending Ending, bound bool) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	if bound && pod.Spec.NodeName == "" {
		pod.Spec.NodeName = Node
	}
	if pod.UID == "" {
		pod.UID = types.UID("uid-" + strconv.FormatInt(s.version, 10))
	}
	if pod.CreationTimestamp.IsZero() {
		pod.CreationTimestamp = s.now()
	}
	if s.pods[key(pod)] != nil {
		s.t.Errorf("there is a pod %s already", key(pod))
	}
	s.endings[pod.UID] = ending
	s.putPod(pod)
	return pod
}

// bindLater binds a pod to a node after the duration in. After the duration starts, counted from then, the pod is Ready.
func (s *Server) bindLater(pod *corev1.Pod, node string, in, starts time.Duration) {
	name, uid := key(pod), pod.UID
	s.soon(in, func() {
		s.edit(name, uid, func(p *corev1.Pod) {
			p.Spec.NodeName = node
			setCondition(p, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: s.now()})
			if node == Node && s.shutting {
				// nodeshutdown_manager_linux.go in pkg/kubelet/nodeshutdown.
				p.Status.Phase, p.Status.Reason = corev1.PodFailed, "NodeShutdown"
				p.Status.Message = "Pod was rejected as the node is shutting down."
			}
		})
		s.soon(starts, func() {
			s.edit(name, uid, func(p *corev1.Pod) {
				if p.Status.Phase == corev1.PodFailed || p.DeletionTimestamp != nil {
					return
				}
				p.Status.Phase = corev1.PodRunning
				setCondition(p, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: s.now()})
			})
		})
	})
}

// soon calls do after a duration: at once if it is 0.
func (s *Server) soon(in time.Duration, do func()) {
	if in == 0 {
		do()
		return
	}
	s.later(in, do)
}

// edit changes a pod that is still there.
func (s *Server) edit(name string, uid types.UID, edit func(*corev1.Pod)) {
	o := s.pods[name]
	if o == nil || o.pod.UID != uid {
		return
	}
	pod := o.pod.DeepCopy()
	edit(pod)
	if pod.DeletionTimestamp != nil && len(pod.Finalizers) == 0 && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0 {
		s.remove(name) // deleteWithoutFinalizers, once the last one is gone
		return
	}
	s.putPod(pod)
}

// ChangePod changes a pod as its kubelet or somebody else would.
func (s *Server) ChangePod(name string, edit func(*corev1.Pod)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.pods[name]
	if o == nil {
		s.t.Errorf("there is no pod %s to change", name)
		return
	}
	s.edit(name, o.pod.UID, edit)
}

// DeletePod deletes a pod as somebody else would, with a grace in seconds or with its own.
func (s *Server) DeletePod(name string, grace ...int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	options := metav1.DeleteOptions{}
	if len(grace) > 0 {
		options.GracePeriodSeconds = &grace[0]
	}
	if s.pods[name] != nil {
		s.delete(name, options)
	}
}

// RemovePod makes a pod end by itself.
func (s *Server) RemovePod(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(name)
}

// ForgetPod removes a pod without a trace in the history: no watch tells that it is gone, only a list does.
func (s *Server) ForgetPod(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	delete(s.pods, name)
	kept := s.history[:0:0]
	for _, c := range s.history {
		if c.object.pod == nil || key(c.object.pod) != name {
			kept = append(kept, c)
		}
	}
	s.history = kept
}

// LastRemoval returns when the last pod was removed. Pods of DaemonSets do not count.
func (s *Server) LastRemoval() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removed
}

// HasPod reports whether there is a pod of that name.
func (s *Server) HasPod(name string) bool { return s.Pod(name) != nil }

// Pod is a copy of a pod as it is; nil if there is none.
func (s *Server) Pod(name string) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods[name] == nil {
		return nil
	}
	return s.pods[name].pod.DeepCopy()
}

// Pods are copies of all pods as they are, on the node and elsewhere.
func (s *Server) Pods() []*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pods []*corev1.Pod
	for _, o := range sorted(s.pods) {
		pods = append(pods, o.pod.DeepCopy())
	}
	return pods
}

// Ends reports whether a pod is being deleted, or gone.
func (s *Server) Ends(name string, uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[name]
	return p == nil || p.pod.UID != uid || p.pod.DeletionTimestamp != nil
}

// DropWatches ends all watches that are under way.
func (s *Server) DropWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.dropped)
	s.dropped = make(chan struct{})
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func isReady(pod *corev1.Pod) bool {
	c := condition(pod, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

func setCondition(pod *corev1.Pod, to corev1.PodCondition) {
	if c := condition(pod, to.Type); c != nil {
		*c = to
		return
	}
	pod.Status.Conditions = append(pod.Status.Conditions, to)
}
