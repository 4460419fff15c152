// Package packages judges nth and nth-queue as operators meet them: installed from its package on a machine that a real systemd has booted,
// with the versions of systemd that the distributions in question have.
package packages

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 4)) }

// twoMinutes is the notice that EC2 gives; nth believes no longer one.
func twoMinutes() time.Time { return time.Now().Add(2 * time.Minute) }

// mustBe fails the test unless a unit is so enabled and so active.
func mustBe(t *testing.T, m *machine.Machine, unit, enabled, active string) {
	t.Helper()
	isEnabled := strings.TrimSpace(m.Try(t, "systemctl", "is-enabled", unit).Stdout)
	isActive := strings.TrimSpace(m.Try(t, "systemctl", "is-active", unit).Stdout)
	if isEnabled != enabled || isActive != active {
		t.Errorf("%s is %q and %q, want it to be %s and %s", unit, isEnabled, isActive, enabled, active)
	}
}

// mustBeSound fails the test if systemd finds a fault in the unit, or exposes it more than that, in tenths; docs/security.md explains
// each concession.
func mustBeSound(t *testing.T, m *machine.Machine, unit, exposure string) {
	t.Helper()
	if said := m.Run(t, "systemd-analyze", "verify", "--man=no", unit); said != "" {
		t.Errorf("systemd-analyze verify says\n%s", said)
	}
	if o := m.Try(t, "systemd-analyze", "security", "--no-pager", "--threshold="+exposure, unit); o.Status != 0 {
		t.Errorf("systemd-analyze security says\n%s", o.Stdout)
	}
	// A key that this version does not know is ignored with no more than a warning.
	for _, e := range m.Journal(t, "--boot", "--priority=warning", "--grep="+unit) {
		t.Errorf("systemd says %q", e.Message())
	}
}

// files lists the machine's files, sorted, but for those that a system writes by itself.
func files(t *testing.T, m *machine.Machine) []string {
	t.Helper()
	list := strings.Split(m.Run(t, "find", "/", "-xdev",
		"(", "-path", "/var/log", "-o", "-path", "/var/lib/dpkg", "-o", "-path", "/var/cache", "-o", "-path", "/tmp", "-o",
		"-path", "/var/tmp", "-o", "-path", "/proc", "-o", "-path", "/sys", "-o", "-path", "/run", "-o", "-path", "/dev", ")",
		"-prune", "-o", "-print"), "\n")
	list = slices.DeleteFunc(list, func(file string) bool { return strings.HasPrefix(file, "/var/lib/systemd/") })
	slices.Sort(list)
	return list
}

// mustHaveOnly fails the test if the machine has files that it did not have before.
func mustHaveOnly(t *testing.T, m *machine.Machine, before []string) {
	t.Helper()
	for _, file := range files(t, m) {
		if _, found := slices.BinarySearch(before, file); !found {
			t.Errorf("after the removal there is %s", file)
		}
	}
}

// inhibitDelay is logind's property with how long a shutdown can wait, and ours what that is with nth's file in logind.conf.d.
const (
	inhibitDelay = "InhibitDelayMaxUSec"
	ours         = "t 150000000"
)
