// Package statusfile tells how a daemon stands, from the status that it keeps in its runtime directory: for "status", as lines
// for people and as JSON for programs.
package statusfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"time"

	"github.com/nth-project/nth/pkg/record"
)

// silence is how old a status of a running daemon may be. It is written anew every ten seconds.
const silence = time.Minute

// The states that a daemon is found in.
const (
	running = "running" // and says so
	silent  = "silent"  // its process is there, and has not told how it stands for a while
	stopped = "stopped" // as it was asked to
	gone    = "gone"    // its process is not there any more
	unknown = "unknown" // there is no status, or none that can be read
)

// report is what "status --json" prints: the state, why it is that one if it is not "running", and what the daemon
// said last.
type report struct {
	State string `json:"state"`
	Why   string `json:"why"`
	*record.Status
	name string
}

// examine finds out how the daemon of that name stands that has this runtime directory.
func examine(name, dir string, now time.Time) report {
	status, err := record.ReadStatus(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return report{name: name, State: unknown, Why: fmt.Sprintf("%s is not running, or has just started: no status in %s", name, dir)}
	}
	if err != nil {
		return report{name: name, State: unknown, Why: err.Error()}
	}
	found := report{name: name, State: running, Status: &status}
	switch {
	case !status.Stopped.IsZero():
		found.State, found.Why = stopped, fmt.Sprintf("%s is not running: stopped at %s", name, moment(status.Stopped))
	case !alive(status.PID):
		found.State, found.Why = gone, fmt.Sprintf("%s is not running: process %d died without being asked to stop", name, status.PID)
	case now.Sub(status.Updated) > silence:
		found.State, found.Why = silent, fmt.Sprintf("%s may be hung: process %d has not updated its status since %s", name, status.PID, moment(status.Updated))
	}
	return found
}

// Running returns what the daemon of that name says of itself, which has this runtime directory. why says why that cannot be
// gone by: it does not run, or does not say how it stands; "" if it can.
func Running(name, dir string, now time.Time) (status record.Status, why string) {
	found := examine(name, dir, now)
	if found.Status == nil {
		return record.Status{}, found.Why
	}
	return *found.Status, found.Why
}

// alive tells whether there is a process with this ID.
func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return pid > 0 && (err == nil || errors.Is(err, syscall.EPERM))
}

// writeJSON writes a report for programs.
func writeJSON(w io.Writer, found report) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(found)
}

// moment writes a time for people.
func moment(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}
