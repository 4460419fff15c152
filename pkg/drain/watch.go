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
)

// watchPods takes in every change of the pods on the node until ctx ends. It begins with a list from the API server's cache,
// which costs little there and may be behind; what that lacks, the watch from the list's version tells. client-go's Reflector survives closed
// connections, expired resource versions and an API server that is away. What it lacks for a drain is set here: short
// pauses (after five failures they stay at two to three seconds), requests that end, and silence, because what it would
// print is no news to anybody.
func (g *guard) watchPods() {
	pods := listFirst{&cache.ListWatch{ListWithContextFunc: feed{g}.list, WatchFuncWithContext: g.node.openWatch}}
	silent := logr.Discard()
	reflector := cache.NewReflectorWithOptions(pods, &corev1.Pod{}, feed{g}, cache.ReflectorOptions{
		Logger:  &silent,
		Backoff: &wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 5, Cap: 2 * time.Second},
	})
	reflector.RunWithContext(klog.NewContext(g.ctx, silent))
}

// listFirst makes the Reflector list and then watch. By itself it would open one stream for both (a watch list), which
// waits for ever when it hangs, and when refused sleeps without regard to the context.
type listFirst struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is what the Reflector asks.
func (listFirst) IsWatchListSemanticsUnSupported() bool { return true }

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

// feed is the store that the Reflector fills: the guard, which is told everything.
type feed struct{ *guard }

// list lists the pods, and has it told if it is refused.
func (f feed) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list, err := f.node.listPods(ctx, o)
	if err != nil && !passing(err) && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		f.post(func() { f.sayRefused(&f.unlisted, err) })
	}
	return list, err
}

// pass has the guard take in a pod. The Reflector passes nothing else on.
func (f feed) pass(obj any, take func(*corev1.Pod)) {
	if pod, ok := obj.(*corev1.Pod); ok {
		f.post(func() {
			f.version = newer(f.version, pod.ResourceVersion)
			take(slim(pod))
		})
	}
}

// Add tells of a pod that is there.
func (f feed) Add(obj any) error { f.pass(obj, f.meet); return nil }

// Update tells of a pod that has changed.
func (f feed) Update(obj any) error { f.pass(obj, f.meet); return nil }

// Delete tells of a pod that is gone.
func (f feed) Delete(obj any) error { f.pass(obj, f.lose); return nil }

// Replace tells of the complete list.
func (f feed) Replace(objs []any, version string) error {
	all := make([]*corev1.Pod, 0, len(objs))
	for _, obj := range objs {
		if pod, ok := obj.(*corev1.Pod); ok {
			all = append(all, slim(pod))
		}
	}
	f.post(func() {
		f.version, f.unlisted = newer(f.version, version), ""
		f.replace(all)
	})
	return nil
}

// Resync has nothing to do.
func (feed) Resync() error { return nil }

// slim drops what is large and never looked at.
func slim(pod *corev1.Pod) *corev1.Pod {
	pod.ManagedFields = nil
	return pod
}
