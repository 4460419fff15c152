package record

import (
	"cmp"
	"context"
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
	// version is the version of the record's format. It grows with changes that an older nth would misunderstand. A new field is no such change,
	// as an older nth ignores the field.
	version = 1
	// maxClosed is how many closed entries are kept. Age does not matter: EC2 can list a rebalance recommendation for months after its entry was
	// closed. Without the entry, nth would report the recommendation as new.
	maxClosed = 256
)

// recordFile returns the file of the record in a state directory.
func recordFile(dir string) file { return file{dir: dir, name: "record.json"} }

// Store has the entries, in memory and, a moment later, on disk. Its methods may be called from several goroutines, and only
// Open and Flush wait for the disk; the file belongs to one process.
type Store struct {
	// save replaces the content of the file.
	save   func(content any) error
	bootID string    // the present boot
	booted time.Time // see Booted

	mu sync.Mutex // guards what follows
	// entries are sorted by FirstSeen and ID. Entries are replaced as a whole, so that a copy of the slice can be encoded without mu.
	entries []state.Entry
	// inService is the boot in which the machine was last known to be in service in its Auto Scaling group; empty if never.
	inService string
	// unwritten has the callback of each Put that the next write includes. The writer calls them with the result of that write.
	unwritten []func(error)
	// idle is closed when the writer has written everything and ends; nil while there is no writer.
	idle chan struct{}
	// failed is why the last write failed; nil if it succeeded.
	failed error
}

// Open reads the record in dir, and creates a missing directory, for its owner alone. bootID is the ID of the present boot. booted is when this boot
// began, by the wall clock as it is set now. It does not count if an earlier process of this boot has recorded that time, as Now must not jump.
//
// The Store always works. The warning, nil if all is well, is for the operator: the file cannot be read, so that the next write replaces it, or the
// directory cannot be used.
func Open(dir, bootID string, booted time.Time) (store *Store, warning error) {
	f := recordFile(dir)
	s := &Store{save: f.write, bootID: bootID, booted: booted.Round(0)}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return s, fmt.Errorf("cannot create the state directory %s: %w; nth starts with an empty state record, and retries when it writes the record", dir, err)
	}
	var content recordContent
	err := f.read(&content)
	switch {
	case errors.Is(err, fs.ErrNotExist): // nth has not run on this machine before.
		return s, nil
	case err != nil:
		return s, fmt.Errorf("cannot read the state record %s: %w; nth starts without it, and overwrites the file; nth recognizes its cordon by the annotation on the Node", f.path(), err)
	}
	s.replace(content.Entries)
	s.inService = content.InService
	if content.BootID == bootID && !content.Booted.IsZero() {
		s.booted = content.Booted
	}
	return s, nil
}

// Now returns the time by the clock of this boot. The wall clock sets this clock when the boot's first process opens the record; from that moment
// on it advances with Uptime. Nobody can set it, and the next process continues with it. All times in entries are by this clock.
func (s *Store) Now() time.Time { return s.booted.Add(Uptime()) }

// Booted returns when this boot began, by the clock of this boot.
func (s *Store) Booted() time.Time { return s.booted }

// InMemory returns an empty record that is never written to disk, for a rehearsal (cmd/nth/rehearse.go).
func InMemory(bootID string, booted time.Time) *Store {
	return &Store{save: func(any) error { return nil }, bootID: bootID, booted: booted.Round(0)}
}

// WasInService reports whether the machine is known to have been in service in its Auto Scaling group in this boot.
func (s *Store) WasInService() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inService == s.bootID
}

// SetInService remembers over a restart of nth, but not over a boot, that the machine is in service in its Auto Scaling group: only then does another
// target state mean a termination.
func (s *Store) SetInService() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inService = s.bootID
	s.startWriter(func(error) {}) // The error is dropped: the next Put reports a disk that fails.
}

// startWriter has everything written, and then written called with the result. It starts the writer if none is running. s.mu is held.
func (s *Store) startWriter(written func(error)) {
	s.unwritten = append(s.unwritten, written)
	if s.idle == nil {
		s.idle = make(chan struct{})
		go s.write()
	}
}

// Entries returns all entries, the one that was seen first at the front.
func (s *Store) Entries() []state.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.entries)
}

// Put adds entries, all in one step. Each replaces the older entry of the same event. The entries are in memory when Put returns, and are written in
// the background. The writer calls written, which must not block, with nil when all entries are on disk, or else with the error. After a failed
// write, the next Put writes all entries again.
func (s *Store) Put(written func(error), entries ...state.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replace(entries)
	s.forget()
	s.startWriter(written)
}

// Flush waits until everything that was put is on disk and its callbacks have been called. If the last write failed, it writes once more. It returns
// the error of the last write, or another error if ctx ends before.
func (s *Store) Flush(ctx context.Context) error {
	s.mu.Lock()
	if s.failed != nil {
		s.startWriter(func(error) {})
	}
	idle := s.idle
	s.mu.Unlock()
	if idle != nil {
		select {
		case <-idle:
		case <-ctx.Done():
			return errors.New("the disk has not answered in time")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// write is the writer: it writes until nothing is left to be written. Only one writer runs at a time, so that older content never replaces newer
// content. What is put during a write on a slow disk goes into the next write together. write holds s.mu except while it saves and calls back.
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
		for _, written := range callbacks {
			written(err)
		}
		s.mu.Lock()
		s.failed = err
	}
	close(s.idle)
	s.idle = nil
}

// replace adds entries, drops the older entries of the same events, and sorts. s.mu is held, except by Open, which has the Store to itself.
func (s *Store) replace(entries []state.Entry) {
	for _, e := range entries {
		s.drop(e.Event.ID)
		s.entries = append(s.entries, e)
	}
	slices.SortFunc(s.entries, func(a, b state.Entry) int {
		return cmp.Or(a.FirstSeen.Compare(b.FirstSeen), cmp.Compare(a.Event.ID, b.Event.ID))
	})
}

// drop removes the entry of an event. s.mu is held.
func (s *Store) drop(id string) {
	s.entries = slices.DeleteFunc(s.entries, func(e state.Entry) bool { return e.Event.ID == id })
}

// forget drops closed entries until maxClosed are left, beginning with those that changed longest ago. s.mu is held.
func (s *Store) forget() {
	closed := slices.DeleteFunc(slices.Clone(s.entries), func(e state.Entry) bool { return e.Phase != state.Closed })
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

// valid returns why the content was not written by this version of nth; nil if it was. One bad entry rejects the whole file.
func (c recordContent) valid() error {
	if c.Version != version {
		return fmt.Errorf("the file has format version %d, but this program reads only version %d", c.Version, version)
	}
	for i, e := range c.Entries {
		if err := e.Validate(); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
	}
	return nil
}
