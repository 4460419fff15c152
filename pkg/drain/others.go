package drain

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Another program may be emptying the node as well and need it closed until the Node is gone. It need not have cordoned
// it: a taint serves as well, and a cordon on a node that is unschedulable already leaves no trace. So before a cordon is
// lifted, the Node is looked at for signs of them.

// The outcomes of an uncordon that leaves the cordon to somebody who still needs it.
const (
	// UncordonLeftGoing: the Node has been deleted, and a finalizer still holds it.
	UncordonLeftGoing UncordonResult = "left-going"
	// UncordonLeftKarpenter, UncordonLeftAutoscaler and UncordonLeftNodeGroup: a taint says that Karpenter, Cluster
	// Autoscaler or an update of an EKS managed node group is emptying the node.
	UncordonLeftKarpenter  UncordonResult = "left-karpenter"
	UncordonLeftAutoscaler UncordonResult = "left-cluster-autoscaler"
	UncordonLeftNodeGroup  UncordonResult = "left-node-group"
)

// LeftTo names, within a sentence, who still needs the cordon; empty if it was not left to anybody.
func (r UncordonResult) LeftTo() string {
	return map[UncordonResult]string{
		UncordonLeftGoing:      "whoever has deleted the Node",
		UncordonLeftKarpenter:  "Karpenter",
		UncordonLeftAutoscaler: "Cluster Autoscaler",
		UncordonLeftNodeGroup:  "the update of the managed node group",
	}[r]
}

// signs are the taints by which others say that they are emptying a node. An empty value is any. Cluster Autoscaler's
// DeletionCandidateOfClusterAutoscaler is none of them: it marks a node that may be chosen.
var signs = []struct {
	key, value string
	left       UncordonResult
}{
	{"karpenter.sh/disrupted", "", UncordonLeftKarpenter},
	{"karpenter.sh/disruption", "", UncordonLeftKarpenter}, // before Karpenter 1.0
	{"ToBeDeletedByClusterAutoscaler", "", UncordonLeftAutoscaler},
	{"eks.amazonaws.com/nodegroup", "unschedulable", UncordonLeftNodeGroup},
}

// neededBy tells who else needs the node to stay closed: a result with a LeftTo, or nothing.
func neededBy(node *corev1.Node) UncordonResult {
	for _, c := range signs {
		if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == c.key && (c.value == "" || t.Value == c.value) && t.Effect != corev1.TaintEffectPreferNoSchedule
		}) {
			return c.left
		}
	}
	if node.DeletionTimestamp != nil {
		return UncordonLeftGoing
	}
	return ""
}
