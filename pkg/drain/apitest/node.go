package apitest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// register makes the Node as a kubelet registers it.
func (s *Server) register() {
	s.registered++
	s.putNode(&corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{
			Name: Node, UID: types.UID(fmt.Sprintf("node-uid-%d", s.registered)), CreationTimestamp: s.now(),
			Annotations: map[string]string{}, Labels: map[string]string{},
		},
		Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{BootID: s.bootID},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	})
}

// ChangeNode changes the node as another program would. With a manager, the API server records whose change it was (metadata.managedFields).
// Without a manager, it does not.
func (s *Server) ChangeNode(change func(*corev1.Node), manager ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node == nil {
		s.t.Errorf("there is no Node to change")
		return
	}
	node := s.node.node.DeepCopy()
	change(node)
	if len(manager) > 0 {
		own(s.node.node, node, manager[0], s.now())
	}
	s.putNode(node)
}

// CordonAs makes the node unschedulable as somebody else's request would: kubectl's, say. On a node that is unschedulable
// it changes nothing.
func (s *Server) CordonAs(manager string) { s.setUnschedulable(true, manager) }

// UncordonAs makes the node schedulable as somebody else's request would.
func (s *Server) UncordonAs(manager string) { s.setUnschedulable(false, manager) }

// setUnschedulable sets the node's spec.unschedulable as a request of a manager would. It writes nothing if the value is the same.
func (s *Server) setUnschedulable(to bool, manager string) {
	if node := s.CurrentNode(); node != nil && node.Spec.Unschedulable != to {
		s.ChangeNode(func(n *corev1.Node) { n.Spec.Unschedulable = to }, manager)
	}
}

// SetBootID makes the kubelet report the boot ID, of a Node that is there and of those that are registered later.
func (s *Server) SetBootID(id string) {
	s.mu.Lock()
	s.bootID = id
	exists := s.node != nil
	s.mu.Unlock()
	if exists {
		s.ChangeNode(func(n *corev1.Node) { n.Status.NodeInfo.BootID = id })
	}
}

// RemoveNode deletes the Node object.
func (s *Server) RemoveNode() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node == nil {
		return
	}
	node := s.node.node.DeepCopy()
	node.ResourceVersion = s.tick()
	s.node = nil
	s.happened(deleted, &object{node: node})
}

// RegisterNode replaces the Node, as the kubelet does after somebody has deleted it. The new Node has another UID, and nothing that others had
// written on the old one.
func (s *Server) RegisterNode() {
	s.RemoveNode()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.register()
}

// CurrentNode is a copy of the node as it is; nil if there is none.
func (s *Server) CurrentNode() *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node == nil {
		return nil
	}
	return s.node.node.DeepCopy()
}

// patchNode applies a JSON merge patch. A patch that changes nothing writes nothing.
func (s *Server) patchNode(w http.ResponseWriter, r *http.Request) {
	s.patch(w, r, "application/merge-patch+json", merged, func(before, node *corev1.Node) {
		node.Status = before.Status // it is a subresource
		if node.ManagedFields = before.DeepCopy().ManagedFields; !same(before, node) {
			if r.URL.Query().Get("dryRun") == "" {
				own(before, node, managerOf(r), s.now())
				s.putNode(node)
			}
			text, _ := json.Marshal(node) // it has been read from JSON
			writeText(w, http.StatusOK, text)
			return
		}
		writeText(w, http.StatusOK, s.node.json())
	})
}

// patch handles a patch of the Node. kind is its media type, and apply applies it. If the API server would accept the result, patch calls write,
// which stores the result and answers. Otherwise patch answers with the refusal.
func (s *Server) patch(
	w http.ResponseWriter, r *http.Request, kind string, apply func(node, patch []byte) (*corev1.Node, error), write func(before, node *corev1.Node),
) {
	if got := r.Header.Get("Content-Type"); got != kind {
		refuse(w, http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, got)
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
	node, err := apply(s.node.json(), text)
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	if why := admitNode(before, node, r.PathValue("name")); why != "" {
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("nodes %q is forbidden: %s", r.PathValue("name"), why))
		return
	}
	if invalid := checkUpdate(before, node); invalid != nil {
		invalid(w, r)
		return
	}
	write(before, node)
}

// admitNode is admitNode in plugin/pkg/admission/noderestriction/admission.go of Kubernetes.
func admitNode(before, node *corev1.Node, name string) (why string) {
	var forbidden []string
	for _, pair := range [][2]map[string]string{{before.Labels, node.Labels}, {node.Labels, before.Labels}} {
		for label, value := range pair[0] {
			if now, ok := pair[1][label]; (!ok || now != value) && !slices.Contains(forbidden, label) && closedLabel(label) {
				forbidden = append(forbidden, label)
			}
		}
	}
	slices.Sort(forbidden)
	switch {
	case name != Node:
		return fmt.Sprintf("node %q is not allowed to modify node %q", Node, name)
	case !reflect.DeepEqual(before.Spec.Taints, node.Spec.Taints):
		return fmt.Sprintf("node %q is not allowed to modify taints", Node)
	case !reflect.DeepEqual(before.OwnerReferences, node.OwnerReferences):
		return fmt.Sprintf("node %q is not allowed to modify ownerReferences", Node)
	case len(forbidden) > 0:
		return "is not allowed to modify labels: " + strings.Join(forbidden, ", ")
	}
	return ""
}

// closedLabel reports whether a node may not write a label of its own (getForbiddenLabels, and IsKubeletLabel in
// staging/src/k8s.io/kubelet/pkg/apis/well_known_labels.go).
func closedLabel(label string) bool {
	domain, _, prefixed := strings.Cut(label, "/")
	within := func(d string) bool { return prefixed && (domain == d || strings.HasSuffix(domain, "."+d)) }
	switch {
	case within("node-restriction.kubernetes.io"):
		return true
	case !within("kubernetes.io") && !within("k8s.io"), within("kubelet.kubernetes.io"), within("node.kubernetes.io"):
		return false
	}
	return !slices.Contains([]string{
		corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone,
		corev1.LabelFailureDomainBetaRegion, corev1.LabelInstanceType, corev1.LabelInstanceTypeStable, corev1.LabelOSStable,
		corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
	}, label)
}

// checkUpdate returns the refusal of an update, or nil. Another resourceVersion is a conflict (Update in
// staging/src/k8s.io/apiserver/pkg/registry/generic/registry/store.go). Another UID is an attempt to change it, which is invalid
// (ValidateObjectMetaAccessorUpdate in staging/src/k8s.io/apimachinery/pkg/api/validation/objectmeta.go). Fields that a request may not set
// get their old values again.
func checkUpdate(before, node *corev1.Node) Answer {
	switch {
	case node.ResourceVersion != "" && node.ResourceVersion != before.ResourceVersion:
		return status(metav1.Status{
			Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
			Message: fmt.Sprintf("Operation cannot be fulfilled on nodes %q: the object has been modified; please apply your changes to the "+
				"latest version and try again", Node),
			Details: &metav1.StatusDetails{Name: Node, Kind: "nodes"},
		})
	case node.UID != "" && node.UID != before.UID:
		return status(metav1.Status{
			Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
			Message: fmt.Sprintf("Node %q is invalid: metadata.uid: Invalid value: %q: field is immutable", Node, node.UID),
			Details: &metav1.StatusDetails{Name: Node, Kind: "Node", Causes: []metav1.StatusCause{{
				Type: metav1.CauseTypeFieldValueInvalid, Field: "metadata.uid", Message: fmt.Sprintf("Invalid value: %q: field is immutable", node.UID),
			}}},
		})
	}
	node.UID, node.CreationTimestamp, node.ResourceVersion = before.UID, before.CreationTimestamp, before.ResourceVersion
	if before.DeletionTimestamp != nil {
		node.DeletionTimestamp = before.DeletionTimestamp
	}
	return nil
}

func same(a, b *corev1.Node) bool {
	textA, errA := json.Marshal(a)
	textB, errB := json.Marshal(b)
	return errA == nil && errB == nil && string(textA) == string(textB)
}

// managerOf returns the field manager of a request, or else its user agent: managerOrUserAgent in
// staging/src/k8s.io/apiserver/pkg/endpoints/handlers/create.go.
func managerOf(r *http.Request) string {
	if manager := r.URL.Query().Get("fieldManager"); manager != "" {
		return manager
	}
	agent, _, _ := strings.Cut(r.UserAgent(), "/")
	return agent
}

// merged applies a JSON merge patch to a Node.
func merged(node, patch []byte) (*corev1.Node, error) {
	text, err := jsonpatch.MergePatch(node, patch)
	if err != nil {
		return nil, err
	}
	var result corev1.Node
	return &result, json.Unmarshal(text, &result)
}
