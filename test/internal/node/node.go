// Package node is a node whose kubelet, container runtime and containers are real: a machine on which systemd has
// started containerd and the kubelet, which has joined the lab's control plane with its own credential.
//
//	n := node.Start(t, lab.Shared(t), node.Options{ShutdownGrace: 30 * time.Second, CriticalGrace: 10 * time.Second, Nth: true})
//	n.Node.AddPod(t, "web", node.Ends("3s"), lab.Grace(20*time.Second))
//	n.PowerOff(t)
//	life := n.Life(t, "web")
//
// The lab's simulated kubelets are faster, and as many as one likes. Here is seen what they cannot show: who ends a
// container, when its process gets SIGTERM, and how long it is left alive after that.
//
// The containers run one program, in container/, from an image that is made here. They are in the network of the machine,
// which is the host's; there is no network of pods. The machine is of bookworm, whose systemd boots with both versions of
// control groups. It was tried on a host whose controllers are in the first version, and not on one that has the second
// alone.
package node

import (
	_ "embed"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
	"github.com/nth-project/nth/test/tools"
)

// Options are what a test wants of its node.
type Options struct {
	// ShutdownGrace and CriticalGrace are the kubelet's shutdownGracePeriod, and what of it is kept for critical pods.
	// Without the first the kubelet does nothing when the machine goes down.
	ShutdownGrace, CriticalGrace time.Duration
	// Nth has nth installed from its package before the kubelet starts for the first time, as on an image with both.
	Nth bool
	// Beside makes this a second node for the workloads of another one, which takes the pods that are evicted there.
	Beside *Node
	// Button gives the machine a power button.
	Button bool
}

// A Node is a machine, the node that it is in the cluster, and a metadata service. It has a kubelet; it has nth if that is
// installed.
type Node struct {
	*host.Host
}

// suite is the Debian release of the machines.
const suite = "bookworm"

// Places in the machine.
const (
	binDir     = "/usr/local/bin/"
	imageFile  = "/usr/local/share/image.tar"
	setupFile  = "/usr/local/sbin/setup"
	configFile = "/var/lib/kubelet/config.yaml" // where nth looks for it, too
	wordsDir   = "/var/log/words"
)

// programs are what the machine gets of the tools.
var programs = []string{"kubelet", "containerd", "containerd-shim-runc-v2", "ctr"}

//go:embed setup.sh
var setupScript string

//go:embed containerd.toml
var containerdConfig string

// Start boots a machine, makes it a node of the cluster, and returns when that is Ready. What is missing of the programs
// is built first.
func Start(t lab.TB, cp *lab.ControlPlane, o Options) *Node {
	t.Helper()
	if err := tools.Build(t.Context(), os.Stderr, "kubelet", "containerd"); err != nil {
		t.Fatalf("starting a node: %v", err)
	}
	archive, err := image()
	if err != nil {
		t.Fatalf("starting a node: %v", err)
	}
	files := map[string]string{imageFile: archive}
	for _, name := range programs {
		if files[binDir+name], err = tools.Path(name); err != nil {
			t.Fatalf("starting a node: %v", err)
		}
	}
	m := machine.BootWith(t, suite, machine.Options{Packages: []string{"runc"}, Controllers: true, Files: files})
	expect := cp.ExpectNode
	if o.Beside != nil {
		expect = o.Beside.Node.ExpectSpare
	}
	n := &Node{Host: host.On(t, m, expect(t))}
	n.Join(t)
	n.setUp(t)
	if o.Button {
		n.AddPowerButton(t)
	}
	if o.Nth {
		n.Install(t, host.Older)
	}
	n.startKubelet(t, o)
	n.Node.WaitReady(t)
	if o.Nth {
		n.WaitWatching(t)
	}
	return n
}

// setUp starts the container runtime.
func (n *Node) setUp(t lab.TB) {
	t.Helper()
	n.Write(t, setupFile, setupScript)
	n.Write(t, "/etc/hosts", "127.0.0.1 localhost\n")
	n.Write(t, "/etc/resolv.conf", "")
	n.Write(t, "/etc/containerd/config.toml", containerdConfig)
	// No pod has a network of its own, so that no plugin is ever called; but there has to be one.
	n.Write(t, "/etc/cni/net.d/10-none.conflist",
		`{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}`)
	n.Run(t, "mkdir", "-p", wordsDir)
	n.unit(t, "setup", "[Unit]\nBefore=containerd.service\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sh "+setupFile)
	n.unit(t, "containerd", `[Unit]
Requires=setup.service
[Service]
Type=notify
ExecStart=`+binDir+`containerd
ExecStartPost=`+binDir+`ctr --namespace k8s.io images import --base-name nth.test/container `+imageFile+`
ExecStartPost=`+binDir+`ctr --namespace k8s.io images tag --force `+Image+` nth.test/pause:1
Delegate=yes
KillMode=process`)
}

// startKubelet starts the kubelet with the settings of the test.
func (n *Node) startKubelet(t lab.TB, o Options) {
	t.Helper()
	_, port, err := net.SplitHostPort(lab.FreeAddress(t))
	if err != nil {
		t.Fatalf("starting a kubelet: %v", err)
	}
	n.Write(t, configFile, fmt.Sprintf(kubeletConfig, port, o.ShutdownGrace, o.CriticalGrace))
	var labels []string
	for key, value := range n.Node.Labels() {
		labels = append(labels, key+"="+value)
	}
	n.unit(t, "kubelet", `[Unit]
After=containerd.service
Wants=containerd.service
[Service]
ExecStart=`+binDir+`kubelet --config=`+configFile+` --kubeconfig=/var/lib/kubelet/kubeconfig --hostname-override=`+n.Node.Name+
		` --node-labels=`+strings.Join(labels, ",")+` --v=2
Restart=always
RestartSec=1`)
}

// kubeletConfig has gaps for the port and for the two periods. The image of a machine is no file system that the kubelet
// could measure, and its processors and memory are the host's.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: %s
readOnlyPort: 0
healthzPort: 0
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
shutdownGracePeriod: %s
shutdownGracePeriodCriticalPods: %s
`

// unit installs a service that is started now and with each boot.
func (n *Node) unit(t lab.TB, name, text string) {
	t.Helper()
	n.Write(t, "/etc/systemd/system/"+name+".service", text+"\n[Install]\nWantedBy=multi-user.target\n")
	n.Run(t, "systemctl", "daemon-reload")
	n.Run(t, "systemctl", "enable", "--quiet", "--now", name)
}
