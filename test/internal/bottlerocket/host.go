// Package bottlerocket is a host of Bottlerocket as nth meets it in a host container: the image of nth, run with the
// mounts, namespaces and capabilities that host-ctr gives to one, and stopped as host-ctr stops one, on a machine that a
// real systemd has booted.
//
//	h := bottlerocket.New(t, cp)
//	h.JoinByPlugin(t)
//	h.Start(t)
//	h.IMDS.SetSpot("terminate", time.Now().Add(2*time.Minute))
//	h.Node.WaitEmpty(t)
//
// What host-ctr does was read in its sources. Here runc does it in the place of containerd (spec.go, host-ctr.sh).
// What cannot be shown is SELinux.
package bottlerocket

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
)

// name is the host container's, and unit its service's.
const (
	name = "nth"
	unit = "host-containers@" + name + ".service"
)

// Places on the host.
const (
	home           = "/local/host-containers/" + name
	bundle         = "/var/lib/host-containerd/" + name
	errorsFile     = "/var/log/nth-errors"
	kubeconfigFile = "/etc/kubernetes/kubelet/kubeconfig"
	authorityFile  = "/etc/kubernetes/pki/ca.crt"
	pluginFile     = "/usr/bin/aws-iam-authenticator"
)

//go:embed host-ctr.sh
var hostCtr string

// service is the host container's, as Bottlerocket has it: nobody watches, and what has ended is started again after 45 s. systemd
// stops host-ctr alone, which on Bottlerocket is not the parent of what it runs. What goes to the console there goes into a file.
// After=dbus.service is ours: where D-Bus is stopped first, nth cannot ask whether the host goes down or only the container.
const service = `[Unit]
Description=Host container: %i
After=dbus.service
[Service]
Type=simple
ExecStart=/usr/bin/host-ctr %i
Restart=always
RestartSec=45
TimeoutStopSec=60
KillMode=mixed
SyslogIdentifier=host-containers@%i
StandardError=append:` + errorsFile + `
[Install]
WantedBy=multi-user.target
`

// A Host is a machine and what is around it.
type Host struct {
	*machine.Machine
	Node *lab.Node
	IMDS *imdstest.Server
}

// New boots a host with the container, which does not run yet.
func New(t lab.TB, cp *lab.ControlPlane) *Host {
	t.Helper()
	image, err := made()
	if err != nil {
		t.Fatalf("%v", err)
	}
	h := &Host{Machine: machine.Boot(t, "trixie", "runc"), Node: cp.AddNode(t), IMDS: imdstest.NewServer()}
	t.Cleanup(h.IMDS.Close)
	for _, dir := range []string{home, bundle, "/var/log/support", "/local"} {
		h.Run(t, "mkdir", "-p", "-m", "700", dir)
	}
	runs, err := unpack(image, h.Path(bundle+"/image"))
	if err != nil {
		t.Fatalf("unpacking the image: %v", err)
	}
	capabilities := h.Run(t, "sh", "-c", `systemd-analyze capability --mask "$(sed -n 's/^CapBnd:\s*//p' /proc/1/status)" | grep -o '^cap_[a-z_]*'`)
	text, err := spec(name, strings.Fields(strings.ToUpper(capabilities)), runs)
	if err != nil {
		t.Fatalf("describing the container: %v", err)
	}
	h.Write(t, bundle+"/config.json", string(text))
	h.Write(t, "/local/resolv.conf", "")
	h.Write(t, "/etc/bottlerocket-release", "NAME=Bottlerocket\n")
	h.Write(t, "/usr/bin/host-ctr", hostCtr)
	h.Run(t, "chmod", "755", "/usr/bin/host-ctr")
	h.Write(t, "/etc/systemd/system/host-containers@.service", service)
	h.UserData(t, "")
	return h
}

// UserData writes the settings of nth, which the metadata service's address is added to.
func (h *Host) UserData(t lab.TB, settings string) {
	t.Helper()
	h.Write(t, home+"/user-data", fmt.Sprintf("%s\n[imds]\nendpoint = %q\ninterval = \"50ms\"\n",
		settings, h.IMDS.URL))
}

// JoinByPlugin makes the machine the node, with a kubelet whose kubeconfig names a plugin. That is a program of the
// host's: a script for its shell, linked with its library.
func (h *Host) JoinByPlugin(t lab.TB) {
	t.Helper()
	const version = "client.authentication.k8s.io/v1beta1"
	credential, err := json.Marshal(map[string]any{
		"kind": "ExecCredential", "apiVersion": version,
		"status": map[string]string{"token": h.Node.Token()},
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	h.Write(t, "/etc/kubernetes/credential", string(credential))
	h.Write(t, pluginFile, "#!/bin/sh\necho \"$*\" >>/run/plugin-calls && cat /etc/kubernetes/credential\n")
	h.Run(t, "chmod", "755", pluginFile)
	h.join(t, &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
		APIVersion: version, Command: pluginFile, Args: []string{"token", "-i", "production", "--region", imdstest.Region},
	}})
}

// JoinByCertificate makes the machine the node, with a kubelet that has a certificate, which it keeps as kubelets do:
// behind a link by its whole path.
func (h *Host) JoinByCertificate(t lab.TB) {
	t.Helper()
	const current, dated = "/var/lib/kubelet/pki/kubelet-client-current.pem", "/var/lib/kubelet/pki/kubelet-client-2026-01-31.pem"
	h.Put(t, h.Node.Certificate, dated)
	h.Run(t, "ln", "-s", dated, current)
	h.join(t, &clientcmdapi.AuthInfo{ClientCertificate: current, ClientKey: current})
}

// join writes the kubeconfig of a kubelet that is this user. The cluster's certificate is in a file beside it.
func (h *Host) join(t lab.TB, user *clientcmdapi.AuthInfo) {
	t.Helper()
	h.Write(t, kubeconfigFile, h.Node.Portable(t, func(config *clientcmdapi.Config) {
		for _, cluster := range config.Clusters {
			h.Write(t, authorityFile, string(cluster.CertificateAuthorityData))
			cluster.CertificateAuthority, cluster.CertificateAuthorityData = authorityFile, nil
		}
		for name := range config.AuthInfos {
			config.AuthInfos[name] = user
		}
	}))
}

// Start starts the container, now and with each boot, and waits until nth watches over the node.
func (h *Host) Start(t lab.TB) {
	t.Helper()
	h.Run(t, "systemctl", "enable", "--now", unit)
	h.WaitStatus(t, "watching; nothing is announced for node "+h.Node.Name)
}

// Inside runs nth with the arguments in the container, as "apiclient exec" does.
func (h *Host) Inside(t lab.TB, args ...string) machine.Outcome {
	t.Helper()
	return h.Try(t, "runc", append([]string{"exec", name, "/usr/bin/nth"}, args...)...)
}

// Daemon is the process of nth that watches, as the machine numbers it: the container begins with its parent.
func (h *Host) Daemon(t lab.TB) string {
	t.Helper()
	pid := ""
	lab.Await(t, "the daemon runs", func() bool {
		// A command such as "nth status" may be seen, too; it ends.
		pid = strings.TrimSpace(h.Try(t, "sh", "-c", "grep -lx nth /proc/[0-9]*/comm 2>/dev/null | cut -d / -f 3").Stdout)
		return pid != "" && !strings.Contains(pid, "\n")
	})
	return pid
}

// WaitStatus waits until "nth status" says so in its first line.
func (h *Host) WaitStatus(t lab.TB, text string) {
	t.Helper()
	h.AwaitText(t, "nth status", text, func() string {
		if h.Try(t, "systemctl", "is-failed", unit).Status == 0 {
			t.Fatalf("waiting until the status says %q: the container does not start:\n%s", text, h.Errors(t))
		}
		o := h.Inside(t, "status")
		first, _, _ := strings.Cut(o.Stdout, "\n")
		return first + o.Stderr
	})
}

// Said returns the entries of the container in the journal that contain the text.
func (h *Host) Said(t lab.TB, text string) []machine.Entry {
	t.Helper()
	var found []machine.Entry
	for _, e := range h.Journal(t, "--identifier=host-containers@"+name) {
		if strings.Contains(e.Message(), text) {
			found = append(found, e)
		}
	}
	return found
}

// WaitSaid waits until the container has said something that contains the text so often.
func (h *Host) WaitSaid(t lab.TB, text string, times int) {
	t.Helper()
	lab.Await(t, fmt.Sprintf("the container has said %q %d times", text, times), func() bool { return len(h.Said(t, text)) >= times })
}

// Errors is what was written to the container's standard error, which on Bottlerocket is shown on the console.
func (h *Host) Errors(t lab.TB) string {
	t.Helper()
	text, err := os.ReadFile(h.Path(errorsFile))
	if err != nil && !os.IsNotExist(err) {
		t.Fatalf("reading what the container wrote to its standard error: %v", err)
	}
	return string(text)
}
