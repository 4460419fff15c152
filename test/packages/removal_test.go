package packages

import (
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
)

func TestAPurgeLeavesNothing(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := bareHost(t, suite)
		h.Join(t)
		h.Run(t, "rm", "-r", "/etc/nth")
		before, delay := files(t, h), inhibitDelay(t, h)

		deb := h.PutPackage(t, host.Older, "deb")
		h.Run(t, "dpkg", "--install", deb)
		h.WaitLogged(t, systemd.IdentityFound)
		h.Run(t, "sh", "-c", "printf '"+edit+"' >>/etc/nth/nth.toml")

		h.Run(t, "dpkg", "--remove", "nth")
		if load, active := h.Property(t, "nth", "LoadState"), h.Property(t, "nth", "ActiveState"); load != "not-found" || active != "inactive" {
			t.Errorf("after the removal the unit is %s and %s", load, active)
		}
		if got := inhibitDelay(t, h); got != delay {
			t.Errorf("after the removal logind waits %q, and %q before the installation", got, delay)
		}
		if said := h.Run(t, "tail", "-n", "1", "/etc/nth/nth.toml"); said+"\n" != edit {
			t.Errorf("after the removal the edited file of settings ends with %q", said)
		}
		h.Run(t, "test", "-d", "/var/lib/nth")
		if said := h.Try(t, "journalctl", "--list-catalog", systemd.Drained); strings.Contains(said.Stdout, "nth") {
			t.Errorf("after the removal the catalog has %q", said.Stdout)
		}

		h.Run(t, "dpkg", "--purge", "nth")
		h.Run(t, "rm", deb)
		for _, file := range files(t, h) {
			if _, found := slices.BinarySearch(before, file); !found {
				t.Errorf("after the purge there is %s", file)
			}
		}

		h.Install(t, host.Newer)
		h.WaitStatus(t, "watching; ")
		mustBe(t, h, "enabled", "active")
	})
}

// files lists the machine's files, sorted, but for those that a system writes by itself.
func files(t *testing.T, h *host.Host) []string {
	t.Helper()
	list := strings.Split(h.Run(t, "find", "/", "-xdev",
		"(", "-path", "/var/log", "-o", "-path", "/var/lib/dpkg", "-o", "-path", "/var/cache", "-o", "-path", "/tmp", "-o",
		"-path", "/var/tmp", "-o", "-path", "/proc", "-o", "-path", "/sys", "-o", "-path", "/run", "-o", "-path", "/dev", ")",
		"-prune", "-o", "-print"), "\n")
	list = slices.DeleteFunc(list, func(file string) bool { return strings.HasPrefix(file, "/var/lib/systemd/") })
	slices.Sort(list)
	return list
}
