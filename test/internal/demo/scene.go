package demo

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

// A scene is everything that the play needs, set up and running.
type scene struct {
	cp   *lab.ControlPlane
	node *lab.Node
	imds *imdstest.Server
	nth  *daemon.Daemon
	// evictable and staying are the node's pods that a drain has to remove and those that it leaves alone, by name.
	evictable, staying []string
}

// setUp starts and furnishes the lab, and says so on the page.
func setUp(t lab.TB, p *page) *scene {
	s := &scene{}
	p.step("control plane")
	began := time.Now()
	s.cp = lab.ForTest(t)
	p.done("etcd, kube-apiserver, controllers and scheduler up after %.1f s", time.Since(began).Seconds())

	p.step("node")
	s.node = s.cp.AddNode(t)
	p.done("%s, a spot instance; its replacement joins %.0f s after the notice", s.node.Name, joinAfter.Seconds())

	p.step("pods")
	p.done("%s", furnish(t, s.node))
	s.sortPods(t)

	p.step("nth")
	s.imds = imdstest.NewServer()
	t.Cleanup(s.imds.Close)
	machine := daemon.NewMachine(t, daemon.Options{Kubeconfig: s.node.Kubeconfig, IMDS: s.imds.URL})
	began = time.Now()
	s.nth = machine.Start(t)
	s.nth.WaitReady(t)
	ready := time.Since(began)
	s.nth.WaitStatus(t, "nothing is announced for node "+s.node.Name)
	p.done("ready after %d ms, with default settings and the rights of the node's kubelet", ready.Milliseconds())
	return s
}

// furnish puts the node's pods in place and describes them.
func furnish(t lab.TB, node *lab.Node) string {
	node.AddDaemonSet(t, "log-agent")
	node.AddMirrorPod(t, "kube-proxy")
	node.AddDeployment(t, "web", 3, lab.MinAvailable(2))
	node.AddStatefulSet(t, "store", 2, lab.MinAvailable(1), lab.Grace(4*time.Second), lab.GoesAtGrace())
	node.AddPods(t, "worker", 2, lab.Grace(8*time.Second), lab.GoesAtGrace())
	node.AddPod(t, "debug")
	node.AddFinishedPod(t, "migration", corev1.PodSucceeded)
	node.AddFinishedPod(t, "report", corev1.PodFailed)
	return "Deployment web, 3 pods with a budget that keeps 2 available; StatefulSet store, 2 pods that take 4 s to end, " +
		"with a budget that keeps 1 available; 2 workers that take 8 s to end; a pod without a controller, 2 finished " +
		"pods, a DaemonSet pod and a static pod"
}

func (s *scene) sortPods(t lab.TB) {
	s.evictable, s.staying = nil, nil
	for _, pod := range s.node.Pods(t) {
		if lab.Evictable(&pod) {
			s.evictable = append(s.evictable, pod.Name)
		} else {
			s.staying = append(s.staying, fmt.Sprintf("%s (%s)", pod.Name, why(&pod)))
		}
	}
}

// why says why a drain leaves a pod alone.
func why(pod *corev1.Pod) string {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return "a static pod"
	}
	return "of a DaemonSet"
}
