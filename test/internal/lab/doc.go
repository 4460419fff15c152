// Package lab gives a test a Kubernetes cluster with real rules
// and simulated machines.
//
// The rules are real: etcd, kube-apiserver with the Node authorizer and the
// NodeRestriction admission plugin, kube-controller-manager and kube-scheduler,
// all from the release that nth is built against. What a kubelet may do with
// its credential is therefore decided by the code that decides it in production.
// The machines are simulated by kwok: a Node that is always Ready, whose pods
// run at once and end at once, or when their grace period is over, or never.
//
// A test reads like this:
//
//	func TestMain(m *testing.M) { os.Exit(lab.Main(m, 8)) }
//
//	func TestTheBudgetIsRespected(t *testing.T) {
//		node := lab.Shared(t).AddNode(t)
//		node.AddDeployment(t, "web", 3, lab.MinAvailable(2))
//		node.AddDaemonSet(t, "agent")
//		// run something with node.Kubeconfig, the kubelet's kubeconfig
//		node.WaitCordoned(t)
//		node.WaitEmpty(t)
//	}
//
// Shared starts one control plane for all tests of a package; each test has
// nodes and a namespace of its own. ForTest starts one for a single test that
// wants to stop or freeze the API server.
//
// The programs are built by the package tools beside this one; the processes
// die with the process that started them, however that one dies.
package lab
