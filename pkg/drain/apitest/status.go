package apitest

import (
	"encoding/json"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// statusResource is the subresource in which a Node's status is written.
const statusResource = "status"

// patchStatus applies a strategic merge patch to the Node's status, which merges conditions by their type. A patch that changes
// nothing writes nothing. A resourceVersion in it is a precondition, as in patchNode. What else it holds is passed over
// (nodeStatusStrategy in pkg/registry/core/node/strategy.go keeps the spec; nobody here writes metadata so).
func (s *Server) patchStatus(w http.ResponseWriter, r *http.Request) {
	s.patch(w, r, "application/strategic-merge-patch+json", mergedByKeys, func(before, patched *corev1.Node) {
		node := before.DeepCopy()
		node.Status = patched.Status
		if !same(before, node) {
			own(before, node, managerOf(r), statusResource, s.now())
			s.putNode(node)
		}
		writeText(w, http.StatusOK, s.node.json())
	})
}

// mergedByKeys applies a strategic merge patch to a Node.
func mergedByKeys(node, patch []byte) (*corev1.Node, error) {
	text, err := strategicpatch.StrategicMergePatch(node, patch, corev1.Node{})
	if err != nil {
		return nil, err
	}
	var result corev1.Node
	return &result, json.Unmarshal(text, &result)
}
