// Package queue_test judges nth-queue as a process between a real control plane and an SQS that others have written,
// with the rights of packaging/kubernetes and no more.
package queue_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 6)) }

// scene is a region, and what may consume its queue.
type scene struct {
	*region.Region
	cp         *lab.ControlPlane
	kubeconfig string
	early      *early
}

const manifest = "../../packaging/kubernetes/nth-queue-rbac.yaml"

// granting gives the rights of the manifest, once for all tests.
var granting sync.Once

func newScene(t *testing.T) *scene {
	t.Helper()
	cp := lab.Shared(t)
	granting.Do(func() { cp.Kubectl(t, "", "apply", "-f", manifest) })
	s := &scene{Region: region.New(t), cp: cp, kubeconfig: cp.AddUser(t, "nth-queue-on-a-host", "nth-queue").Kubeconfig}
	s.early = &early{cp: cp, nodes: map[string]string{}}
	s.Deleting(func(m region.Message) { s.early.judge(t, m) })
	t.Cleanup(func() { s.early.report(t) })
	return s
}

// start starts an nth-queue, and waits until it reads the queue.
func (s *scene) start(t *testing.T, settings string) *daemon.Daemon {
	t.Helper()
	consumer := s.open(t, settings)
	consumer.WaitStatus(t, "reading the queue")
	return consumer
}

// pair starts two nth-queues, of which the first leads.
func (s *scene) pair(t *testing.T, settings string) (leader, standby *daemon.Daemon) {
	t.Helper()
	leader, standby = s.start(t, settings), s.open(t, settings)
	standby.WaitStatus(t, "standing by")
	return leader, standby
}

// open starts an nth-queue.
func (s *scene) open(t *testing.T, settings string) *daemon.Daemon {
	t.Helper()
	return daemon.StartQueue(t, daemon.QueueOptions{
		Kubeconfig: s.kubeconfig, URL: s.QueueURL, Endpoint: s.URL, Settings: settings,
	})
}

// add adds a node, whose messages may not be deleted before it is drained.
func (s *scene) add(t *testing.T) (*lab.Node, string) {
	t.Helper()
	node, instance := s.AddInstance(t, s.cp, nil)
	s.early.expect(instance, node.Name)
	return node, instance
}

// early finds messages that are deleted while there are pods on their nodes that can be evicted.
type early struct {
	cp *lab.ControlPlane

	mu      sync.Mutex
	nodes   map[string]string // by instance
	judged  int
	foundIn []string
}

var instance = regexp.MustCompile(`i-[0-9a-f]{17}`)

func (e *early) expect(instance, node string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.nodes[instance] = node
}

func (e *early) judge(t *testing.T, m region.Message) {
	for _, id := range instance.FindAllString(m.Body, -1) {
		e.mu.Lock()
		node, expected := e.nodes[id]
		e.judged++
		e.mu.Unlock()
		if !expected || t.Context().Err() != nil {
			continue
		}
		pods, err := e.cp.Admin.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			t.Logf("looking at the pods of %s: %v", node, err)
			continue
		}
		for _, pod := range pods.Items {
			if lab.Evictable(&pod) {
				e.mu.Lock()
				e.foundIn = append(e.foundIn, fmt.Sprintf("%s of %s, with %s there", m.ID, node, pod.Name))
				e.mu.Unlock()
			}
		}
	}
}

// report fails the test if a message was deleted early.
func (e *early) report(t *testing.T) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, found := range e.foundIn {
		t.Errorf("a message was deleted early: %s", found)
	}
}

// mustHaveJudged fails the test unless deletions were looked at: one that sees nothing proves nothing.
func (e *early) mustHaveJudged(t *testing.T, atLeast int) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.judged < atLeast {
		t.Errorf("%d deletions were looked at, want at least %d", e.judged, atLeast)
	}
}

// waitTainted waits for a taint with a key.
func waitTainted(t *testing.T, node *lab.Node, key string) {
	t.Helper()
	node.WaitFor(t, "tainted "+key, func(n *corev1.Node) bool { return tainted(n, key) })
}

func tainted(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == key })
}
