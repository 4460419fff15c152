package drain

import (
	"context"
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

	"github.com/nth-project/nth/pkg/kube"
)

// watchPods follows the pods on the node until ctx ends. It begins with a list from the API server's cache, which is cheap and may be old;
// the watch from the list's version makes up for that. client-go's Reflector survives closed connections, expired resource versions and an
// API server that is away. For a drain it also gets short pauses (after five failures they stay at two to three seconds), requests with a
// timeout, and no log, since the guard reports what matters.
func (g *guard) watchPods() {
	refused := kube.Refusals
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return feed{g}.list(ctx, o, &refused)
	}
	pods := listFirst{&cache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: g.node.openWatch}}
	silent := logr.Discard()
	reflector := cache.NewReflectorWithOptions(pods, &corev1.Pod{}, feed{g}, cache.ReflectorOptions{
		Logger:  &silent,
		Backoff: &wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 5, Cap: 2 * time.Second},
	})
	reflector.RunWithContext(klog.NewContext(g.ctx, silent))
}

// listFirst makes the Reflector list and then watch. By default it would open one stream for both (a watch list), which
// blocks for ever if it hangs, and sleeps without regard to the context if it is refused.
type listFirst struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is what the Reflector asks.
func (listFirst) IsWatchListSemanticsUnSupported() bool { return true }

// openWatch opens a watch. The API server ends it after kube.Watch, and the next one continues from there.
func (n *Node) openWatch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch, o.TimeoutSeconds = true, new(int64(kube.Watch/time.Second))
	return n.reads.Open(ctx, n.pods(o).Watch)
}

// feed is the store that the Reflector fills. It passes everything on to the guard.
type feed struct{ *guard }

// list lists the pods, and reports if that is refused or keeps failing. After a refusal it pauses, as long as nothing is urgent.
func (f feed) list(ctx context.Context, o metav1.ListOptions, refused *wait.Backoff) (runtime.Object, error) {
	list, err := f.node.listPods(ctx, o)
	switch {
	case err == nil:
		*refused = kube.Refusals
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
	default:
		f.post(func() { f.handleListError(err) })
		if kube.Passing(err) {
			break
		}
		for left := refused.Step(); left > 0 && !f.pressed() && kube.Await(ctx, nil, min(left, time.Second)); left -= time.Second {
		}
	}
	return list, err
}

// pressed tells whether a hard deadline is near.
func (f feed) pressed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.deadlineNear(time.Now())
}

// pass has the guard handle a pod. The Reflector delivers no other objects.
func (f feed) pass(obj any, handle func(*corev1.Pod)) {
	if pod, ok := obj.(*corev1.Pod); ok && f.node.runs(pod) {
		pod = strip(pod)
		f.post(func() { handle(pod) })
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
			all = append(all, pod) // feed.list has stripped it
		}
	}
	f.post(func() {
		f.handleListed()
		f.replacePods(all)
	})
	return nil
}

// Resync does nothing: the guard has no periodic work on pods.
func (feed) Resync() error { return nil }
