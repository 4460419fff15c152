package record

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/state"
)

const (
	// version is the version of the record's format. It grows with changes that an older nth would misunderstand, not with new
	// fields, which it ignores.
	version = 1
	// maxFile is the largest file, in bytes, that is read or written: far more than maxClosed entries need.
	maxFile = 32 << 20
	// temporary is what a file's name ends in while it is written, and broken what it ends in when it has been set aside.
	temporary = ".tmp-"
	broken    = ".broken-"
	// maxBroken is how many files that were set aside are kept.
	maxBroken = 4
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

// Open reads the record in dir; bootID is the present boot, which began at booted by the wall clock as it is set now. The record
// of this boot may know another time, by which its own times were read: then that one counts. A missing directory is created, for
// its owner alone.
//
// The Store always works. The warnings are for the operator: that an unreadable file was set aside, and under which name, or
// that the directory cannot be used.
func Open(dir, bootID string, booted time.Time) (*Store, []error) {
	f := recordFile(dir)
	s := &Store{save: f.write, bootID: bootID, booted: booted.Round(0)}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return s, []error{fmt.Errorf("creating the state directory %s: %w", dir, err)}
	}
	content, warnings := load[recordContent](f, "record", "nth starts with an empty record")
	s.replace(content.Entries)
	s.inService = content.InService
	if content.BootID == bootID && !content.Booted.IsZero() {
		s.booted = content.Booted
	}
	return s, warnings
}

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
	s.unwritten = append(s.unwritten, written)
	s.startWriter()
}

// startWriter starts the writer unless it is running. s.mu is held.
func (s *Store) startWriter() {
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

// Put adds entries, all in one step; each replaces an older one of the same event. Entries without a boot ID get the present
// one. They are in memory when Put returns, and are written in the background.
//
// written, which may be nil, is called once: with nil when all of them are on disk, else with the error. Invalid entries and
// those that cannot be encoded are refused, and the others are taken. If none is left, written is called before Put returns;
// otherwise by the writer, which it must not block. After a failed write the next Put writes again, even one without entries.
func (s *Store) Put(written func(error), entries ...state.Entry) {
	if written == nil {
		written = func(error) {}
	}
	taken, refused := s.check(entries)
	s.mu.Lock()
	if len(taken) == 0 && (refused != nil || s.failed == nil) {
		s.mu.Unlock()
		written(refused)
		return
	}
	defer s.mu.Unlock()
	s.replace(taken)
	s.forget(taken)
	ids := make([]string, len(taken))
	for i, e := range taken {
		ids[i] = strconv.Quote(e.Event.ID)
	}
	s.unwritten = append(s.unwritten, func(err error) {
		if err != nil {
			err = fmt.Errorf("recording event %s: %w", strings.Join(ids, ", "), err)
		}
		written(errors.Join(refused, err))
	})
	s.startWriter()
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
	if s.failed != nil {
		return fmt.Errorf("writing the record: %w", s.failed)
	}
	return nil
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
		for _, written := range callbacks {
			written(err)
		}
		s.mu.Lock()
		s.failed = err
	}
	close(s.idle)
	s.idle = nil
}

// check returns copies of the entries that can be written, and why the others are refused.
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

// replace inserts entries in their order, and drops older ones of the same events.
func (s *Store) replace(entries []state.Entry) {
	for _, e := range entries {
		s.drop(e.Event.ID)
		at, _ := slices.BinarySearchFunc(s.entries, e, func(a, b state.Entry) int {
			return cmp.Or(a.FirstSeen.Compare(b.FirstSeen), cmp.Compare(a.Event.ID, b.Event.ID))
		})
		s.entries = slices.Insert(s.entries, at, e)
	}
}

func (s *Store) drop(id string) {
	s.entries = slices.DeleteFunc(s.entries, func(e state.Entry) bool { return e.Event.ID == id })
}

// forget drops closed entries beyond maxClosed, those that changed longest ago, and removes the names of pods from the others:
// nobody needs them any more, and hundreds of entries with hundreds of names each are too much for one file. The entries of the
// last Put stay as they are, even if the clock was set back.
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
	if err := sameVersion(c.Version, version); err != nil {
		return err
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

// sameVersion returns an error if a file has another version than ours.
func sameVersion(found, ours int) error {
	if found != ours {
		return fmt.Errorf("the file has version %d, this nth reads version %d", found, ours)
	}
	return nil
}

// file is a file that is replaced as a whole, so that a reader finds the old content or the new one.
type file struct {
	dir, name string
	// public: anybody may read it, and it need not survive a power cut. Otherwise only its owner may read it, and it is on disk
	// when write returns.
	public bool
}

func (f file) path() string { return filepath.Join(f.dir, f.name) }

// load returns the content of a file; that of a missing file is empty. A file that cannot be read as ours is set aside, with a
// warning: what the file is, its new name, and what follows from that. Temporary files that a killed writer left are removed.
func load[C interface{ valid() error }](f file, what, follows string) (C, []error) {
	f.sweep()
	content, err := read[C](f)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return content, nil
	}
	warning := fmt.Errorf("reading the %s %s: %w", what, f.path(), err)
	aside, err := f.setAside()
	if err != nil {
		return content, []error{warning, fmt.Errorf("setting the %s aside: %w", what, err)}
	}
	return content, []error{fmt.Errorf("%w; it is now %s, and %s", warning, aside, follows)}
}

// read returns the content of a file. The error of a missing file is fs.ErrNotExist.
func read[C interface{ valid() error }](f file) (content C, err error) {
	text, err := f.text()
	if err != nil {
		return content, err
	}
	var found C
	if err := json.Unmarshal(text, &found); err != nil {
		return content, fmt.Errorf("decoding JSON: %w", err)
	}
	if err := found.valid(); err != nil {
		return content, err
	}
	return found, nil
}

func (f file) text() ([]byte, error) {
	info, err := os.Lstat(f.path())
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", f.path())
	case info.Size() == 0:
		return nil, errors.New("the file is empty")
	case info.Size() > maxFile:
		return nil, fmt.Errorf("the file is larger than %d bytes", maxFile)
	}
	return os.ReadFile(f.path())
}

// write replaces the content of the file, or leaves everything as it was. Content that read would reject as too large is not
// written.
func (f file) write(content any) error {
	text, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	if len(text) >= maxFile {
		return fmt.Errorf("%s would be larger than %d bytes", f.path(), maxFile)
	}
	mode := os.FileMode(0o700)
	if f.public {
		mode = 0o755
	}
	if err := os.MkdirAll(f.dir, mode); err != nil {
		return err
	}
	temp, err := f.writeTemporary(append(text, '\n'))
	if err != nil {
		return err
	}
	if err := os.Rename(temp, f.path()); err != nil {
		_ = os.Remove(temp)
		return err
	}
	if f.public {
		return nil
	}
	dir, err := os.Open(f.dir) // Without a sync of the directory, the rename may not survive a power cut.
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// writeTemporary writes a temporary file in the same directory and returns its path.
func (f file) writeTemporary(text []byte) (path string, err error) {
	temp, err := os.CreateTemp(f.dir, f.name+temporary) // Mode 0600.
	if err != nil {
		return "", err
	}
	_, err = temp.Write(text)
	if err == nil && f.public {
		err = temp.Chmod(0o644) // The service's umask is stricter.
	} else if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		_ = os.Remove(temp.Name())
	}
	return temp.Name(), err
}

// sweep removes temporary files that a killed writer left behind.
func (f file) sweep() {
	left, _ := fs.Glob(os.DirFS(f.dir), f.name+temporary+"*")
	for _, name := range left {
		_ = os.Remove(filepath.Join(f.dir, name)) // Only to tidy up.
	}
}

// setAside renames the file to a free name and returns the new path. It removes the oldest files that were set aside before.
func (f file) setAside() (string, error) {
	var numbers []int
	names, _ := fs.Glob(os.DirFS(f.dir), f.name+broken+"*")
	for _, name := range names {
		if n, err := strconv.Atoi(strings.TrimPrefix(name, f.name+broken)); err == nil && n > 0 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	next := 1
	if len(numbers) > 0 {
		next = numbers[len(numbers)-1] + 1
	}
	numbered := func(n int) string { return f.path() + broken + strconv.Itoa(n) }
	if err := os.Rename(f.path(), numbered(next)); err != nil {
		return "", err
	}
	for ; len(numbers) >= maxBroken; numbers = numbers[1:] {
		_ = os.RemoveAll(numbered(numbers[0])) // Only to tidy up.
	}
	return numbered(next), nil
}

// Writable returns an error if files cannot be written in a directory, or the directory cannot be created. It changes nothing.
func Writable(dir string) error {
	for at := dir; ; at = filepath.Dir(at) {
		_, err := os.Stat(at)
		if errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
			continue // The directory above must allow to create it.
		}
		var path string
		if err == nil {
			path, err = recordFile(at).writeTemporary([]byte("nth\n"))
		}
		if err == nil {
			err = os.Remove(path)
		}
		if err != nil {
			return fmt.Errorf("writing to %s: %w", at, err)
		}
		return nil
	}
}
