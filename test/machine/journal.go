package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/nth-project/nth/test/lab"
)

// An Entry is one entry of a machine's journal: its fields, with MESSAGE, PRIORITY and those that begin with an
// underscore, which the journal itself has added.
type Entry map[string]string

// Message is what a person reads.
func (e Entry) Message() string { return e["MESSAGE"] }

// Journal returns the entries that journalctl shows with the arguments, the oldest first. That includes everything that
// was written before. A machine that is off can be asked as well.
func (m *Machine) Journal(t lab.TB, args ...string) []Entry {
	t.Helper()
	args = append([]string{"--output=json", "--all", "--no-pager", "--quiet"}, args...)
	if s, _ := m.now(); s.off {
		return m.journalOfDisk(t, args)
	}
	m.Run(t, "journalctl", "--sync")
	// Status 1 is that of an answer without entries.
	o := m.Try(t, "journalctl", args...)
	if o.Status != 0 && o.Stderr != "" {
		t.Fatalf("reading the journal: %s", o.Stderr)
	}
	return entries(t, o.Stdout)
}

func (m *Machine) journalOfDisk(t lab.TB, args []string) []Entry {
	t.Helper()
	args = append([]string{"--directory=" + m.Path("/var/log/journal")}, args...)
	out, err := exec.Command("journalctl", args...).Output()
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

// Property returns what the service manager says of a unit, such as its ActiveState.
func (m *Machine) Property(t lab.TB, unit, property string) string {
	t.Helper()
	return m.Run(t, "systemctl", "show", "--value", "--property="+property, unit)
}
