package lab_test

import (
	"context"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/test/internal/lab"
)

// An attempt is one request with the credential of n. The node foreign has a
// pod named foreign.
type attempt struct {
	name string
	do   func(ctx context.Context, n, foreign *lab.Node) error
}

var allowed = []attempt{
	{"read its own Node", func(ctx context.Context, n, _ *lab.Node) error {
		_, err := n.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		return err
	}},
	{"cordon and annotate itself in one request", func(ctx context.Context, n, _ *lab.Node) error {
		return patchNode(ctx, n, n.Name, `{"spec":{"unschedulable":true},"metadata":{"annotations":{"nth-project.github.io/cordon":"{}"}}}`)
	}},
	{"label itself out of load balancers", func(ctx context.Context, n, _ *lab.Node) error {
		return patchNode(ctx, n, n.Name, `{"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":"true"}}}`)
	}},
	{"set a condition of its own", func(ctx context.Context, n, _ *lab.Node) error {
		patch := `{"status":{"conditions":[{"type":"InterruptionPending","status":"True","reason":"Spot"}]}}`
		_, err := n.Client.CoreV1().Nodes().PatchStatus(ctx, n.Name, []byte(patch))
		return err
	}},
	{"list its own pods", func(ctx context.Context, n, _ *lab.Node) error {
		_, err := n.Client.CoreV1().Pods("").List(ctx, ofNode(n))
		return err
	}},
	{"watch its own pods", func(ctx context.Context, n, _ *lab.Node) error {
		w, err := n.Client.CoreV1().Pods("").Watch(ctx, ofNode(n))
		if err == nil {
			w.Stop()
		}
		return err
	}},
	{"evict its own pod", func(ctx context.Context, n, _ *lab.Node) error { return evict(ctx, n, "evicted") }},
	{"delete its own pod with any grace", func(ctx context.Context, n, _ *lab.Node) error {
		return n.Client.CoreV1().Pods(n.Namespace).Delete(ctx, "deleted", *metav1.NewDeleteOptions(1))
	}},
	{"write a core Event", func(ctx context.Context, n, _ *lab.Node) error {
		_, err := n.Client.CoreV1().Events("default").Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "lab-"},
			InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: n.Name},
		}, metav1.CreateOptions{})
		return err
	}},
	{"write an Event of events.k8s.io", func(ctx context.Context, n, _ *lab.Node) error {
		_, err := n.Client.EventsV1().Events("default").Create(ctx, &eventsv1.Event{
			ObjectMeta:          metav1.ObjectMeta{GenerateName: "lab-"},
			EventTime:           metav1.NowMicro(),
			Type:                corev1.EventTypeNormal,
			Reason:              "Lab",
			Action:              "Lab",
			Regarding:           corev1.ObjectReference{Kind: "Node", Name: n.Name},
			ReportingController: "lab",
			ReportingInstance:   "lab",
		}, metav1.CreateOptions{})
		return err
	}},
}

var refused = []attempt{
	{"taint itself", func(ctx context.Context, n, _ *lab.Node) error {
		return patchNode(ctx, n, n.Name, `{"spec":{"taints":[{"key":"nth","effect":"NoSchedule"}]}}`)
	}},
	{"cordon itself in one request with a taint", func(ctx context.Context, n, _ *lab.Node) error {
		return patchNode(ctx, n, n.Name, `{"spec":{"unschedulable":true,"taints":[{"key":"nth","effect":"NoSchedule"}]}}`)
	}},
	{"cordon another node", func(ctx context.Context, n, foreign *lab.Node) error {
		return patchNode(ctx, n, foreign.Name, `{"spec":{"unschedulable":true}}`)
	}},
	{"delete itself", func(ctx context.Context, n, _ *lab.Node) error {
		return n.Client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{})
	}},
	{"list all nodes", func(ctx context.Context, n, _ *lab.Node) error {
		_, err := n.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	}},
	{"list all pods", func(ctx context.Context, n, _ *lab.Node) error {
		_, err := n.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		return err
	}},
	{"read a pod that is gone", func(ctx context.Context, n, _ *lab.Node) error {
		_, err := n.Client.CoreV1().Pods(n.Namespace).Get(ctx, "evicted", metav1.GetOptions{})
		return err
	}},
	{"evict a pod of another node", func(ctx context.Context, n, foreign *lab.Node) error {
		return n.Client.PolicyV1().Evictions(foreign.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Name: "foreign", Namespace: foreign.Namespace},
		})
	}},
	{"read a DaemonSet", func(ctx context.Context, n, _ *lab.Node) error {
		_, err := n.Client.AppsV1().DaemonSets(n.Namespace).Get(ctx, "agent", metav1.GetOptions{})
		return err
	}},
	{"read a ReplicaSet", func(ctx context.Context, n, _ *lab.Node) error {
		_, err := n.Client.AppsV1().ReplicaSets(n.Namespace).Get(ctx, "any", metav1.GetOptions{})
		return err
	}},
	{"read a Job", func(ctx context.Context, n, _ *lab.Node) error {
		_, err := n.Client.BatchV1().Jobs(n.Namespace).Get(ctx, "any", metav1.GetOptions{})
		return err
	}},
	{"read a PodDisruptionBudget", func(ctx context.Context, n, _ *lab.Node) error {
		_, err := n.Client.PolicyV1().PodDisruptionBudgets(n.Namespace).Get(ctx, "any", metav1.GetOptions{})
		return err
	}},
	{"list EndpointSlices", func(ctx context.Context, n, _ *lab.Node) error {
		_, err := n.Client.DiscoveryV1().EndpointSlices(n.Namespace).List(ctx, metav1.ListOptions{})
		return err
	}},
	{"read the lease of another node", func(ctx context.Context, n, foreign *lab.Node) error {
		_, err := n.Client.CoordinationV1().Leases("kube-node-lease").Get(ctx, foreign.Name, metav1.GetOptions{})
		return err
	}},
}

func TestANodeMayDoWhatADrainNeeds(t *testing.T) {
	t.Parallel()
	node, foreign := newNodeWithPods(t), newForeignNode(t)
	for _, a := range allowed {
		t.Run(a.name, func(t *testing.T) {
			if err := a.do(t.Context(), node, foreign); err != nil {
				t.Errorf("refused: %v", err)
			}
		})
	}
	node.WaitCordoned(t)
	node.WaitGone(t, "evicted", "deleted")
}

func TestANodeMayNotDoWhatADrainMustDoWithout(t *testing.T) {
	t.Parallel()
	node, foreign := newNodeWithPods(t), newForeignNode(t)
	if err := evict(t.Context(), node, "evicted"); err != nil {
		t.Fatal(err)
	}
	node.WaitGone(t, "evicted")
	for _, a := range refused {
		t.Run(a.name, func(t *testing.T) {
			if err := a.do(t.Context(), node, foreign); !apierrors.IsForbidden(err) {
				t.Errorf("got %v, want 403", err)
			}
		})
	}
	if node.Object(t).Spec.Unschedulable {
		t.Error("a refused request has cordoned the node all the same")
	}
}

func TestANodeIsToldWhoItIsAndWhatItMayDo(t *testing.T) {
	t.Parallel()
	node := lab.Shared(t).AddNode(t)
	review, err := node.Client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := review.Status.UserInfo.Username, "system:node:"+node.Name; got != want {
		t.Errorf("the user is %q, want %q", got, want)
	}
	for resource, want := range map[string]bool{"nodes": true, "secrets": false} {
		access, err := node.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(),
			&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "patch", Resource: resource, Name: node.Name},
			}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := access.Status.Allowed; got != want {
			t.Errorf("may patch %s: %t, want %t", resource, got, want)
		}
	}
}

func newNodeWithPods(t *testing.T) *lab.Node {
	t.Helper()
	node := lab.Shared(t).AddNode(t)
	node.AddDaemonSet(t, "agent")
	node.AddPod(t, "evicted")
	node.AddPod(t, "deleted")
	return node
}

func newForeignNode(t *testing.T) *lab.Node {
	t.Helper()
	node := lab.Shared(t).AddNode(t)
	node.AddPod(t, "foreign")
	return node
}

func ofNode(n *lab.Node) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.Name}
}

func patchNode(ctx context.Context, n *lab.Node, name, patch string) error {
	_, err := n.Client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func evict(ctx context.Context, n *lab.Node, pod string) error {
	return n.Client.PolicyV1().Evictions(n.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: n.Namespace},
	})
}
