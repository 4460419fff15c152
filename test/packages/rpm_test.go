package packages

import (
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
)

// The distributions of this family cannot be booted here. Their rpm can be had on Debian, and runs the package's scripts
// as it would there; what it cannot do is find what the package depends on.
func TestTheRPMLivesItsLife(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := bareHost(t, suite)
		h.Join(t)
		older, newer := h.PutPackage(t, host.Older, "rpm"), h.PutPackage(t, host.Newer, "rpm")

		h.Run(t, "rpm", "--install", "--nodeps", older)
		h.WaitWatching(t)
		mustBe(t, h, "enabled", "active")
		if delay := inhibitDelay(t, h); delay != "t 150000000" {
			t.Errorf("logind waits %q for a drain, want 150 s", delay)
		}
		mustVerify(t, h, "")

		h.Run(t, "sh", "-c", "printf '"+edit+"' >>/etc/nth/nth.toml")
		before := h.MainPID(t)
		h.Run(t, "rpm", "--upgrade", "--nodeps", newer)
		h.WaitWatching(t)
		if after := h.MainPID(t); after == before || after == "0" {
			t.Errorf("the process is %s, and was %s before the upgrade", after, before)
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

// As on a node, but where administrators do not want what they install to run, and on a machine that an image is made of.
func TestTheRPMStartsNothingWhereThereIsNoNodeOrPresetsForbidIt(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*testing.T, *host.Host) (enabled string){
		"there is no kubeconfig": func(*testing.T, *host.Host) string { return "enabled" },
		"the kubeconfig names no API server": func(t *testing.T, h *host.Host) string {
			h.Write(t, "/var/lib/kubelet/kubeconfig", placeholder)
			return "enabled"
		},
		"presets disable nth": func(t *testing.T, h *host.Host) string {
			h.Join(t)
			h.Write(t, "/etc/systemd/system-preset/10-none.preset", "disable nth.service\n")
			return "disabled"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := bareHost(t, "trixie")
			enabled := prepare(t, h)
			h.Run(t, "rpm", "--install", "--nodeps", h.PutPackage(t, host.Older, "rpm"))
			mustBe(t, h, enabled, "inactive")
			if jobs := h.Run(t, "systemctl", "list-jobs", "--no-legend"); strings.Contains(jobs, "nth.service") {
				t.Errorf("nth is about to be started:\n%s", jobs)
			}
			// What is stopped stays so when it is brought up to date.
			h.Run(t, "rpm", "--upgrade", "--nodeps", h.PutPackage(t, host.Newer, "rpm"))
			mustBe(t, h, enabled, "inactive")
		})
	}
}

func TestThePackagesAskForWhatTheyNeed(t *testing.T) {
	t.Parallel()
	h := bareHost(t, "bookworm")
	rpm, deb := h.PutPackage(t, host.Older, "rpm"), h.PutPackage(t, host.Older, "deb")
	for _, fact := range []struct{ want, command string }{
		{"grep\nsed\nsystemd\nutil-linux", "rpm -qp --requires " + rpm + " | grep -v '^rpmlib\\|^config(' | sort"},
		{"dbus", "rpm -qp --recommends " + rpm},
		{"/etc/nth/nth.toml", "rpm -qp --configfiles " + rpm},
		{"/usr/share/licenses/nth/LICENSE", "rpm -qp --licensefiles " + rpm},
		{"nth 0.0.1 1 x86_64 Apache-2.0 localhost", "rpm -qp --queryformat '%{NAME} %{VERSION} %{RELEASE} %{ARCH} %{LICENSE} %{BUILDHOST}' " + rpm},
		{"systemd, procps", "dpkg-deb --field " + deb + " Depends"},
		{"default-dbus-system-bus | dbus-system-bus", "dpkg-deb --field " + deb + " Recommends"},
		{"/etc/nth/nth.toml", "dpkg-deb --ctrl-tarfile " + deb + " | tar -xO ./conffiles"},
		{"nth 0.0.1-1 amd64", "dpkg-deb --showformat '${Package} ${Version} ${Architecture}' --show " + deb},
	} {
		if got := h.Run(t, "sh", "-c", fact.command); got != fact.want {
			t.Errorf("%s says %q, want %q", fact.command, got, fact.want)
		}
	}
}

// familyOnly are the places where the families differ: where the license and the changelog are, where zsh looks for
// completions, and what their linters are told.
var familyOnly = []string{
	"/usr/share/doc/nth/copyright", "/usr/share/doc/nth/changelog.Debian.gz", "/usr/share/lintian/overrides/nth",
	"/usr/share/licenses/nth/LICENSE",
	"/usr/share/zsh/vendor-completions/_nth", "/usr/share/zsh/site-functions/_nth",
}

func TestBothPackagesInstallTheSameFiles(t *testing.T) {
	t.Parallel()
	h := bareHost(t, "bookworm")
	rpm, deb := h.PutPackage(t, host.Older, "rpm"), h.PutPackage(t, host.Older, "deb")
	h.Run(t, "sh", "-c", "cd /root && mkdir deb rpm && dpkg-deb -x "+deb+" deb && cd rpm && rpm2cpio "+rpm+" | tar -x 2>/dev/null || rpm2archive - <"+rpm+" | tar -xz")
	a, b := tree(t, h, "/root/deb"), tree(t, h, "/root/rpm")
	if !slices.Equal(a, b) {
		t.Errorf("the deb installs\n%s\nthe rpm installs\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
	if len(a) < 8 {
		t.Errorf("they install no more than %q", a)
	}
}

// tree lists the files of a directory and what distinguishes them: mode, owner, name and content.
func tree(t *testing.T, h *host.Host, dir string) []string {
	t.Helper()
	found := strings.Split(h.Run(t, "sh", "-c", "cd "+dir+
		` && find . -type f | sort | while read -r f; do echo "$(stat -c '%a %U %n' "$f") $(sha256sum <"$f")"; done`), "\n")
	return slices.DeleteFunc(found, func(file string) bool {
		return slices.ContainsFunc(familyOnly, func(place string) bool { return strings.Contains(file, " ."+place+" ") })
	})
}
