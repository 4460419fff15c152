package e2e

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nth-project/nth/test/internal/lab"
)

// A guard watches the pods of one workload, on whatever node they are, and counts those that serve: ready, and not about
// to go. This is what a disruption budget counts.
type guard struct {
	app     string
	changed chan struct{} // has room for one

	mu    sync.Mutex
	pods  map[types.UID]*corev1.Pod
	least int
	err   error
}

// guardPods begins to watch the pods of the workload app, all of which serve now.
func guardPods(t *testing.T, cp *lab.ControlPlane, namespace, app string) *guard {
	t.Helper()
	core := cp.Admin.CoreV1().Pods(namespace)
	selector := metav1.ListOptions{LabelSelector: "app=" + app}
	list, err := core.List(t.Context(), selector)
	if err != nil {
		t.Fatalf("listing the pods of %s: %v", app, err)
	}
	g := &guard{app: app, changed: make(chan struct{}, 1), pods: map[types.UID]*corev1.Pod{}}
	for i := range list.Items {
		g.pods[list.Items[i].UID] = &list.Items[i]
	}
	g.least = g.serving()
	selector.ResourceVersion = list.ResourceVersion
	events, err := core.Watch(t.Context(), selector)
	if err != nil {
		t.Fatalf("watching the pods of %s: %v", app, err)
	}
	t.Cleanup(events.Stop)
	go g.follow(events.ResultChan())
	return g
}

func (g *guard) follow(events <-chan watch.Event) {
	for e := range events {
		g.take(e)
		select {
		case g.changed <- struct{}{}:
		default: // the one in the channel stands for this one too
		}
	}
}

func (g *guard) take(e watch.Event) {
	g.mu.Lock()
	defer g.mu.Unlock()
	pod, ok := e.Object.(*corev1.Pod)
	switch {
	case !ok:
		g.err = errors.New("the watch of the pods has failed")
	case e.Type == watch.Deleted:
		delete(g.pods, pod.UID)
	default:
		g.pods[pod.UID] = pod
	}
	g.least = min(g.least, g.serving())
}

func (g *guard) serving() int {
	count := 0
	for _, pod := range g.pods {
		if pod.DeletionTimestamp == nil && ready(pod) {
			count++
		}
	}
	return count
}

func ready(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// mustHaveServed waits until so many pods of the workload serve on the node, and fails the test if there ever were fewer
// than least on all nodes together.
func (g *guard) mustHaveServed(t *testing.T, least int, on *lab.Node, now int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for g.servingOn(on.Name) < now {
		select {
		case <-g.changed:
		case <-ctx.Done():
			t.Fatalf("waiting for %d pods of %s on %s: %v", now, g.app, on.Name, ctx.Err())
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		t.Fatalf("counting the pods of %s: %v", g.app, g.err)
	}
	if g.least < least {
		t.Errorf("only %d pods of %s served at one time, want never less than %d", g.least, g.app, least)
	}
}

func (g *guard) servingOn(node string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	count := 0
	for _, pod := range g.pods {
		if pod.Spec.NodeName == node && pod.DeletionTimestamp == nil && ready(pod) {
			count++
		}
	}
	return count
}
