package lab

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// A Happening is something that a drain makes happen to a node.
type Happening string

// What Observe reports.
const (
	Cordoned       Happening = "cordoned"
	Uncordoned     Happening = "uncordoned"
	PodTerminating Happening = "pod terminating" // it was evicted or deleted, and has its grace
	PodGone        Happening = "pod gone"
)

// A Moment is a happening and when a watch reported it.
type Moment struct {
	At   time.Time
	What Happening
	Pod  string // name, where a pod is concerned
}

// Observe calls tell with everything that happens to the node and its pods
// from now on, one at a time and in the order of each object's life, until stop
// is called or the test ends. It watches as an administrator and sees what is,
// by any client.
func (n *Node) Observe(t TB, tell func(Moment)) (stop func()) {
	t.Helper()
	var mu sync.Mutex
	now := func(what Happening, pod string) {
		mu.Lock()
		defer mu.Unlock()
		tell(Moment{At: time.Now(), What: what, Pod: pod})
	}
	node := Follow(t, n.watchNode(), &corev1.Node{}, cache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		was, is := before.(*corev1.Node).Spec.Unschedulable, after.(*corev1.Node).Spec.Unschedulable
		switch {
		case is && !was:
			now(Cordoned, "")
		case was && !is:
			now(Uncordoned, "")
		}
	}})
	pods := Follow(t, n.watchPods(), &corev1.Pod{}, cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			was, is := before.(*corev1.Pod), after.(*corev1.Pod)
			if was.DeletionTimestamp == nil && is.DeletionTimestamp != nil {
				now(PodTerminating, is.Name)
			}
		},
		DeleteFunc: func(object any) {
			// The watch may have missed the end itself and know only that it is past.
			if last, missed := object.(cache.DeletedFinalStateUnknown); missed {
				object = last.Obj
			}
			if pod, ok := object.(*corev1.Pod); ok {
				now(PodGone, pod.Name)
			}
		},
	})
	return func() { node(); pods() }
}

// Follow calls the handler with what happens to objects, of which there is an example, until stop is called or the test ends. It returns
// when all objects are known that there are.
func Follow(t TB, source cache.ListerWatcher, example runtime.Object, handler cache.ResourceEventHandler) (stop func()) {
	t.Helper()
	_, stop, err := follow(t.Context(), source, example, handler)
	t.Cleanup(stop)
	if err != nil {
		t.Fatalf("following %T: %v", example, err)
	}
	return stop
}

// follow is Follow until ctx ends. The store has what there is.
func follow(ctx context.Context, source cache.ListerWatcher, example runtime.Object, handler cache.ResourceEventHandler) (store cache.Store, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	informer := cache.NewSharedIndexInformer(source, example, 0, nil)
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return nil, cancel, err
	}
	var ended sync.WaitGroup
	ended.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		err = context.Cause(ctx)
	}
	return informer.GetStore(), func() { cancel(); ended.Wait() }, err
}
