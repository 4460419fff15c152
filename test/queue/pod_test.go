package queue_test

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
)

// startBelow starts an nth-queue that takes itself for a pod on a node, which there is then, in the namespace of the first.
func (s *scene) startBelow(t *testing.T, first, node *lab.Node) (consumer *daemon.Daemon, pod string) {
	t.Helper()
	pod = "nth-queue-on-" + node.Name
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: first.Namespace, Name: pod,
			Labels: map[string]string{"app.kubernetes.io/name": "nth-queue", "app.kubernetes.io/instance": "nth-queue"},
		},
		Spec: corev1.PodSpec{
			NodeName: node.Name, PriorityClassName: "system-cluster-critical",
			Containers: []corev1.Container{{Name: "nth-queue", Image: "registry.invalid/nth-queue:1"}},
		},
	}
	if _, err := s.cp.Admin.CoreV1().Pods(first.Namespace).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Await(t, pod+" is ready", func() bool {
		found, err := s.cp.Admin.CoreV1().Pods(first.Namespace).Get(t.Context(), pod, metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(found.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	})
	consumer = daemon.StartQueue(t, daemon.QueueOptions{
		Kubeconfig: s.kubeconfig, URL: s.QueueURL, Endpoint: s.URL,
		Env: []string{"NODE_NAME=" + node.Name, "POD_NAMESPACE=" + first.Namespace, "POD_NAME=" + pod},
	})
	return consumer, pod
}

func TestLeader_DrainsItsOwnNodeWithItsOwnPodLast(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	first, id := s.add(t)
	second, _ := s.add(t)
	first.AddPods(t, "web", 2, lab.Grace(3*time.Second), lab.GoesAtGrace())
	first.AddPod(t, "dns", lab.Grace(3*time.Second), lab.GoesAtGrace(), lab.Edit(func(pod *corev1.PodTemplateSpec) {
		pod.Spec.PriorityClassName = "system-cluster-critical"
	}))
	below, own := s.startBelow(t, first, first)
	below.WaitStatus(t, "reading the queue")
	standby, _ := s.startBelow(t, first, second)
	standby.WaitStatus(t, "standing by")
	var mu sync.Mutex
	var gone []string
	ended := make(chan struct{})
	first.Observe(t, func(m lab.Moment) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case m.What == lab.PodGone:
			gone = append(gone, m.Pod)
		case m.What == lab.PodTerminating && m.Pod == own:
			if len(gone) != 3 {
				t.Errorf("its own pod is to go with only %q gone", gone)
			}
			close(ended)
		}
	})

	s.Send(t, region.Spot(id))

	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		t.Fatal("its own pod is not evicted")
	}
	below.Stop(t) // As its kubelet does.
	first.WaitEmpty(t)
	s.WaitEmpty(t)
	standby.Stop(t)
}

const podManifest = "../../packaging/kubernetes/nth-queue.yaml"

// No pods are made here, as they would be scheduled to the nodes of other tests.
func TestTheManifestIsTakenByARealAPIServer(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	text, err := os.ReadFile(podManifest)
	if err != nil {
		t.Fatal(err)
	}
	filled := strings.NewReplacer("IMAGE", "registry.invalid/nth-queue:v1", "QUEUE_URL", s.QueueURL).Replace(string(text))
	// The API server warns where a pod is not one for the strictest namespace.
	s.cp.Kubectl(t, "", "label", "namespace", "kube-system", "pod-security.kubernetes.io/warn=restricted")
	dry := s.cp.Kubectl(t, filled, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
	for _, kind := range []string{
		"serviceaccount", "clusterrole.", "clusterrolebinding", "prioritylevelconfiguration", "flowschema", "configmap", "poddisruptionbudget", "deployment",
	} {
		if !strings.Contains(dry, kind) {
			t.Errorf("there is no %s in\n%s", kind, dry)
		}
	}
	idle := strings.Replace(filled, "replicas: 2", "replicas: 0", 1)
	if said := s.cp.Kubectl(t, idle, "apply", "-f", "-"); strings.Contains(said, "Warning") {
		t.Errorf("it is applied with\n%s", said)
	}

	t.Run("what nth-queue asks has a priority level of its own", func(t *testing.T) { mustHaveItsOwnLevel(t, s) })
}

// mustHaveItsOwnLevel asks as nth-queue would, and reads which level that was judged by.
func mustHaveItsOwnLevel(t *testing.T, s *scene) {
	t.Helper()
	level, err := s.cp.Admin.FlowcontrolV1().PriorityLevelConfigurations().Get(t.Context(), "nth-queue", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	asker, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(asker)
	if err != nil {
		t.Fatal(err)
	}
	lab.Await(t, "the API server knows the level", func() bool {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, asker.Host+"/api/v1/nodes?limit=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(request)
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK && answer.Header.Get("X-Kubernetes-Pf-Prioritylevel-Uid") == string(level.UID)
	})
}
