package record_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/record"
)

func openOutbox(t *testing.T, dir string) *record.Outbox {
	t.Helper()
	box, warnings := record.OpenOutbox(dir)
	for _, w := range warnings {
		t.Errorf("opening an outbox: %v", w)
	}
	return box
}

// reopened is what another process finds.
func reopened(t *testing.T, dir string, box *record.Outbox) *record.Outbox {
	t.Helper()
	if err := box.Sync(); err != nil {
		t.Fatal(err)
	}
	return openOutbox(t, dir)
}

func notice(id string) record.Notice {
	return record.Notice{ID: id, Event: "spot-1", What: "what " + id + " tells", Made: noon, Text: `{"text":"` + id + `"}`}
}

func add(t *testing.T, box *record.Outbox, id string) []record.Notice {
	t.Helper()
	givenUp, err := box.Add(notice(id))
	if err != nil {
		t.Fatal(err)
	}
	return givenUp
}

func TestNoticesWaitOverARestartInTheirOrder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	box := openOutbox(t, dir)
	add(t, box, "a")
	add(t, box, "b")
	add(t, box, "c")
	box.Remove("b")
	again := reopened(t, dir, box)
	if got, want := again.Waiting(), []record.Notice{notice("a"), notice("c")}; !slices.Equal(got, want) {
		t.Errorf("waiting are %v, want %v", got, want)
	}
}

func TestWhatWasToldIsRememberedByEventInItsOrder(t *testing.T) {
	dir := t.TempDir()
	box := openOutbox(t, dir)
	add(t, box, "a")
	box.Note("spot-2", "announced")
	box.Note("spot-1", "drained")
	box.Remove("a")
	again := reopened(t, dir, box)
	for id, want := range map[string][]string{"spot-1": {"what a tells", "drained"}, "spot-2": {"announced"}, "spot-3": nil} {
		if got := again.Told(id); !slices.Equal(got, want) {
			t.Errorf("told of %s were %q, want %q", id, got, want)
		}
	}
	for range 300 {
		box.Note("spot-3", "announced")
	}
	if got := len(reopened(t, dir, box).Told("spot-3")); got != 256 {
		t.Errorf("%d things are remembered as told, want 256", got)
	}
}

func TestAnOutboxIsForItsOwnerAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	box := openOutbox(t, dir)
	add(t, box, "a")
	if err := box.Sync(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "outbox.json"): 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", path, got, want)
		}
	}
}

func TestAnOutboxIsBounded(t *testing.T) {
	dir := t.TempDir()
	box := openOutbox(t, dir)
	for i := range 64 {
		if givenUp := add(t, box, fmt.Sprint(i)); len(givenUp) > 0 {
			t.Fatalf("notice %d makes it give up %v", i, givenUp)
		}
	}
	if givenUp := add(t, box, "one more"); len(givenUp) != 1 || givenUp[0].ID != "0" {
		t.Errorf("given up are %v, want the oldest", givenUp)
	}
	if got := len(reopened(t, dir, box).Waiting()); got != 64 {
		t.Errorf("%d notices wait, want 64", got)
	}
	long := notice("long")
	long.Text = strings.Repeat("x", 1<<20)
	if _, err := box.Add(long); !errors.Is(err, record.ErrTooLong) {
		t.Errorf("a notice of 1 MiB: %v", err)
	}
	if slices.Contains(box.Told("spot-1"), "what long tells") {
		t.Error("a notice that was refused counts as made")
	}
}

func TestAnOutboxOfManyNodesHoldsAsMuchAsItIsAllowedTo(t *testing.T) {
	dir := t.TempDir()
	box := openOutbox(t, dir)
	box.Allow(70)
	for i := range 70 {
		if givenUp := add(t, box, fmt.Sprint(i)); len(givenUp) > 0 {
			t.Fatalf("notice %d makes it give up %v", i, givenUp)
		}
	}
	again := reopened(t, dir, box)
	again.Allow(70)
	if got := len(again.Waiting()); got != 70 {
		t.Errorf("%d notices wait after a restart, want 70", got)
	}
	if givenUp := add(t, again, "one more"); len(givenUp) != 1 || givenUp[0].ID != "0" {
		t.Errorf("given up are %v, want the oldest", givenUp)
	}
	for range 290 {
		again.Note("spot-2", "announced")
	}
	if got := len(reopened(t, dir, again).Told("spot-2")); got != 280 {
		t.Errorf("%d things are remembered as told, want 280: four for each notice", got)
	}
}

// Otherwise it would be set aside at the next start, with all that waits.
func TestHoweverFullAnOutboxIsItIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	box := openOutbox(t, dir)
	box.Allow(1024)
	long := strings.Repeat("x", 32<<10)
	for i := range 256 {
		box.Note(long+fmt.Sprint(i), "announced")
	}
	n, lost := notice(""), 0
	n.Text = strings.Repeat("<", 128<<10) // JSON has six bytes for it.
	const count = 36
	for i := range count {
		n.ID = fmt.Sprint(i)
		givenUp, err := box.Add(n)
		if err != nil {
			t.Fatal(err)
		}
		lost += len(givenUp)
	}
	waiting := box.Waiting()
	if lost == 0 || len(waiting)+lost != count || waiting[0].ID != fmt.Sprint(lost) {
		t.Errorf("of %d notices %d wait, and %d were given up", count, len(waiting), lost)
	}
	again := reopened(t, dir, box)
	if left := again.Waiting(); !slices.Equal(left, waiting) {
		t.Errorf("%d notices wait after a restart, want %d", len(left), len(waiting))
	}
	if got := again.Told(long + "255"); !slices.Equal(got, []string{"announced"}) {
		t.Errorf("told of the last of many events were %q", got)
	}
}

// It is asked before a notice is made, so that none is given up for one that could have waited to be made.
func TestWhereThereIsRoomNothingIsGivenUp(t *testing.T) {
	for name, text := range map[string]string{"short": "x", "the longest": strings.Repeat("<", 128<<10)} {
		t.Run(name, func(t *testing.T) {
			box := openOutbox(t, t.TempDir())
			added := 0
			for ; box.Room() > 0; added++ {
				n := notice(fmt.Sprint(added))
				n.Text = text
				if givenUp, err := box.Add(n); len(givenUp) > 0 || err != nil {
					t.Fatalf("notice %d makes it give up %d others (%v)", added, len(givenUp), err)
				}
			}
			for _, n := range box.Waiting() {
				box.Remove(n.ID)
			}
			if added < 16 || box.Room() < 16 {
				t.Errorf("there was room for %d, and is for %d when all are delivered", added, box.Room())
			}
		})
	}
}

func TestAnOutboxThatIsNotOursIsSetAsideAndReported(t *testing.T) {
	for name, content := range map[string]string{
		"empty":        "",
		"torn":         `{"version":1,"waiting":[{"id":"a"`,
		"newer":        `{"version":2}`,
		"without ID":   `{"version":1,"waiting":[{"text":"x"}]}`,
		"without text": `{"version":1,"waiting":[{"id":"a"}]}`,
		"far too long": `{"version":1,"waiting":[{"id":"a","text":"` + strings.Repeat("x", 1<<20) + `"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "outbox.json")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			box, warnings := record.OpenOutbox(dir)
			if len(warnings) != 1 || !strings.Contains(warnings[0].Error(), "outbox.json.broken-1") {
				t.Errorf("the warnings are %v", warnings)
			}
			if aside, err := os.ReadFile(path + ".broken-1"); err != nil || string(aside) != content {
				t.Errorf("set aside is %d bytes (%v), want %d", len(aside), err, len(content))
			}
			add(t, box, "a")
			if got := reopened(t, dir, box).Waiting(); len(got) != 1 {
				t.Errorf("%d notices wait afterwards, want 1", len(got))
			}
		})
	}
}

func TestWithoutADiskNoticesAreKeptInMemory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	box, _ := record.OpenOutbox(filepath.Join(file, "below"))
	add(t, box, "a")
	for range 2 {
		if err := box.Sync(); err == nil {
			t.Error("a notice was written below a file")
		}
	}
	if got := len(box.Waiting()); got != 1 {
		t.Errorf("%d notices wait, want 1", got)
	}
}

func TestAnOutboxWorksWhileTheDiskHangs(t *testing.T) {
	box, disk := openOutbox(t, t.TempDir()), newSlowDisk()
	box.Through(disk.take)
	add(t, box, "a")
	written := make(chan error)
	go func() { written <- box.Sync() }()
	<-disk.begun
	add(t, box, "b")
	box.Remove("a")
	if got := box.Waiting(); !slices.Equal(got, []record.Notice{notice("b")}) || len(box.Told("spot-1")) != 2 {
		t.Errorf("waiting are %v, told were %q", got, box.Told("spot-1"))
	}
	disk.answer <- nil
	if err := <-written; err != nil {
		t.Error(err)
	}
}

func TestAnOutboxIsWrittenOnlyWhenItHasChanged(t *testing.T) {
	dir := t.TempDir()
	box := openOutbox(t, dir)
	if err := box.Sync(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "outbox.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an outbox in which nothing has changed was written: %v", err)
	}
}
