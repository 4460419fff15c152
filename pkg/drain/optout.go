package drain

import corev1 "k8s.io/api/core/v1"

// Keys by which people hold nth back. nth reads them and never writes them.
const (
	// ActionAnnotation on a Node names the most that is done to it: LeaveNode and its like, or OnlyCordon. Anything else
	// means nothing.
	ActionAnnotation = "nth/action"
	// EvictAnnotation on a Pod says when it may be evicted: AtDeadline or Never. Anything else means nothing.
	EvictAnnotation = "nth/evict"
)

// The values of the two.
const (
	LeaveNode  = "ignore"
	OnlyNotify = "notify"
	OnlyCordon = "cordon"
	// AtDeadline lets the pod run until just its grace is left before the deadline. Without a deadline it is left alone.
	AtDeadline = "at-deadline"
	// Never leaves the pod to end with the machine.
	Never = "never"
)

// leave tells whether people want nothing done to the node, not even a cordon.
func leave(node *corev1.Node) bool {
	action := node.Annotations[ActionAnnotation]
	return action == LeaveNode || action == OnlyNotify
}

// onlyCordon tells whether people want the node's pods left alone.
func onlyCordon(node *corev1.Node) bool {
	return leave(node) || node.Annotations[ActionAnnotation] == OnlyCordon
}

// stays tells whether people want the pod left alone in a drain with or without a deadline.
func stays(pod *corev1.Pod, deadline bool) bool {
	when := pod.Annotations[EvictAnnotation]
	return when == Never || when == AtDeadline && !deadline
}

// waits tells whether the pod may run until the deadline needs it gone.
func waits(pod *corev1.Pod) bool { return pod.Annotations[EvictAnnotation] == AtDeadline }
