// Package wait has what a drain waits for before it evicts pods, and before it counts a node as drained: its Blockers, and the one for
// volumes. Newcomers begin with Blocker. The drain sets the limits: a blocker knows no deadline.
package wait

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// Blocker is one thing that is waited for.
type Blocker interface {
	// Wait returns nil when it has come. Otherwise it returns why it waits no longer: ctx has ended, or waiting longer is of no use. report
	// is called with what is still missing, in words, whenever that changes.
	Wait(ctx context.Context, node Node, report func(left string)) error
}

// Node is what a Blocker may have to know of the node that is drained.
type Node struct {
	// Labeled tells that the Node asks to be taken out of load balancers.
	Labeled bool
	// Addresses are those of the pods that had to go; none before evictions.
	Addresses []string
	// Staying are the pods that need not go.
	Staying []*corev1.Pod
}
