package checks

import (
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
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

// silence is how old the status of a running daemon may be, which is written at least every ten seconds.
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

// examine returns the state of the daemon of that name at the time now, by the status in its runtime directory.
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

// Running returns the last status of the daemon of that name, from its runtime directory. why is "" if the daemon runs. Otherwise it says that the
// daemon does not run or hangs, so that the status is old or the zero value.
func Running(name, dir string, now time.Time) (status state.Status, why string) {
	found := examine(name, dir, now)
	if found.Status == nil {
		return state.Status{}, found.Why
	}
	return *found.Status, found.Why
}

// alive reports whether there is a process with this ID.
func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return pid > 0 && (err == nil || errors.Is(err, syscall.EPERM)) // EPERM: the process is another user's.
}

// writeJSON writes a value as JSON for programs.
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

// writeText writes a report for operators: the sentence first, then a table of details.
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
	t := rows{w}
	t.row(found.name, fmt.Sprintf("%s, process %d, since %s", s.Program, s.PID, moment(s.Started)))
	t.identity(s)
	if s.Step != nil {
		t.step(s.Step, s.Updated)
	}
	t.events(s.Events)
	t.documents(s.Documents)
	if s.TargetState != "" {
		t.row("target", s.TargetState+", as the Auto Scaling group wants it")
	}
	if s.Hook != "" {
		t.row("hook", s.Hook)
	}
	for _, fault := range s.Degraded {
		t.row("degraded", fault)
	}
	for _, off := range s.Off {
		t.row("off", fmt.Sprintf("%s: %s", off.What, off.Why))
	}
}

// rows writes the lines of a table of two columns.
type rows struct{ w io.Writer }

// row writes one line, with the value as visible text. No name is longer than "identity".
func (t rows) row(name, value string) {
	fmt.Fprintf(t.w, "%-8s  %s\n", name, text.Visible(value, text.Page))
}

// identity prints whose credential is used for which API server, and why there is none yet.
func (t rows) identity(s *state.Status) {
	if s.Node != "" {
		t.row("node", s.Node)
	}
	if id := s.Identity; id.Server != "" {
		t.row("identity", fmt.Sprintf("%s in %s, for %s", id.Credential, id.Source, id.Server))
	}
	if s.Identity.Trouble != "" {
		t.row("waiting", s.Identity.Trouble)
	}
}

// step writes what the daemon is doing. at is when the status was written, for the time that is left.
func (t rows) step(step *state.StepStatus, at time.Time) {
	line := fmt.Sprintf("%s for %s, since %s", step.Action, step.Kind, moment(step.Began))
	if !step.Deadline.IsZero() {
		line += fmt.Sprintf(", %.0f s left", max(step.Deadline.Sub(at), 0).Seconds())
	}
	t.row("doing", line)
	if step.PodsTotal > 0 {
		t.row("pods", fmt.Sprintf("%d of %d left", step.PodsLeft, step.PodsTotal))
	}
	for _, pod := range slices.Sorted(maps.Keys(step.HeldBy)) {
		t.row("held", fmt.Sprintf("%s by %s", pod, step.HeldBy[pod]))
	}
}

// events writes a line for each event, with the Node's name if the program is nth-queue.
func (t rows) events(events []state.EventStatus) {
	for _, e := range events {
		line := fmt.Sprintf("%s, %s: %s", e.Kind, e.Phase, e.Plan)
		if e.Node != "" {
			line = fmt.Sprintf("%s: %s", e.Node, line)
		}
		if !e.Missing.IsZero() {
			line += fmt.Sprintf("; not announced since %s", moment(e.Missing))
		}
		if e.Error != "" {
			line += fmt.Sprintf("; %s failed: %s", text.Count(max(e.Failures, 1), "attempt"), e.Error)
		}
		t.row("event", line)
	}
}

// documents writes a line for each kind of event that the daemon polls for.
func (t rows) documents(documents []state.DocumentStatus) {
	for _, d := range documents {
		line := fmt.Sprintf("%s, last read %s", d.Kind, moment(d.LastGood))
		if d.Trouble != "" {
			line += fmt.Sprintf("; trouble since %s: %s", moment(d.Since), d.Trouble)
		}
		t.row("polled", line)
	}
}

// StatusCommand returns the command "status" of the program of that name. configFlag defines its flag --config; directory returns the
// runtime directory by the settings at that path, and may warn on stderr.
func StatusCommand(
	name, long string, configFlag func(*cobra.Command) *string, directory func(path string, stderr io.Writer) (string, error),
) *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "show what the daemon does", Long: long, Args: cobra.NoArgs}
	path := configFlag(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir, err := directory(*path, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		found := examine(name, dir, time.Now())
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
