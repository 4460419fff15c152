package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/nth-project/nth/test/internal/lab"
)

// An Entry is one entry of a machine's journal: its fields, with MESSAGE, PRIORITY and those that begin with an
// underscore, which the journal itself has added.
type Entry map[string]string

// Message is what a person reads.
func (e Entry) Message() string { return e["MESSAGE"] }

// asData are the options with which journalctl prints entries as JSON.
var asData = []string{"--output=json", "--all", "--no-pager", "--quiet"}

// Journal returns the entries that journalctl shows with the arguments, the oldest first. That includes everything that
// was written before. A machine that is off can be asked as well.
func (m *Machine) Journal(t lab.TB, args ...string) []Entry {
	t.Helper()
	if m.Off() {
		return JournalIn(t, m.Path("/var/log/journal"), args...)
	}
	m.Run(t, "journalctl", "--sync")
	// Status 1 is that of an answer without entries.
	o := m.Try(t, "journalctl", slices.Concat(asData, args)...)
	if o.Status != 0 && o.Stderr != "" {
		t.Fatalf("reading the journal: %s", o.Stderr)
	}
	return entries(t, o.Stdout)
}

// JournalIn returns the entries that the host's journalctl shows of the journal in a directory.
func JournalIn(t lab.TB, dir string, args ...string) []Entry {
	t.Helper()
	out, err := exec.Command("journalctl", slices.Concat([]string{"--directory=" + dir}, asData, args)...).Output()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		t.Fatalf("reading the journal of a machine that is off: %v", err)
	}
	return entries(t, string(out))
}

func entries(t lab.TB, text string) []Entry {
	t.Helper()
	var found []Entry
	for line := range strings.Lines(text) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("reading the journal: %v\n%s", err, line)
		}
		e := Entry{}
		for name, value := range fields {
			e[name] = fmt.Sprint(value)
		}
		found = append(found, e)
	}
	return found
}

// Hang stops the main process of a unit, once there is one, and returns its ID.
func (m *Machine) Hang(t lab.TB, unit string) (pid string) {
	t.Helper()
	lab.Await(t, unit+" runs", func() bool {
		pid = m.Property(t, unit, "MainPID")
		return pid != "0" // 0 would be the process group of the tests themselves.
	})
	m.Run(t, "kill", "-STOP", pid)
	return pid
}
