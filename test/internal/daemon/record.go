package daemon

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/test/internal/lab"
)

// Record returns what the daemon remembers on disk, the event that was seen first at the front. It only reads, so that
// it is safe beside a daemon that runs. A daemon that has met no event yet remembers nothing.
func (m *Machine) Record(t lab.TB) []state.Entry {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.StateDirectory(), "record.json"))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatalf("reading the daemon's record: %v", err)
	}
	var content struct{ Entries []state.Entry }
	if err := json.Unmarshal(text, &content); err != nil {
		t.Fatalf("reading the daemon's record: %v\n%s", err, text)
	}
	return content.Entries
}

// RecordOf returns what the daemon remembers of the one event of a kind.
func (m *Machine) RecordOf(t lab.TB, kind event.Kind) state.Entry {
	t.Helper()
	var found []state.Entry
	for _, e := range m.Record(t) {
		if e.Event.Kind == kind {
			found = append(found, e)
		}
	}
	if len(found) != 1 {
		t.Fatalf("nth remembers %d events of kind %s, want 1: %+v", len(found), kind, found)
	}
	return found[0]
}

// Forget removes everything that the daemon remembers. Stop the daemon before.
func (m *Machine) Forget(t lab.TB) {
	t.Helper()
	if err := os.RemoveAll(m.StateDirectory()); err != nil {
		t.Fatalf("removing the daemon's record: %v", err)
	}
}
