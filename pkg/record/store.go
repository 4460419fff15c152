package record

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/state"
)

const (
	// version is the version of the record's format. It grows with changes that an older nth would misunderstand, not with new
	// fields, which it ignores.
	version = 1
	// maxClosed is how many closed entries are kept, in addition to those of the last Put. They are forgotten by number, not by age: a
	// rebalance recommendation can stay announced for months after its entry was closed, and must not be announced again.
	maxClosed = 256
)

// Store has the entries, in memory and, a moment later, on disk. Its methods may be called from several goroutines, and only
// Open and Flush wait for the disk; the file belongs to one process.
type Store struct {
	// save replaces the content of the file.
	save   func(content any) error
	bootID string
	booted time.Time // see Booted

	mu sync.Mutex
	// entries are sorted by FirstSeen and ID. Entries are replaced as a whole, so that a copy of the slice can be encoded without mu.
	entries []state.Entry
	// inService is the boot in which the machine was last known to be in service in its Auto Scaling group; empty if never.
	inService string
	// unwritten are called with the result of the next write, one for each Put that it includes.
	unwritten []func(error)
	// idle is closed when everything is written; nil while there is no writer.
	idle chan struct{}
	// failed is why the last write failed; nil if it succeeded.
	failed error
}

// Open reads the record in dir. bootID is the ID of the present boot, and booted when that began, by the wall clock as it is set now. If the record
// is of this boot, its own time of the boot counts instead, as Now must not jump. Open creates a missing directory, for its owner alone.
//
// The Store always works. The warning is for the operator. It says that an unreadable file was set aside, and under which name, or that the
// directory cannot be used.
func Open(dir, bootID string, booted time.Time) (store *Store, warning error) {
	f := recordFile(dir)
	s := &Store{save: f.write, bootID: bootID, booted: booted.Round(0)}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return s, fmt.Errorf("creating the state directory %s: %w", dir, err)
	}
	f.sweep()
	var content recordContent
	err := f.read(&content)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil
	case err != nil:
		return s, fmt.Errorf("reading the record %s: %w; %w, and nth starts with an empty one", f.path(), err, f.setAside())
	}
	s.replace(content.Entries)
	s.inService = content.InService
	if content.BootID == bootID && !content.Booted.IsZero() {
		s.booted = content.Booted
	}
	return s, nil
}

// Now is the time by the clock of this boot: what the wall clock said when the boot's first process opened the record, and
// Uptime from there on. Nobody can set it, it continues while the machine sleeps, and the next process continues with it. All
// times in entries are read from it.
func (s *Store) Now() time.Time { return s.booted.Add(Uptime()) }

// Booted returns when this boot began, by the clock of this boot.
func (s *Store) Booted() time.Time { return s.booted }

// InMemory returns an empty record that is not written to disk, for a rehearsal.
func InMemory(bootID string, booted time.Time) *Store {
	return &Store{save: func(any) error { return nil }, bootID: bootID, booted: booted.Round(0)}
}

// WasInService reports whether the machine is known to have been in service in its Auto Scaling group in this boot.
func (s *Store) WasInService() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inService == s.bootID
}

// SetInService remembers that the machine is in service in its Auto Scaling group. written is called with the result of the write.
func (s *Store) SetInService(written func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inService = s.bootID
	s.startWriter(written)
}

// startWriter starts the writer unless that is running. The writer calls written with the result of its next write. s.mu is held.
func (s *Store) startWriter(written func(error)) {
	s.unwritten = append(s.unwritten, written)
	if s.idle == nil {
		s.idle = make(chan struct{})
		go s.write()
	}
}

func recordFile(dir string) file { return file{dir: dir, name: "record.json"} }

// Entries returns copies of all entries, the one that was seen first at the front.
func (s *Store) Entries() []state.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries := slices.Clone(s.entries)
	for i, e := range entries {
		entries[i] = e.Clone()
	}
	return entries
}

// Put adds entries, all in one step. Each replaces an older one of the same event. Entries without a boot ID get that of the present boot. They
// are in memory when Put returns, and are written in the background.
//
// written, which may be nil, is called once: with nil when all entries are on disk, or else with the error. Invalid entries and those that cannot
// be encoded are refused, and the others are taken. If none is taken, Put calls written before it returns. Otherwise the writer calls it, and it
// must not block. After a failed write the next Put writes again, even one without entries.
func (s *Store) Put(written func(error), entries ...state.Entry) {
	if written == nil {
		written = func(error) {}
	}
	taken, refused := s.check(entries)
	s.mu.Lock()
	if len(taken) == 0 && (refused != nil || s.failed == nil) { // Nothing is to be written.
		s.mu.Unlock()
		written(refused)
		return
	}
	defer s.mu.Unlock()
	s.replace(taken)
	s.forget(taken)
	s.startWriter(func(err error) { written(errors.Join(refused, err)) })
}

// Flush waits until everything that was put is on disk and its callbacks have been called. It returns the error of the last
// write, or ctx's error if that ends before.
func (s *Store) Flush(ctx context.Context) error {
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	if idle != nil {
		select {
		case <-idle:
		case <-ctx.Done():
			return fmt.Errorf("writing the record: %w", ctx.Err())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// write writes until nothing is left to be written. There is one writer at a time, so that older content never replaces newer
// content. While a slow disk is busy, several Puts become one write.
func (s *Store) write() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.unwritten) > 0 {
		content := recordContent{
			Version: version, BootID: s.bootID, Booted: s.booted, InService: s.inService, Entries: slices.Clone(s.entries),
		}
		callbacks := s.unwritten
		s.unwritten = nil
		s.mu.Unlock()
		err := s.save(content)
		if err != nil {
			err = fmt.Errorf("writing the record: %w", err)
		}
		for _, written := range callbacks {
			written(err)
		}
		s.mu.Lock()
		s.failed = err
	}
	close(s.idle)
	s.idle = nil
}

// check returns copies of the entries that can be written, and an error about the others; nil if there are none.
func (s *Store) check(entries []state.Entry) (taken []state.Entry, refused error) {
	for _, e := range entries {
		if e.BootID == "" {
			e.BootID = s.bootID
		}
		err := e.Validate()
		if err == nil {
			_, err = json.Marshal(e)
		}
		if err != nil {
			refused = errors.Join(refused, fmt.Errorf("recording event %q: %w", e.Event.ID, err))
			continue
		}
		taken = append(taken, e.Clone())
	}
	return taken, refused
}

// replace inserts entries where they belong, and drops older ones of the same events. s.mu is held, except by Open.
func (s *Store) replace(entries []state.Entry) {
	for _, e := range entries {
		s.drop(e.Event.ID)
		at, _ := slices.BinarySearchFunc(s.entries, e, func(a, b state.Entry) int {
			return cmp.Or(a.FirstSeen.Compare(b.FirstSeen), cmp.Compare(a.Event.ID, b.Event.ID))
		})
		s.entries = slices.Insert(s.entries, at, e)
	}
}

// drop removes the entry of an event. s.mu is held.
func (s *Store) drop(id string) {
	s.entries = slices.DeleteFunc(s.entries, func(e state.Entry) bool { return e.Event.ID == id })
}

// forget drops the closed entries beyond maxClosed that changed longest ago. It removes the names of pods from the other closed ones: nth does not
// use them any more, and hundreds of entries with hundreds of names each are too much for one file. It leaves the entries of the last Put as they
// are, even if the clock was set back. s.mu is held.
func (s *Store) forget(last []state.Entry) {
	var closed []state.Entry
	for i, e := range s.entries {
		if e.Phase != state.Closed || slices.ContainsFunc(last, func(l state.Entry) bool { return l.Event.ID == e.Event.ID }) {
			continue
		}
		if r := e.Result; r != nil && len(r.Left)+len(r.HeldBy) > 0 {
			s.entries[i].Result = &state.Result{Evicted: r.Evicted, Deleted: r.Deleted, Skipped: r.Skipped}
		}
		closed = append(closed, e)
	}
	slices.SortStableFunc(closed, func(a, b state.Entry) int { return a.Changed.Compare(b.Changed) })
	for ; len(closed) > maxClosed; closed = closed[1:] {
		s.drop(closed[0].Event.ID)
	}
}

// recordContent is the content of the file.
type recordContent struct {
	Version int `json:"version"`
	// BootID is the boot in which the file was last written.
	BootID string `json:"boot_id"`
	// Booted is when that boot began, by the clock from which the times in the entries were read; see Store.Now.
	Booted time.Time `json:"booted,omitzero"`
	// InService is the last boot in which the machine was in service in its Auto Scaling group.
	InService string        `json:"in_service_in,omitempty"`
	Entries   []state.Entry `json:"entries"`
}

// valid rejects the whole file for one bad entry: nth did not write it then.
func (c recordContent) valid() error {
	if c.Version != version {
		return versionError{c.Version, version}
	}
	seen := make(map[string]bool, len(c.Entries))
	for i, e := range c.Entries {
		if err := e.Validate(); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if seen[e.Event.ID] {
			return fmt.Errorf("entry %d: the event %q is there twice", i, e.Event.ID)
		}
		seen[e.Event.ID] = true
	}
	return nil
}
