package apitest

import (
	"context"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Evictions and deletions. What is answered follows Create in pkg/registry/core/pod/storage/eviction.go of Kubernetes, and
// BeforeDelete in staging/src/k8s.io/apiserver/pkg/registry/rest/delete.go.

// An eviction that need not ask a budget is tried so often, and with such pauses, while it conflicts (EvictionsRetry).
const (
	evictionTries = 20
	evictionPause = 500 * time.Millisecond
)

// evict handles an eviction. An eviction that need not ask a budget is repeated while it conflicts.
func (s *Server) evict(w http.ResponseWriter, r *http.Request) {
	options := optionsOf(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.admitPod(w, r, "evict") {
		return
	}
	name := r.PathValue("namespace") + "/" + r.PathValue("name")
	for try := 1; ; try++ {
		o := s.pods[name]
		if o == nil {
			notFound(w, "pods", r.PathValue("name"))
			return
		}
		if !beyondBudgets(o.pod) {
			break
		}
		refused := s.evictNow(o.pod, options)
		if refused == nil {
			success(w)
			return
		}
		if try == evictionTries {
			refused(w, r)
			return
		}
		s.mu.Unlock()
		wait(r.Context(), evictionPause, nil)
		s.mu.Lock()
		if r.Context().Err() != nil {
			return
		}
	}
	o := s.pods[name]
	if refused := s.askBudgets(o, len(options.DryRun) > 0); refused != nil {
		refused(w, r)
		return
	}
	if refused := s.evictNow(o.pod, options); refused != nil {
		refused(w, r)
		return
	}
	success(w)
}

// beyondBudgets reports whether a pod may be evicted without asking a budget: canIgnorePDB.
func beyondBudgets(pod *corev1.Pod) bool {
	return finished(pod) || pod.Status.Phase == corev1.PodPending || pod.DeletionTimestamp != nil
}

// evictNow evicts a pod in two writes, as addConditionAndDeletePod does. It returns the refusal, or nil. The budget has counted the eviction
// already, even if it ends in a conflict.
func (s *Server) evictNow(pod *corev1.Pod, options metav1.DeleteOptions) Answer {
	if refused := preconditions(pod, options); refused != nil || len(options.DryRun) > 0 {
		return refused
	}
	target := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
		LastTransitionTime: s.now(),
	}
	if c := condition(pod, target.Type); c == nil || c.Status != target.Status || c.Reason != target.Reason {
		s.edit(key(pod), pod.UID, func(p *corev1.Pod) { setCondition(p, target) })
	}
	if s.pods[key(pod)] != nil {
		s.delete(key(pod), options)
	}
	return nil
}

func (s *Server) deletePod(w http.ResponseWriter, r *http.Request) {
	options := optionsOf(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.admitPod(w, r, "delete") {
		return
	}
	name := r.PathValue("namespace") + "/" + r.PathValue("name")
	o := s.pods[name]
	if o == nil {
		notFound(w, "pods", r.PathValue("name"))
		return
	}
	if refused := preconditions(o.pod, options); refused != nil {
		refused(w, r)
		return
	}
	if len(options.DryRun) == 0 {
		s.delete(name, options)
	}
	if now := s.pods[name]; now != nil {
		o = now
	}
	writeText(w, http.StatusOK, o.json())
}

// optionsKey is the key under which a request's context has the options of an eviction or a deletion.
type optionsKey struct{}

// optionsOf returns the options of an eviction or a deletion. A dryRun in the query takes precedence over the one in the body.
func optionsOf(r *http.Request) metav1.DeleteOptions {
	options, _ := r.Context().Value(optionsKey{}).(metav1.DeleteOptions)
	if dry := r.URL.Query()["dryRun"]; len(dry) > 0 {
		options.DryRun = dry
	}
	return options
}

// admitPod reports whether the node may evict or delete a pod. If it may not, admitPod answers with the refusal. It does what admitPod and
// admitPodEviction do in plugin/pkg/admission/noderestriction/admission.go, which look into a cache. Mirror pods are no exception. The Node
// authorizer lets all evictions and deletions pass (authorizePod in plugin/pkg/auth/authorizer/node/node_authorizer.go).
func (s *Server) admitPod(w http.ResponseWriter, r *http.Request, what string) bool {
	name := r.PathValue("name")
	o := s.podsAt(s.visible())[r.PathValue("namespace")+"/"+name]
	switch {
	case o == nil:
		notFound(w, "pods", name)
	case o.pod.Spec.NodeName != Node && what == "evict":
		Forbidden(fmt.Sprintf("pods %q is forbidden: node %s can only evict pods with spec.nodeName set to itself", name, Node))(w, r)
	case o.pod.Spec.NodeName != Node:
		Forbidden(fmt.Sprintf("pods %q is forbidden: node %q can only delete pods with spec.nodeName set to itself", name, Node))(w, r)
	default:
		return true
	}
	return false
}

// preconditions returns the conflict if a pod is not the one that the options name; otherwise nil.
func preconditions(pod *corev1.Pod, options metav1.DeleteOptions) Answer {
	p := options.Preconditions
	switch {
	case p == nil:
		return nil
	case p.UID != nil && *p.UID != "" && *p.UID != pod.UID:
		return conflict(pod.Name, fmt.Sprintf("the UID in the precondition (%s) does not match the UID in record (%s). "+
			"The object might have been deleted and then recreated", *p.UID, pod.UID))
	case p.ResourceVersion != nil && *p.ResourceVersion != pod.ResourceVersion:
		return conflict(pod.Name, fmt.Sprintf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). "+
			"The object might have been modified", *p.ResourceVersion, pod.ResourceVersion))
	}
	return nil
}

func conflict(name, why string) Answer {
	return status(metav1.Status{
		Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
		Message: fmt.Sprintf("Operation cannot be fulfilled on Pod %q: %s", name, why),
		Details: &metav1.StatusDetails{Name: name, Kind: "Pod"},
	})
}

func success(w http.ResponseWriter) {
	write(w, http.StatusCreated, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess, Code: http.StatusCreated,
	})
}

// delete begins a pod's graceful deletion, or shortens it: BeforeDelete, and CheckGracefulDelete in
// pkg/registry/core/pod/strategy.go.
func (s *Server) delete(name string, options metav1.DeleteOptions) {
	pod := s.pods[name].pod.DeepCopy()
	if pod.DeletionTimestamp != nil {
		s.shorten(pod, options.GracePeriodSeconds)
		return
	}
	period := int64(0)
	switch {
	case pod.Spec.NodeName == "" || finished(pod):
	case options.GracePeriodSeconds != nil:
		period = *options.GracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		period = *pod.Spec.TerminationGracePeriodSeconds
	default:
		period = corev1.DefaultTerminationGracePeriodSeconds // which is put into each pod's spec when it is made
	}
	if period < 0 {
		period = 1
	}
	s.markDeleted(pod, s.now().Add(time.Duration(period)*time.Second), period)
}

// shorten shortens the grace of a pod that is being deleted; a longer grace changes nothing. The end moves to where the shorter grace would have
// put it from the start, but not into the past.
func (s *Server) shorten(pod *corev1.Pod, to *int64) {
	is := pod.DeletionGracePeriodSeconds
	if is == nil || *is == 0 {
		if len(pod.Finalizers) == 0 {
			s.remove(key(pod))
		}
		return
	}
	if to == nil {
		return
	}
	period := *to
	if period < 0 {
		period = 1
	}
	if period >= *is {
		return
	}
	end := pod.DeletionTimestamp.Add(time.Duration(period-*is) * time.Second)
	if now := s.now().Time; end.Before(now) {
		end = now
		if period != 0 {
			period = 1
		}
	}
	s.markDeleted(pod, end, period)
}

// markDeleted writes a deletion's time and grace. Without a grace and a finalizer, it removes the pod.
func (s *Server) markDeleted(pod *corev1.Pod, at time.Time, period int64) {
	end := metav1.NewTime(at)
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &end, &period
	s.putPod(pod)
	if period == 0 {
		if len(pod.Finalizers) == 0 {
			s.remove(key(pod))
		}
		return
	}
	s.terminate(pod, time.Duration(period)*time.Second)
}

// Lost has a request carried out, and breaks the connection before the answer.
func Lost() Answer {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		if handler, ok := r.Context().Value(handlerKey{}).(http.HandlerFunc); ok {
			handler(nowhere{http.Header{}}, r)
		}
		panic(http.ErrAbortHandler)
	}
}

// handlerKey is the key under which a request's context has the handler with which the server answers by itself.
type handlerKey struct{}

func withHandler(r *http.Request, handler http.HandlerFunc) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), handlerKey{}, handler))
}

// nowhere is an http.ResponseWriter that nobody reads.
type nowhere struct{ header http.Header }

// Header implements http.ResponseWriter.
func (n nowhere) Header() http.Header { return n.header }

// WriteHeader implements http.ResponseWriter.
func (nowhere) WriteHeader(int) {}

// Write implements http.ResponseWriter.
func (nowhere) Write(text []byte) (int, error) { return len(text), nil }
