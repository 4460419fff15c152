package drain

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// change is one piece of news about the node's pods: a pod that is there as described, a pod that is gone, or (all not
// nil) the complete list.
type change struct {
	pod  *corev1.Pod
	gone *corev1.Pod // as it was last
	all  []*corev1.Pod
	// refused is why the pods cannot be listed, and will not be by itself.
	refused error
	// version is the resource version of it.
	version string
}

// watchPods reports every change of the pods on the node until ctx ends. It begins with a list from the API server's cache,
// which costs little there and may be behind; what that lacks, the watch from the list's version tells. client-go's Reflector survives closed
// connections, expired resource versions and an API server that is away. What it lacks for a drain is set here: short
// pauses (after five failures they stay at two to three seconds), requests that end, and silence, because what it would
// print is no news to anybody.
func (n *Node) watchPods(ctx context.Context, changed func(change)) {
	silent := logr.Discard()
	ctx = klog.NewContext(ctx, silent)
	reflector := cache.NewReflectorWithOptions(n.podSource(changed), &corev1.Pod{}, feed{ctx: ctx, changed: changed}, cache.ReflectorOptions{
		Logger:  &silent,
		Backoff: &wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 5, Cap: 2 * time.Second},
	})
	reflector.RunWithContext(ctx)
}

// listFirst makes the Reflector list and then watch. By itself it would open one stream for both (a watch list), which
// waits for ever when it hangs, and when refused sleeps without regard to the context.
type listFirst struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is what the Reflector asks.
func (listFirst) IsWatchListSemanticsUnSupported() bool { return true }

func (n *Node) podSource(changed func(change)) cache.ListerWatcher {
	return listFirst{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := n.listPods(ctx, o)
			if err != nil && !passing(err) && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				changed(change{refused: err})
			}
			return list, err
		},
		WatchFuncWithContext: n.openWatch,
	}}
}

// watchLife is how long a watch may last. The API server ends it then, and another goes on where it ended. Behind a
// connection that has died without a word the client ends it, a little later; client-go would believe in it for minutes.
const watchLife = 10 * time.Second

func (n *Node) openWatch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch, o.TimeoutSeconds = true, new(int64(watchLife/time.Second))
	ctx, cancel := context.WithTimeout(ctx, watchLife+2*time.Second)
	opening := time.AfterFunc(attemptTimeout, cancel)
	defer opening.Stop()
	w, err := n.pods(o).Watch(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	return bounded{Interface: w, cancel: cancel}, nil
}

// bounded is a watch whose context ends with it.
type bounded struct {
	watch.Interface
	cancel context.CancelFunc
}

// Stop ends the watch.
func (b bounded) Stop() {
	b.Interface.Stop()
	b.cancel()
}

// feed is the store that the Reflector fills: it passes everything on and keeps nothing.
type feed struct {
	ctx     context.Context //nolint:containedctx // cache.Store's methods take none
	changed func(change)
}

var errNotAPod = errors.New("not a pod")

func (f feed) send(c change) error {
	f.changed(c)
	return f.ctx.Err()
}

// Add passes on a pod that is there.
func (f feed) Add(obj any) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return errNotAPod
	}
	return f.send(change{pod: slim(pod), version: pod.ResourceVersion})
}

// Update passes on a pod that changed.
func (f feed) Update(obj any) error { return f.Add(obj) }

// Delete passes on that a pod is gone.
func (f feed) Delete(obj any) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return errNotAPod
	}
	return f.send(change{gone: slim(pod), version: pod.ResourceVersion})
}

// Replace passes on the complete list.
func (f feed) Replace(objs []any, version string) error {
	all := make([]*corev1.Pod, 0, len(objs))
	for _, obj := range objs {
		if pod, ok := obj.(*corev1.Pod); ok {
			all = append(all, slim(pod))
		}
	}
	return f.send(change{all: all, version: version})
}

// slim drops what is large and never looked at.
func slim(pod *corev1.Pod) *corev1.Pod {
	pod.ManagedFields = nil
	return pod
}

// Resync has nothing to do.
func (feed) Resync() error { return nil }
