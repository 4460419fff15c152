package bench

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nth-project/nth/test/internal/lab"
)

// floor drains a node in the least that a client can do: it knows the pods, cordons, and asks for all evictions at
// once, with the same credential and encoding as nth and no limit on its rate. What it takes is what the API server and
// the simulated kubelets take.
func floor(ctx context.Context, node *lab.Node) error {
	client, err := bareClient(node.Kubeconfig)
	if err != nil {
		return err
	}
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
	if err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	patch := []byte(`{"spec":{"unschedulable":true}}`)
	if _, err := client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("cordoning: %w", err)
	}
	results := make(chan error)
	for _, pod := range pods.Items {
		go func() { results <- evict(ctx, client, pod) }()
	}
	var faults []error
	for range pods.Items {
		faults = append(faults, <-results)
	}
	return errors.Join(faults...)
}

func evict(ctx context.Context, client kubernetes.Interface, pod corev1.Pod) error {
	return client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
	})
}

func bareClient(kubeconfig string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return client, nil
}
