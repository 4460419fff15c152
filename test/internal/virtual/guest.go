package virtual

import (
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

// Journal returns the entries that journalctl shows with the arguments, of a machine that is off.
func (m *Machine) Journal(t lab.TB, args ...string) []machine.Entry {
	t.Helper()
	return machine.JournalIn(t, m.journalOfDisk(t), args...)
}
