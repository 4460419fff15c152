package record

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// keepClosed is how many closed entries are remembered beside the newest. They are forgotten by number, not by age: a rebalance
// recommendation can stay announced for months after its entry was closed, and must not be met again as news.
const keepClosed = 256

// Store holds the entries, in memory and on disk. Its methods may be called from several goroutines; the file belongs
// to one process.
type Store struct {
	dir    string
	bootID string

	mu      sync.Mutex
	entries map[string]Entry // by event ID
}

// Open reads the record in dir, which is created, for its owner alone, where it is missing; bootID is the present boot.
//
// The Store always works. The warnings tell what a person should know: that an unreadable file was set aside, and
// under which name, or that the directory is of no use.
func Open(dir, bootID string) (*Store, []error) {
	s := &Store{dir: dir, bootID: bootID, entries: map[string]Entry{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return s, []error{fmt.Errorf("creating the state directory %s: %w", dir, err)}
	}
	sweep(dir, fileName)
	path := filepath.Join(dir, fileName)
	content, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		warning := fmt.Errorf("reading the record %s: %w", path, err)
		aside, err := setAside(dir, fileName)
		if err != nil {
			return s, []error{warning, fmt.Errorf("setting the record aside: %w", err)}
		}
		return s, []error{fmt.Errorf("%w; it is now %s, and nth starts with an empty record", warning, aside)}
	}
	for _, e := range content.Entries {
		s.entries[e.Event.ID] = e
	}
	return s, nil
}

// Entries returns copies of all entries, the one that was seen first at the front.
func (s *Store) Entries() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sorted()
}

// Put takes an entry in, in the place of an older one of the same event. Without a boot ID it gets the present one. It is on disk
// when Put returns nil. Otherwise it is in memory only, and the next Put tries to write it again, with its own.
func (s *Store) Put(e Entry) error {
	if e.BootID == "" {
		e.BootID = s.bootID
	}
	if err := e.valid(); err != nil {
		return fmt.Errorf("recording event %q: %w", e.Event.ID, err)
	}
	if _, err := json.Marshal(e); err != nil { // One entry that cannot be written must not keep the others from it.
		return fmt.Errorf("recording event %q: %w", e.Event.ID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries[e.Event.ID] = e.clone()
	s.forget(e.Event.ID)
	if err := s.write(); err != nil {
		return fmt.Errorf("recording event %q: %w", e.Event.ID, err)
	}
	return nil
}

// write brings the disk up to date.
func (s *Store) write() error {
	content, err := json.MarshalIndent(state{Version: version, BootID: s.bootID, Entries: s.sorted()}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	return replace(s.dir, fileName, append(content, '\n'))
}

// sorted returns copies in the order of FirstSeen, and of ID where that is the same.
func (s *Store) sorted() []Entry {
	entries := slices.SortedFunc(maps.Values(s.entries), func(a, b Entry) int {
		return cmp.Or(a.FirstSeen.Compare(b.FirstSeen), cmp.Compare(a.Event.ID, b.Event.ID))
	})
	for i, e := range entries {
		entries[i] = e.clone()
	}
	return entries
}

// forget drops the closed entries that were changed longest ago. The one that was put last stays, whatever became of
// the clock.
func (s *Store) forget(last string) {
	closed := slices.DeleteFunc(s.sorted(), func(e Entry) bool { return e.Phase != Closed || e.Event.ID == last })
	slices.SortStableFunc(closed, func(a, b Entry) int { return a.Changed.Compare(b.Changed) })
	for ; len(closed) > keepClosed; closed = closed[1:] {
		delete(s.entries, closed[0].Event.ID)
	}
}

// clone copies what an Entry refers to.
func (e Entry) clone() Entry {
	if e.Result != nil {
		result := *e.Result
		result.Left = slices.Clone(result.Left)
		result.HeldBy = maps.Clone(result.HeldBy)
		e.Result = &result
	}
	return e
}
