package storm

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
)

// NewPlain makes a storm for a lab.Bare, beside so many others that nothing happens to: Nodes that are objects alone, each as large as
// a kubelet of EC2's makes it, and pods that are gone when they are evicted. All end with the control plane.
func NewPlain(t lab.TB, cp *lab.ControlPlane, r *region.Region, nodes, podsPerNode, others int) *Storm {
	t.Helper()
	s := &Storm{cp: cp, plain: true, label: fmt.Sprintf("storm-%d-%s", number.Add(1), rand.String(4)), pods: nodes * podsPerNode}
	s.namespace = s.label
	s.name(r, nodes)
	calm := &Storm{cp: cp, plain: true, label: s.label + "-calm"}
	calm.name(r, others)
	cp.AddNamespace(t, s.namespace)
	s.makeNodes(t)
	calm.makeNodes(t)
	s.makePods(t)
	return s
}

// Again opens the nodes of a storm in a lab.Bare after it has gone over them, and makes their pods anew. With stay these are not gone
// when they are evicted, but end for ever.
func (s *Storm) Again(t lab.TB, stay bool) {
	t.Helper()
	s.stays = stay
	inParallel(t, len(s.Nodes), func(i int) error {
		patch := []byte(`{"spec":{"unschedulable":null},"metadata":{"annotations":{"nth-project.github.io/cordon":null}}}`)
		_, err := s.cp.Admin.CoreV1().Nodes().Patch(t.Context(), s.Nodes[i], types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	s.makePods(t)
}

// name gives so many nodes their instances and names.
func (s *Storm) name(r *region.Region, nodes int) {
	for i := range nodes {
		name := fmt.Sprintf("%s-%d.%s.compute.internal", s.label, i, region.Name)
		s.Nodes = append(s.Nodes, name)
		s.Instances = append(s.Instances, r.NewInstance("", nil))
	}
}

// fill makes of a Node what a kubelet and those beside it do: it is Ready, and has its addresses, labels and images. A kubelet tells
// of fifty images at most, so that most of a Node is names of images.
func fill(node *corev1.Node) {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeReady} {
		status := corev1.ConditionFalse
		if kind == corev1.NodeReady {
			status = corev1.ConditionTrue
		}
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: status, LastHeartbeatTime: now, LastTransitionTime: now, Reason: "KubeletIsWell", Message: "kubelet is posting its status",
		})
	}
	node.Status.NodeInfo = corev1.NodeSystemInfo{
		BootID: rand.String(36), MachineID: rand.String(32), SystemUUID: rand.String(36), KernelVersion: "6.12.40", KubeletVersion: "v1.35.0",
		OSImage: "Amazon Linux 2023", ContainerRuntimeVersion: "containerd://2.1.4", OperatingSystem: "linux", Architecture: "amd64",
	}
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalDNS, Address: node.Name}, {Type: corev1.NodeHostName, Address: node.Name}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
	}
	for i := range 25 {
		node.Labels[fmt.Sprintf("lab.nth/label-%d", i)] = rand.String(30)
	}
	for i := range 50 {
		repository := fmt.Sprintf("registry.invalid/team-%d/%s", i, rand.String(30))
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{
			Names: []string{repository + "@sha256:" + rand.String(64), repository + ":v1.0.0"}, SizeBytes: 100 << 20,
		})
	}
}
