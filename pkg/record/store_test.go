package record_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
)

const (
	boot      = "11111111-1111-1111-1111-111111111111"
	otherBoot = "22222222-2222-2222-2222-222222222222"
)

var noon = time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC)

// entry is one whose every field has a value, so that a round trip shows what is lost.
func entry(id string, phase state.Phase, at time.Time) state.Entry {
	return state.Entry{
		Event: event.Event{
			ID: id, Kind: event.SpotInterruption, Code: "terminate", State: event.Pending, Description: "going",
			Noticed: at, Deadline: at.Add(2 * time.Minute), Until: at.Add(time.Hour),
		},
		Phase: phase, BootID: boot, FirstSeen: at, Changed: at, Missing: at, OnNode: true, ReleasedAt: at,
		CordonedAt: at, CordonStamp: at, ActedAt: at, Ending: state.Withdrawn, Error: "it was late",
		Result: &state.Result{Evicted: 3, Left: []string{"a/b"}, HeldBy: map[string]string{"a/b": "a/budget"}},
	}
}

func open(t *testing.T, dir string) *record.Store {
	t.Helper()
	store, err := record.Open(dir, boot, noon)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func put(t *testing.T, store *record.Store, entries ...state.Entry) {
	t.Helper()
	if err := try(store, entries...); err != nil {
		t.Fatal(err)
	}
}

// try puts entries and returns the result of the write.
func try(store *record.Store, entries ...state.Entry) error {
	written := make(chan error, 1)
	store.Put(func(err error) { written <- err }, entries...)
	return <-written
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func ids(entries []state.Entry) string {
	var list []string
	for _, e := range entries {
		list = append(list, e.Event.ID)
	}
	return strings.Join(list, " ")
}

// wantStored expects these events in the record on disk.
func wantStored(t *testing.T, dir, want string) {
	t.Helper()
	if got := ids(open(t, dir).Entries()); got != want {
		t.Errorf("the record on disk has %q, want %q", got, want)
	}
}

func wantFiles(t *testing.T, dir, want string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		names = append(names, file.Name())
	}
	if got := strings.Join(names, " "); got != want {
		t.Errorf("the directory has %q, want %q", got, want)
	}
}

func wantMode(t *testing.T, path string, want os.FileMode) {
	t.Helper()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
		t.Errorf("%s: %v, %v; want mode %o", path, info, err, want)
	}
}

func TestStore_WhatWasPutIsReadAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "var", "lib", "nth")
	store := open(t, dir)
	if entries := store.Entries(); len(entries) != 0 {
		t.Errorf("a new record has %+v", entries)
	}
	want := []state.Entry{entry("first", state.Drained, noon), entry("second", state.Seen, noon.Add(time.Minute))}
	want[0].BootID = otherBoot
	write(t, filepath.Join(dir, "record.json.tmp"), `{"ver`) // A killed writer has left it.
	put(t, store, want[1])
	first, err := os.Stat(filepath.Join(dir, "record.json"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, store, want[0])
	if second, err := os.Stat(filepath.Join(dir, "record.json")); err != nil || os.SameFile(first, second) {
		t.Errorf("it is written in place (%v), and a kill meanwhile would lose it", err)
	}
	if got := open(t, dir).Entries(); !reflect.DeepEqual(got, want) {
		t.Errorf("read\n%+v\nwant\n%+v", got, want)
	}
	wantMode(t, dir, 0o700)
	wantMode(t, filepath.Join(dir, "record.json"), 0o600)
	wantFiles(t, dir, "record.json")
}

func TestStore_ForgetsOnlyOldClosedEntries(t *testing.T) {
	const kept = 256
	dir := t.TempDir()
	old := make([]state.Entry, 0, kept+10)
	for i := range kept + 10 {
		old = append(old, entry(fmt.Sprintf("closed-%03d", i), state.Closed, noon.Add(time.Duration(i)*time.Second)))
	}
	content, err := json.Marshal(map[string]any{"version": 1, "boot_id": boot, "entries": old})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "record.json"), string(content))
	store := open(t, dir)
	put(t, store, entry("drained-long-ago", state.Drained, noon.AddDate(-1, 0, 0)))
	entries := open(t, dir).Entries()
	if got := ids(entries[:2]); len(entries) != kept+1 || got != "drained-long-ago closed-010" {
		t.Errorf("%d entries, the first are %q", len(entries), got)
	}
}

func TestStore_WorksWithoutADirectoryAndCatchesUp(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "disk")
	write(t, parent, "")
	dir := filepath.Join(parent, "nth")
	store, err := record.Open(dir, boot, noon)
	if err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("the warning is %v, want one that names %s", err, dir)
	}
	for _, id := range []string{"a", "b"} {
		if err := try(store, entry(id, state.Seen, noon)); err == nil {
			t.Errorf("Put %q: no error", id)
		}
	}
	if err := os.Remove(parent); err != nil {
		t.Fatal(err)
	}
	put(t, store)
	wantStored(t, dir, "a b")
}

// whole is a record as nth writes it.
const whole = `{
  "version": 1,
  "boot_id": "11111111-1111-1111-1111-111111111111",
  "entries": [
    {
      "event": {"id": "spot-1", "kind": "spot-interruption", "code": "terminate", "deadline": "2025-11-21T12:02:00Z"},
      "phase": "drained",
      "boot_id": "11111111-1111-1111-1111-111111111111",
      "first_seen": "2025-11-21T12:00:00Z",
      "changed": "2025-11-21T12:00:09Z",
      "cordon": true,
      "released_at": "2025-11-21T12:00:05Z",
      "paint": {"a later nth": "knows what that is"},
      "result": {"evicted": 7, "deleted": 0, "skipped": 2}
    }
  ]
}
`

// An upgrade or a downgrade reads what another version wrote.
func TestStore_TheNamesInTheFileStay(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "record.json")
	write(t, path, whole)
	if entries := open(t, dir).Entries(); len(entries) != 1 || !entries[0].OnNode || !entries[0].Released() || entries[0].Result.Evicted != 7 {
		t.Errorf("entries: %+v", entries)
	}
	put(t, open(t, dir), entry("a", state.Closed, noon))
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"version": 1`, `"boot_id"`, `"phase": "closed"`, `"first_seen"`, `"changed"`, `"missing"`, `"cordon": true`, `"released_at"`,
		`"cordoned_at"`, `"cordon_stamp"`, `"acted_at"`, `"ending": "withdrawn"`, `"evicted": 3`, `"held_by"`, `"error"`,
	} {
		if !strings.Contains(string(content), want) {
			t.Errorf("the record does not say %s:\n%s", want, content)
		}
	}
}

func TestStore_ReplacesAForeignFile(t *testing.T) {
	content := func(text string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
	}
	replaced := func(old, with string) func(string) error { return content(strings.Replace(whole, old, with, 1)) }
	for name, test := range map[string]struct {
		create func(path string) error
		says   string
	}{
		"empty":               {content(""), "the file is empty"},
		"torn":                {content(whole[:100]), "unexpected end"},
		"two records in one":  {content(whole + whole), "after top-level value"},
		"from a newer nth":    {replaced(`"version": 1`, `"version": 2`), "version 2, but this program reads only version 1"},
		"an unknown phase":    {replaced(`"phase": "drained"`, `"phase": "paused"`), `entry 0: the phase "paused" is unknown`},
		"an event with no ID": {replaced(`"id": "spot-1"`, `"id": ""`), "entry 0: the event has no ID"},
		"far too large":       {content(strings.Repeat(" ", 32<<20) + whole), "larger than"},
		"a named pipe":        {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "not a regular file"}, // Reading it would never end.
		"a dangling link":     {func(path string) error { return os.Symlink("nowhere", path) }, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "record.json")
			if err := test.create(path); err != nil {
				t.Fatal(err)
			}
			store, err := record.Open(dir, boot, noon)
			if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), path) {
				t.Errorf("the warning is %v, want one that names %s and says %q", err, path, test.says)
			}
			put(t, store, entry("new", state.Seen, noon))
			wantStored(t, dir, "new")
			wantFiles(t, dir, "record.json")
		})
	}
}

func TestWritable(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "a", "b")} {
		if err := record.Writable(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	wantFiles(t, dir, "")
	file := filepath.Join(dir, "file")
	write(t, file, "")
	for _, path := range []string{file, filepath.Join(file, "state"), "/proc/nth/state"} {
		if err := record.Writable(path); err == nil || !strings.HasPrefix(err.Error(), "writing to ") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// The clock of a boot is the one of its first process, however the wall clock is set since; another boot has its own.
func TestOpen_ContinuesTheClockOfTheBoot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, _ := record.Open(dir, boot, noon)
	put(t, first, entry("a", state.Seen, noon))
	for name, row := range map[string]struct {
		boot         string
		booted, want time.Time
	}{
		"set ahead":    {boot, noon.Add(10 * time.Hour), noon},
		"set back":     {boot, noon.Add(-10 * time.Hour), noon},
		"another boot": {otherBoot, noon.Add(time.Hour), noon.Add(time.Hour)},
	} {
		store, _ := record.Open(dir, row.boot, row.booted)
		if got := store.Booted(); !got.Equal(row.want) {
			t.Errorf("%s: the boot began at %s, want %s", name, got, row.want)
		}
		before := record.Uptime()
		now := store.Now()
		if up := now.Sub(row.want); up < before || up > record.Uptime() {
			t.Errorf("%s: it is %s after the boot began, want the uptime, %s or a little more", name, up, before)
		}
	}
}

func TestInService_IsKnownUntilTheNextBoot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := open(t, dir)
	if first.WasInService() {
		t.Error("a new record says that the machine was in service")
	}
	first.SetInService()
	if err := first.Flush(t.Context()); err != nil || !first.WasInService() {
		t.Errorf("%v, in service: %t", err, first.WasInService())
	}
	next, _ := record.Open(dir, otherBoot, noon)
	if !open(t, dir).WasInService() || next.WasInService() {
		t.Errorf("in service in the same boot: %t, in the next: %t", open(t, dir).WasInService(), next.WasInService())
	}
}

func TestBootID_IsReadBelowTheRoot(t *testing.T) {
	for name, test := range map[string]struct{ content, id, says string }{
		"as the kernel writes it": {content: boot + "\n", id: boot},
		"empty":                   {says: `holds "", which is no UUID`},
		"something else":          {content: "no boot\n", says: "which is no UUID"},
	} {
		root := t.TempDir()
		path := filepath.Join(root, "proc/sys/kernel/random/boot_id")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, path, test.content)
		id, err := record.BootID(root)
		if id != test.id || (err != nil) != (test.says != "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %q, %v; want %q, %q", name, id, err, test.id, test.says)
		}
	}
	if _, err := record.BootID(t.TempDir()); err == nil {
		t.Error("no error for a root without /proc")
	}
	if first, err := record.BootID(""); err != nil {
		t.Error(err)
	} else if second, _ := record.BootID("/"); first != second {
		t.Errorf("first %q, then %q", first, second)
	}
}

// slowDisk holds each write until the test says what its result is.
type slowDisk struct {
	begun  chan struct{}
	answer chan error
	writes int
}

func (d *slowDisk) take(write func() error) error {
	d.begun <- struct{}{}
	d.writes++
	if err := <-d.answer; err != nil {
		return err
	}
	return write()
}

// next waits for a write and ends it.
func (d *slowDisk) next(err error) {
	<-d.begun
	d.answer <- err
}

// onSlowDisk runs a test of a store whose disk hangs. It fails if a goroutine is left.
func onSlowDisk(t *testing.T, test func(t *testing.T, dir string, store *record.Store, disk *slowDisk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		store, disk := open(t, dir), &slowDisk{begun: make(chan struct{}), answer: make(chan error)}
		store.Through(disk.take)
		test(t, dir, store, disk)
		synctest.Wait() // for what is still being written
	})
}

func TestPut_ManyDuringOneWriteAreTheNext(t *testing.T) {
	onSlowDisk(t, func(t *testing.T, dir string, store *record.Store, disk *slowDisk) {
		var written, want []string
		for i := range 101 {
			id := fmt.Sprintf("event-%03d", i)
			want = append(want, id)
			store.Put(func(err error) {
				if err != nil {
					t.Error(err)
				}
				written = append(written, id)
			}, entry(id, state.Seen, noon))
			if i == 0 {
				<-disk.begun
			}
		}
		if got := ids(store.Entries()); got != strings.Join(want, " ") || len(written) > 0 {
			t.Errorf("in memory: %q; written: %q", got, written)
		}
		wantFiles(t, dir, "")
		disk.answer <- nil
		<-disk.begun
		if !slices.Equal(written, want[:1]) {
			t.Errorf("the first write has written %q", written)
		}
		disk.answer <- nil
		synctest.Wait()
		if disk.writes != 2 || !slices.Equal(written, want) {
			t.Errorf("%d writes have written %q", disk.writes, written)
		}
		wantStored(t, dir, strings.Join(want, " "))
	})
}

func TestPut_AnOlderStateNeverReplacesANewerOne(t *testing.T) {
	phase := func(t *testing.T, dir string) state.Phase { return open(t, dir).Entries()[0].Phase }
	onSlowDisk(t, func(t *testing.T, dir string, store *record.Store, disk *slowDisk) {
		store.Put(func(error) {}, entry("a", state.Seen, noon))
		<-disk.begun
		store.Put(func(error) {}, entry("a", state.Draining, noon))
		store.Put(func(error) {}, entry("a", state.Drained, noon))
		disk.answer <- nil
		<-disk.begun
		if got := phase(t, dir); got != state.Seen {
			t.Errorf("after the first write it is %q, want what was put when it began", got)
		}
		store.Put(func(error) {}, entry("a", state.Closed, noon))
		disk.answer <- errors.New("no space left")
		disk.next(nil)
		synctest.Wait()
		if got := phase(t, dir); got != state.Closed || disk.writes != 3 {
			t.Errorf("in the end it is %q after %d writes, want the last after three", got, disk.writes)
		}
	})
}

func TestFlush_WaitsForTheDisk(t *testing.T) {
	onSlowDisk(t, func(t *testing.T, _ string, store *record.Store, disk *slowDisk) {
		if err := store.Flush(t.Context()); err != nil {
			t.Errorf("with nothing to write: %v", err)
		}
		for _, result := range []error{nil, errors.New("no space left"), nil} {
			called := 0
			store.Put(func(error) { called++ }, entry("a", state.Seen, noon))
			<-disk.begun
			store.Put(func(error) { called++ }, entry("b", state.Seen, noon))
			flushed := make(chan error, 1)
			go func() { flushed <- store.Flush(t.Context()) }()
			disk.answer <- nil
			<-disk.begun
			synctest.Wait()
			if len(flushed) > 0 {
				t.Error("it returned before all was on disk")
			}
			disk.answer <- result
			if err := <-flushed; !errors.Is(err, result) || called != 2 {
				t.Errorf("got %v, want %v; %d callbacks", err, result, called)
			}
			go func() { flushed <- store.Flush(t.Context()) }()
			if result != nil { // The disk works again.
				<-disk.begun
				disk.answer <- nil
			}
			if err := <-flushed; err != nil {
				t.Errorf("again: %v", err)
			}
		}
		store.Put(func(error) {}, entry("a", state.Seen, noon))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := store.Flush(ctx); err == nil || err.Error() != "the disk has not answered in time" {
			t.Errorf("with a disk that hangs: %v", err)
		}
		disk.next(nil)
	})
}

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
	if len(troubles) != 1 || !strings.HasPrefix(troubles[0].Error(), "cannot write the status file") {
		t.Errorf("reported: %v", troubles)
	}
}

func TestStatus_AForeignFileIsAnError(t *testing.T) {
	if _, _, err := record.ReadStatus(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing one: %v", err)
	}
	for content, want := range map[string]string{
		"":                          "the file is empty",
		"{}":                        "the file has format version 0",
		`{"version": 2}`:            "the file has format version 2, but this program reads only version 1",
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
