package evict

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/nth-project/nth/pkg/kube"
)

// A pod may have 1.5 MiB, which is etcd's limit for a request, and most of that is what its authors write. So lists are decoded one pod at a
// time, and each pod is reduced to the fields that nth reads before the next pod is decoded.
//
// Pages would not bound a list. An API server that answers from its cache, as for resourceVersion=0, ignores a limit (the comments on
// pagination in tools/cache/reflector.go of client-go). For any other version a limit makes servers before 1.34 read etcd, where a selector
// costs them all pods of the cluster (KEP-4988).

// mostVolumes bounds the volumes of a pod that are kept. A node can have fewer attached.
const mostVolumes = 128

// strip returns a copy of a pod with only the fields that nth reads, and with bounded lists.
func strip(pod *corev1.Pod) *corev1.Pod {
	kept := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
			DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, PriorityClassName: pod.Spec.PriorityClassName,
			TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds, Volumes: someVolumes(pod.Spec.Volumes),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	for _, key := range []string{Annotation, karpenterAnnotation, autoscalerAnnotation, corev1.MirrorPodAnnotationKey} { // kubectl's filters read the last one.
		if value, ok := pod.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, key, value[:min(len(value), 64)]) // All values with a meaning are shorter.
		}
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		kept.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			kept.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return kept
}

// someVolumes returns the volumes of a pod that nth reads: emptyDirs, for Options.ProtectEmptyDir, and volumes with claims, for wait.Volumes.
func someVolumes(all []corev1.Volume) []corev1.Volume {
	var some []corev1.Volume
	for _, v := range all {
		switch {
		case len(some) == mostVolumes:
			return some
		case v.EmptyDir != nil:
			some = append(some, corev1.Volume{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		case v.PersistentVolumeClaim != nil:
			some = append(some, corev1.Volume{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: v.PersistentVolumeClaim}})
		case v.Ephemeral != nil:
			some = append(some, corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}})
		}
	}
	return some
}

// listPods lists the pods of this node, stripped. It drops pods of other nodes: a server or a proxy may ignore the selector.
func (e *Evictor) listPods(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	o.Limit, o.Continue = 0, "" // The Reflector asks for pages. They would not bound a list: see above.
	list := &corev1.PodList{}
	err := kube.Attempt(ctx, func(ctx context.Context) error {
		body, err := e.query(o).SetHeader("Accept", runtime.ContentTypeJSON).Stream(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = body.Close() }()
		list.ResourceVersion, err = decodeList(body, func(pod *corev1.Pod) {
			if e.runs(pod) {
				list.Items = append(list.Items, *strip(pod))
			}
		})
		if err != nil {
			return fmt.Errorf("reading the API server's list of pods: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// runs reports whether a pod is on this node.
func (e *Evictor) runs(pod *corev1.Pod) bool { return pod.Spec.NodeName == e.name }

// decodeList decodes the JSON of a PodList, and calls handle for each pod as soon as that pod is decoded. It returns the list's resource version.
func decodeList(body io.Reader, handle func(*corev1.Pod)) (version string, err error) {
	var kind string
	var meta metav1.ListMeta
	in := json.NewDecoder(body)
	if start, err := in.Token(); err != nil || start != json.Delim('{') {
		return "", cmp.Or(err, errNoList)
	}
	for in.More() {
		key, err := in.Token()
		switch {
		case err != nil: // It is returned below.
		case key == "kind":
			err = in.Decode(&kind)
		case key == "metadata":
			err = in.Decode(&meta)
		case key == "items":
			err = decodeItems(in, handle)
		default: // Skip what nth does not read.
			err = in.Decode(new(json.RawMessage))
		}
		if err != nil {
			return "", err
		}
	}
	if _, err := in.Token(); err != nil || kind != "PodList" { // the token "}"
		return "", cmp.Or(err, errNoList)
	}
	return meta.ResourceVersion, nil
}

var errNoList = errors.New("the answer is not the JSON of a PodList")

// decodeItems decodes the items of a PodList, and calls handle for each. The decoder has just read the key "items".
func decodeItems(in *json.Decoder, handle func(*corev1.Pod)) error {
	start, err := in.Token()
	if err != nil || start == nil { // A token of nil is JSON's null: there are no pods.
		return err
	}
	if start != json.Delim('[') {
		return errNoList
	}
	for in.More() {
		pod := &corev1.Pod{}
		if err := in.Decode(pod); err != nil {
			return err
		}
		handle(pod)
	}
	_, err = in.Token() // the token "]"
	return err
}

// query returns the request for this node's pods. A kubelet may list or watch no others, so the selector is needed.
func (e *Evictor) query(o metav1.ListOptions) *rest.Request {
	o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", e.name).String()
	return e.client.Get().Resource("pods").VersionedParams(&o, scheme.ParameterCodec).MaxRetries(0)
}

// watchPods follows the pods on the node until ctx ends. It runs in a goroutine of the loop's, and returns nil because nothing remains to be
// done at its end. It begins with a list from the API server's cache, which is cheap and may be old; the watch from the list's version makes
// up for that. client-go's Reflector survives closed connections, expired resource versions and an API server that is away. Here it has short
// pauses, at most two to three seconds, and requests with a timeout. It does not log, since what matters is reported.
func (p *Pods) watchPods(ctx context.Context) (then func()) {
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		list, err := p.listPods(ctx, o)
		expired := apierrors.IsResourceExpired(err) || apierrors.IsGone(err) // The Reflector lists again at once.
		if err != nil && !expired {
			p.loop.Post(func() { p.handleListError(err) })
		}
		return list, err
	}
	pods := listFirst{&cache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: p.openWatch}}
	silent := logr.Discard()
	reflector := cache.NewReflectorWithOptions(pods, &corev1.Pod{}, feed{p}, cache.ReflectorOptions{
		Logger:  &silent,
		Backoff: &wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 5, Cap: 2 * time.Second},
	})
	reflector.RunWithContext(klog.NewContext(ctx, silent))
	return nil
}

// listFirst makes the Reflector list and then watch. By default the Reflector would open one stream for both (a watch list). It would block
// for ever if that stream hangs, and would sleep without regard to the context if the stream is refused.
type listFirst struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is called by the Reflector, which does not try a watch list if it returns true.
func (listFirst) IsWatchListSemanticsUnSupported() bool { return true }

// openWatch opens a watch of this node's pods. The API server ends the watch after kube.Watch, and the Reflector opens the next one. If a watch
// cannot be opened, the Reflector lists first.
func (e *Evictor) openWatch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch, o.TimeoutSeconds = true, new(int64(kube.Watch/time.Second))
	w, err := kube.OpenWatch(ctx, e.query(o).Watch)
	if err != nil {
		return nil, errors.New(kube.Plain(err)) // After a 429, the Reflector would only watch again, and never list.
	}
	return w, nil
}

// feed is the store that the Reflector fills. Instead of storing pods, it passes them on to the loop.
type feed struct{ *Pods }

// pass has the loop call handle for a pod from the watch, stripped. A pod of another node is dropped, as in listPods.
func (f feed) pass(obj any, handle func(*corev1.Pod)) {
	if pod, ok := obj.(*corev1.Pod); ok && f.runs(pod) {
		pod = strip(pod)
		f.loop.Post(func() { handle(pod) })
	}
}

// Add handles a pod that is new.
func (f feed) Add(obj any) error { f.pass(obj, f.handlePod); return nil }

// Update handles a pod that has changed.
func (f feed) Update(obj any) error { f.pass(obj, f.handlePod); return nil }

// Delete handles a pod that is gone.
func (f feed) Delete(obj any) error { f.pass(obj, f.handleGone); return nil }

// Replace handles a complete list.
func (f feed) Replace(objs []any, _ string) error {
	all := make([]*corev1.Pod, 0, len(objs))
	for _, obj := range objs {
		if pod, ok := obj.(*corev1.Pod); ok {
			all = append(all, pod) // listPods has taken out what nth does not read.
		}
	}
	f.loop.Post(func() {
		f.handleListed()
		f.replacePods(all)
	})
	return nil
}

// Resync does nothing: there is no periodic work on pods.
func (feed) Resync() error { return nil }
