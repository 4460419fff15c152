package rbac_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/pkg/sqs/sqstest"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

// attempts are what somebody would try who has got hold of the credential.
var attempts = map[string]func(ctx context.Context, client kubernetes.Interface, node *lab.Node) error{
	"read secrets": func(ctx context.Context, client kubernetes.Interface, _ *lab.Node) error {
		_, err := client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
		return err
	},
	"read one secret": func(ctx context.Context, client kubernetes.Interface, node *lab.Node) error {
		_, err := client.CoreV1().Secrets(node.Namespace).Get(ctx, "any", metav1.GetOptions{})
		return err
	},
	"read the logs of a pod": func(ctx context.Context, client kubernetes.Interface, node *lab.Node) error {
		return client.CoreV1().Pods(node.Namespace).GetLogs("pod", &corev1.PodLogOptions{}).Do(ctx).Error()
	},
	"run something in a pod": func(ctx context.Context, client kubernetes.Interface, node *lab.Node) error {
		return client.CoreV1().RESTClient().Post().Namespace(node.Namespace).Resource("pods").Name("pod").SubResource("exec").
			Param("command", "id").Do(ctx).Error()
	},
	"make a pod": func(ctx context.Context, client kubernetes.Interface, node *lab.Node) error {
		_, err := client.CoreV1().Pods(node.Namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "mine"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "mine", Image: "mine"}}},
		}, metav1.CreateOptions{})
		return err
	},
	"change a pod": func(ctx context.Context, client kubernetes.Interface, node *lab.Node) error {
		_, err := client.CoreV1().Pods(node.Namespace).Patch(ctx, "pod", types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
		return err
	},
	"delete all pods in one request": func(ctx context.Context, client kubernetes.Interface, node *lab.Node) error {
		return client.CoreV1().Pods(node.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	},
	"delete a node": func(ctx context.Context, client kubernetes.Interface, node *lab.Node) error {
		return client.CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{})
	},
	"replace a node": func(ctx context.Context, client kubernetes.Interface, node *lab.Node) error {
		fresh, err := client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading it: %w", err)
		}
		_, err = client.CoreV1().Nodes().Update(ctx, fresh, metav1.UpdateOptions{})
		return err
	},
	"reach the kubelet of a node": func(ctx context.Context, client kubernetes.Interface, node *lab.Node) error {
		return client.CoreV1().RESTClient().Get().Resource("nodes").Name(node.Name).SubResource("proxy").Do(ctx).Error()
	},
	"make a token of the service account": func(ctx context.Context, client kubernetes.Interface, _ *lab.Node) error {
		return client.CoreV1().RESTClient().Post().Namespace("kube-system").Resource("serviceaccounts").Name("nth-queue").
			SubResource("token").Body([]byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest"}`)).Do(ctx).Error()
	},
	"widen its own role": func(ctx context.Context, client kubernetes.Interface, _ *lab.Node) error {
		_, err := client.RbacV1().ClusterRoles().Patch(ctx, "nth-queue", types.MergePatchType,
			[]byte(`{"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`), metav1.PatchOptions{})
		return err
	},
	"bind itself to another role": func(ctx context.Context, client kubernetes.Interface, _ *lab.Node) error {
		_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "mine"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "nth-queue"}},
		}, metav1.CreateOptions{})
		return err
	},
	"scale a deployment": func(ctx context.Context, client kubernetes.Interface, node *lab.Node) error {
		_, err := client.AppsV1().Deployments(node.Namespace).Patch(ctx, "any", types.MergePatchType,
			[]byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{}, "scale")
		return err
	},
	"lift a disruption budget": func(ctx context.Context, client kubernetes.Interface, node *lab.Node) error {
		return client.PolicyV1().PodDisruptionBudgets(node.Namespace).Delete(ctx, "any", metav1.DeleteOptions{})
	},
	"read Events": func(ctx context.Context, client kubernetes.Interface, _ *lab.Node) error {
		_, err := client.CoreV1().Events("").List(ctx, metav1.ListOptions{})
		return err
	},
	"lead the control plane": func(ctx context.Context, client kubernetes.Interface, _ *lab.Node) error {
		return client.CoordinationV1().Leases("kube-system").Delete(ctx, "kube-controller-manager", metav1.DeleteOptions{})
	},
	"take a lease": func(ctx context.Context, client kubernetes.Interface, _ *lab.Node) error {
		return client.CoordinationV1().Leases("kube-node-lease").Delete(ctx, "any", metav1.DeleteOptions{})
	},
}

func TestEverythingElseIsRefused(t *testing.T) {
	t.Parallel()
	user := newUser(t)
	node := lab.Shared(t).AddNode(t)
	node.AddPod(t, "pod")
	for name, try := range attempts {
		if err := try(t.Context(), user.Client, node); !apierrors.IsForbidden(err) {
			t.Errorf("to %s: got %v, want 403", name, err)
		}
	}
	for _, other := range []rest.ImpersonationConfig{
		{UserName: "system:serviceaccount:kube-system:node-controller"}, {UserName: "lab-admin", Groups: []string{"system:masters"}},
	} {
		config, err := clientcmd.BuildConfigFromFlags("", user.Kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		config.Impersonate = other
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("to be %s: got %v, want 403", other.UserName, err)
		}
	}
}

// The rights are enough for everything that can be switched on.
func TestTheRightsAreEnoughForADrainWithAllExtras(t *testing.T) {
	t.Parallel()
	user := newUser(t)
	messages := sqstest.New()
	t.Cleanup(messages.Close)
	instances := &ec2test.Service{}
	aws := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Amz-Target") != "" { // SQS has a protocol of its own.
			messages.ServeHTTP(w, r)
			return
		}
		instances.ServeHTTP(w, r)
	}))
	t.Cleanup(aws.Close)
	node, instance := addInstance(t)
	instances.Add(ec2test.Instance{ID: instance, State: "stopped"})
	node.AddDaemonSet(t, "agent")
	node.AddDeployment(t, "web", 2)
	node.AddPods(t, "stubborn", 2, lab.Grace(time.Second), lab.MinAvailable(2))

	consumer := daemon.StartQueue(t, daemon.QueueOptions{
		Kubeconfig: user.Kubeconfig, URL: messages.URL(), Endpoint: aws.URL,
		Settings: "[fleet]\ntaints = \"NoSchedule\"\nout_of_service = true\n[drain]\nload_balancer_wait = \"1s\"\n" +
			"margin = \"4m45s\"\n", // of the five minutes
	})
	complaints := follow(consumer)
	consumer.WaitStatus(t, "reading the queue")
	messages.Send(stateChange(t, instance, "stopped"))

	node.WaitFor(t, "out of service", func(n *corev1.Node) bool {
		return n.Spec.Unschedulable && len(n.Spec.Taints) > 1 && n.Labels["node.kubernetes.io/exclude-from-external-load-balancers"] != ""
	})
	node.WaitEmpty(t)
	consumer.Stop(t)
	for _, said := range complaints() {
		t.Errorf("nth-queue says %q", said)
	}
}

// follow gathers what nth-queue says about rights that it lacks, until it has ended.
func follow(consumer *daemon.Daemon) (complaints func() []string) {
	var said []string
	told := consumer.Follow(func(e daemon.Entry) {
		if strings.Contains(e.Message, "forbidden") || strings.Contains(e.Message, "refuse") {
			said = append(said, e.Message)
		}
	})
	return func() []string { <-told; return said }
}

// addInstance adds a node that says which EC2 instance it is.
func addInstance(t *testing.T) (*lab.Node, string) {
	t.Helper()
	const instance = "i-0123456789abcdef0"
	cp := lab.Shared(t)
	node := cp.AddNode(t)
	_, err := cp.Admin.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType,
		[]byte(`{"spec":{"providerID":"aws:///eu-central-1a/`+instance+`"}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return node, instance
}

func stateChange(t *testing.T, instance, state string) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"source": "aws.ec2", "detail-type": "EC2 Instance State-change Notification", "id": "00000000-0000-4000-8000-000000000001",
		"time": time.Now().UTC().Format(time.RFC3339), "detail": map[string]string{"instance-id": instance, "state": state},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
