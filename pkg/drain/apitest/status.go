package apitest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// statusResource is the subresource in which a Node's status is written.
const statusResource = "status"

// patchStatus applies a strategic merge patch to the Node's status, which merges conditions by their type. A patch that changes
// nothing writes nothing. A resourceVersion in it is a precondition, as in patchNode. What else it holds is passed over
// (nodeStatusStrategy in pkg/registry/core/node/strategy.go keeps the spec; nobody here writes metadata so).
func (s *Server) patchStatus(w http.ResponseWriter, r *http.Request) {
	if kind := r.Header.Get("Content-Type"); kind != "application/strategic-merge-patch+json" {
		refuse(w, http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, kind)
		return
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has left
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node == nil {
		notFound(w, "nodes", Node)
		return
	}
	before := s.node.node
	text, err = strategicpatch.StrategicMergePatch(s.node.json(), text, corev1.Node{})
	var patched corev1.Node
	if err == nil {
		err = json.Unmarshal(text, &patched)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	if why := admitNode(before, &patched, r.PathValue("name")); why != "" {
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("nodes %q is forbidden: %s", r.PathValue("name"), why))
		return
	}
	node := before.DeepCopy()
	node.Status = patched.Status
	if invalid := checkUpdate(before, &patched); invalid != nil {
		invalid(w, r)
		return
	}
	if !same(before, node) {
		own(before, node, managerOf(r), statusResource, s.now())
		s.putNode(node)
	}
	writeText(w, http.StatusOK, s.node.json())
}
