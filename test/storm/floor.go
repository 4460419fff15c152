package storm

import (
	"context"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Floor drains all nodes in the least that a client can do: it cordons each, and asks for the evictions of its pods at
// once, with no limit on its rate. It knows the pods already, and waits for nothing but answers.
func (s *Storm) Floor(ctx context.Context, kubeconfig string) error {
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
	results := make(chan error)
	for n, node := range s.Nodes {
		go func() {
			patch := []byte(`{"spec":{"unschedulable":true}}`)
			_, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
			for i := n * perNode; i < (n+1)*perNode; i++ {
				go func() { results <- s.evict(ctx, client, i) }()
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

func (s *Storm) evict(ctx context.Context, client kubernetes.Interface, pod int) error {
	return client.PolicyV1().Evictions(s.namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: podName(pod)},
	})
}
