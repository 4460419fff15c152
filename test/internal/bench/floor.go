package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
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

// The arguments by which the bench command becomes a process that polls the metadata service whose address follows, and does nothing else:
// with net/http alone, or with pkg/imds.
const (
	BarePoller   = "bare-poller"
	SourcePoller = "source-poller"
)

// pollers are the requests that nth makes on a spot instance in whose history nothing has happened: how often, and for what.
var pollers = []struct {
	every time.Duration
	path  string
}{
	{500 * time.Millisecond, "spot/instance-action"},
	{500 * time.Millisecond, "autoscaling/target-lifecycle-state"},
	{5 * time.Second, "events/recommendations/rebalance"},
	{30 * time.Second, "events/maintenance/scheduled"},
	{30 * time.Second, "events/maintenance/history"},
}

// Poll polls the metadata service at an address as nth does and with nothing but net/http, until ctx ends: what that takes is
// the least that a process in Go needs.
func Poll(ctx context.Context, address string) error {
	request := func(method, path, name, value string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, method, address+path, http.NoBody)
		if err != nil {
			return "", err
		}
		req.Header.Set(name, value)
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		defer func() { _ = answer.Body.Close() }()
		body, err := io.ReadAll(answer.Body)
		return string(body), err
	}
	token, err := request(http.MethodPut, "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds", "21600")
	if err != nil {
		return fmt.Errorf("requesting a session token: %w", err)
	}
	var all sync.WaitGroup
	for _, p := range pollers {
		all.Go(func() {
			for ctx.Err() == nil {
				_, _ = request(http.MethodGet, "/latest/meta-data/"+p.path, "X-aws-ec2-metadata-token", token)
				// With nth's jitter: requests that coincide share a wake-up, and cost half of what nth's do.
				select {
				case <-time.After(wait.Jitter(p.every*19/20, 2.0/19)):
				case <-ctx.Done():
				}
			}
		})
	}
	all.Wait()
	return nil
}

// PollAsNTH polls the metadata service at an address by nth's own source of events, until ctx ends.
func PollAsNTH(ctx context.Context, address string) error {
	source, err := imds.New(imds.Options{Endpoint: address, BootID: "00000000-0000-4000-8000-000000000001"})
	if err != nil {
		return err
	}
	return source.Run(ctx, nobody{})
}

// nobody is told what is announced.
type nobody struct{}

func (nobody) Snapshot(event.Snapshot)   {}
func (nobody) Trouble(event.Kind, error) {}

// startPoller starts a poller of that name as a process of its own, until the test ends.
func startPoller(t lab.TB, name, address string) (pid int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("starting a %s: %v", name, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, self, name, address)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting a %s: %v", name, err)
	}
	t.Cleanup(func() { stop(); _ = cmd.Wait() })
	return cmd.Process.Pid
}
