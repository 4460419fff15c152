package virtual

import (
	"strings"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
)

// execution is what the agent tells of a command.
type execution struct {
	PID     int    `json:"pid"`
	Exited  bool   `json:"exited"`
	Status  int    `json:"exitcode"`
	OutData []byte `json:"out-data"`
	ErrData []byte `json:"err-data"`
}

// Try runs a command in the machine, as root, and returns what became of it.
func (m *Machine) Try(t lab.TB, name string, args ...string) machine.Outcome {
	t.Helper()
	return m.pipe(t, nil, name, args...)
}

func (m *Machine) pipe(t lab.TB, stdin []byte, name string, args ...string) machine.Outcome {
	t.Helper()
	arguments := map[string]any{
		"path": name, "arg": append([]string{}, args...), "capture-output": true,
		"env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0"},
	}
	if len(stdin) > 0 {
		arguments["input-data"] = stdin
	}
	var e execution
	if err := m.agent.ask("guest-exec", arguments, &e); err != nil {
		t.Fatalf("running %s %q in the machine: %v", name, args, err)
	}
	pid := map[string]any{"pid": e.PID}
	for limit := time.Now().Add(patience); !e.Exited; time.Sleep(pollEvery) {
		if err := m.agent.ask("guest-exec-status", pid, &e); err != nil {
			t.Fatalf("running %s %q in the machine: %v", name, args, err)
		}
		if time.Now().After(limit) {
			t.Fatalf("running %s %q in the machine: it does not end", name, args)
		}
	}
	return machine.Outcome{Status: e.Status, Stdout: string(e.OutData), Stderr: string(e.ErrData)}
}

// Run runs a command in the machine, as root, and returns what it wrote to its standard output, without the last line
// break. It fails the test if the command fails.
func (m *Machine) Run(t lab.TB, name string, args ...string) string {
	t.Helper()
	o := m.Try(t, name, args...)
	if o.Status != 0 {
		t.Fatalf("running %s %q in the machine: status %d\n%s%s", name, args, o.Status, o.Stdout, o.Stderr)
	}
	return strings.TrimSuffix(o.Stdout, "\n")
}

// Write writes a file in the machine, which root and nobody else may read. Directories that are missing are made.
func (m *Machine) Write(t lab.TB, path, text string) {
	t.Helper()
	const script = `umask 077 && mkdir -p "${0%/*}" && cat >"$0.new" && mv -T "$0.new" "$0"`
	if o := m.pipe(t, []byte(text), "/bin/sh", "-c", script, path); o.Status != 0 {
		t.Fatalf("writing %s in the machine: %s", path, o.Stderr)
	}
}

// Property returns what the service manager says of a unit, such as its ActiveState.
func (m *Machine) Property(t lab.TB, unit, property string) string {
	t.Helper()
	return m.Run(t, "systemctl", "show", "--value", "--property="+property, unit)
}

// Await waits until condition is true, which what describes, and fails the test if that does not come.
func (m *Machine) Await(t lab.TB, what string, condition func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !condition(); time.Sleep(pollEvery) {
		if t.Context().Err() != nil || time.Now().After(limit) {
			t.Fatalf("waiting until %s: it does not come", what)
		}
	}
}

// Journal returns the entries that journalctl shows with the arguments, of a machine that is off.
func (m *Machine) Journal(t lab.TB, args ...string) []machine.Entry {
	t.Helper()
	return machine.JournalIn(t, m.journalOfDisk(t), args...)
}
