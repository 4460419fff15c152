package faults_test

import (
	"context"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/faultproxy"
	"github.com/nth-project/nth/test/internal/lab"
)

// cordonAnnotation is the key under which nth says whose cordon it is (docs/node-contract.md).
const cordonAnnotation = "nth-project.github.io/cordon"

// A scene is a node with its metadata service, and nth on its machine.
type scene struct {
	cp      *lab.ControlPlane
	node    *lab.Node
	imds    *imdstest.Server
	met     tally             // requests that met a fault of the metadata service
	proxy   *faultproxy.Proxy // nil if nth speaks to the API server itself
	options daemon.Options
	machine *daemon.Machine
	nth     *daemon.Daemon
}

// newScene sets a scene on which nth does not run yet.
func newScene(t *testing.T, settings string) *scene {
	t.Helper()
	return setScene(t, settings, func(s *scene) string { return s.node.Kubeconfig })
}

// newProxied sets a scene on which the API server can fail.
func newProxied(t *testing.T, settings string) *scene {
	t.Helper()
	return setScene(t, settings, func(s *scene) string {
		s.proxy = faultproxy.New(t, s.node)
		return s.proxy.Kubeconfig
	})
}

// setScene sets a scene on which nth does not run yet, and is to use the kubeconfig that is returned.
func setScene(t *testing.T, settings string, kubeconfig func(*scene) string) *scene {
	t.Helper()
	t.Parallel()
	return sceneOn(t, lab.Shared(t), settings, kubeconfig)
}

// sceneOn sets a scene on a control plane.
func sceneOn(t *testing.T, cp *lab.ControlPlane, settings string, kubeconfig func(*scene) string) *scene {
	t.Helper()
	s := &scene{cp: cp, node: cp.AddNode(t), imds: imdstest.NewServer()}
	t.Cleanup(s.imds.Close)
	s.imds.OnRequest(func(e imdstest.Exchange) {
		if e.Fault != "" {
			s.met.add()
		}
	})
	s.options = daemon.Options{
		Kubeconfig: kubeconfig(s), IMDS: s.imds.URL,
		Cadence: 50 * time.Millisecond, Settings: settings,
	}
	s.machine = daemon.NewMachine(t, s.options)
	return s
}

// start starts nth and waits until it says that it is ready.
func (s *scene) start(t *testing.T) {
	t.Helper()
	s.nth = s.machine.Start(t)
	s.nth.WaitReady(t)
}

// watch starts nth and waits until it knows its node and watches.
func (s *scene) watch(t *testing.T) {
	t.Helper()
	s.start(t)
	s.nth.WaitWatching(t, s.node.Name)
}

// waitDrained waits until the node is cordoned and empty, and nth says that it has drained it.
func (s *scene) waitDrained(t *testing.T) {
	t.Helper()
	s.node.WaitCordoned(t)
	s.node.WaitEmpty(t)
	s.nth.WaitLog(t, systemd.Drained)
}

// release removes the budget that holds a workload back.
func (s *scene) release(t *testing.T, budget string) {
	t.Helper()
	budgets := s.cp.Admin.PolicyV1().PodDisruptionBudgets(s.node.Namespace)
	if err := budgets.Delete(t.Context(), budget, metav1.DeleteOptions{}); err != nil {
		t.Fatalf("removing the budget %s: %v", budget, err)
	}
}

// mustBeUntouched fails the test if the node is cordoned or a pod is about to go.
func (s *scene) mustBeUntouched(t *testing.T) {
	t.Helper()
	if s.node.Object(t).Spec.Unschedulable {
		t.Errorf("the node is cordoned, want it to be schedulable")
	}
	for _, pod := range s.node.Pods(t) {
		if pod.DeletionTimestamp != nil {
			t.Errorf("pod %s is about to go, want it to stay", pod.Name)
		}
	}
}

// remembered returns what nth remembers on disk of the spot interruption.
func (s *scene) remembered(t *testing.T) state.Entry {
	t.Helper()
	return s.machine.RecordOf(t, event.SpotInterruption)
}

// twoMinutes is the notice that EC2 gives.
func twoMinutes() time.Time { return time.Now().Add(2 * time.Minute) }

// A tally counts, and can be waited for.
type tally struct {
	mu      sync.Mutex
	count   int
	changed chan struct{}
}

func (c *tally) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

func (c *tally) read() (int, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.count, c.changed
}

// await waits for so many more.
func (c *tally) await(t *testing.T, more int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	begin, _ := c.read()
	for {
		now, changed := c.read()
		if now >= begin+more {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("waiting for %d more of what has happened %d times since: %v", more, now-begin, ctx.Err())
		}
	}
}
