package record_test

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/nth-project/nth/pkg/record"
)

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
		"from a newer nth":     {strings.Replace(whole, `"version": 1`, `"version": 2`, 1), "version 2, this nth writes version 1"},
		"an unknown phase":     {strings.Replace(whole, phase, `"phase": "paused"`, 1), `entry 0: the phase "paused" is unknown`},
		"an event with no ID":  {strings.Replace(whole, id, `"id": ""`, 1), "entry 0: the event has no ID"},
		"the same event twice": {twice(), `entry 1: the event "spot-1" is there twice`},
		"far too large":        {strings.Repeat(" ", 16<<20) + whole, "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, test.content)
			store, warnings := record.Open(dir, boot)
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
			put(t, store, entry("new", record.Seen, noon))
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
			store, warnings := record.Open(dir, boot)
			if len(warnings) != 1 || !strings.Contains(warnings[0].Error(), "not a regular file") {
				t.Errorf("warnings: %v", warnings)
			}
			put(t, store, entry("new", record.Seen, noon))
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
		if _, warnings := record.Open(dir, boot); len(warnings) != 1 {
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
		store, warnings := record.Open(dir, boot)
		before := store.Entries()
		if len(warnings) > 0 {
			aside, err := os.ReadFile(filepath.Join(dir, "record.json.broken-1"))
			if err != nil || !bytes.Equal(aside, content) || len(before) > 0 {
				t.Fatalf("%v: set aside %q (%v), entries %v", warnings, aside, err, before)
			}
		}
		put(t, store, entry("put-by-the-test", record.Seen, noon))
		after, err := os.ReadFile(filepath.Join(dir, "record.json"))
		if err != nil {
			t.Fatal(err)
		}
		again := open(t, dir)
		put(t, again, entry("put-by-the-test", record.Seen, noon))
		if !reflect.DeepEqual(ids(again.Entries()), ids(store.Entries())) {
			t.Errorf("entries %q became %q by reading them again", ids(store.Entries()), ids(again.Entries()))
		}
		if last, _ := os.ReadFile(filepath.Join(dir, "record.json")); !bytes.Equal(last, after) {
			t.Errorf("the same entries were first written as\n%s\nand then as\n%s", after, last)
		}
	})
}
