package packages

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
)

// placeholder is a kubeconfig that names no cluster yet: Canonical's image for EKS has it before it is a node, and its bootstrap script
// puts the values in.
const placeholder = `apiVersion: v1
kind: Config
clusters:
- cluster:
    certificate-authority: /etc/kubernetes/pki/ca.crt
    server: MASTER_ENDPOINT
  name: kubernetes
contexts:
- context:
    cluster: kubernetes
    user: kubelet
  name: kubelet
current-context: kubelet
users:
- name: kubelet
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      command: /usr/bin/aws-iam-authenticator
      args: ["token", "-i", "CLUSTER_NAME", "--region", "AWS_REGION"]
`

// Some images are made on a machine that runs, as Packer does it, and is no node; others in a root directory with no service manager in it.
func TestDeb_StartsNothingWhereAnImageIsMade(t *testing.T) {
	machine.OnSuites(t, func(t *testing.T, suite string) {
		h := host.Bare(t, lab.Shared(t), suite)
		h.Write(t, "/var/lib/kubelet/kubeconfig", placeholder)
		for _, v := range []host.Version{host.Older, host.Newer} {
			h.Install(t, v)
			mustBe(t, h.Machine, "nth", "enabled", "inactive")
		}
		h.Run(t, "test", "!", "-e", "/var/lib/nth")
		h.Run(t, "rm", "/var/lib/kubelet/kubeconfig")
		h.Run(t, "dpkg", "--purge", "nth")

		h.Configure(t, "")
		h.Join(t)
		// The chroot is the machine's own root, but for /run, by which dpkg knows a service manager.
		h.Run(t, "sh", "-c", "mount --bind / /mnt && mount -t tmpfs tmpfs /mnt/run && mount -t proc proc /mnt/proc")
		h.Run(t, "chroot", "/mnt", "dpkg", "--install", h.PutPackage(t, host.Older, "deb"))
		h.Run(t, "systemctl", "daemon-reload")
		mustBe(t, h.Machine, "nth", "enabled", "inactive")

		// The machines that are started from the image are nodes, a moment after their boot.
		h.Run(t, "mv", "/var/lib/kubelet/kubeconfig", "/root/kubeconfig")
		h.Reboot(t)
		h.WaitStatus(t, "watching; cannot drain the node until the kubelet's credential is confirmed: ")
		h.Run(t, "mv", "/root/kubeconfig", "/var/lib/kubelet/kubeconfig")
		h.WaitWatching(t)
		mustBe(t, h.Machine, "nth", "enabled", "active")
	})
}

// edit is what an administrator has put into the file of settings.
const edit = "# edited\n"

func TestDeb_KeepsDecisionsAndLeavesNothing(t *testing.T) {
	machine.OnSuites(t, func(t *testing.T, suite string) {
		h := host.Bare(t, lab.Shared(t), suite)
		h.Join(t)
		older, newer := h.PutPackage(t, host.Older, "deb"), h.PutPackage(t, host.Newer, "deb")
		h.Run(t, "rm", "-r", "/etc/nth")
		before, delay := files(t, h.Machine), h.Logind(t, inhibitDelay)
		h.Run(t, "dpkg", "--install", older)
		h.WaitLogged(t, systemd.IdentityFound)
		mustBe(t, h.Machine, "nth", "enabled", "active")
		h.Run(t, "systemctl", "--failed", "--quiet", "is-system-running")

		h.Run(t, "systemctl", "disable", "--now", "nth")
		h.Run(t, "dpkg", "--install", newer)
		mustBe(t, h.Machine, "nth", "disabled", "inactive")
		h.Run(t, "systemctl", "enable", "nth")
		h.Run(t, "dpkg", "--install", older)
		mustBe(t, h.Machine, "nth", "enabled", "inactive") // it was stopped, and stays so until the next boot
		h.Run(t, "systemctl", "mask", "nth")
		h.Run(t, "dpkg", "--install", newer)
		mustBe(t, h.Machine, "nth", "masked", "inactive")
		h.Run(t, "systemctl", "unmask", "nth")
		// A service that cannot start is no reason to leave the package half installed.
		h.Run(t, "systemctl", "start", "nth")
		h.Write(t, "/etc/nth/nth.toml.d/60-wrong.toml", "[drain]\nmargin = \"soon\"\n")
		h.Run(t, "dpkg", "--install", older)
		lab.Await(t, "nth gives up on its settings", func() bool { return h.Property(t, "nth", "ActiveState") == "failed" })
		h.WaitLogged(t, systemd.ConfigInvalid)
		h.Run(t, "rm", "/etc/nth/nth.toml.d/60-wrong.toml")

		h.Run(t, "sh", "-c", "printf '"+edit+"' >>/etc/nth/nth.toml")
		h.Run(t, "dpkg", "--remove", "nth")
		if load := h.Property(t, "nth", "LoadState"); load != "not-found" {
			t.Errorf("after the removal the unit is %s", load)
		}
		if got := h.Logind(t, inhibitDelay); got != delay {
			t.Errorf("after the removal logind waits %q, and %q before the installation", got, delay)
		}
		if said := h.Run(t, "tail", "-n", "1", "/etc/nth/nth.toml"); said+"\n" != edit {
			t.Errorf("after the removal the edited file of settings ends with %q", said)
		}
		if said := h.Try(t, "journalctl", "--list-catalog", systemd.Drained); strings.Contains(said.Stdout, "nth") {
			t.Errorf("after the removal the catalog has %q", said.Stdout)
		}
		h.Run(t, "dpkg", "--purge", "nth")
		mustHaveOnly(t, h.Machine, before)
	})
}

func TestUpgrade_InMidDrainContinuesIt(t *testing.T) {
	machine.OnSuites(t, func(t *testing.T, suite string) {
		h := host.New(t, lab.Shared(t), suite)
		h.Node.AddDeployment(t, "web", 2)
		h.Node.AddPods(t, "stubborn", 2, lab.Grace(90*time.Second), lab.NeverGoes())
		h.Node.AddDeployment(t, "db", 1, lab.MinAvailable(1))
		h.IMDS.SetSpot("terminate", twoMinutes())
		h.WaitStatus(t, "held by PDB db")
		lab.Await(t, "four pods have been evicted", func() bool { return len(h.Logged(t, systemd.PodEvicted)) == 4 })

		before := h.MainPID(t)
		h.Install(t, host.Newer)
		h.WaitStatus(t, "held by PDB db")
		if after := h.MainPID(t); after == before || after == "0" {
			t.Errorf("the process is %s, and was %s before the upgrade", after, before)
		}
		if said := h.Run(t, "nth", "--version"); !strings.HasPrefix(said, "nth version "+string(host.Newer)+" ") {
			t.Errorf("the program says %q", said)
		}
		h.Node.AddSpare(t)
		h.Node.Scale(t, "db", 2)
		lab.Await(t, "the pod of db is evicted", func() bool { return len(h.Logged(t, systemd.PodEvicted)) == 5 })
		h.Run(t, "systemctl", "stop", "nth")

		accepted := map[string]int{}
		for _, r := range h.Node.Requests(t) {
			if r.Removes() && r.Status < 300 {
				accepted[r.Name]++
			}
		}
		if times := slices.Collect(maps.Values(accepted)); len(times) != 5 || slices.Max(times) > 1 {
			t.Errorf("both versions together have evicted %v, want five pods, each once", accepted)
		}
		if !h.Node.Object(t).Spec.Unschedulable {
			t.Error("the node is schedulable after the upgrade")
		}
	})
}

// The distributions of this family cannot be booted here. Their rpm can be had on Debian, and runs the package's scripts
// as it would there; what it cannot do is find what the package depends on.
func TestRPM_LivesItsLife(t *testing.T) {
	machine.OnSuites(t, func(t *testing.T, suite string) {
		h := host.Bare(t, lab.Shared(t), suite)
		older, newer := h.PutPackage(t, host.Older, "rpm"), h.PutPackage(t, host.Newer, "rpm")
		// Where there is no node, and where presets forbid it, nothing is started, and what is stopped stays so.
		for _, c := range []struct{ file, text, enabled string }{
			{"/var/lib/kubelet/kubeconfig", placeholder, "enabled"},
			{"/etc/systemd/system-preset/10-none.preset", "disable nth.service\n", "disabled"},
		} {
			h.Write(t, c.file, c.text)
			h.Run(t, "rpm", "--install", "--nodeps", older)
			mustBe(t, h.Machine, "nth", c.enabled, "inactive")
			h.Run(t, "rpm", "--upgrade", "--nodeps", newer)
			mustBe(t, h.Machine, "nth", c.enabled, "inactive")
			h.Run(t, "rpm", "--erase", "nth")
			h.Run(t, "rm", c.file)
			h.Join(t)
		}

		h.Configure(t, "")
		h.Run(t, "rpm", "--install", "--nodeps", older)
		h.WaitWatching(t)
		mustBe(t, h.Machine, "nth", "enabled", "active")
		if delay := h.Logind(t, inhibitDelay); delay != ours {
			t.Errorf("logind waits %q for a drain, want 150 s", delay)
		}
		mustVerify(t, h, "")
		h.Run(t, "sh", "-c", "printf '"+edit+"' >>/etc/nth/nth.toml")
		process := h.MainPID(t)
		h.Run(t, "rpm", "--upgrade", "--nodeps", newer)
		h.WaitWatching(t)
		if after := h.MainPID(t); after == process || after == "0" {
			t.Errorf("the process is %s, and was %s before the upgrade", after, process)
		}
		mustVerify(t, h, "S.5....T.  c /etc/nth/nth.toml")
		if said := h.Run(t, "journalctl", "--list-catalog", systemd.Drained); !strings.Contains(said, " is drained") {
			t.Errorf("the catalog has %q", said)
		}
		h.Run(t, "rpm", "--erase", "nth")
		if active := h.Property(t, "nth", "ActiveState"); active != "inactive" {
			t.Errorf("after the removal the unit is %s", active)
		}
		if said := h.Run(t, "tail", "-n", "1", "/etc/nth/nth.toml.rpmsave"); said+"\n" != edit {
			t.Errorf("after the removal the edited file of settings ends with %q", said)
		}

		queue := []string{"/root/older.rpm", "/root/newer.rpm"}
		h.Put(t, host.PackageOf(t, "nth-queue", host.Older, "rpm"), queue[0])
		h.Put(t, host.PackageOf(t, "nth-queue", host.Newer, "rpm"), queue[1])
		h.Run(t, "rpm", "--install", "--nodeps", queue[0])
		mustBe(t, h.Machine, "nth-queue", "disabled", "inactive")
		h.Run(t, "systemctl", "enable", "nth-queue")
		h.Run(t, "rpm", "--upgrade", "--nodeps", queue[1])
		mustBe(t, h.Machine, "nth-queue", "enabled", "inactive")
		h.Run(t, "rpm", "--erase", "nth-queue")
		if said := h.Run(t, "find", "/etc/systemd", "/usr/lib/systemd", "/usr/bin", "/usr/share", "-name", "*nth*"); said != "" {
			t.Errorf("after the removal there is\n%s", said)
		}
	})
}

// mustVerify fails the test unless rpm finds just this changed since the installation.
func mustVerify(t *testing.T, h *host.Host, want string) {
	t.Helper()
	if said := strings.TrimSpace(h.Try(t, "rpm", "--verify", "--nodeps", "nth").Stdout); said != want {
		t.Errorf("rpm --verify says %q, want %q", said, want)
	}
}
