package record_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

const (
	boot      = "11111111-1111-1111-1111-111111111111"
	otherBoot = "22222222-2222-2222-2222-222222222222"
)

var noon = time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC)

// entry is one whose every field has a value, so that a round trip shows what is lost.
func entry(id string, phase record.Phase, at time.Time) record.Entry {
	return record.Entry{
		Event: event.Event{
			ID: id, Kind: event.SpotInterruption, Code: "terminate", State: event.Pending, Description: "going",
			Noticed: at, Deadline: at.Add(2 * time.Minute), Until: at.Add(time.Hour),
		},
		Phase: phase, BootID: boot, FirstSeen: at, Changed: at, Missing: at, Cordon: true, CordonedAt: at,
		ActedFor: at, Ending: record.Withdrawn, Failures: 2, Error: "it was late",
		Result: &record.Result{Evicted: 3, Left: []string{"a/b"}, HeldBy: map[string]string{"a/b": "a/budget"}},
	}
}

func open(t *testing.T, dir string) *record.Store {
	t.Helper()
	store, warnings := record.Open(dir, boot)
	if len(warnings) > 0 {
		t.Fatalf("Open warns: %v", warnings)
	}
	return store
}

func put(t *testing.T, store *record.Store, entries ...record.Entry) {
	t.Helper()
	for _, e := range entries {
		if err := store.Put(e); err != nil {
			t.Fatal(err)
		}
	}
}

func ids(entries []record.Entry) string {
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
	want := []record.Entry{entry("first", record.Drained, noon), entry("second", record.Seen, noon.Add(time.Minute))}
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
	old := entry("old", record.Drained, noon)
	old.BootID = boot
	fresh := entry("fresh", record.Draining, noon.Add(1))
	fresh.BootID = ""
	later, _ := record.Open(dir, otherBoot)
	put(t, later, old, fresh)
	entries := open(t, dir).Entries()
	if entries[0].BootID != boot || entries[1].BootID != otherBoot {
		t.Errorf("entries: %+v", entries)
	}
}

func TestEntriesAreCopies(t *testing.T) {
	store := open(t, t.TempDir())
	given := entry("a", record.Drained, noon)
	put(t, store, given)
	taken := store.Entries()[0]
	for _, e := range []record.Entry{given, taken} {
		e.Result.Left[0] = "changed"
		e.Result.HeldBy["a/b"] = "changed"
		e.Result.Evicted = -1
	}
	if got, want := store.Entries()[0], entry("a", record.Drained, noon); !reflect.DeepEqual(got, want) {
		t.Errorf("the record changed with its copies:\n%+v\nwant\n%+v", got, want)
	}
}

func TestAnEntryThatIsNotOneIsRefused(t *testing.T) {
	dir := t.TempDir()
	store := open(t, dir)
	unwritable := entry("unwritable", record.Seen, noon)
	unwritable.Missing = time.Date(12025, 1, 1, 0, 0, 0, 0, time.UTC) // JSON has no such year.
	for _, e := range []record.Entry{entry("", record.Seen, noon), entry("lost", "wandering", noon), unwritable} {
		if err := store.Put(e); err == nil {
			t.Errorf("Put took %+v", e)
		}
	}
	put(t, store, entry("good", record.Seen, noon))
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
	store, warnings := record.Open(dir, boot)
	if len(warnings) != 1 || !strings.Contains(warnings[0].Error(), dir) {
		t.Errorf("warnings: %v, want one that names %s", warnings, dir)
	}
	for _, id := range []string{"a", "b"} {
		if err := store.Put(entry(id, record.Seen, noon)); err == nil {
			t.Errorf("Put %q: no error although nothing can be written", id)
		}
	}
	if got := ids(store.Entries()); got != "a b" {
		t.Errorf("in memory: %q, want both", got)
	}
	if err := os.Remove(parent); err != nil {
		t.Fatal(err)
	}
	put(t, store, entry("c", record.Seen, noon))
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
	if err := store.Put(entry("a", record.Seen, noon)); err == nil {
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
	put(t, open(t, dir), entry("a", record.Seen, noon))
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
	old := make([]record.Entry, 0, kept+10)
	for i := range kept + 10 {
		old = append(old, entry(fmt.Sprintf("closed-%03d", i), record.Closed, noon.Add(time.Duration(i)*time.Second)))
	}
	content, err := json.Marshal(map[string]any{"version": 1, "boot_id": boot, "entries": old})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "record.json"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	store := open(t, dir)
	put(t, store, entry("drained-long-ago", record.Drained, noon.AddDate(-1, 0, 0)))
	put(t, store, entry("closed-before-the-clock-was-right", record.Closed, noon.AddDate(-50, 0, 0)))
	entries := open(t, dir).Entries()
	if len(entries) != kept+2 {
		t.Errorf("%d entries, want %d closed ones and the two that were just put", len(entries), kept)
	}
	if got := ids(entries[:3]); got != "closed-before-the-clock-was-right drained-long-ago closed-010" {
		t.Errorf("the first entries are %q", got)
	}
}
