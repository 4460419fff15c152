package faults_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

// The modes of the exec plugin.
const (
	good = "good" // prints a credential that expires in two seconds
	bad  = "bad"  // fails
	junk = "junk" // prints what is no credential
	hung = "hung" // goes on when it is healed
)

// pluginScript is an exec plugin for the credential, in the directory in which it lies.
const pluginScript = `#!/bin/sh
cd "${0%/*}" || exit 1
case "$(cat mode)" in
good) sed "s/EXPIRY/$(date -u -d "@$(($(date +%s) + 2))" +%Y-%m-%dT%H:%M:%SZ)/" credential ;;
bad) echo "no credential provider" >&2; exit 1 ;;
junk) echo "<html>please log in</html>" ;;
hung) cat gate; exec "$0" ;;
esac
`

// A plugin is a node's exec plugin.
type plugin struct{ directory string }

// newPlugged sets a scene on which nth does not run yet, and has its credential from a plugin.
func newPlugged(t *testing.T, mode string) (s *scene, p plugin) {
	t.Helper()
	s = setScene(t, "", func(s *scene) (kubeconfig string) {
		p, kubeconfig = newPlugin(t, s.node, mode)
		return kubeconfig
	})
	return s, p
}

// newPlugin makes a plugin that gives the node's own certificate, and a kubeconfig that uses it.
func newPlugin(t *testing.T, node *lab.Node, mode string) (p plugin, kubeconfig string) {
	t.Helper()
	p = plugin{t.TempDir()}
	certificate, err := os.ReadFile(node.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	chain, key, _ := strings.Cut(string(certificate), "-----BEGIN EC")
	credential, err := json.Marshal(map[string]any{
		"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1",
		"status": map[string]string{
			"clientCertificateData": chain, "clientKeyData": "-----BEGIN EC" + key, "expirationTimestamp": "EXPIRY",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.write(t, "plugin", pluginScript)
	p.write(t, "credential", string(credential))
	p.set(t, mode)
	if err := syscall.Mkfifo(p.path("gate"), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(node.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
			APIVersion: "client.authentication.k8s.io/v1", Command: p.path("plugin"),
			InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		}}
	}
	if err := clientcmd.WriteToFile(*config, p.path("kubeconfig")); err != nil {
		t.Fatal(err)
	}
	return p, p.path("kubeconfig")
}

func (p plugin) path(file string) string { return filepath.Join(p.directory, file) }

func (p plugin) write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(p.path(file), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}

// set says how the plugin behaves from now on.
func (p plugin) set(t *testing.T, mode string) {
	t.Helper()
	p.write(t, "new mode", mode)
	if err := os.Rename(p.path("new mode"), p.path("mode")); err != nil {
		t.Fatal(err)
	}
}

// heal makes the plugin good, and lets go on what hangs.
func (p plugin) heal(t *testing.T) {
	t.Helper()
	p.set(t, good)
	gate, err := os.OpenFile(p.path("gate"), os.O_RDWR, 0) // who waits at the gate, and who comes while it is open, passes
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	p.write(t, "no gate", "")
	if err := os.Rename(p.path("no gate"), p.path("gate")); err != nil {
		t.Fatal(err)
	}
}

func TestANoticeWaitsForAnExecPluginThatFailsFromTheStart(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{bad, junk, hung} {
		t.Run(mode, func(t *testing.T) {
			s, p := newPlugged(t, mode)
			s.node.AddPods(t, "work", 3)
			s.start(t)
			s.nth.WaitStatus(t, "waiting for the kubelet's credential")
			s.imds.SetSpot("terminate", twoMinutes())
			s.nth.WaitLog(t, systemd.DrainStarted)
			s.mustBeUntouched(t)
			p.heal(t)
			s.waitDrained(t)
			s.nth.Stop(t)
		})
	}
}

func TestADrainSurvivesAnExecPluginThatFailsInItsMidst(t *testing.T) {
	t.Parallel()
	for mode, complaint := range map[string]string{
		bad:  "the credential plugin fails",
		junk: "the credential plugin fails",
		hung: "no answer from the API server",
	} {
		t.Run(mode, func(t *testing.T) {
			s, p := newPlugged(t, good)
			s.node.AddPods(t, "quick", 3)
			s.node.AddDeployment(t, "guarded", 1, lab.MinAvailable(1))
			s.watch(t)
			s.imds.SetSpot("terminate", twoMinutes())
			s.nth.WaitLog(t, systemd.PodHeld)
			p.set(t, mode)
			s.nth.WaitSays(t, complaint)
			s.release(t, "guarded")
			p.heal(t)
			s.waitDrained(t)
			s.nth.Stop(t)
		})
	}
}
