package record_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
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
		Phase: phase, BootID: boot, FirstSeen: at, Timeless: at, Changed: at, Missing: at, OnNode: true, Reopened: true,
		CordonedAt: at, ActedFor: at, Ending: state.Withdrawn, Failures: 2, Error: "it was late",
		Result: &state.Result{Evicted: 3, Left: []string{"a/b"}, HeldBy: map[string]string{"a/b": "a/budget"}},
	}
}

func open(t *testing.T, dir string) *record.Store {
	t.Helper()
	store, warnings := record.Open(dir, boot, noon)
	if len(warnings) > 0 {
		t.Fatalf("Open warns: %v", warnings)
	}
	return store
}

func put(t *testing.T, store *record.Store, entries ...state.Entry) {
	t.Helper()
	if err := try(store, entries...); err != nil {
		t.Fatal(err)
	}
}

// try puts entries and returns what became of them.
func try(store *record.Store, entries ...state.Entry) error {
	told := make(chan error, 1)
	store.Put(func(err error) { told <- err }, entries...)
	return <-told
}

func ids(entries []state.Entry) string {
	var list []string
	for _, e := range entries {
		list = append(list, e.Event.ID)
	}
	return strings.Join(list, " ")
}

func listing(t *testing.T, dir string) string {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		names = append(names, file.Name())
	}
	return strings.Join(names, " ")
}

func TestAMissingFileIsAnEmptyRecord(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "var", "lib", "nth")
	if entries := open(t, dir).Entries(); len(entries) != 0 {
		t.Errorf("entries: %v, want none", entries)
	}
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o700 {
		t.Errorf("the directory was created with mode %o, want 700", info.Mode().Perm())
	}
}

func TestWhatWasPutIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	want := []state.Entry{entry("first", state.Drained, noon), entry("second", state.Seen, noon.Add(time.Minute))}
	put(t, open(t, dir), want[1], want[0])
	if got := open(t, dir).Entries(); !reflect.DeepEqual(got, want) {
		t.Errorf("read\n%+v\nwant\n%+v", got, want)
	}
	info, err := os.Stat(filepath.Join(dir, "record.json"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %o, want 600", info.Mode().Perm())
	}
	if files := listing(t, dir); files != "record.json" {
		t.Errorf("the directory holds %q, want nothing but the record", files)
	}
}

func TestAnEntryKeepsItsBootAndGetsThePresentOneIfItHasNone(t *testing.T) {
	dir := t.TempDir()
	old := entry("old", state.Drained, noon)
	old.BootID = boot
	fresh := entry("fresh", state.Draining, noon.Add(1))
	fresh.BootID = ""
	later, _ := record.Open(dir, otherBoot, noon)
	put(t, later, old, fresh)
	entries := open(t, dir).Entries()
	if entries[0].BootID != boot || entries[1].BootID != otherBoot {
		t.Errorf("entries: %+v", entries)
	}
}

// A drain that a webhook or a budget holds names each pod, and what held it, at length: those of hundreds of entries would not be
// read again.
func TestAnEntryThatIsClosedForAWhileNamesNoPods(t *testing.T) {
	dir := t.TempDir()
	store := open(t, dir)
	running, closed, last := entry("running", state.Incomplete, noon), entry("closed", state.Closed, noon.Add(1)), entry("last", state.Closed, noon.Add(2))
	put(t, store, running, closed)
	put(t, store, last)
	closed.Result.Left, closed.Result.HeldBy = nil, nil
	for what, entries := range map[string][]state.Entry{"in memory": store.Entries(), "on disk": open(t, dir).Entries()} {
		if !reflect.DeepEqual(entries, []state.Entry{running, closed, last}) {
			t.Errorf("%s there are\n%+v", what, entries)
		}
	}
}

func TestWhatWouldNotBeReadAgainIsNotWritten(t *testing.T) {
	dir := t.TempDir()
	store := open(t, dir)
	put(t, store, entry("a", state.Seen, noon))
	huge := entry("b", state.Seen, noon)
	huge.Error = strings.Repeat("x", 33<<20)
	if err := try(store, huge); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("putting 33 MiB: %v", err)
	}
	if got := ids(store.Entries()); got != "a b" {
		t.Errorf("the entries in memory are %q", got)
	}
	if got := ids(open(t, dir).Entries()); got != "a" {
		t.Errorf("the entries on disk are %q", got)
	}
}

func TestEntriesAreCopies(t *testing.T) {
	store := open(t, t.TempDir())
	given := entry("a", state.Drained, noon)
	put(t, store, given)
	taken := store.Entries()[0]
	for _, e := range []state.Entry{given, taken} {
		e.Result.Left[0] = "changed"
		e.Result.HeldBy["a/b"] = "changed"
		e.Result.Evicted = -1
	}
	if got, want := store.Entries()[0], entry("a", state.Drained, noon); !reflect.DeepEqual(got, want) {
		t.Errorf("the record changed with its copies:\n%+v\nwant\n%+v", got, want)
	}
}

func TestAnEntryThatIsNotOneIsRefused(t *testing.T) {
	dir := t.TempDir()
	store := open(t, dir)
	unwritable := entry("unwritable", state.Seen, noon)
	unwritable.Missing = time.Date(12025, 1, 1, 0, 0, 0, 0, time.UTC) // JSON has no such year.
	for _, e := range []state.Entry{entry("", state.Seen, noon), entry("lost", "wandering", noon), unwritable} {
		if err := try(store, e); err == nil {
			t.Errorf("Put took %+v", e)
		}
	}
	put(t, store, entry("good", state.Seen, noon))
	if got := ids(open(t, dir).Entries()); got != "good" {
		t.Errorf("entries: %q, want only the good one", got)
	}
}

func TestADirectoryThatCannotBeWrittenIsToldByEveryPutAndCaughtUpLater(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(parent, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parent, "nth")
	store, warnings := record.Open(dir, boot, noon)
	if len(warnings) != 1 || !strings.Contains(warnings[0].Error(), dir) {
		t.Errorf("warnings: %v, want one that names %s", warnings, dir)
	}
	for _, id := range []string{"a", "b"} {
		if err := try(store, entry(id, state.Seen, noon)); err == nil {
			t.Errorf("Put %q: no error although nothing can be written", id)
		}
	}
	if got := ids(store.Entries()); got != "a b" {
		t.Errorf("in memory: %q, want both", got)
	}
	if err := os.Remove(parent); err != nil {
		t.Fatal(err)
	}
	put(t, store)
	if got := ids(open(t, dir).Entries()); got != "a b" {
		t.Errorf("on disk: %q, want both", got)
	}
	put(t, store, entry("c", state.Seen, noon))
	if got := ids(open(t, dir).Entries()); got != "a b c" {
		t.Errorf("on disk: %q, want all three", got)
	}
}

func TestAFailedPutLeavesNoFileBehindAndTheOldRecordWhole(t *testing.T) {
	dir := t.TempDir()
	store := open(t, dir)
	inTheWay := filepath.Join(dir, "record.json", "something")
	if err := os.MkdirAll(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := try(store, entry("a", state.Seen, noon)); err == nil {
		t.Fatal("Put: no error although a directory has the record's name")
	}
	if files := listing(t, dir); files != "record.json" {
		t.Errorf("the directory holds %q, want no temporary file", files)
	}
	if _, err := os.Stat(inTheWay); err != nil {
		t.Error(err)
	}
}

func TestTemporaryFilesOfAKilledWriterAreRemoved(t *testing.T) {
	dir := t.TempDir()
	put(t, open(t, dir), entry("a", state.Seen, noon))
	if err := os.WriteFile(filepath.Join(dir, "record.json.tmp-123"), []byte(`{"ver`), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if files := listing(t, dir); files != "record.json" {
		t.Errorf("the directory holds %q, want only the record", files)
	}
}

func TestOnlyOldClosedEntriesAreForgotten(t *testing.T) {
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
	if err := os.WriteFile(filepath.Join(dir, "record.json"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	store := open(t, dir)
	put(t, store, entry("drained-long-ago", state.Drained, noon.AddDate(-1, 0, 0)))
	put(t, store, entry("closed-before-the-clock-was-right", state.Closed, noon.AddDate(-50, 0, 0)))
	entries := open(t, dir).Entries()
	if len(entries) != kept+2 {
		t.Errorf("%d entries, want %d closed ones and the two that were just put", len(entries), kept)
	}
	if got := ids(entries[:3]); got != "closed-before-the-clock-was-right drained-long-ago closed-010" {
		t.Errorf("the first entries are %q", got)
	}
}

// whole is a state file as nth writes it.
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
      "result": {"evicted": 7, "deleted": 0, "skipped": 2}
    }
  ]
}
`

func TestEntriesOfEarlierAndLaterVersionsOfTheFormatAreRead(t *testing.T) {
	for name, test := range map[string]struct {
		content  string
		reopened bool
	}{
		"as it has always been":       {content: whole},
		"with what is newer":          {strings.Replace(whole, `"cordon": true`, `"cordon": true, "reopened": true`, 1), true},
		"with what nobody here knows": {content: strings.Replace(whole, `"cordon": true`, `"cordon": true, "paint": {"color": "red"}`, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, test.content)
			entries := open(t, dir).Entries()
			if len(entries) != 1 || !entries[0].OnNode || entries[0].Reopened != test.reopened {
				t.Errorf("entries: %+v", entries)
			}
		})
	}
}

// Other versions of nth know these names.
func TestTheNamesInTheRecordStay(t *testing.T) {
	dir := t.TempDir()
	put(t, open(t, dir), entry("a", state.Closed, noon))
	content, err := os.ReadFile(filepath.Join(dir, "record.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"version": 1`, `"boot_id"`, `"phase": "closed"`, `"first_seen"`, `"changed"`, `"missing"`, `"cordon": true`, `"reopened": true`,
		`"cordoned_at"`, `"acted_for"`, `"ending": "withdrawn"`, `"failures": 2`, `"evicted": 3`, `"held_by"`, `"error"`,
	} {
		if !strings.Contains(string(content), want) {
			t.Errorf("the record does not say %s:\n%s", want, content)
		}
	}
}

func write(t *testing.T, dir, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "record.json"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAFileThatIsNotOursIsSetAsideAndReported(t *testing.T) {
	phase, id := `"phase": "drained"`, `"id": "spot-1"`
	for name, test := range map[string]struct{ content, says string }{
		"empty":                {"", "the file is empty"},
		"torn":                 {whole[:len(whole)/2], "unexpected end of JSON"},
		"zeros after a crash":  {strings.Repeat("\x00", 4096), "invalid character"},
		"text":                 {"hello\n", "invalid character"},
		"two records in one":   {whole + whole, "after top-level value"},
		"another JSON":         {`{"kind": "Config"}`, "version 0"},
		"not an object":        {`[1, 2]`, "cannot unmarshal array"},
		"from a newer nth":     {strings.Replace(whole, `"version": 1`, `"version": 2`, 1), "version 2, this nth reads version 1"},
		"an unknown phase":     {strings.Replace(whole, phase, `"phase": "paused"`, 1), `entry 0: the phase "paused" is unknown`},
		"an event with no ID":  {strings.Replace(whole, id, `"id": ""`, 1), "entry 0: the event has no ID"},
		"the same event twice": {twice(), `entry 1: the event "spot-1" is there twice`},
		"far too large":        {strings.Repeat(" ", 32<<20) + whole, "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, test.content)
			store, warnings := record.Open(dir, boot, noon)
			if len(warnings) != 1 {
				t.Fatalf("warnings: %v, want one", warnings)
			}
			aside := filepath.Join(dir, "record.json.broken-1")
			for _, want := range []string{test.says, filepath.Join(dir, "record.json"), aside} {
				if !strings.Contains(warnings[0].Error(), want) {
					t.Errorf("the warning %q does not say %q", warnings[0], want)
				}
			}
			if content, err := os.ReadFile(aside); err != nil || string(content) != test.content {
				t.Errorf("set aside: %d bytes (%v), want the %d that were there", len(content), err, len(test.content))
			}
			put(t, store, entry("new", state.Seen, noon))
			if got := ids(open(t, dir).Entries()); got != "new" {
				t.Errorf("afterwards the record holds %q", got)
			}
		})
	}
}

func twice() string {
	start, end := strings.Index(whole, "    {"), strings.LastIndex(whole, "\n  ]")
	return whole[:end] + ",\n" + whole[start:]
}

func TestWhatIsNoRegularFileIsSetAside(t *testing.T) {
	for name, create := range map[string]func(path string) error{
		"directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"named pipe":    func(path string) error { return syscall.Mkfifo(path, 0o600) }, // Reading it would never end.
		"dangling link": func(path string) error { return os.Symlink("nowhere", path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := create(filepath.Join(dir, "record.json")); err != nil {
				t.Fatal(err)
			}
			store, warnings := record.Open(dir, boot, noon)
			if len(warnings) != 1 || !strings.Contains(warnings[0].Error(), "not a regular file") {
				t.Errorf("warnings: %v", warnings)
			}
			put(t, store, entry("new", state.Seen, noon))
			if got := listing(t, dir); got != "record.json record.json.broken-1" {
				t.Errorf("the directory holds %q", got)
			}
		})
	}
}

func TestFewFilesThatWereSetAsideAreKept(t *testing.T) {
	dir := t.TempDir()
	for i := range 12 {
		write(t, dir, strings.Repeat("x", i+1))
		if _, warnings := record.Open(dir, boot, noon); len(warnings) != 1 {
			t.Fatalf("warnings: %v", warnings)
		}
	}
	want := "record.json.broken-10 record.json.broken-11 record.json.broken-12 record.json.broken-9"
	if got := listing(t, dir); got != want {
		t.Errorf("the directory holds %q, want %q", got, want)
	}
	if content, _ := os.ReadFile(filepath.Join(dir, "record.json.broken-12")); len(content) != 12 {
		t.Errorf("the last of them has %d bytes, want 12", len(content))
	}
}

// FuzzOpen holds for any content of the file: either it is taken whole, or it is set aside untouched and the record is
// empty; and what follows works.
func FuzzOpen(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte(whole[:200]))
	f.Add([]byte(twice()))
	f.Add([]byte(strings.Replace(whole, `"version": 1`, `"version": 9`, 1)))
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		write(t, dir, string(content))
		store, warnings := record.Open(dir, boot, noon)
		before := store.Entries()
		if len(warnings) > 0 {
			aside, err := os.ReadFile(filepath.Join(dir, "record.json.broken-1"))
			if err != nil || !bytes.Equal(aside, content) || len(before) > 0 {
				t.Fatalf("%v: set aside %q (%v), entries %v", warnings, aside, err, before)
			}
		}
		put(t, store, entry("put-by-the-test", state.Seen, noon))
		after, err := os.ReadFile(filepath.Join(dir, "record.json"))
		if err != nil {
			t.Fatal(err)
		}
		again := open(t, dir)
		put(t, again, entry("put-by-the-test", state.Seen, noon))
		if !reflect.DeepEqual(ids(again.Entries()), ids(store.Entries())) {
			t.Errorf("entries %q became %q by reading them again", ids(store.Entries()), ids(again.Entries()))
		}
		if last, _ := os.ReadFile(filepath.Join(dir, "record.json")); !bytes.Equal(last, after) {
			t.Errorf("the same entries were first written as\n%s\nand then as\n%s", after, last)
		}
	})
}

func TestADirectoryThatIsWritableOrCanBeMadeIsAndStaysAsItWas(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "a", "b")} {
		if err := record.Writable(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if left := listing(t, dir); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

func TestWhatKeepsADirectoryFromBeingWrittenToIsTold(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "state"), "/proc/nth/state"} {
		if err := record.Writable(path); err == nil || !strings.HasPrefix(err.Error(), "writing to ") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// The clock of a boot is the one of its first process, however the wall clock is set since; another boot has its own.
func TestOpen_GoesOnWithTheClockOfTheBoot(t *testing.T) {
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
