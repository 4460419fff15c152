package apitest

import (
	"encoding/json"
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func readyNode() *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: Node, Annotations: map[string]string{}, Labels: map[string]string{}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

// ChangeNode changes the node as somebody else would.
func (s *Server) ChangeNode(change func(*corev1.Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.node)
}

// RemoveNode deletes the Node object.
func (s *Server) RemoveNode() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node = nil
}

// CurrentNode is a copy of the node as it is.
func (s *Server) CurrentNode() *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node.DeepCopy()
}

func (s *Server) getNode(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.PathValue("name") != Node:
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "a node may read only itself")
	case s.node == nil:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "nodes \""+Node+"\" not found")
	default:
		write(w, http.StatusOK, s.node)
	}
}

// patchNode applies a JSON merge patch. Taints are refused, and with them all the rest, as NodeRestriction does.
func (s *Server) patchNode(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node == nil || r.PathValue("name") != Node {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "nodes \""+Node+"\" not found")
		return
	}
	if kind := r.Header.Get("Content-Type"); kind != "application/merge-patch+json" {
		refuse(w, http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, kind)
		return
	}
	var patch map[string]any
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	if spec, ok := patch["spec"].(map[string]any); ok && spec["taints"] != nil {
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "is not allowed to modify taints")
		return
	}
	node, err := merged(s.node, patch)
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	s.version++
	node.ResourceVersion = strconv.FormatInt(s.version, 10)
	s.node = node
	write(w, http.StatusOK, node)
}

func merged(node *corev1.Node, patch map[string]any) (*corev1.Node, error) {
	text, err := json.Marshal(node)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, err
	}
	merge(tree, patch)
	if text, err = json.Marshal(tree); err != nil {
		return nil, err
	}
	var result corev1.Node
	return &result, json.Unmarshal(text, &result)
}

// merge is RFC 7396 for objects.
func merge(into, patch map[string]any) {
	for key, value := range patch {
		sub, isObject := value.(map[string]any)
		switch there, isThere := into[key].(map[string]any); {
		case value == nil:
			delete(into, key)
		case isObject && isThere:
			merge(there, sub)
		case isObject:
			fresh := map[string]any{}
			merge(fresh, sub)
			into[key] = fresh
		default:
			into[key] = value
		}
	}
}
