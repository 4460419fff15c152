package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// OwnPod is the pod that a process runs in. The process leaves its own node to another pod of its Deployment, if one is ready. Otherwise
// it drains the node itself, and evicts its own pod last.
type OwnPod struct {
	// Node is the name of the node that the pod is on; "" outside of a pod.
	Node           string
	Namespace, Pod string
}

// The labels that all pods of one Deployment have.
const (
	nameLabel, instanceLabel = "app.kubernetes.io/name", "app.kubernetes.io/instance"
	nameValue                = "nth-queue"
)

const (
	// handoverPause is the delay with which a message is returned for others: the shortest that SQS has but for 0, with which this process
	// might receive it a hundred times before others do.
	handoverPause = time.Second
	// claimedPause is the delay if another process drains the node already.
	claimedPause = 5 * time.Second
	// handoverTime is how long the node is left to others: a pod that seems to be ready may not be.
	handoverTime = 15 * time.Second
	// handoverForget is how long after a message was last returned the handover of its event begins anew.
	handoverForget = time.Minute
)

// handover is when an event's message was returned first and last so that others drain this process's own node. Whether others have taken
// one event says nothing about the next.
type handover struct{ first, last time.Time }

// handOver notes that an event is left to others now, and reports whether it has been for less than handoverTime. f.mu is held.
func (f *Fleet) handOver(id string) bool {
	now := time.Now()
	maps.DeleteFunc(f.handovers, func(_ string, h handover) bool { return now.Sub(h.last) > handoverForget })
	h, known := f.handovers[id]
	if !known {
		h.first = now
	}
	h.last = now
	f.handovers[id] = h
	return now.Sub(h.first) < handoverTime
}

// errLeaveToOthers means that another process is to drain the node; messages are returned with that delay.
type errLeaveToOthers struct{ pause time.Duration }

func (errLeaveToOthers) Error() string {
	return "another process is to drain the node that this one runs on"
}

// leaveToOthers returns errLeaveToOthers if the session's node is this process's own and another process can drain it.
func (s *session) leaveToOthers(ctx context.Context, process string, n node) error {
	f, own := s.fleet, s.fleet.opts.Own
	if own.Node == "" || n.name != own.Node {
		return nil
	}
	if f.claims.free(process, n) != nil {
		return errLeaveToOthers{claimedPause}
	}
	ready, err := own.otherReady(ctx, f.opts.Client)
	if err != nil {
		f.opts.Log.WithField(fieldNode, n.name).Warn(err) // There may be no other.
	}
	if !ready {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	left := true
	for id := range s.tasks {
		left = f.handOver(id) && left
	}
	if !left {
		return nil
	}
	return errLeaveToOthers{handoverPause}
}

// otherReady reports whether another pod of the same Deployment is ready on another node.
func (o OwnPod) otherReady(ctx context.Context, client kubernetes.Interface) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	all, err := client.CoreV1().Pods(o.Namespace).List(ctx, metav1.ListOptions{LabelSelector: nameLabel + "=" + nameValue, ResourceVersion: "0"})
	if err != nil {
		return false, fmt.Errorf("looking for another nth-queue, as node %q is the one below this one: %w", o.Node, err)
	}
	ours := slices.IndexFunc(all.Items, func(pod corev1.Pod) bool { return pod.Name == o.Pod })
	if ours < 0 {
		return false, nil
	}
	part := all.Items[ours].Labels[instanceLabel]
	return slices.ContainsFunc(all.Items, func(pod corev1.Pod) bool {
		return pod.Spec.NodeName != o.Node && pod.Labels[instanceLabel] == part && pod.DeletionTimestamp == nil && isReady(&pod)
	}), nil
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
