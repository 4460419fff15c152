package lab

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podsPerNode is the most that a simulated machine takes: a full EC2 node of
// 110 pods and room for those of the system.
const podsPerNode = "250"

// A Node is a simulated machine with a real kubelet credential, user
// system:node:<Name> in group system:nodes. Its Kubeconfig is the kubelet's.
type Node struct {
	Credential
	// Name is the Node's name.
	Name string
	// Namespace is where the workloads of this node, and of its spares, live.
	Namespace string

	cp   *ControlPlane
	pool string // value of poolLabel
}

// AddNode registers a machine with its own credential, as a kubelet does, and
// waits until it is Ready and takes pods. The name is new in this control plane.
func (cp *ControlPlane) AddNode(t TB) *Node {
	t.Helper()
	node := cp.ExpectNode(t)
	node.register(t)
	return node
}

// ExpectNode is AddNode for a machine that is not simulated: its own kubelet has yet to register it, with the
// credential, the name and the labels that are returned.
func (cp *ControlPlane) ExpectNode(t TB) *Node {
	t.Helper()
	number := cp.nodes.Add(1)
	name := nodeName(number)
	node := cp.identify(t, &Node{Name: name, Namespace: fmt.Sprintf("work-%d", number), cp: cp, pool: name})
	cp.AddNamespace(t, node.Namespace)
	return node
}

// Labels are those that a node has for the lab's sake.
func (n *Node) Labels() map[string]string { return map[string]string{poolLabel: n.pool} }

// AddSpare registers a second machine for the workloads of n, which takes the
// pods that are evicted from n. Workloads added before it stay on n.
func (n *Node) AddSpare(t TB) *Node {
	t.Helper()
	spare := n.ExpectSpare(t)
	spare.register(t)
	return spare
}

// ExpectSpare is AddSpare for a machine that is not simulated, as ExpectNode is AddNode.
func (n *Node) ExpectSpare(t TB) *Node {
	t.Helper()
	name := nodeName(n.cp.nodes.Add(1))
	return n.cp.identify(t, &Node{Name: name, Namespace: n.Namespace, cp: n.cp, pool: n.pool})
}

func nodeName(number int32) string {
	return fmt.Sprintf("ip-10-0-%d-%d.eu-west-1.compute.internal", number/250, 1+number%250)
}

// identify makes a credential for n.
func (cp *ControlPlane) identify(t TB, n *Node) *Node {
	t.Helper()
	var err error
	n.Credential, err = cp.credential(n.Name, n.user(), "system:nodes")
	if err != nil {
		t.Fatalf("making a credential for %s: %v", n.Name, err)
	}
	if cp.shared {
		t.Cleanup(func() { n.remove(t) })
	}
	return n
}

// register makes n exist in the control plane.
func (n *Node) register(t TB) {
	t.Helper()
	Await(t, n.Name+" is registered", func() bool {
		_, err := n.Client.CoreV1().Nodes().Create(t.Context(), n.object(), metav1.CreateOptions{})
		// In its first moments an API server learns what nodes are allowed to do.
		if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			t.Fatalf("registering %s: %v", n.Name, err)
		}
		return err == nil
	})
	n.WaitReady(t)
}

// WaitReady waits until the node takes pods.
func (n *Node) WaitReady(t TB) {
	t.Helper()
	n.WaitFor(t, "Ready and without taints", func(object *corev1.Node) bool {
		return isReady(object) && len(object.Spec.Taints) == 0
	})
}

func (n *Node) user() string { return "system:node:" + n.Name }

// withToken is how many nodes of a control plane, the first ones, have a token: the API server reads them once.
const withToken = 100

// Token is a bearer token of the node's kubelet, such as an exec plugin gives on EC2.
func (n *Node) Token() string { return "token-of-" + n.Name }

// tokens is the API server's file of tokens: token, user, UID and group.
func tokens() []byte {
	var text []byte
	for number := range int32(withToken) {
		n := Node{Name: nodeName(number + 1)}
		text = fmt.Appendf(text, "%s,%s,,system:nodes\n", n.Token(), n.user())
	}
	return text
}

// object is what a kubelet on EC2 says about itself.
func (n *Node) object() *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods:   resource.MustParse(podsPerNode),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name,
			Labels: map[string]string{
				corev1.LabelHostname:   n.Name,
				corev1.LabelOSStable:   "linux",
				corev1.LabelArchStable: "amd64",
				poolLabel:              n.pool,
				SimulatedLabel:         "true",
			},
		},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: capacity,
			Addresses:   []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.Name}},
		},
	}
}

func isReady(object *corev1.Node) bool {
	for _, condition := range object.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// AddNamespace makes a namespace and the account that its pods run as, without
// waiting for the controller that would make it.
func (cp *ControlPlane) AddNamespace(t TB, name string) {
	t.Helper()
	core, no := cp.Admin.CoreV1(), false
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := core.Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatalf("making the namespace %s: %v", name, err)
	}
	account := &corev1.ServiceAccount{
		ObjectMeta:                   metav1.ObjectMeta{Name: "default"},
		AutomountServiceAccountToken: &no,
	}
	_, err := core.ServiceAccounts(name).Create(t.Context(), account, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatalf("making an account in the namespace %s: %v", name, err)
	}
}

// remove takes the node and its workloads away from a control plane that other
// tests go on to use. The namespace first, so that nothing is made anew.
func (n *Node) remove(t TB) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
	defer cancel()
	core, now := n.cp.Admin.CoreV1(), *metav1.NewDeleteOptions(0)
	for _, err := range []error{
		core.Namespaces().Delete(ctx, n.Namespace, metav1.DeleteOptions{}),
		core.Pods(n.Namespace).DeleteCollection(ctx, now, metav1.ListOptions{}),
		core.Nodes().Delete(ctx, n.Name, now),
	} {
		// A spare has no namespace of its own, and a test may have deleted either.
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			t.Logf("removing %s: %v", n.Name, err)
		}
	}
}

// Object returns the Node as it is now.
func (n *Node) Object(t TB) *corev1.Node {
	t.Helper()
	object, err := n.cp.Admin.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading %s: %v", n.Name, err)
	}
	return object
}

// Pods returns the pods that are bound to the node now.
func (n *Node) Pods(t TB) []corev1.Pod {
	t.Helper()
	list, err := n.cp.Admin.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{
		FieldSelector: "spec.nodeName=" + n.Name,
	})
	if err != nil {
		t.Fatalf("listing the pods of %s: %v", n.Name, err)
	}
	return list.Items
}

// Cordon makes the node unschedulable, as an administrator.
func (n *Node) Cordon(t TB) { t.Helper(); n.setUnschedulable(t, true) }

// Uncordon makes the node schedulable, as an administrator.
func (n *Node) Uncordon(t TB) { t.Helper(); n.setUnschedulable(t, false) }

func (n *Node) setUnschedulable(t TB, value bool) {
	t.Helper()
	n.patch(t, fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, value))
}

// Booted has the node's kubelet report its boot. A simulated one reports none by itself.
func (n *Node) Booted(t TB, bootID string) {
	t.Helper()
	n.patch(t, fmt.Sprintf(`{"status":{"nodeInfo":{"bootID":%q}}}`, bootID), "status")
}

func (n *Node) patch(t TB, patch string, subresource ...string) {
	t.Helper()
	_, err := n.cp.Admin.CoreV1().Nodes().Patch(t.Context(), n.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
	if err != nil {
		t.Fatalf("patching %s with %s: %v", n.Name, patch, err)
	}
}

// RotateCertificate replaces the node's client certificate by a fresh one in
// the same file, as a kubelet does.
func (n *Node) RotateCertificate(t TB) {
	t.Helper()
	n.LimitCertificate(t, certificateLife)
}

// LimitCertificate replaces the node's client certificate by one that expires
// after so long.
func (n *Node) LimitCertificate(t TB, life time.Duration) {
	t.Helper()
	if _, err := n.cp.certify(n.Credential, life, n.user(), "system:nodes"); err != nil {
		t.Fatalf("replacing the certificate of %s: %v", n.Name, err)
	}
}

// AddUser makes a credential for another user, who may do what RBAC grants to
// the user or to one of the groups.
func (cp *ControlPlane) AddUser(t TB, user string, groups ...string) Credential {
	t.Helper()
	c, err := cp.credential(fmt.Sprintf("user-%d", cp.users.Add(1)), user, groups...)
	if err != nil {
		t.Fatalf("making a credential for %q: %v", user, err)
	}
	return c
}
