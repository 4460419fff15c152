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

// detachTimeout is how long after the drain of a terminated instance has begun its Node is kept for the volumes that are attached to it, and for
// a kubelet that was heard of lately. Kubernetes takes volumes from a node that does not answer after six minutes; with the taint
// out-of-service at once, but not without the Node that bears it.
const detachTimeout = 7 * time.Minute

// deleteTries is how often somebody else may change a Node just before it is deleted.
const deleteTries = 10

// wantsNodeDeleted tells whether the Node of a task's instance is to be deleted when all else is done. Where it was to be told only, nobody has looked
// after its pods.
func (f *Fleet) wantsNodeDeleted(t *task) bool {
	rule := f.policy()[t.notice.Event.Kind]
	return f.opts.DeleteNode && f.opts.Instances != nil && !f.opts.DryRun && saysTerminated(t.notice) && rule.Action != policy.Notify
}

// saysTerminated tells whether a notice says that its instance is terminated.
func saysTerminated(n sqs.Notice) bool { return n.Stopped && n.Event.Code == "terminated" }

// keepNodeUntil is until when the Node of a task's instance is kept for its volumes. f.mu is held.
func (f *Fleet) keepNodeUntil(t *task) time.Time {
	if since, known := f.budgetStarts[t.notice.Event.ID]; known {
		return since.Add(detachTimeout)
	}
	return time.Now().Add(detachTimeout)
}

// deleteNodeFor ends a task of an instance that is terminated, once its Node is deleted, or is to stay.
func (f *Fleet) deleteNodeFor(ctx context.Context, name string, t *task, until time.Time) {
	log := f.opts.Log.WithField(fieldNode, name)
	stays, err := f.mustKeepNode(ctx, t.notice)
	if err == nil && stays == "" {
		stays, err = f.deleteNode(ctx, name, t.notice.Instance, until)
	}
	switch {
	case apierrors.IsForbidden(err):
		log.Warnf("the Node stays: %s", err) // That will not pass by itself.
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

// mustKeepNode asks EC2, and tells why the Node of an instance that is said to be terminated is not to be deleted; "" if the instance is
// terminated or gone, which is for good. What EC2 describes may be behind what it has told.
func (f *Fleet) mustKeepNode(ctx context.Context, n sqs.Notice) (why string, err error) {
	instance, known, err := f.opts.Instances.LookAnew(ctx, n.Instance)
	switch {
	case err != nil:
		return "", err // it says what was asked
	case f.opts.ManagedOnly && !(known && instance.Managed):
		return fmt.Sprintf("nothing says that the instance %s is managed", n.Instance), nil
	case !known, instance.State == "terminated":
		return "", nil
	case time.Since(n.Event.Noticed) < staleAfter:
		return "", fmt.Errorf("EC2 has told that the instance %s is terminated, and describes it as %s", n.Instance, instance.State)
	}
	return fmt.Sprintf("EC2 says that the instance %s is %s", n.Instance, instance.State), nil
}

// deleteNode deletes the Node of an instance, and tells why it does not. It is deleted as the watch has shown it, or not at all: one that
// anybody has written to since, such as the kubelet of another machine with that name, is looked at again.
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
		case err == nil, apierrors.IsNotFound(err):
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
