package packages

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
)

// brief lets a notice that is missing for a second count as withdrawn, so that one machine can be doomed many times. It continues the
// table of the metadata service.
const brief = "withdrawn_after = \"1s\"\n"

// One machine, on which one thing after the other is tried of the service.
func TestService_OnANode(t *testing.T) {
	machine.OnSuites(t, func(t *testing.T, suite string) {
		h := host.Bare(t, lab.Shared(t), suite)
		h.Configure(t, brief)
		h.Join(t)
		h.Install(t, host.Older)
		h.WaitWatching(t)
		for _, part := range []struct {
			name string
			try  func(*testing.T, *host.Host)
		}{
			{"the unit means what it says", mustMeanWhatItSays},
			{"the front page names the system", mustBeOnTheFrontPage},
			{"the journal has the story of a drain", mustLogADrain},
			{"units run before the pods go", mustRunUnitsFirst},
			{"a plugin in Python fetches the credential", mustLetAPluginWork},
			{"the check sees what the service sees", mustCheckAsTheService},
			{"metrics are where the manual says", mustWriteMetrics},
			{"a service that hangs is started again", mustBeStartedAgain},
			{"a reload reads the settings", mustReload},
			{"a shutdown stops the kubelet last", mustStopBeforeTheKubelet},
		} {
			if !t.Run(part.name, func(t *testing.T) { part.try(t, h) }) {
				return // what comes next builds on it
			}
		}
	})
}

// interrupt announces that the machine goes, with so many pods on its node, and waits until these are gone.
func interrupt(t *testing.T, h *host.Host, pods int) {
	t.Helper()
	h.Node.AddPods(t, "web", pods)
	h.IMDS.SetSpot("terminate", twoMinutes())
	h.Node.WaitEmpty(t)
	h.WaitStatus(t, "node "+h.Node.Name+" is drained for spot-interruption")
}

// calm takes the notice back, and waits until nth watches again.
func calm(t *testing.T, h *host.Host) {
	t.Helper()
	h.IMDS.ClearSpot()
	h.Node.WaitUncordoned(t)
	h.WaitWatching(t)
}

// restart gives the service other settings, and waits until it watches.
func restart(t *testing.T, h *host.Host, settings string) {
	t.Helper()
	h.Configure(t, brief+settings)
	h.Run(t, "systemctl", "restart", "nth")
	h.WaitWatching(t)
}

func mustMeanWhatItSays(t *testing.T, h *host.Host) {
	mustBeSound(t, h.Machine, "nth.service", "16")
	after := " " + h.Property(t, "nth", "After") + " "
	for _, unit := range []string{
		"network-online.target", "dbus.service", "systemd-logind.service", "nodeadm-run.service", "kubelet.service",
		"snap.kubelet-eks.daemon.service",
	} {
		if !strings.Contains(after, " "+unit+" ") {
			t.Errorf("nth starts after%sand not after %s, and so would not stop before it", after, unit)
		}
	}
	if delay := h.Logind(t, inhibitDelay); delay != ours {
		t.Errorf("logind waits %q for a drain, want 150 s", delay)
	}
}

// The front page says which systems were booted: these, with their versions.
func mustBeOnTheFrontPage(t *testing.T, h *host.Host) {
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	is := h.Run(t, "sh", "-c", `. /etc/os-release; echo "Debian ${VERSION_ID:-$VERSION_CODENAME} (systemd $(systemctl --version | sed -n 's/^systemd \([0-9]*\).*/\1/p'))"`)
	if row := regexp.MustCompile(`\n\| system \| .*` + regexp.QuoteMeta(is)); !row.Match(page) {
		t.Errorf("README.md does not say that %s was booted", is)
	}
}

func mustLogADrain(t *testing.T, h *host.Host) {
	interrupt(t, h, 2)
	id := h.WaitLogged(t, systemd.EventSeen)[systemd.FieldEventID]
	want := []string{
		systemd.EventSeen, systemd.DrainStarted, systemd.Cordoned, systemd.PodEvicted, systemd.PodGone, systemd.Drained,
	}
	for _, e := range h.Journal(t, systemd.FieldEventID+"="+id) {
		if len(want) > 0 && e[systemd.FieldMessageID] == want[0] {
			want = want[1:]
		}
		if e["_SYSTEMD_UNIT"] != "nth.service" || e["SYSLOG_IDENTIFIER"] != "nth" ||
			e[systemd.FieldEventKind] != "spot-interruption" || e[systemd.FieldNode] != h.Node.Name {
			t.Errorf("%q has the fields %v", e.Message(), e)
		}
	}
	if len(want) > 0 {
		t.Errorf("journalctl NTH_EVENT_ID=%s does not show, in this sequence, the rest of the story: %q", id, want)
	}
	explained := h.Run(t, "journalctl", "--catalog", "--boot", "_SYSTEMD_UNIT=nth.service")
	for _, want := range []string{
		"Subject: Node " + h.Node.Name + " is drained\n", "Subject: An event was announced: spot-interruption\n",
		"Defined-By: nth\n", "journalctl NTH_EVENT_ID=",
	} {
		if !strings.Contains(explained, want) {
			t.Errorf("journalctl --catalog does not say %q:\n%s", want, explained)
		}
	}
	calm(t, h)
}

// saveUnit is the unit of the manual, which writes something down.
const saveUnit = `[Unit]
Description=Save what is only on this node

[Service]
Type=oneshot
ExecStart=/bin/sh -c 'sleep 2; date +%%s >/var/tmp/saved'
TimeoutStartSec=30s

[Install]
WantedBy=nth-before-drain.target
`

func mustRunUnitsFirst(t *testing.T, h *host.Host) {
	h.Write(t, "/etc/systemd/system/save.service", saveUnit)
	h.Write(t, "/etc/systemd/system/broken.service", strings.Replace(saveUnit, "sleep 2;", "exit 1;", 1))
	h.Run(t, "systemctl", "enable", "save.service", "broken.service")
	restart(t, h, "[drain]\nscripts_wait = \"20s\"\n")
	h.Node.AddPods(t, "web", 1)
	h.IMDS.SetSpot("terminate", twoMinutes())
	h.Node.WaitForPods(t, "its pods are going", func(pods []*corev1.Pod) bool {
		return len(pods) == 0 || pods[0].DeletionTimestamp != nil
	})
	if saved := h.Try(t, "cat", "/var/tmp/saved"); saved.Status != 0 {
		t.Errorf("a pod is going, and the unit has not run: %s", saved.Stderr)
	}
	h.Node.WaitEmpty(t)
	h.Run(t, "systemctl", "disable", "save.service", "broken.service")
	calm(t, h)
}

// plugin does what a program in Python may do that was not written with a sandbox in mind. The kubelet of a machine on EC2 has no
// certificate: its kubeconfig names the AWS CLI, which runs within the limits of nth's unit.
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
print(json.dumps({
    "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
    "status": {"token": open("/etc/kubernetes/token").read()},
}))
`

// mustLetAPluginWork gives the kubelet's kubeconfig that plugin for a while, and drains the node with the credential that it prints.
func mustLetAPluginWork(t *testing.T, h *host.Host) {
	h.Write(t, "/etc/kubernetes/token", h.Node.Token())
	h.Write(t, "/usr/local/bin/fetch-token", plugin)
	h.Run(t, "chmod", "755", "/usr/local/bin/fetch-token")
	h.JoinAs(t, clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
		APIVersion: "client.authentication.k8s.io/v1", Command: "fetch-token", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}})
	restart(t, h, "")
	interrupt(t, h, 1)
	calm(t, h)
	h.Join(t) // by the certificate again
}

// An operator who types "nth check" sees the whole machine, and the service does not: what counts is what the service can do.
func mustCheckAsTheService(t *testing.T, h *host.Host) {
	find := func(status int, line string) {
		t.Helper()
		o := h.Try(t, "nth", "check")
		if o.Status != status || !regexp.MustCompile(`(?m)^`+line).MatchString(o.Stdout) {
			t.Errorf("nth check ended with %d, want %d and a line %s\n%s%s", o.Status, status, line, o.Stdout, o.Stderr)
		}
	}
	find(0, `ok    daemon      process \d+ watches for node `+regexp.QuoteMeta(h.Node.Name)+"$")
	h.Run(t, "mv", "/var/lib/kubelet/kubeconfig", "/tmp/kubeconfig")
	h.Configure(t, brief+"[kubernetes]\nkubeconfig = \"/tmp/kubeconfig\"\n")
	h.Run(t, "systemctl", "restart", "nth")
	h.WaitStatus(t, "watching; cannot drain the node until the kubelet's credential is confirmed: ")
	find(1, `fail  daemon      it has no credential: .*/tmp/kubeconfig.* This check has found one in /tmp/kubeconfig: `)
	h.Run(t, "systemctl", "stop", "nth")
	find(1, `fail  daemon      nth is not running`)
	h.Run(t, "mv", "/tmp/kubeconfig", "/var/lib/kubelet/kubeconfig")
}

// The unit, which makes the file system read-only, lets nth write where node_exporter looks, and where a drop-in allows it.
func mustWriteMetrics(t *testing.T, h *host.Host) {
	written := func(dir string) {
		t.Helper()
		file := dir + "/nth.prom"
		lab.Await(t, file+" is there", func() bool { return h.Try(t, "test", "-e", file).Status == 0 })
		if mode := h.Run(t, "stat", "--format=%a %U", file); mode != "644 root" {
			t.Errorf("%s is %s, want 644 root", file, mode)
		}
	}
	for _, dir := range []string{"/var/lib/node_exporter", "/var/lib/prometheus/node-exporter", "/srv/textfile"} {
		h.Run(t, "mkdir", "-p", dir)
		restart(t, h, fmt.Sprintf("[metrics]\ntextfile = \"%s/nth.prom\"\n", dir))
		if dir != "/srv/textfile" {
			written(dir)
		}
	}
	if said := h.WaitLogged(t, systemd.MetricsTrouble).Message(); !strings.Contains(said, "/srv/textfile/nth.prom: read-only file system") {
		t.Errorf("of a directory that it cannot write to, nth says %q", said)
	}
	h.Write(t, "/etc/systemd/system/nth.service.d/50-metrics.conf", "[Service]\nReadWritePaths=/srv/textfile\n")
	h.Run(t, "systemctl", "daemon-reload")
	h.Run(t, "systemctl", "restart", "nth")
	written("/srv/textfile")
}

// The watchdog of the unit is shortened: what is judged is that the service is watched, not for how long.
func mustBeStartedAgain(t *testing.T, h *host.Host) {
	h.Write(t, "/etc/systemd/system/nth.service.d/50-test.conf", "[Service]\nWatchdogSec=3s\nTimeoutAbortSec=1s\n")
	h.Run(t, "systemctl", "daemon-reload")
	restart(t, h, "")
	before := h.Hang(t, "nth")
	lab.Await(t, "systemd has started nth again", func() bool { return h.Property(t, "nth", "NRestarts") == "1" })
	h.WaitWatching(t)
	if after := h.MainPID(t); after == before || after == "0" {
		t.Errorf("the process is %s, and was %s before", after, before)
	}
	if result := h.Run(t, "journalctl", "--boot", "--unit=nth", "--output=cat", "--grep=Failed with result"); !strings.Contains(result, "'watchdog'") {
		t.Errorf("the journal does not name the watchdog:\n%s", result)
	}
	h.Run(t, "rm", "/etc/systemd/system/nth.service.d/50-test.conf")
	h.Run(t, "systemctl", "daemon-reload")
}

// mustReload reloads the service with other settings, which hold for the next event, and with wrong ones, which change nothing.
func mustReload(t *testing.T, h *host.Host) {
	before := h.MainPID(t)
	h.Configure(t, brief+"[events.spot-interruption]\naction = \"cordon\"\n")
	h.Run(t, "systemctl", "reload", "nth")
	h.WaitLogged(t, systemd.Reloaded)
	h.Configure(t, brief+"[events.spot-interruption]\naction = \"dance\"\n")
	if o := h.Try(t, "systemctl", "reload", "nth"); o.Status == 0 {
		t.Error("a reload of wrong settings does not fail")
	}
	h.WaitLogged(t, systemd.ConfigInvalid)
	lab.Await(t, "the reload has ended", func() bool { return h.Property(t, "nth", "ActiveState") == "active" })

	h.Node.AddPods(t, "stays", 1)
	h.IMDS.SetSpot("terminate", twoMinutes())
	h.WaitStatus(t, "node "+h.Node.Name+" is cordoned")
	if pods := h.Node.Pods(t); len(pods) != 1 || pods[0].DeletionTimestamp != nil {
		t.Errorf("the node has %d pods, want the one that it had", len(pods))
	}
	if after := h.MainPID(t); after != before {
		t.Errorf("the process is %s, and was %s before the reloads", after, before)
	}
	calm(t, h)
}

// A kubelet that is stopped first leaves nobody who ends the pods that a drain has asked to go.
func mustStopBeforeTheKubelet(t *testing.T, h *host.Host) {
	h.Write(t, "/etc/systemd/system/kubelet.service", "[Service]\nExecStart=/bin/sleep infinity\n")
	h.Run(t, "systemctl", "start", "kubelet")
	since := time.Now()
	h.PowerOff(t)
	var sequence []string
	for _, e := range h.Journal(t, "_PID=1", "--boot", fmt.Sprintf("--since=@%d", since.Unix()-1)) {
		if verb, rest, _ := strings.Cut(e.Message(), " "); verb == "Stopped" || verb == "Stopping" {
			unit, _, _ := strings.Cut(strings.TrimRight(rest, "."), " ")
			if unit == "nth.service" || unit == "kubelet.service" {
				sequence = append(sequence, verb+" "+unit)
			}
		}
	}
	want := []string{"Stopping nth.service", "Stopped nth.service", "Stopping kubelet.service", "Stopped kubelet.service"}
	if len(sequence) < 4 || !slices.Equal(sequence[len(sequence)-4:], want) {
		t.Errorf("the journal has %q, want %q at its end", sequence, want)
	}
}
