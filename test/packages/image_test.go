package packages

import (
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
)

// placeholder is a kubeconfig that names no cluster yet.
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

// An image is made on a machine that runs, as Packer does it, but is no node: it has no kubelet's credential.
func TestNothingIsStartedOnAMachineThatAnImageIsMadeOf(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := bareHost(t, suite)
		// Canonical's image for EKS has this before it is a node, and its bootstrap script puts the values in.
		h.Write(t, "/var/lib/kubelet/kubeconfig", placeholder)
		h.Install(t, host.Older)
		mustBe(t, h, "enabled", "inactive")
		h.Install(t, host.Newer)
		mustBe(t, h, "enabled", "inactive")
		h.Run(t, "test", "!", "-e", "/var/lib/nth")
		h.Run(t, "rm", "/var/lib/kubelet/kubeconfig")

		// The machines that are started from the image are nodes, a moment after their boot.
		h.Reboot(t)
		h.WaitStatus(t, "watching; waiting for the kubelet's credential: ")
		h.Join(t)
		h.WaitWatching(t)
		mustBe(t, h, "enabled", "active")
	})
}

// Other images are made without booting anything: in a root directory with no service manager in it.
func TestNothingIsStartedInAChroot(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := bareHost(t, suite)
		deb := h.PutPackage(t, host.Older, "deb")
		h.Join(t)
		// The chroot is the machine's own root, but for /run, which is what tells a service manager.
		h.Run(t, "sh", "-c", "mount --bind / /mnt && mount -t tmpfs tmpfs /mnt/run && mount -t proc proc /mnt/proc")
		h.Run(t, "chroot", "/mnt", "dpkg", "--install", deb)
		h.Run(t, "systemctl", "daemon-reload")
		mustBe(t, h, "enabled", "inactive")

		h.Reboot(t)
		h.WaitWatching(t)
		h.WaitLogged(t, systemd.IdentityFound)
	})
}

// On a node, an administrator who installs nth wants it to watch.
func TestANodeIsWatchedAsSoonAsThePackageIsInstalled(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := newHost(t, suite)
		mustBe(t, h, "enabled", "active")
		h.Run(t, "systemctl", "--failed", "--quiet", "is-system-running")
		if delay := inhibitDelay(t, h); delay != "t 150000000" {
			t.Errorf("logind waits %q for a drain, want 150 s", delay)
		}
	})
}

// inhibitDelay is how long logind lets a shutdown wait, as busctl tells it.
func inhibitDelay(t *testing.T, h *host.Host) string {
	t.Helper()
	return h.Run(t, "busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1",
		"org.freedesktop.login1.Manager", "InhibitDelayMaxUSec")
}

// mustBe fails the test unless nth is so enabled and so active.
func mustBe(t *testing.T, h *host.Host, enabled, active string) {
	t.Helper()
	isEnabled := h.Try(t, "systemctl", "is-enabled", "nth").Stdout
	isActive := h.Try(t, "systemctl", "is-active", "nth").Stdout
	if isEnabled != enabled+"\n" || isActive != active+"\n" {
		t.Errorf("nth is %q and %q, want it to be %s and %s", isEnabled, isActive, enabled, active)
	}
}
