package drain

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	kubectl "k8s.io/kubectl/pkg/drain"
)

// concerns tells whether a drain has to remove a pod, by kubectl's filters: DaemonSet pods and mirror pods stay,
// finished pods go, and what a setting protects stays.
func (o Options) concerns(pod *corev1.Pod) bool {
	helper := kubectl.Helper{
		Client:              memory{pod: pod},
		Force:               !o.ProtectUnmanaged,
		IgnoreAllDaemonSets: true,
		DeleteEmptyDirData:  !o.ProtectEmptyDir,
	}
	list, protected := helper.GetPodsForDeletion(pod.Spec.NodeName)
	return len(protected) == 0 && list != nil && len(list.Pods()) > 0
}

// memory is a client that knows one pod. It answers the two questions that kubectl's filters ask: which pods are on the
// node, and whether the DaemonSet exists that a pod names as its controller. It believes the pod: a kubelet may not
// look a DaemonSet up. Any other call would be a change in kubectl, and fails loudly in the tests.
type memory struct {
	kubernetes.Interface
	pod *corev1.Pod
}

func (m memory) CoreV1() coreclient.CoreV1Interface { return memoryCore{pod: m.pod} }
func (m memory) AppsV1() appsclient.AppsV1Interface { return memoryApps{} }

type memoryCore struct {
	coreclient.CoreV1Interface
	pod *corev1.Pod
}

func (m memoryCore) Pods(string) coreclient.PodInterface { return memoryPods{pod: m.pod} }

type memoryPods struct {
	coreclient.PodInterface
	pod *corev1.Pod
}

func (m memoryPods) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	return &corev1.PodList{Items: []corev1.Pod{*m.pod}}, nil
}

type memoryApps struct{ appsclient.AppsV1Interface }

func (memoryApps) DaemonSets(string) appsclient.DaemonSetInterface { return memoryDaemonSets{} }

type memoryDaemonSets struct{ appsclient.DaemonSetInterface }

func (memoryDaemonSets) Get(_ context.Context, name string, _ metav1.GetOptions) (*appsv1.DaemonSet, error) {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}
