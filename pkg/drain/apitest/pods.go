package apitest

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Ending says when a pod goes after its eviction or deletion was accepted.
type Ending time.Duration

// Never is the ending of a pod that stays: stuck, or held by a finalizer.
const Never Ending = -1

// change is one entry of the pods' history, which watches replay.
type change struct {
	version int64
	kind    string
	pod     corev1.Pod
}

// AddPod puts a pod on the node. Where they are missing it gets a UID and the node's name.
func (s *Server) AddPod(pod *corev1.Pod, ending Ending) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod = pod.DeepCopy()
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.Spec.NodeName = Node
	if pod.UID == "" {
		pod.UID = types.UID("uid-" + strconv.FormatInt(s.version, 10))
	}
	name := key(pod)
	s.pods[name], s.endings[name] = pod, ending
	s.happened("ADDED", pod)
	return pod
}

// ChangePod changes a pod as its kubelet or somebody else would.
func (s *Server) ChangePod(name string, edit func(*corev1.Pod)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	edit(s.pods[name])
	s.happened("MODIFIED", s.pods[name])
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
}

// HasPod tells whether a pod is on the node.
func (s *Server) HasPod(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[name] != nil
}

// DropWatches ends all watches that are under way.
func (s *Server) DropWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.dropped)
	s.dropped = make(chan struct{})
}

func key(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

func (s *Server) remove(name string) {
	if pod := s.pods[name]; pod != nil {
		delete(s.pods, name)
		s.happened("DELETED", pod)
	}
}

func (s *Server) happened(kind string, pod *corev1.Pod) {
	s.version++
	pod.ResourceVersion = strconv.FormatInt(s.version, 10)
	s.history = append(s.history, change{version: s.version, kind: kind, pod: *pod.DeepCopy()})
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) listPods(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if query.Get("fieldSelector") != "spec.nodeName="+Node {
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "can only list/watch pods with spec.nodeName field selector")
		return
	}
	if query.Get("watch") != "" {
		s.watchPods(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := corev1.PodList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(s.version, 10)},
		Items:    []corev1.Pod{},
	}
	for _, pod := range s.pods {
		list.Items = append(list.Items, *pod)
	}
	write(w, http.StatusOK, list)
}

// watchPods sends the history from the version that is asked for, and then what happens.
func (s *Server) watchPods(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("sendInitialEvents") != "" {
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents is forbidden")
		return
	}
	from, err := strconv.ParseInt(r.URL.Query().Get("resourceVersion"), 10, 64)
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "a watch without a version")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	for {
		fresh, changed, dropped := s.since(from)
		for _, c := range fresh {
			from = c.version
			if json.NewEncoder(w).Encode(map[string]any{"type": c.kind, "object": c.pod}) != nil {
				return
			}
		}
		if flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-dropped:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (s *Server) since(version int64) (fresh []change, changed, dropped <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.history {
		if c.version > version {
			fresh = append(fresh, c)
		}
	}
	return fresh, s.changed, s.dropped
}

func (s *Server) evict(w http.ResponseWriter, r *http.Request) {
	s.end(w, r, "evict", http.StatusCreated)
}

func (s *Server) deletePod(w http.ResponseWriter, r *http.Request) {
	s.end(w, r, "delete", http.StatusOK)
}

// end begins a pod's graceful deletion. A pod that is being deleted already is only ever shortened.
func (s *Server) end(w http.ResponseWriter, r *http.Request, what string, success int) {
	var body json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	options := s.deleteOptions(what, body)
	s.mu.Lock()
	defer s.mu.Unlock()
	name := r.PathValue("namespace") + "/" + r.PathValue("name")
	pod := s.pods[name]
	if pod == nil {
		NoRelationship()(w, r)
		return
	}
	if p := options.Preconditions; p != nil && p.UID != nil && *p.UID != pod.UID {
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict, "the UID in the precondition does not match the UID in record")
		return
	}
	if pod.DeletionTimestamp == nil || options.GracePeriodSeconds != nil {
		s.terminate(pod, options.GracePeriodSeconds)
	}
	write(w, success, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
}

func (s *Server) terminate(pod *corev1.Pod, seconds *int64) {
	if seconds == nil {
		seconds = pod.Spec.TerminationGracePeriodSeconds
	}
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if seconds != nil {
		grace = *seconds
	}
	at := metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second))
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &at, &grace
	s.happened("MODIFIED", pod)
	switch name, ending := key(pod), s.endings[key(pod)]; {
	case ending == Never:
	case ending == 0:
		s.remove(name)
	default:
		time.AfterFunc(time.Duration(ending), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.pods[name] == pod {
				s.remove(name)
			}
		})
	}
}
