package lab_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/test/internal/lab"
)

func TestPodsOfEveryKindRunOnTheNode(t *testing.T) {
	t.Parallel()
	node := lab.Shared(t).AddNode(t)
	node.AddDeployment(t, "web", 2)
	node.AddStatefulSet(t, "db", 2)
	node.AddDaemonSet(t, "agent")
	node.AddPod(t, "bare")
	node.AddFinishedPod(t, "done", corev1.PodSucceeded)
	node.AddFinishedPod(t, "broken", corev1.PodFailed)
	node.AddMirrorPod(t, "static")

	evictable := 0
	for _, pod := range node.Pods(t) {
		if lab.Evictable(&pod) {
			evictable++
		}
	}
	if got := len(node.Pods(t)); got != 9 || evictable != 7 {
		t.Errorf("%d pods, of which %d evictable; want 9 and 7", got, evictable)
	}
}

func TestAnEvictedPodGoesAtOnce(t *testing.T) {
	t.Parallel()
	node := lab.Shared(t).AddNode(t)
	node.AddPod(t, "quick", lab.Grace(time.Hour))
	if err := evict(t.Context(), node, "quick"); err != nil {
		t.Fatal(err)
	}
	node.WaitEmpty(t) // which is far less patient than the grace period
}

func TestALabelledPodGoesWhenItsGraceEnds(t *testing.T) {
	t.Parallel()
	node := lab.Shared(t).AddNode(t)
	node.AddPod(t, "slow", lab.Grace(3*time.Second), lab.GoesAtGrace())
	if err := evict(t.Context(), node, "slow"); err != nil {
		t.Fatal(err)
	}
	var end time.Time
	node.WaitForPods(t, "slow is terminating", func(pods []*corev1.Pod) bool {
		if len(pods) == 1 && pods[0].DeletionTimestamp != nil {
			end = pods[0].DeletionTimestamp.Time
		}
		return !end.IsZero()
	})
	node.WaitEmpty(t)
	if early := time.Until(end); early > 0 {
		t.Errorf("the pod was gone %s before its grace had ended", early)
	}
}

func TestALabelledPodNeverGoesUntilItIsForced(t *testing.T) {
	t.Parallel()
	node := lab.Shared(t).AddNode(t)
	node.AddPod(t, "stuck", lab.Grace(time.Second), lab.NeverGoes())
	node.AddPod(t, "witness", lab.Grace(3*time.Second), lab.GoesAtGrace())
	for _, pod := range []string{"stuck", "witness"} {
		if err := evict(t.Context(), node, pod); err != nil {
			t.Fatal(err)
		}
	}
	node.WaitGone(t, "witness")
	if pods := node.Pods(t); len(pods) != 1 || pods[0].Name != "stuck" {
		t.Fatalf("after the grace of both, %d pods are left; want stuck alone", len(pods))
	}
	err := node.Client.CoreV1().Pods(node.Namespace).Delete(t.Context(), "stuck", *metav1.NewDeleteOptions(0))
	if err != nil {
		t.Fatal(err)
	}
	node.WaitEmpty(t)
}

func TestABudgetHoldsAnEvictionBackUntilASpareTakesThePods(t *testing.T) {
	t.Parallel()
	node := lab.Shared(t).AddNode(t)
	node.AddDeployment(t, "web", 2, lab.MinAvailable(2))
	node.Cordon(t)
	pods := node.Pods(t)
	if err := evict(t.Context(), node, pods[0].Name); !apierrors.HasStatusCause(err, "DisruptionBudget") {
		t.Fatalf("got %v, want a refusal by the budget", err)
	}
	spare := node.AddSpare(t)
	scale(t, node, "web", 3)
	spare.WaitForPods(t, "a pod of web runs", func(pods []*corev1.Pod) bool { return len(pods) == 1 })
	awaitEviction(t, node, pods[0].Name)
	node.WaitGone(t, pods[0].Name)
}

func TestAnObserverSeesTheNodeAndItsPods(t *testing.T) {
	t.Parallel()
	node := lab.Shared(t).AddNode(t)
	node.AddPod(t, "bare")
	var mu sync.Mutex
	var seen []string
	done, gone := make(chan struct{}), make(chan struct{})
	stop := node.Observe(t, func(m lab.Moment) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, strings.TrimSpace(string(m.What)+" "+m.Pod))
		switch m.What {
		case lab.Uncordoned:
			close(done)
		case lab.PodGone:
			close(gone)
		}
	})
	node.Cordon(t)
	node.WaitCordoned(t)
	if err := evict(t.Context(), node, "bare"); err != nil {
		t.Fatal(err)
	}
	node.WaitGone(t, "bare")
	node.Uncordon(t)
	<-done
	<-gone
	stop()
	// Node and pods are two watches, so only the order within each is certain.
	slices.Sort(seen)
	if want := []string{"cordoned", "pod gone bare", "pod terminating bare", "uncordoned"}; !slices.Equal(seen, want) {
		t.Errorf("saw %q, want %q", seen, want)
	}
}

func TestAHundredAndTenPodsGoInAMomentWithABareClient(t *testing.T) {
	t.Parallel()
	node := lab.Shared(t).AddNode(t)
	node.AddPods(t, "load", 110)
	begin := time.Now()
	var all sync.WaitGroup
	for _, pod := range node.Pods(t) {
		all.Go(func() {
			if err := evict(t.Context(), node, pod.Name); err != nil {
				t.Errorf("evicting %s: %v", pod.Name, err)
			}
		})
	}
	all.Wait()
	node.WaitEmpty(t)
	t.Logf("110 pods gone in %s", time.Since(begin).Round(time.Millisecond))
}

func scale(t *testing.T, n *lab.Node, name string, replicas int32) {
	t.Helper()
	deployments := lab.Shared(t).Admin.AppsV1().Deployments(n.Namespace)
	scale, err := deployments.GetScale(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale.Spec.Replicas = replicas
	if _, err := deployments.UpdateScale(t.Context(), name, scale, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// awaitEviction evicts a pod as soon as its budget allows it.
func awaitEviction(t *testing.T, n *lab.Node, pod string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := evict(ctx, n, pod)
		if err == nil {
			return
		}
		if !apierrors.IsTooManyRequests(err) {
			t.Fatalf("evicting %s: %v", pod, err)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("evicting %s: %v", pod, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
