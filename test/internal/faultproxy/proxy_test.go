package faultproxy_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	authentication "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nth-project/nth/test/internal/faultproxy"
	"github.com/nth-project/nth/test/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 2)) }

// open returns a proxy and a client that goes through it.
func open(t *testing.T) (*lab.Node, *faultproxy.Proxy, kubernetes.Interface) {
	t.Helper()
	t.Parallel()
	node := lab.Shared(t).AddNode(t)
	proxy := faultproxy.New(t, node)
	config, err := clientcmd.BuildConfigFromFlags("", proxy.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return node, proxy, client
}

// getNode asks once.
func getNode(ctx context.Context, client kubernetes.Interface, node *lab.Node) error {
	return client.CoreV1().RESTClient().Get().Resource("nodes").Name(node.Name).MaxRetries(0).Do(ctx).Error()
}

func watchPods(t *testing.T, client kubernetes.Interface, node *lab.Node) watch.Interface {
	t.Helper()
	w, err := client.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWhatPassesTheProxyIsTheNodes(t *testing.T) {
	node, proxy, client := open(t)
	review, err := client.AuthenticationV1().SelfSubjectReviews().
		Create(t.Context(), &authentication.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || review.Status.UserInfo.Username != "system:node:"+node.Name {
		t.Errorf("the API server takes the proxy for %+v, %v", review.Status, err)
	}
	w := watchPods(t, client, node)
	node.AddPod(t, "young")
	if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.Pod).Name != "young" {
		t.Errorf("the watch tells %+v", e)
	}
	seen := proxy.Requests()
	if len(seen) != 2 || seen[0].Call != faultproxy.WhoAmI || seen[0].Status != http.StatusCreated || seen[1].Call != faultproxy.WatchPods {
		t.Errorf("the proxy has seen %+v", seen)
	}
}

func TestAFaultOfTheProxyIsMetUntilItIsLifted(t *testing.T) {
	for name, c := range map[string]struct {
		fault faultproxy.Fault
		is    func(error) bool
	}{
		"refuse": {faultproxy.Fault{Kind: faultproxy.Refuse}, func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }},
		"reset":  {faultproxy.Fault{Kind: faultproxy.Reset}, func(err error) bool { return !isStatus(err) }},
		"reset within the answer": {
			faultproxy.Fault{Kind: faultproxy.Reset, After: 10}, func(err error) bool { return !isStatus(err) },
		},
		"429": {
			faultproxy.Fault{Kind: faultproxy.Status, Status: 429, RetryAfter: 1500 * time.Millisecond},
			func(err error) bool {
				seconds, told := apierrors.SuggestsClientDelay(err)
				return apierrors.IsTooManyRequests(err) && told && seconds == 2
			},
		},
		"503":     {faultproxy.Fault{Kind: faultproxy.Status, Status: 503}, apierrors.IsServiceUnavailable},
		"500":     {faultproxy.Fault{Kind: faultproxy.Status, Status: 500, Message: "broken"}, func(err error) bool { return strings.Contains(err.Error(), "broken") }},
		"garbage": {faultproxy.Fault{Kind: faultproxy.Garbage}, func(err error) bool { return !isStatus(err) }},
	} {
		t.Run(name, func(t *testing.T) {
			node, proxy, client := open(t)
			if err := getNode(t.Context(), client, node); err != nil {
				t.Fatalf("before the fault: %v", err)
			}
			proxy.Fault(c.fault)
			_ = decoded(t.Context(), client, node) // may still learn that its connection was cut
			if err := decoded(t.Context(), client, node); err == nil || !c.is(err) {
				t.Errorf("during the fault: %v", err)
			}
			proxy.Lift()
			if err := decoded(t.Context(), client, node); err != nil {
				t.Errorf("after the fault: %v", err)
			}
		})
	}
}

// decoded asks once and reads the answer.
func decoded(ctx context.Context, client kubernetes.Interface, node *lab.Node) error {
	return client.CoreV1().RESTClient().Get().Resource("nodes").Name(node.Name).MaxRetries(0).Do(ctx).Into(&corev1.Node{})
}

func isStatus(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

func TestWhatIsHeldBackComesOutWhenTheFaultIsLifted(t *testing.T) {
	for name, fault := range map[string]faultproxy.Fault{
		"black hole": {Kind: faultproxy.BlackHole},
		"latency":    {Kind: faultproxy.Latency, Delay: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			node, proxy, client := open(t)
			if err := getNode(t.Context(), client, node); err != nil {
				t.Fatal(err)
			}
			proxy.Fault(fault)
			impatient, leave := context.WithCancel(t.Context())
			defer leave()
			asked := make(chan error, 1)
			go func() { asked <- getNode(impatient, client, node) }()
			proxy.AwaitMet(t, 1)
			leave()
			if err := <-asked; !errors.Is(err, context.Canceled) {
				t.Errorf("during the fault: %v", err)
			}
			proxy.Lift()
			if err := getNode(t.Context(), client, node); err != nil {
				t.Errorf("after the fault: %v", err)
			}
		})
	}
}

func TestAFaultOfTheProxyMeetsOneCallAFewTimes(t *testing.T) {
	node, proxy, client := open(t)
	proxy.Fault(faultproxy.Fault{Kind: faultproxy.Status, Status: 500, Call: faultproxy.GetNode, Times: 2})
	w := watchPods(t, client, node)
	defer w.Stop()
	for attempt, broken := range []bool{true, true, false} {
		if err := getNode(t.Context(), client, node); (err != nil) != broken {
			t.Errorf("attempt %d: %v", attempt, err)
		}
	}
}

func TestAFaultOfTheProxyEndsByItself(t *testing.T) {
	node, proxy, client := open(t)
	proxy.Fault(faultproxy.Fault{Kind: faultproxy.Refuse, For: time.Millisecond})
	for getNode(t.Context(), client, node) != nil {
		if t.Context().Err() != nil {
			t.Fatal("the fault stays")
		}
	}
}

func TestWatchesEnd(t *testing.T) {
	for name, kind := range map[string]faultproxy.Kind{"closed": faultproxy.WatchClose, "gone": faultproxy.WatchGone} {
		t.Run(name, func(t *testing.T) {
			node, proxy, client := open(t)
			old := watchPods(t, client, node)
			proxy.Fault(faultproxy.Fault{Kind: kind})
			if e, open := <-old.ResultChan(); open {
				t.Errorf("the old watch tells %+v", e)
			}
			e, open := <-watchPods(t, client, node).ResultChan()
			if gone := open && apierrors.IsResourceExpired(apierrors.FromObject(e.Object)); gone != (kind == faultproxy.WatchGone) {
				t.Errorf("a new watch tells %+v (%t)", e, open)
			}
			proxy.Lift()
			healthy := watchPods(t, client, node)
			node.AddPod(t, "young")
			if e := <-healthy.ResultChan(); e.Type != watch.Added {
				t.Errorf("after the fault, a watch tells %+v", e)
			}
		})
	}
}
