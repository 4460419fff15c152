package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/drain"
)

const (
	// restartedAt is the annotation of a pod template that "kubectl rollout restart" changes, so that the workload replaces its pods.
	restartedAt = "kubectl.kubernetes.io/restartedAt"
	// revision is the annotation with a Deployment's revision: on the Deployment the latest one, and on each ReplicaSet its own.
	revision = "deployment.kubernetes.io/revision"
	// answerLife is how long the result for one pod holds for the others of its batch, which ask at the same moment.
	answerLife = 10 * time.Second
	// restartAgain is the pause after a failure, and restartAnew after a conflict.
	restartAgain, restartAnew = time.Second, 100 * time.Millisecond
)

// restarts restarts workloads as kubectl does (k8s.io/kubectl/pkg/polymorphichelpers, objectrestarter.go), so that they replace their
// pods. A pod whose workload has another template by now is being replaced already, whoever has restarted the workload. So one restart
// serves all pods of a workload, on any node; only a pod of the latest template needs another one.
type restarts struct {
	fleet *Fleet

	mu sync.Mutex
	// batches are the batches that were asked about lately.
	batches map[string]*batch
	// refused is set if rights are missing and that was logged.
	refused bool
}

// batch is the pods that one controller has made from one template, on urgent nodes or on others: urgent ones wait for no others. The
// mutex of restarts guards it, except for turn.
type batch struct {
	turn  chan struct{} // holds an element while a pod is being worked on
	users int
	// until is how long the result holds, which is a workload or an error. Without a result, err is the error of the last attempt.
	until    time.Time
	workload string
	err      error
}

// workload is what matters of a Deployment or StatefulSet for a restart.
type workload struct {
	kind, namespace, name, version string
	// restarted is the value of restartedAt in its template.
	restarted string
	// unfit is why a restart would not bring up another pod first; "" if it would.
	unfit string
	// replaces is set if it is replacing the pods of the batch already.
	replaces bool
}

func (w workload) String() string { return w.kind + " " + w.namespace + "/" + w.name }

// unfit is the error that a pod's workload is not restarted for that reason.
type unfit string

func (u unfit) Error() string { return string(u) }

// errRestarted means that a workload is not restarted again for the same drain; for other drains it may be.
var errRestarted = errors.New("was restarted for this drain already")

// nodeRestarts are the restarts for one drain, at most one for each workload: if another of its pods was scheduled onto the cordoned node,
// the next one would be, too.
type nodeRestarts struct {
	*restarts
	node   string
	urgent func() bool
	done   map[string]bool // by the workload's name
}

// of returns a drain.Options.Restart for a node.
func (r *restarts) of(node string, urgent func() bool) func(context.Context, *corev1.Pod) string {
	n := &nodeRestarts{restarts: r, node: node, urgent: urgent, done: map[string]bool{}}
	return func(ctx context.Context, pod *corev1.Pod) string {
		name, err := n.replace(ctx, pod)
		n.tell(ctx, pod, err)
		return name
	}
}

// tell logs why a pod is evicted without a restart. Missing rights are logged once.
func (n *nodeRestarts) tell(ctx context.Context, pod *corev1.Pod, err error) {
	log := n.fleet.opts.Log.WithField(fieldNode, n.node)
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case err == nil:
		n.refused = false
	case apierrors.IsForbidden(err) && n.refused, errors.Is(ctx.Err(), context.Canceled):
	case apierrors.IsForbidden(err):
		n.refused = true
		log.Warnf("pods are evicted without a restart of their workload before: %s", err)
	case errors.As(err, new(unfit)), errors.Is(err, errRestarted):
		log.Infof("the pod %s is evicted without a restart of its workload: %s", pod.Namespace+"/"+pod.Name, err)
	default:
		log.Warnf("the pod %s is evicted without a restart of its workload: %s", pod.Namespace+"/"+pod.Name, err)
	}
}

// replace has a pod's workload replace its pods, and returns the workload's name. One pod of a batch does it for all.
func (n *nodeRestarts) replace(ctx context.Context, pod *corev1.Pod) (string, error) {
	controller := metav1.GetControllerOf(pod)
	if controller == nil {
		return "", unfit("it has no controller")
	}
	b, leave := n.batch(fmt.Sprintf("%s/%s/%t", controller.UID, pod.Labels[appsv1.ControllerRevisionHashLabelKey], n.urgent()))
	defer leave()
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		n.mu.Lock()
		defer n.mu.Unlock()
		return "", cmp.Or(b.err, ctx.Err())
	}
	n.mu.Lock()
	known, name, err := time.Now().Before(b.until), b.workload, b.err
	n.mu.Unlock()
	if known {
		return name, err
	}
	name, err = n.persist(ctx, pod, *controller, b)
	if ctx.Err() == nil && !errors.Is(err, errRestarted) {
		n.mu.Lock()
		b.until, b.workload, b.err = time.Now().Add(answerLife), name, err
		n.mu.Unlock()
	}
	return name, err
}

// batch returns the batch with that key, and a function to call when it is no longer used.
func (r *restarts) batch(key string) (b *batch, leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b = r.batches[key]
	if b == nil {
		maps.DeleteFunc(r.batches, func(_ string, old *batch) bool { return old.users == 0 && time.Now().After(old.until) })
		b = &batch{turn: make(chan struct{}, 1)}
		r.batches[key] = b
	}
	b.users++
	return b, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		b.users--
	}
}

// persist tries to restart a workload until that succeeds, fails for good, or ctx ends.
func (n *nodeRestarts) persist(ctx context.Context, pod *corev1.Pod, controller metav1.OwnerReference, of *batch) (string, error) {
	for {
		name, err := n.try(ctx, pod, controller)
		if err == nil || isFinal(err) {
			return name, err
		}
		n.mu.Lock()
		if ctx.Err() == nil || of.err == nil { // An error because the time is over says less than the one before.
			of.err = fmt.Errorf("restarting its workload: %w", err)
		}
		last := of.err
		n.mu.Unlock()
		pause := restartAgain
		if apierrors.IsConflict(err) {
			pause = restartAnew
		}
		if !drain.Await(ctx, nil, pause) {
			return "", last
		}
	}
}

// isFinal reports whether trying again is of no use. Errors from admission are usually "invalid".
func isFinal(err error) bool {
	return errors.As(err, new(unfit)) || errors.Is(err, errRestarted) ||
		apierrors.IsForbidden(err) || drain.NotFound(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// try restarts a pod's workload, unless the pod is being replaced already.
func (n *nodeRestarts) try(ctx context.Context, pod *corev1.Pod, controller metav1.OwnerReference) (string, error) {
	ctx, leave, err := n.fleet.claims.enter(ctx, n.urgent)
	if err != nil {
		return "", err
	}
	defer leave()
	w, err := n.find(ctx, pod, controller)
	if err != nil {
		return "", err
	}
	name := w.String()
	switch {
	case w.unfit != "":
		return "", unfit(name + " " + w.unfit)
	case w.replaces:
		return name, nil
	case n.hasRestarted(w):
		return "", fmt.Errorf("%s %w", name, errRestarted)
	}
	if err := n.patch(ctx, w); err != nil {
		return "", err
	}
	n.mu.Lock()
	n.done[name] = true
	n.mu.Unlock()
	n.fleet.opts.Log.WithField(fieldNode, n.node).Infof("%s is restarted, for its pods on the node", name)
	return name, nil
}

// hasRestarted reports whether a workload was restarted for this drain: by this process, or since nth-queue has cordoned the node, perhaps
// by a process that had the drain before. The time in the template has whole seconds.
func (n *nodeRestarts) hasRestarted(w workload) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, err := time.Parse(time.RFC3339, w.restarted)
	on, _ := n.fleet.nodes.find(n.node)
	return n.done[w.String()] || err == nil && on.ours && on.unschedulable && at.Add(time.Second).After(on.cordon.Since)
}

// find returns the workload behind a pod's controller.
func (r *restarts) find(ctx context.Context, pod *corev1.Pod, controller metav1.OwnerReference) (workload, error) {
	apps := r.fleet.opts.Client.AppsV1()
	switch controller.APIVersion + " " + controller.Kind {
	case "apps/v1 StatefulSet":
		set, err := apps.StatefulSets(pod.Namespace).Get(ctx, controller.Name, metav1.GetOptions{})
		if err != nil {
			return workload{}, err
		}
		return ofStatefulSet(set, pod, controller), nil
	case "apps/v1 ReplicaSet":
		set, err := apps.ReplicaSets(pod.Namespace).Get(ctx, controller.Name, metav1.GetOptions{})
		if err != nil {
			return workload{}, err
		}
		owner := metav1.GetControllerOf(set)
		if set.UID != controller.UID || owner == nil || owner.Kind != "Deployment" {
			return workload{kind: controller.Kind, namespace: pod.Namespace, name: controller.Name, unfit: "is no Deployment's"}, nil
		}
		deployment, err := apps.Deployments(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return workload{}, err
		}
		return ofDeployment(deployment, set), nil
	}
	return workload{kind: controller.Kind, namespace: pod.Namespace, name: controller.Name, unfit: "is neither a Deployment nor a StatefulSet"}, nil
}

// ofDeployment returns the workload of a Deployment, for the pods of one of its ReplicaSets.
func ofDeployment(d *appsv1.Deployment, pods *appsv1.ReplicaSet) workload {
	w := workload{kind: "Deployment", namespace: d.Namespace, name: d.Name, version: d.ResourceVersion, restarted: d.Spec.Template.Annotations[restartedAt]}
	// The revision changes only when the controller has seen the new template, the annotation at once.
	w.replaces = d.Annotations[revision] != pods.Annotations[revision] ||
		d.Spec.Template.Annotations[restartedAt] != pods.Spec.Template.Annotations[restartedAt]
	switch {
	case !metav1.IsControlledBy(pods, d):
		w.unfit = "is another one by now"
	case d.DeletionTimestamp != nil:
		w.unfit = "is being deleted"
	case d.Spec.Paused:
		w.unfit = "is paused"
	case d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		w.unfit = "has the strategy Recreate, by which all of its pods would end first"
	case stuck(d):
		w.unfit = "makes no progress with its rollout"
	}
	return w
}

// stuck reports whether the rollout of a Deployment has exceeded its progress deadline.
func stuck(d *appsv1.Deployment) bool {
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentProgressing {
			return c.Status == corev1.ConditionFalse && d.Status.ObservedGeneration >= d.Generation
		}
	}
	return false
}

// ofStatefulSet returns the workload of a StatefulSet, for one of its pods.
func ofStatefulSet(s *appsv1.StatefulSet, pod *corev1.Pod, controller metav1.OwnerReference) workload {
	w := workload{kind: controller.Kind, namespace: s.Namespace, name: s.Name, version: s.ResourceVersion, restarted: s.Spec.Template.Annotations[restartedAt]}
	made := pod.Labels[appsv1.ControllerRevisionHashLabelKey]
	w.replaces = s.Status.UpdateRevision != "" && made != "" && s.Status.UpdateRevision != made ||
		s.Spec.Template.Annotations[restartedAt] != pod.Annotations[restartedAt]
	rolling := s.Spec.UpdateStrategy.RollingUpdate
	switch {
	case s.UID != controller.UID:
		w.unfit = "is another one by now"
	case s.DeletionTimestamp != nil:
		w.unfit = "is being deleted"
	case s.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType:
		w.unfit = "has the update strategy OnDelete, by which it replaces no pod by itself"
	case rolling != nil && rolling.Partition != nil && *rolling.Partition > 0:
		w.unfit = "is updated by a partition, which keeps some of its pods as they are"
	}
	return w
}

// patch restarts a workload if it still has the version that was read; another process may have restarted it since.
func (r *restarts) patch(ctx context.Context, w workload) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": w.version},
		"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{
			"annotations": map[string]string{restartedAt: time.Now().Format(time.RFC3339)},
		}}},
	})
	if err != nil {
		return err // texts always encode
	}
	apps, options := r.fleet.opts.Client.AppsV1(), metav1.PatchOptions{FieldManager: manager}
	if w.kind == "Deployment" {
		_, err = apps.Deployments(w.namespace).Patch(ctx, w.name, types.StrategicMergePatchType, body, options)
	} else {
		_, err = apps.StatefulSets(w.namespace).Patch(ctx, w.name, types.StrategicMergePatchType, body, options)
	}
	return err
}
