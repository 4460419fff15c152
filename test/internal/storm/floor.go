package storm

import (
	"context"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Floor drains all nodes in the least that a client can do: it cordons each, and asks for the evictions of its pods, so
// many at once and with no limit on its rate. It knows the pods already, and waits for nothing but answers. What the
// control plane has no time for it asks again.
func (s *Storm) Floor(ctx context.Context, kubeconfig string, atOnce int) error {
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
	perNode := s.pods / len(s.Nodes)
	results, room := make(chan error), make(chan struct{}, atOnce)
	for n, node := range s.Nodes {
		go func() {
			err := persist(ctx, func() error { return cordon(ctx, client, node) })
			for i := n * perNode; i < (n+1)*perNode; i++ {
				go func() {
					room <- struct{}{}
					defer func() { <-room }()
					results <- persist(ctx, func() error { return s.evict(ctx, client, i) })
				}()
			}
			results <- err
		}()
	}
	var first error
	for range len(s.Nodes) + s.pods {
		if err := <-results; first == nil {
			first = err
		}
	}
	return first
}

func cordon(ctx context.Context, client kubernetes.Interface, node string) error {
	patch := []byte(`{"spec":{"unschedulable":true}}`)
	_, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (s *Storm) evict(ctx context.Context, client kubernetes.Interface, pod int) error {
	return client.PolicyV1().Evictions(s.namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: podName(pod)},
	})
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
