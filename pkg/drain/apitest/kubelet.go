package apitest

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Ending says how long a pod's processes continue after SIGTERM. The kubelet kills them at the end of the grace
// that the pod was given.
type Ending time.Duration

// Never is the ending of a pod that does not end even when it is killed, for example since it is stuck on a volume. It is not needed for a pod
// with a finalizer, which is in the pod's metadata.
const Never Ending = -1

// termination is a pod's end as its kubelet sees to it.
type termination struct {
	began time.Time
	round int // counts the times that it was begun or shortened
}

// terminate has the kubelet end a pod within a grace. If the kubelet is ending the pod already, the new grace counts from now, while the time
// that the processes need still counts from their signal (calculateEffectiveGracePeriod in pkg/kubelet/pod_workers.go).
func (s *Server) terminate(pod *corev1.Pod, grace time.Duration) {
	t := s.terminations[pod.UID]
	if t == nil {
		t = &termination{began: time.Now()}
		s.terminations[pod.UID] = t
	}
	t.round++
	ending := s.endings[pod.UID]
	if ending == Never {
		return
	}
	kill := max(grace, time.Second)
	in, killed := time.Until(t.began.Add(time.Duration(ending))), false
	if in > kill {
		in, killed = kill, true
	}
	name, uid, round := key(pod), pod.UID, t.round
	s.soon(max(in, 0), func() {
		if now := s.terminations[uid]; now == t && t.round == round {
			s.ended(name, uid, killed)
		}
	})
}

// ended does what the kubelet does for a pod whose containers have ended (pkg/kubelet/status/status_manager.go). It writes the last phase, and
// deletes the pod without a grace. A finalizer may still hold the pod.
func (s *Server) ended(name string, uid types.UID, killed bool) {
	s.edit(name, uid, func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodSucceeded
		if killed {
			p.Status.Phase = corev1.PodFailed
		}
		if isReady(p) {
			setCondition(p, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "PodCompleted", LastTransitionTime: s.now()})
		}
	})
	if o := s.pods[name]; o != nil && o.pod.UID == uid {
		now := s.now().Time
		pod := o.pod.DeepCopy()
		if len(pod.Finalizers) == 0 {
			s.remove(name)
			return
		}
		s.markDeleted(pod, now, 0)
	}
}

// ShutDownKubelet makes the kubelet refuse each pod that is bound to the node from now on, as it does during the machine's
// shutdown: such a pod has failed.
func (s *Server) ShutDownKubelet() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shutting = true
}

// StartKubelet makes the kubelet accept pods again, as after the boot that follows.
func (s *Server) StartKubelet() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shutting = false
}

// FailPods ends all pods on the node that run, as a kubelet does in the machine's shutdown: they have failed, and stay as they
// are (killPods in pkg/kubelet/nodeshutdown/nodeshutdown_manager.go).
func (s *Server) FailPods() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range sorted(s.pods) {
		if o.pod.Spec.NodeName != Node || finished(o.pod) {
			continue
		}
		s.edit(key(o.pod), o.pod.UID, func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Terminated"
			p.Status.Message = "Pod was terminated in response to imminent node shutdown."
			if isReady(p) {
				setCondition(p, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "PodCompleted", LastTransitionTime: s.now()})
			}
		})
	}
}
