package machine_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nth-project/nth/test/internal/machine"
)

func TestAMachineIsBootedBySystemdAndKeepsItsDisk(t *testing.T) {
	for _, suite := range machine.Suites() {
		t.Run(suite, func(t *testing.T) {
			t.Parallel()
			m := machine.Boot(t, suite)
			if state := m.Run(t, "systemctl", "is-system-running"); state != "running" {
				t.Errorf("the system is %s", state)
			}
			m.Write(t, "/root/there/note", "kept")
			boot := bootID(t, m)

			m.Reboot(t)
			if m.Boots() != 2 || bootID(t, m) == boot {
				t.Errorf("after a reboot it is boot %d with the ID %s, want the second with another ID", m.Boots(), bootID(t, m))
			}
			if kept := m.Run(t, "cat", "/root/there/note"); kept != "kept" {
				t.Errorf("after a reboot the file has %q", kept)
			}

			m.Run(t, "logger", "--tag", "nth-test", "the last word")
			m.PowerOff(t)
			if said := m.Journal(t, "--identifier=nth-test"); len(said) != 1 || said[0].Message() != "the last word" {
				t.Errorf("the journal of the machine that is off has %v", said)
			}
			if kept, err := os.ReadFile(m.Path("/root/there/note")); err != nil || string(kept) != "kept" {
				t.Errorf("the disk of the machine that is off has %q, %v", kept, err)
			}

			m.PowerOn(t)
			if said := m.Journal(t, "--identifier=nth-test", "--boot=-1"); len(said) != 1 {
				t.Errorf("the journal of the boot before has %v", said)
			}
		})
	}
}

func TestAMachineWhosePowerIsCutIsOffWithoutAWordAndBootsAgainWithItsDisk(t *testing.T) {
	t.Parallel()
	m := machine.Boot(t, "bookworm")
	// A service that takes its time to stop, and would say that it was asked to.
	m.Run(t, "systemd-run", "--quiet", "--unit=slow", "--property=ExecStop=touch /root/asked", "--property=TimeoutStopSec=1h",
		"sh", "-c", "trap '' TERM; while :; do sleep 1; done")
	m.Write(t, "/root/note", "kept")
	m.CutPower(t)
	if !m.Off() {
		t.Error("the machine is not off")
	}
	if _, err := os.Stat(m.Path("/root/asked")); err == nil {
		t.Error("the service was asked to stop")
	}
	m.PowerOn(t)
	if kept := m.Run(t, "cat", "/root/note"); kept != "kept" || m.Off() {
		t.Errorf("after another boot the file has %q, and the machine is off: %t", kept, m.Off())
	}
}

func bootID(t *testing.T, m *machine.Machine) string {
	t.Helper()
	return m.Run(t, "cat", "/proc/sys/kernel/random/boot_id")
}

func TestACommandRunsAsRootInTheMachineAndNowhereElse(t *testing.T) {
	t.Parallel()
	m := machine.Boot(t, "trixie")
	o := m.Try(t, "sh", "-c", "echo out; echo err >&2; exit 7")
	if o != (machine.Outcome{Status: 7, Stdout: "out\n", Stderr: "err\n"}) {
		t.Errorf("the command has come to %+v", o)
	}
	for command, want := range map[string]string{
		"id -u": "0", "hostname": m.Name, "pwd": "/", "cat /proc/1/comm": "systemd", "echo $HOME$NOTIFY_SOCKET": "/root",
	} {
		if got := m.Run(t, "sh", "-c", command); got != want {
			t.Errorf("%s says %q, want %q", command, got, want)
		}
	}
	if o := m.Try(t, "no-such-program"); o.Status != 127 {
		t.Errorf("a program that does not exist comes to %+v", o)
	}
}

func TestAFileIsPutThereWithItsMode(t *testing.T) {
	t.Parallel()
	m := machine.Boot(t, "bookworm")
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, []byte("#!/bin/sh\necho it runs\n"), 0o750); err != nil {
		t.Fatal(err)
	}
	m.Put(t, file, "/opt/a/b/program")
	if said := m.Run(t, "/opt/a/b/program"); said != "it runs" {
		t.Errorf("the program says %q", said)
	}
	if mode := m.Run(t, "stat", "--format=%a %U", "/opt/a/b/program"); mode != "750 root" {
		t.Errorf("its mode is %s", mode)
	}
}
