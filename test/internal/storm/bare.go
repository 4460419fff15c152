package storm

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Bare drains nodes in the least that a client can do: it lists the pods once, cordons each node, and asks for the evictions of its pods,
// so many at once and with no limit on its rate. It waits for nothing but answers. What the control plane has no time for it asks again.
func Bare(ctx context.Context, kubeconfig string, atOnce int, nodes ...string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	var selector metav1.ListOptions
	if len(nodes) == 1 {
		selector.FieldSelector = "spec.nodeName=" + nodes[0]
	}
	list, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, selector)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var running sync.WaitGroup
	room := make(chan struct{}, atOnce)
	persist := func(do func() error) {
		if failed := persist(ctx, do); failed != nil {
			mu.Lock()
			defer mu.Unlock()
			err = errors.Join(err, failed)
		}
	}
	for _, node := range nodes {
		running.Go(func() {
			persist(func() error {
				_, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
				return err
			})
		})
	}
	for _, pod := range slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !slices.Contains(nodes, p.Spec.NodeName) }) {
		running.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			persist(func() error {
				return client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
					ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
				})
			})
		})
	}
	running.Wait()
	return err
}

// persist does something until it succeeds, or ctx ends. What is not there any more has gone the way it was to.
func persist(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil || apierrors.IsNotFound(err) {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}
