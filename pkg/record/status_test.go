package record_test

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
)

// full is a status with something in every field.
func full() state.Status {
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	return state.Status{
		Version: state.StatusVersion, Program: "v1", PID: 7, Started: at, Updated: at, Stopped: at, DryRun: true,
		Node: "node-a", Sentence: "draining",
		Identity: state.IdentityStatus{Credential: "a token", Source: "/k", Server: "https://a", Trouble: "refused"},
		Step: &state.StepStatus{
			Action: "drain", Event: "a", Kind: event.SpotInterruption, Reason: "so", Began: at, Deadline: at, Hard: true,
			PodsTotal: 3, PodsLeft: 2, HeldBy: map[string]string{"default/web": "PDB web"}, Targets: "1 target",
		},
		Events: []state.EventStatus{{
			ID: "a", Kind: event.SpotInterruption, Code: "stop", Phase: state.Draining, FirstSeen: at, Deadline: at, Missing: at,
			Plan: "drain now", Error: "no",
		}},
		Documents: []state.DocumentStatus{{Kind: event.SpotInterruption, LastGood: at, Trouble: "reset", Since: at}},
		Off:       []state.OffStatus{{What: "shutdown", Why: "no bus"}},
	}
}

// show has the last of the statuses written in dir, and returns what went wrong.
func show(t *testing.T, dir string, statuses ...state.Status) (troubles []error) {
	t.Helper()
	board := record.NewStatusFile(dir, func(err error) { troubles = append(troubles, err) })
	for _, s := range statuses {
		s.Stopped = cmp.Or(s.Stopped, time.Now()) // Show waits until it is written.
		board.Show(s)
	}
	return troubles
}

func TestStatus_IsReadAsItWasShown(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "nth")
	defer syscall.Umask(syscall.Umask(0o077))
	if troubles := show(t, dir, state.Status{}, full()); troubles != nil {
		t.Fatal(troubles)
	}
	got, _, err := record.ReadStatus(dir)
	if err != nil || !reflect.DeepEqual(got, full()) {
		t.Errorf("got %+v, %v", got, err)
	}
	wantMode(t, filepath.Join(dir, "status.json"), 0o644)
	wantFiles(t, dir, "status.json")
}

// Programs know these names.
func TestStatus_TheNamesInTheFileStay(t *testing.T) {
	dir := t.TempDir()
	show(t, dir, full())
	content, err := os.ReadFile(filepath.Join(dir, "status.json"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(content)) {
		if name, _, ok := strings.Cut(strings.TrimSpace(line), `": `); ok {
			names = append(names, strings.TrimPrefix(name, `"`))
		}
	}
	want := strings.Fields(`version program pid started updated stopped dry_run node sentence identity credential source server
		trouble step action event kind reason began deadline hard pods_total pods_left held_by default/web targets events id kind code
		phase first_seen deadline missing plan error documents kind last_good trouble since off what why`)
	if !slices.Equal(names, want) {
		t.Errorf("got  %q\nwant %q", names, want)
	}
}

func TestStatus_AFailedWriteIsReported(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file")
	write(t, dir, "")
	troubles := show(t, filepath.Join(dir, "nth"), full(), full())
	if len(troubles) != 1 || !strings.HasPrefix(troubles[0].Error(), "writing the status: ") {
		t.Errorf("reported: %v", troubles)
	}
}

func TestStatus_AForeignFileIsAnError(t *testing.T) {
	if _, _, err := record.ReadStatus(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing one: %v", err)
	}
	for content, want := range map[string]string{
		"":                          "the file is empty",
		"{}":                        "the file has version 0",
		`{"version": 2}`:            "the file has version 2, this nth reads version 1",
		strings.Repeat(" ", 33<<20): "the file is larger than",
		`{"version": 1, "pid": "a"`: "",
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "status.json"), content)
		if _, _, err := record.ReadStatus(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: got %v, want an error that says %q", content, err, want)
		}
	}
}
