package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// OwnPod is the pod that a process runs in. The process leaves the node below it to another one of its Deployment, if that is ready; else
// it drains the node itself, and its own pod goes last.
type OwnPod struct {
	// Node is the name of the node below the pod. Where it is empty, no node is treated in another way.
	Node string
	// Namespace and Pod are the pod's namespace and name.
	Namespace, Pod string
}

// The labels by which the pods of one Deployment know each other: what they run, and as whose part.
const (
	nameLabel, instanceLabel = "app.kubernetes.io/name", "app.kubernetes.io/instance"
	nameValue                = "nth-queue"
)

const (
	// givenBack is how long what others are to drain goes back into the queue for: the shortest time that SQS counts in, if it is not 0,
	// with which it would come again at once, perhaps a hundred times in the time that others need.
	handoverPause = time.Second
	// lookAgain is the same where another process drains the node already, and holds the same message or another one.
	claimedPause = 5 * time.Second
	// handover is for how long others are given the chance to drain the node below us: somebody who seems to be ready may not be.
	handoverTime = 15 * time.Second
	// forgotten is how long after it was last given back a chance is not the same any more.
	handoverForget = time.Minute
)

// handovers are what others had to drain the node below us, by the IDs of the events that it was to be drained for: that nobody has come for
// one, or that one was seen to a moment ago, says nothing of the next.
type handovers struct {
	mu sync.Mutex
	of map[string]handoverTry
}

// handoverTry is since when others had it, and when for the last time.
type handoverTry struct{ first, last time.Time }

// left tells whether others are still to have the chance to see to all of those events.
func (c *handovers) left(events []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(c.of, func(_ string, had handoverTry) bool { return now.Sub(had.last) > handoverForget })
	left := true
	for _, id := range events {
		had, known := c.of[id]
		if !known {
			had.first = now
		}
		had.last = now
		c.of[id] = had
		left = left && now.Sub(had.first) < handoverTime
	}
	return left
}

// errLeaveToOthers says that a node is not for us to drain, but for another process that is there. What is asked for it goes back into the
// queue for that long.
type errLeaveToOthers struct{ pause time.Duration }

func (errLeaveToOthers) Error() string {
	return "another process is to drain the node that this one runs on"
}

// leaveToOthers returns errOthers if the session's node is the one below us and another process can drain it.
func (s *session) leaveToOthers(ctx context.Context, process string, n node) error {
	f, own := s.fleet, s.fleet.opts.Own
	if own.Node == "" || n.name != own.Node {
		return nil
	}
	if f.claims.free(process, n) != nil {
		return errLeaveToOthers{claimedPause}
	}
	relieved, err := own.otherReady(ctx, f.opts.Client)
	if err != nil {
		f.opts.Log.WithField(fieldNode, n.name).Warn(err) // Nobody may be there, so that we are.
	}
	f.mu.Lock()
	events := slices.Collect(maps.Keys(s.tasks))
	f.mu.Unlock()
	if !relieved || !f.handovers.left(events) {
		return nil
	}
	return errLeaveToOthers{handoverPause}
}

// otherReady tells whether another pod of our Deployment is ready on another node.
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
