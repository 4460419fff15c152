package checks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

// silence is how old the status of a running daemon may be. The daemon writes it at least every ten seconds.
const silence = time.Minute

// The states of a daemon.
const (
	running = "running"
	silent  = "silent"  // the process exists, but has not updated its status
	stopped = "stopped" // as it was asked to
	gone    = "gone"    // the process does not exist any more
	unknown = "unknown" // the status does not exist, or cannot be read
)

// report is what "status --json" prints: the state, the reason if it is not "running", and the last status.
type report struct {
	State string `json:"state"`
	Why   string `json:"why"`
	*state.Status
	name string
}

// examine returns the state of the daemon of that name at the time now. It reads the status that the daemon keeps in its runtime directory dir.
func examine(name, dir string, now time.Time) report {
	status, written, err := record.ReadStatus(dir)
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
	case now.Sub(written) > silence:
		found.State, found.Why = silent, fmt.Sprintf("%s may be hung: process %d has not updated its status since %s", name, status.PID, moment(written))
	}
	return found
}

// Running returns the last status of the daemon of that name, from its runtime directory. why is "" if the daemon runs. Otherwise why says that the
// daemon does not run or hangs: then the status is old, or the zero value.
func Running(name, dir string) (status state.Status, why string) {
	found := examine(name, dir, time.Now())
	if found.Status == nil {
		return state.Status{}, found.Why
	}
	return *found.Status, found.Why
}

// startupTime is how long a daemon may take after its start until its status is complete. startupPoll is the time between two looks at the status.
const (
	startupTime = 15 * time.Second
	startupPoll = 250 * time.Millisecond
)

// AwaitStart is Running, but waits for a daemon that has just started, until complete returns true for its status or startupTime is over.
func AwaitStart(ctx context.Context, name, dir string, complete func(state.Status) bool) (status state.Status, why string) {
	for {
		status, why = Running(name, dir)
		starting := why == "" && status.Updated.Sub(status.Started) <= startupTime
		if !starting || complete(status) || !loop.Await(ctx, nil, startupPoll) {
			return status, why
		}
	}
}

// alive reports whether a process with this ID exists.
func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return pid > 0 && (err == nil || errors.Is(err, syscall.EPERM)) // EPERM: the process is another user's.
}

// writeJSON writes a value as indented JSON.
func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// moment returns a time as operators read it.
func moment(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// writeText writes a report for operators: first why the daemon does not run, if it does not, then the status's sentence, then a table of details.
func writeText(w io.Writer, found report) {
	if found.Why != "" {
		fmt.Fprintln(w, text.Visible(found.Why, text.Page))
	}
	s := found.Status
	if s == nil { // The status could not be read: Why says so.
		return
	}
	if found.Why != "" {
		fmt.Fprint(w, "last known: ")
	}
	fmt.Fprintf(w, "%s\n\n", text.Visible(s.Sentence, text.Page))
	width := max(len(found.name), len("identity")) // of the longest name
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-*s  %s\n", width, name, text.Visible(fmt.Sprintf(format, args...), text.Page))
	}
	row(found.name, "%s, process %d, since %s", s.Program, s.PID, moment(s.Started))
	if s.Node != "" {
		row("node", "%s", s.Node)
	}
	if id := s.Identity; id.Server != "" {
		row("identity", "%s in %s, for %s", id.Credential, id.Source, id.Server)
	}
	if s.Identity.Trouble != "" {
		row("waiting", "%s", s.Identity.Trouble)
	}
	if step := s.Step; step != nil {
		left := ""
		if !step.Deadline.IsZero() {
			left = fmt.Sprintf(", %.0f s left", max(step.Deadline.Sub(s.Updated), 0).Seconds())
		}
		row("doing", "%s for %s, since %s%s", step.Action, step.Kind, moment(step.Began), left)
		if step.PodsTotal > 0 {
			row("pods", "%d of %d left", step.PodsLeft, step.PodsTotal)
		}
		for _, pod := range slices.Sorted(maps.Keys(step.HeldBy)) {
			row("held", "%s by %s", pod, step.HeldBy[pod])
		}
	}
	for _, e := range s.Events {
		row("event", "%s", eventLine(e))
	}
	for _, d := range s.Documents {
		trouble := ""
		if d.Trouble != "" {
			trouble = fmt.Sprintf("; trouble since %s: %s", moment(d.Since), d.Trouble)
		}
		row("polled", "%s, last read %s%s", d.Kind, moment(d.LastGood), trouble)
	}
	if s.TargetState != "" {
		row("target", "%s, as the Auto Scaling group wants it", s.TargetState)
	}
	if s.Hook != "" {
		row("hook", "%s", s.Hook)
	}
	for _, fault := range s.Degraded {
		row("degraded", "%s", fault)
	}
	for _, off := range s.Off {
		row("off", "%s: %s", off.What, off.Why)
	}
}

// eventLine describes an event, with the Node's name if the program is nth-queue.
func eventLine(e state.EventStatus) string {
	line := fmt.Sprintf("%s, %s: %s", e.Kind, e.Phase, e.Plan)
	if e.Node != "" {
		line = e.Node + ": " + line
	}
	if !e.Missing.IsZero() {
		line += "; not announced since " + moment(e.Missing)
	}
	if e.Error != "" {
		line += "; the last attempt failed: " + e.Error
	}
	return line
}

// StatusCommand returns the command "status" of the program of that name. It reads no settings: the daemon may have others than the files, and no
// setting says where its status is.
func StatusCommand(program, long string) *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "show what the daemon does", Long: long, Args: cobra.NoArgs}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		found := examine(program, settings.RuntimeDirectory(program), time.Now())
		if !*asJSON {
			writeText(cmd.OutOrStdout(), found)
		} else if err := writeJSON(cmd.OutOrStdout(), found); err != nil {
			return err
		}
		if found.State != running {
			return cli.ErrReported
		}
		return nil
	}
	return cmd
}
