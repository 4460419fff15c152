package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"time"

	"github.com/nth-project/nth/pkg/config"
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

// report is what "nth status --json" prints: the state, why it is that one if it is not "running", and what the daemon
// said last.
type report struct {
	State string `json:"state"`
	Why   string `json:"why"`
	*record.Status
}

// errTold ends the program with status 1; what there was to say has been said.
var errTold = errors.New("not as it should be")

// commandStatus is "nth status".
func commandStatus(_ context.Context, args []string, to streams) error {
	var path string
	var asJSON bool
	done, err := parse("status", statusUsage, args, to, func(flags *flag.FlagSet) {
		configFlag(flags, &path)
		flags.BoolVar(&asJSON, "json", false, "")
	})
	if done || err != nil {
		return err
	}
	dir, err := runtimeDirectory(path, to.err)
	if err != nil {
		return err
	}
	found := examine(dir, time.Now(), alive)
	if asJSON {
		err = writeJSON(to.out, found)
	} else {
		err = writeReport(to.out, found)
	}
	if err == nil && found.State != running {
		err = errTold
	}
	return err
}

// runtimeDirectory is where the daemon shows its status. Without a file that was asked for, settings that are wrong do
// not keep anybody from the status of a daemon that runs with those it had before.
func runtimeDirectory(path string, stderr io.Writer) (string, error) {
	cfg, err := effectiveConfig(path)
	if err != nil && path == "" {
		fmt.Fprintln(stderr, err)
		return directoryFrom("RUNTIME_DIRECTORY", config.Default().RuntimeDirectory), nil
	}
	return cfg.RuntimeDirectory, err
}

// examine finds out how the daemon stands that has this runtime directory.
func examine(dir string, now time.Time, alive func(pid int) bool) report {
	status, err := record.ReadStatus(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return report{State: unknown, Why: fmt.Sprintf("nth does not run, or has just been started: there is no status in %s", dir)}
	}
	if err != nil {
		return report{State: unknown, Why: err.Error()}
	}
	found := report{State: running, Status: &status}
	switch {
	case !status.Stopped.IsZero():
		found.State, found.Why = stopped, fmt.Sprintf("nth does not run: it stopped as asked at %s", moment(status.Stopped))
	case !alive(status.PID):
		found.State, found.Why = gone, fmt.Sprintf("nth does not run: its process %d is gone, without having been asked to stop", status.PID)
	case now.Sub(status.Updated) > silence:
		found.State, found.Why = silent, fmt.Sprintf("nth may hang: process %d has not told how it stands since %s", status.PID, moment(status.Updated))
	}
	return found
}

// alive tells whether there is a process with this ID.
func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return pid > 0 && (err == nil || errors.Is(err, syscall.EPERM))
}

func writeJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// moment writes a time for people.
func moment(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}
