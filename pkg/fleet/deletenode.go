package fleet

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
)

// detachTimeout is how long the Node of a terminated instance is kept, from the beginning of its drain, while volumes are attached to it
// or its kubelet was heard of. Kubernetes detaches volumes from a node that does not answer after six minutes, and at once if it has the
// taint out-of-service; both need the Node.
const detachTimeout = 7 * time.Minute

// deleteTries is how often the deletion of a Node is tried if others write to it.
const deleteTries = 10

// wantsNodeDeleted reports whether the Node of a task's instance is to be deleted. It is not if the rules only notify, because then
// nothing was done about its pods.
func (f *Fleet) wantsNodeDeleted(t *task) bool {
	rule := f.policy()[t.notice.Event.Kind]
	return f.opts.DeleteNode && f.opts.Instances != nil && !f.opts.DryRun && saysTerminated(t.notice) && rule.Action != policy.Notify
}

// saysTerminated reports whether a notice says that its instance is terminated.
func saysTerminated(n sqs.Notice) bool { return n.Stopped && n.Event.Code == "terminated" }

// keepNodeUntil is until when the Node of a task's instance is kept for its volumes. f.mu is held.
func (f *Fleet) keepNodeUntil(t *task) time.Time {
	if since, known := f.budgetStarts[t.notice.Event.ID]; known {
		return since.Add(detachTimeout)
	}
	return time.Now().Add(detachTimeout)
}

// deleteNodeFor deletes the Node of a terminated instance, if it is to be deleted, and ends the task.
func (f *Fleet) deleteNodeFor(ctx context.Context, name string, t *task, until time.Time) {
	log := f.opts.Log.WithField(fieldNode, name)
	stays, err := f.mustKeepNode(ctx, t.notice)
	if err == nil && stays == "" {
		stays, err = f.deleteNode(ctx, name, t.notice.Instance, until)
	}
	switch {
	case apierrors.IsForbidden(err):
		log.Warnf("the Node stays: %s", err) // Trying again is of no use.
		t.done()
	case err != nil:
		f.retryLater(ctx, t, err)
	case stays != "":
		log.Warnf("the Node stays: %s", stays)
		t.done()
	default:
		log.Infof("the instance %s is terminated, and its Node deleted", t.notice.Instance)
		t.done()
	}
}

// mustKeepNode asks EC2, and returns why the Node of an instance that a notice calls terminated is not to be deleted; "" if the instance
// is terminated or unknown. The EC2 API may lag behind the notice.
func (f *Fleet) mustKeepNode(ctx context.Context, n sqs.Notice) (why string, err error) {
	instance, known, err := f.opts.Instances.LookAnew(ctx, n.Instance)
	switch {
	case err != nil:
		return "", err
	case f.opts.ManagedOnly && !(known && instance.Managed):
		return fmt.Sprintf("nothing says that the instance %s is managed", n.Instance), nil
	case !known, instance.State == "terminated":
		return "", nil
	case time.Since(n.Event.Noticed) < staleAfter:
		return "", fmt.Errorf("EC2 has told that the instance %s is terminated, and describes it as %s", n.Instance, instance.State)
	}
	return fmt.Sprintf("EC2 says that the instance %s is %s", n.Instance, instance.State), nil
}

// deleteNode deletes the Node of an instance, or returns why it does not. It deletes the version that the watch has shown: if anybody has
// written to the Node since, such as the kubelet of another machine of that name, it looks again.
func (f *Fleet) deleteNode(ctx context.Context, name, instance string, until time.Time) (why string, err error) {
	for tries := 1; ; {
		news := f.nodes.changes()
		n, there := f.nodes.find(name)
		left := time.Until(until)
		switch {
		case !there:
			return "", nil
		case n.instance != instance:
			return fmt.Sprintf("its spec.providerID does not name the instance %s", instance), nil
		case left > 0 && (n.ready || n.attached):
			if !drain.Await(ctx, news, left) {
				return "", ctx.Err()
			}
			continue
		case n.ready:
			return "its kubelet goes on to say that it is Ready: another machine may have its name", nil
		}
		err := f.tryDeleteNode(ctx, n)
		switch {
		case err == nil, drain.NotFound(err):
			return "", nil
		case !apierrors.IsConflict(err), tries == deleteTries:
			return "", fmt.Errorf("deleting node %q: %w", name, err)
		}
		if tries++; !drain.Await(ctx, news, time.Second) {
			return "", ctx.Err()
		}
	}
}

func (f *Fleet) tryDeleteNode(ctx context.Context, n node) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	as := metav1.Preconditions{UID: &n.uid, ResourceVersion: &n.version}
	return f.opts.Client.CoreV1().Nodes().Delete(ctx, n.name, metav1.DeleteOptions{Preconditions: &as})
}
