package packages

import (
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
)

// exposure is what "systemd-analyze security" may find at most, in tenths; docs/security.md explains each concession.
const exposure = "16"

func TestSystemdFindsNothingToSayAgainstTheUnit(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := bareHost(t, suite)
		h.Install(t, host.Older)
		if said := h.Run(t, "systemd-analyze", "verify", "--man=no", "nth.service"); said != "" {
			t.Errorf("systemd-analyze verify says\n%s", said)
		}
		o := h.Try(t, "systemd-analyze", "security", "--no-pager", "--threshold="+exposure, "nth.service")
		if o.Status != 0 {
			t.Errorf("systemd-analyze security says\n%s", o.Stdout)
		}
		// A key that this version does not know is ignored with no more than a warning.
		for _, e := range h.Journal(t, "--boot", "--priority=warning", "--grep=nth.service") {
			t.Errorf("systemd says %q", e.Message())
		}
	})
}

// What the unit promises, as systemd has understood it.
func TestTheUnitMeansTheSameToEverySystemd(t *testing.T) {
	want := map[string]string{
		"Type": "notify", "Restart": "always", "RestartUSec": "1s", "StartLimitIntervalUSec": "0", "WatchdogUSec": "30s",
		"TimeoutStopUSec": "3min", "TimeoutAbortUSec": "10s", "KillMode": "mixed", "OOMScoreAdjust": "-999",
		"MemoryMin": "67108864", "MemoryHigh": "268435456", "Slice": "-.slice", "ControlGroup": "/nth.service",
		"StateDirectory": "nth", "RuntimeDirectory": "nth", "RuntimeDirectoryPreserve": "restart",
		"CapabilityBoundingSet": "", "NoNewPrivileges": "yes", "ProtectSystem": "strict",
	}
	onEverySuite(t, func(t *testing.T, suite string) {
		h := newHost(t, suite)
		for property, value := range want {
			if got := h.Property(t, "nth", property); got != value {
				t.Errorf("%s is %q, want %q", property, got, value)
			}
		}
		after := " " + h.Property(t, "nth", "After") + " "
		for _, unit := range []string{
			"network-online.target", "dbus.service", "systemd-logind.service", "nodeadm-run.service", "kubelet.service",
			"snap.kubelet-eks.daemon.service",
		} {
			if !strings.Contains(after, " "+unit+" ") {
				t.Errorf("nth starts after%sand not after %s, and so would not stop before it", after, unit)
			}
		}
	})
}

// A kubelet that is stopped first leaves nobody who ends the pods that a drain has asked to go.
func TestAShutdownStopsTheKubeletOnlyWhenNTHHasStopped(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := newHost(t, suite)
		h.Write(t, "/etc/systemd/system/kubelet.service", "[Service]\nExecStart=/bin/sleep infinity\n")
		h.Run(t, "systemctl", "start", "kubelet")

		h.PowerOff(t)

		var order []string
		for _, e := range h.Journal(t, "_PID=1", "--boot") {
			if verb, rest, _ := strings.Cut(e.Message(), " "); verb == "Stopped" || verb == "Stopping" {
				unit, _, _ := strings.Cut(strings.TrimRight(rest, "."), " ")
				if unit == "nth.service" || unit == "kubelet.service" {
					order = append(order, verb+" "+unit)
				}
			}
		}
		want := []string{"Stopping nth.service", "Stopped nth.service", "Stopping kubelet.service", "Stopped kubelet.service"}
		if !slices.Equal(order, want) {
			t.Errorf("the journal tells %q, want %q", order, want)
		}
	})
}

// The kubelet of a machine on EC2 has no certificate: its kubeconfig names the AWS CLI, a program in Python that brings
// what Python brings. It runs within the unit's limits.
func TestUnit_LetsAPluginFetchTheCredential(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := bareHost(t, suite)
		h.Join(t)
		h.Write(t, "/usr/local/bin/fetch-token", plugin)
		h.Run(t, "chmod", "755", "/usr/local/bin/fetch-token")
		h.Run(t, "python3", "-c", useThePlugin)

		h.Install(t, host.Older)

		h.WaitLogged(t, systemd.IdentityFound)
		h.Node.AddDeployment(t, "web", 1)
		h.IMDS.SetSpot("terminate", twoMinutes())
		h.Node.WaitEmpty(t)
		h.WaitStatus(t, "is drained")
	})
}

// plugin does what a program in Python may do that was not written with a sandbox in mind.
const plugin = `#!/usr/bin/python3
import ctypes, hashlib, json, multiprocessing, os, socket, ssl, subprocess, tempfile, threading, uuid
ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)()
ssl.create_default_context()
with tempfile.NamedTemporaryFile() as scratch:
    scratch.write(b"x")
subprocess.run(["/bin/uname", "-a"], check=True, stdout=subprocess.DEVNULL)
worker = threading.Thread(target=lambda: hashlib.sha256(uuid.uuid4().bytes))
worker.start()
worker.join()
socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
os.path.exists(os.path.expanduser("~/.aws/config"))
pem = open("/var/lib/kubelet/pki/kubelet-client-current.pem").read()
print(json.dumps({
    "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
    "status": {"clientCertificateData": pem, "clientKeyData": pem},
}))
`

// useThePlugin puts the program into the kubeconfig, in the place of the certificate.
const useThePlugin = `
import re
path = "/var/lib/kubelet/kubeconfig"
text = open(path).read()
text, n = re.subn(r"( *)client-certificate: .*\n *client-key: .*\n",
    r"\1exec:\n\1  apiVersion: client.authentication.k8s.io/v1\n\1  command: fetch-token\n\1  interactiveMode: Never\n", text)
assert n == 1, text
open(path, "w").write(text)
`
