package storm

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"github.com/nth-project/nth/test/internal/lab"
)

// Watch is what an administrator sees of a storm.
type Watch struct {
	mu     sync.Mutex
	nodes  map[string]bool      // not cordoned yet
	named  map[string]time.Time // when those that are were
	begun  map[string]bool      // those with a pod that is ending
	pods   int                  // not gone yet
	onNode map[string]int       // of those, on each node
	empty  map[string]time.Time // when the last of a node was gone
	last   Times
	over   chan struct{}
}

// Times are when the last node was cordoned, and when the last pod was gone.
type Times struct{ Cordoned, Gone time.Time }

// Watch begins to watch.
func (s *Storm) Watch(t lab.TB) *Watch {
	t.Helper()
	w := &Watch{nodes: map[string]bool{}, named: map[string]time.Time{}, begun: map[string]bool{}, pods: s.pods, over: make(chan struct{})}
	w.onNode, w.empty = map[string]int{}, map[string]time.Time{}
	for _, n := range s.Nodes {
		w.nodes[n] = true
		w.onNode[n] = s.pods / len(s.Nodes)
	}
	core := s.cp.Admin.CoreV1().RESTClient()
	nodes := cache.NewFilteredListWatchFromClient(core, "nodes", "", func(o *metav1.ListOptions) { o.LabelSelector = stormed + "=" + s.label })
	lab.Follow(t, nodes, &corev1.Node{}, cache.ResourceEventHandlerFuncs{UpdateFunc: w.nodeChanged})
	pods := cache.NewListWatchFromClient(core, "pods", s.namespace, fields.Everything())
	lab.Follow(t, pods, &corev1.Pod{}, cache.ResourceEventHandlerFuncs{UpdateFunc: w.podChanged, DeleteFunc: w.podGone})
	return w
}

func (w *Watch) nodeChanged(_, object any) {
	node, ok := object.(*corev1.Node)
	if !ok || !node.Spec.Unschedulable {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nodes[node.Name] {
		delete(w.nodes, node.Name)
		w.last.Cordoned = time.Now()
		w.named[node.Name] = w.last.Cordoned
		w.look()
	}
}

func (w *Watch) podChanged(_, object any) {
	if pod, ok := object.(*corev1.Pod); ok && pod.DeletionTimestamp != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.begun[pod.Spec.NodeName] = true
	}
}

func (w *Watch) podGone(object any) {
	if missed, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = missed.Obj
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods--
	w.last.Gone = time.Now()
	if pod, ok := object.(*corev1.Pod); ok {
		if w.onNode[pod.Spec.NodeName]--; w.onNode[pod.Spec.NodeName] == 0 {
			w.empty[pod.Spec.NodeName] = w.last.Gone
		}
	}
	w.look()
}

// Emptied are the nodes whose pods are all gone, with the times of the last.
func (w *Watch) Emptied() map[string]time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.empty)
}

// look ends the watch when all is over. w.mu is held.
func (w *Watch) look() {
	if len(w.nodes) == 0 && w.pods == 0 {
		close(w.over)
	}
}

// patience is for how long a storm may last.
const patience = 10 * time.Minute

// Wait waits until all nodes are cordoned and all pods gone, and returns when the last of them was.
func (w *Watch) Wait(t lab.TB) Times {
	t.Helper()
	select {
	case <-w.over:
	case <-time.After(patience):
		t.Fatalf("waiting for a storm's end: %s", w.left())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// WaitCordoned waits until those nodes are cordoned, and returns when the last of them was, and of how many others the drain has begun:
// all nodes are cordoned at once, whatever the ceiling.
func (w *Watch) WaitCordoned(t lab.TB, nodes []string) (last time.Time, others int) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		w.mu.Lock()
		missing := slices.ContainsFunc(nodes, func(name string) bool { return w.named[name].IsZero() })
		for _, name := range nodes {
			if w.named[name].After(last) {
				last = w.named[name]
			}
		}
		others = len(w.begun)
		for _, name := range nodes {
			if w.begun[name] {
				others--
			}
		}
		w.mu.Unlock()
		switch {
		case !missing:
			return last, others
		case time.Now().After(deadline):
			t.Fatalf("waiting for the cordons of %d nodes: some are not", len(nodes))
		}
	}
}

func (w *Watch) left() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("%d nodes are not cordoned, and %d pods not gone", len(w.nodes), w.pods)
}
