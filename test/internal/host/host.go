// Package host is a machine as nth meets it: a booted system with nth installed from its package, the credential of the
// kubelet of a node of the lab, and a metadata service.
//
//	h := host.New(t, "trixie")
//	h.IMDS.SetSpot("terminate", time.Now().Add(2*time.Minute))
//	h.Node.WaitEmpty(t)
//	h.WaitStatus(t, "is drained")
//
// Package daemon runs nth alone, which is faster; here systemd starts it, watches over it and keeps its journal.
package host

import (
	"fmt"
	"path/filepath"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
)

// Where a kubelet keeps its credential.
const (
	kubeconfigFile  = "/var/lib/kubelet/kubeconfig"
	certificateFile = "/var/lib/kubelet/pki/kubelet-client-current.pem"
)

// settingsFile holds what a test sets.
const settingsFile = "/etc/nth/nth.toml.d/50-test.toml"

// A Host is a machine and what is around it.
type Host struct {
	*machine.Machine
	Node *lab.Node
	IMDS *imdstest.Server
}

// Bare boots a machine that knows the metadata service, and on which neither nth is nor a kubelet.
func Bare(t lab.TB, cp *lab.ControlPlane, suite string) *Host {
	t.Helper()
	return On(t, machine.Boot(t, suite), cp.AddNode(t))
}

// On is Bare for a machine that is there, and is to be that node.
func On(t lab.TB, m *machine.Machine, n *lab.Node) *Host {
	t.Helper()
	imds := imdstest.NewServer()
	t.Cleanup(imds.Close)
	h := &Host{Machine: m, Node: n, IMDS: imds}
	h.Configure(t, "")
	return h
}

// New boots a machine on which nth, of the older version, watches over a node.
func New(t lab.TB, cp *lab.ControlPlane, suite string) *Host {
	t.Helper()
	h := Bare(t, cp, suite)
	h.Join(t)
	h.Install(t, Older)
	h.WaitWatching(t)
	return h
}

// Configure writes the settings of the test, which are added to those that a host needs. They are in force when nth
// starts the next time.
func (h *Host) Configure(t lab.TB, settings string) {
	t.Helper()
	h.Write(t, settingsFile, fmt.Sprintf("[imds]\nendpoint = %q\ninterval = \"50ms\"\n%s",
		h.IMDS.URL, settings))
}

// Join makes the machine the node, as far as nth can see: it gets the kubelet's kubeconfig and certificate.
func (h *Host) Join(t lab.TB) {
	t.Helper()
	h.Put(t, h.Node.Certificate, certificateFile)
	h.JoinAs(t, clientcmdapi.AuthInfo{ClientCertificate: certificateFile, ClientKey: certificateFile})
}

// JoinAs writes a kubeconfig of the kubelet in which the user is that.
func (h *Host) JoinAs(t lab.TB, user clientcmdapi.AuthInfo) {
	t.Helper()
	h.Write(t, kubeconfigFile, h.Node.Portable(t, func(config *clientcmdapi.Config) {
		for name := range config.AuthInfos {
			config.AuthInfos[name] = &user
		}
	}))
}

// Install installs or upgrades nth, as an administrator does who has the file.
func (h *Host) Install(t lab.TB, v Version) {
	t.Helper()
	deb := h.PutPackage(t, v, "deb")
	h.Run(t, "dpkg", "--install", deb)
}

// PutPackage puts a package of nth into the machine and returns where.
func (h *Host) PutPackage(t lab.TB, v Version, family string) string {
	t.Helper()
	file := Package(t, v, family)
	guest := filepath.Join("/root", filepath.Base(file))
	h.Put(t, file, guest)
	return guest
}

// Status is the sentence that "systemctl status" shows now.
func (h *Host) Status(t lab.TB) string {
	t.Helper()
	return h.Property(t, "nth", "StatusText")
}

// WaitStatus waits until that sentence contains the text.
func (h *Host) WaitStatus(t lab.TB, text string) {
	t.Helper()
	h.AwaitText(t, "the status", text, func() string { return h.Status(t) })
}

// WaitWatching waits until the status says that nothing is announced for the node.
func (h *Host) WaitWatching(t lab.TB) {
	t.Helper()
	h.WaitStatus(t, "watching; nothing is announced for node "+h.Node.Name)
}

// Logged returns the entries of nth in this boot's journal with the message ID; with "" all that nth itself has written.
func (h *Host) Logged(t lab.TB, messageID string) []machine.Entry {
	t.Helper()
	args := []string{"--boot", "--identifier=nth", "_SYSTEMD_UNIT=nth.service"}
	if messageID != "" {
		args = append(args, "MESSAGE_ID="+messageID)
	}
	return h.Journal(t, args...)
}

// WaitLogged waits until nth has written such an entry in this boot, and returns the first. It does not ask for the unit:
// of the last words of a program that has ended, a journal that is busy can no longer tell to which unit they belong.
func (h *Host) WaitLogged(t lab.TB, messageID string) machine.Entry {
	t.Helper()
	var found []machine.Entry
	lab.Await(t, "the journal has the message "+messageID, func() bool {
		found = h.Journal(t, "--boot", "--identifier=nth", "MESSAGE_ID="+messageID)
		return len(found) > 0
	})
	return found[0]
}

// MainPID is nth's process in the machine; "0" if there is none.
func (h *Host) MainPID(t lab.TB) string {
	t.Helper()
	return h.Property(t, "nth", "MainPID")
}
