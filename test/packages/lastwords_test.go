package packages

import (
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
)

// lastWords is true once a process has ended, or has one socket more than it writes its messages to.
const lastWords = `[ ! -d "/proc/$1" ] || [ "$(ls -l "/proc/$1/fd" | grep -c socket:)" -gt 3 ]`

// The journal asks the kernel to which unit a sender belongs, and learns nothing of one that has ended by then. Here it is
// too busy for anything when the services end.
func TestWhatEndsAServiceIsFoundUnderItsUnit(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		m := installQueue(t, suite)
		m.Put(t, host.Package(t, host.Older, "deb"), "/root/nth.deb")
		m.Write(t, "/etc/nth/nth.toml.d/50-test.toml", "[events.spot-interruption]\naction = \"dance\"\n")
		m.Run(t, "dpkg", "--install", "/root/nth.deb")
		m.Write(t, "/etc/nth/nth-queue.kubeconfig", "none")
		for _, name := range []string{"nth", "nth-queue"} {
			m.Run(t, "systemctl", "stop", name)
			journald := m.Hang(t, "systemd-journald")
			m.Run(t, "systemctl", "start", "--no-block", name)
			m.Await(t, name+" has spoken its last words", func() bool {
				pid := m.Property(t, name, "ExecMainPID")
				return pid != "0" && m.Try(t, "sh", "-c", lastWords, "sh", pid).Status == 0
			})
			m.Run(t, "kill", "-CONT", journald)
			m.Await(t, name+" has failed", func() bool { return m.Property(t, name, "ActiveState") == "failed" })
			if status := m.Property(t, name, "ExecMainStatus"); status != "78" {
				t.Errorf("%s ended with status %s, want 78", name, status)
			}
			found := m.Journal(t, "--boot", "--unit="+name, "--identifier="+name, "MESSAGE_ID="+systemd.ConfigInvalid)
			if len(found) == 0 {
				t.Errorf("journalctl --unit=%s does not tell why it ended; there is %q", name,
					m.Journal(t, "--boot", "MESSAGE_ID="+systemd.ConfigInvalid))
			}
		}
	})
}
