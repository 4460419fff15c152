package drain

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// sign is a mark on a Node by which another program or an operator says: I am emptying this node, keep it cordoned. Some programs set it instead
// of a cordon. If the node is cordoned already, only the sign shows that another program needs the cordon, too. Either taint or condition is set.
type sign struct {
	taint     string                   // the key of a taint
	value     string                   // the taint's value; "" matches any
	condition corev1.NodeConditionType // a condition that is True
	of        string                   // the program, as part of a sentence
}

// autoscalerTaint is on a node that Cluster Autoscaler removes. If that fails, it takes the taint off and makes the node schedulable in one
// update, no matter who had cordoned it (CleanToBeDeleted in cluster-autoscaler/utils/taints/taints.go). That is no uncordon by an operator.
const autoscalerTaint = "ToBeDeletedByClusterAutoscaler"

// signs are the marks that nth knows. Cluster Autoscaler's DeletionCandidateOfClusterAutoscaler is not among them: it marks a node that may be
// chosen. kured's annotation is not among them, either: it is set long before kured cordons the node, and may outlast a reboot. Besides, kured
// never uncordons a node that it found cordoned. docs/sources.md says where these facts were read.
var signs = []sign{
	{taint: "karpenter.sh/disrupted", of: "Karpenter"},
	{taint: "karpenter.sh/disruption", of: "Karpenter"}, // before Karpenter 1.0
	{taint: autoscalerTaint, of: "Cluster Autoscaler"},
	{taint: "eks.amazonaws.com/nodegroup", value: "unschedulable", of: "the update of the managed node group"},
	{taint: "medik8s.io/drain", of: "the Node Maintenance Operator"},
	{condition: "DrainInProgress", of: "the drain in progress"},
	{condition: "MaintenanceInProgress", of: "the maintenance in progress"},
}

// on reports whether the sign is on a Node. A taint with the effect PreferNoSchedule does not count: it keeps no pod away.
func (s sign) on(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == s.condition && c.Status == corev1.ConditionTrue
	}) || slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == s.taint && (s.value == "" || t.Value == s.value) && t.Effect != corev1.TaintEffectPreferNoSchedule
	})
}

// neededBy names who besides nth needs a node to stay cordoned, as part of a sentence; empty if nobody does.
func neededBy(node *corev1.Node) string {
	for _, s := range signs {
		if s.on(node) {
			return s.of
		}
	}
	if node.DeletionTimestamp != nil { // A finalizer still holds the Node.
		return "the program that is deleting this Node (such as Karpenter)"
	}
	return ""
}

// autoscaled reports whether Cluster Autoscaler is removing the Node.
func autoscaled(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == autoscalerTaint })
}

// leftTo begins the result of an uncordon that has left the cordon to somebody else, who still needs it.
const leftTo = "left to "

// LeftTo names who still needs the cordon, as part of a sentence; empty if nobody does.
func (r UncordonResult) LeftTo() string {
	if to, left := strings.CutPrefix(string(r), leftTo); left {
		return to
	}
	return ""
}
