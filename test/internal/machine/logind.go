package machine

import (
	"strings"

	"github.com/nth-project/nth/test/internal/lab"
)

// Logind is a property of logind, as busctl prints it.
func (m *Machine) Logind(t lab.TB, property string) string {
	t.Helper()
	return strings.TrimSpace(m.Try(t, "busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1",
		"org.freedesktop.login1.Manager", property).Stdout)
}

// AwaitLock waits until logind lists an inhibitor lock that a process by that name holds, on "shutdown" or on "handle-power-key".
func (m *Machine) AwaitLock(t lab.TB, who, what string) {
	t.Helper()
	lab.Await(t, who+" holds its lock on "+what, func() bool { return m.hasLock(t, who, what) })
}

// AwaitNoLock waits until logind lists no such lock.
func (m *Machine) AwaitNoLock(t lab.TB, who, what string) {
	t.Helper()
	lab.Await(t, who+" holds no lock on "+what, func() bool { return !m.hasLock(t, who, what) })
}

func (m *Machine) hasLock(t lab.TB, who, what string) bool {
	t.Helper()
	for line := range strings.Lines(m.Try(t, "systemd-inhibit", "--list", "--no-legend").Stdout) {
		if strings.HasPrefix(line, who+" ") && strings.Contains(line, " "+what+" ") {
			return true
		}
	}
	return false
}
