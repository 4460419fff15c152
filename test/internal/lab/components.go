package lab

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/nth-project/nth/test/tools"
)

// A component is one program of the control plane and how it is called.
type component struct {
	name string
	args func(cp *ControlPlane) []string
}

func (c component) start(cp *ControlPlane) (*process, error) {
	path, err := tools.Path(c.name)
	if err != nil {
		return nil, err
	}
	return startProcess(c.name, cp.path(c.name+".log"), path, c.args(cp)...)
}

// followers are the clients of the API server. They start when it is ready and
// would give up before.
var followers = []component{controllerManager, scheduler, kwok}

// checkBuilt returns an error that says how to build the programs if one is missing.
func checkBuilt() error {
	for _, c := range append([]component{etcd, apiserver}, followers...) {
		if _, err := tools.Path(c.name); err != nil {
			return err
		}
	}
	return nil
}

// etcd keeps its data only until Stop, so it need not reach the disk, and is
// alone, so it need not wait long for other candidates before it leads.
var etcd = component{"etcd", func(cp *ControlPlane) []string {
	client, peer := cp.etcdPort.url("http"), cp.etcdPeerPort.url("http")
	return []string{
		"--name=lab",
		"--data-dir=" + cp.path("etcd"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=lab=" + peer,
		"--socket-reuse-port",
		"--unsafe-no-fsync",
		"--heartbeat-interval=20",
		"--election-timeout=200",
		"--log-level=warn",
	}
}}

// apiserver authorizes as a production cluster does.
var apiserver = component{"kube-apiserver", func(cp *ControlPlane) []string {
	serving, signing := cp.path("serving.pem"), cp.path("service-account.pem")
	return []string{
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--etcd-servers=" + cp.etcdPort.url("http"),
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", cp.apiserverPort.number),
		"--permit-port-sharing",
		"--tls-cert-file=" + serving,
		"--tls-private-key-file=" + serving,
		"--client-ca-file=" + cp.path("ca.pem"),
		"--token-auth-file=" + cp.path("tokens.csv"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + signing,
		"--service-account-signing-key-file=" + signing,
		"--service-cluster-ip-range=10.96.0.0/16",
		"--endpoint-reconciler-type=none",
		"--profiling=false",
		"--audit-policy-file=" + cp.path("audit-policy.yaml"),
		"--audit-log-path=" + cp.path("audit.log"),
	}
}}

// controllers are those that a drain can meet: what makes pods and makes them
// again, what counts disruptions, what watches nodes, what attaches volumes to
// them and detaches those, and what cleans up.
var controllers = []string{
	"daemonset-controller",
	"deployment-controller",
	"disruption-controller",
	"endpointslice-controller",
	"garbage-collector-controller",
	"job-controller",
	"namespace-controller",
	"node-lifecycle-controller",
	"persistentvolume-attach-detach-controller",
	"pod-garbage-collector-controller",
	"replicaset-controller",
	"serviceaccount-controller",
	"statefulset-controller",
	"taint-eviction-controller",
}

// controllerManager works as fast as it can: what is measured is nth.
var controllerManager = component{"kube-controller-manager", func(cp *ControlPlane) []string {
	return []string{
		"--kubeconfig=" + cp.Kubeconfig,
		"--leader-elect=false",
		"--secure-port=0",
		"--controllers=" + strings.Join(controllers, ","),
		"--service-account-private-key-file=" + cp.path("service-account.pem"),
		"--flex-volume-plugin-dir=" + cp.path("flexvolumes"), // which it makes, even though there are none
		"--kube-api-qps=2000",
		"--kube-api-burst=4000",
		"--kube-api-content-type=application/vnd.kubernetes.protobuf",
		"--concurrent-deployment-syncs=20",
		"--concurrent-replicaset-syncs=20",
		"--concurrent-statefulset-syncs=20",
		"--concurrent-job-syncs=20",
		"--profiling=false",
	}
}}

// scheduler takes its limits from a file; the flags for them are gone.
var scheduler = component{"kube-scheduler", func(cp *ControlPlane) []string {
	return []string{
		"--config=" + cp.path("scheduler.yaml"),
		"--secure-port=0",
	}
}}

func schedulerConfig(kubeconfig string) []byte {
	return fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: false
clientConnection:
  kubeconfig: %q
  qps: 2000
  burst: 4000
`, kubeconfig)
}

// kwokConfig says how the simulated machines and their pods behave.
//
//go:embed kwok.yaml
var kwokConfig []byte

// kwok plays the kubelet of every Node that carries our label. It renews the
// nodes' leases, without which they would be tainted after forty seconds.
var kwok = component{"kwok", func(cp *ControlPlane) []string {
	return []string{
		"--kubeconfig=" + cp.Kubeconfig,
		"--config=" + cp.path("kwok.yaml"),
	}
}}
