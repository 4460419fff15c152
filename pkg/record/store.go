package record

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nth-project/nth/pkg/state"
)

const (
	// version is the format of the record. A change that an older nth would misread takes the next number; a new field,
	// which it passes over, does not.
	version = 1
	// longest is the largest file, in bytes, that is read as ours, and that is written: far above what keepClosed entries need.
	longest = 32 << 20
	// temporary and broken follow the name of a file in the names of files beside it: not yet, and no longer, that file.
	temporary = ".tmp-"
	broken    = ".broken-"
	// keepBroken is how many files that were set aside are kept.
	keepBroken = 4
	// keepClosed is how many closed entries are remembered beside the newest. They are forgotten by number, not by age: a
	// rebalance recommendation can stay announced for months after its entry was closed, and must not be met again as news.
	keepClosed = 256
)

// Store holds the entries, in memory and, a moment later, on disk. Its methods may be called from several goroutines, and
// only Open and Flush wait for the disk; the file belongs to one process.
type Store struct {
	// save puts the content in the place of what is on disk.
	save   func(content any) error
	bootID string

	mu sync.Mutex
	// entries are in the order of FirstSeen, and of ID where that is the same. What they refer to is never changed.
	entries []state.Entry
	// inService is the boot in which the machine was last known to be in its Auto Scaling group's service; empty if never.
	inService string
	// unwritten are called with what becomes of the next write, one for each Put that it is for.
	unwritten []func(error)
	// idle is closed when nothing is left to be written; nil while nobody writes.
	idle chan struct{}
	// failed is why the last write failed; nil if it did not.
	failed error
}

// Open reads the record in dir, which is created, for its owner alone, where it is missing; bootID is the present boot.
//
// The Store always works. The warnings tell what a person should know: that an unreadable file was set aside, and
// under which name, or that the directory is of no use.
func Open(dir, bootID string) (*Store, []error) {
	f := recordFile(dir)
	s := &Store{save: f.write, bootID: bootID}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return s, []error{fmt.Errorf("creating the state directory %s: %w", dir, err)}
	}
	content, warnings := load[recordContent](f, "record", "nth starts with an empty record")
	s.take(content.Entries)
	s.inService = content.InService
	return s, warnings
}

// InMemory returns an empty record that is written nowhere, for a rehearsal.
func InMemory(bootID string) *Store {
	return &Store{save: func(any) error { return nil }, bootID: bootID}
}

// WasInService tells whether the machine was in its Auto Scaling group's service in this boot, as far as is remembered.
func (s *Store) WasInService() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inService == s.bootID
}

// SetInService remembers that the machine is in its Auto Scaling group's service. written is called as by Put.
func (s *Store) SetInService(written func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inService = s.bootID
	s.unwritten = append(s.unwritten, written)
	s.begin()
}

// begin begins to write, unless that goes on. s.mu is held.
func (s *Store) begin() {
	if s.idle == nil {
		s.idle = make(chan struct{})
		go s.write()
	}
}

// recordFile is where the record is in the state directory.
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

// Put takes entries in, all in one step, each in the place of an older one of the same event. Those without a boot ID get
// the present one. They are in memory when Put returns, and are written beside the caller.
//
// written, which may be nil, is called once: with nil when all of them are on disk, else with why they are not. Entries
// that are not valid or cannot be encoded are refused, without harm to the others. If none is left, written is called
// before Put returns; otherwise by the writer, which it must not hold up. What could not be written is tried again with
// the next Put, be it one without any.
func (s *Store) Put(written func(error), entries ...state.Entry) {
	if written == nil {
		written = func(error) {}
	}
	taken, refused := s.judge(entries)
	s.mu.Lock()
	if len(taken) == 0 && (refused != nil || s.failed == nil) {
		s.mu.Unlock()
		written(refused)
		return
	}
	defer s.mu.Unlock()
	s.take(taken)
	s.forget(taken)
	what := events(taken)
	s.unwritten = append(s.unwritten, func(err error) {
		if err != nil {
			err = fmt.Errorf("recording event %s: %w", what, err)
		}
		written(errors.Join(refused, err))
	})
	s.begin()
}

// Flush waits until all that was put is on disk and whoever put it has been told. It returns why the last write failed, or
// that ctx has ended before.
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

// write brings the disk up to date until nothing is left to be written. There is one at a time, so that an older state
// never takes the place of a newer one, and what is put behind a slow disk is gathered into the next write.
func (s *Store) write() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.unwritten) > 0 {
		content := recordContent{Version: version, BootID: s.bootID, InService: s.inService, Entries: slices.Clone(s.entries)}
		told := s.unwritten
		s.unwritten = nil
		s.mu.Unlock()
		err := s.save(content)
		for _, tell := range told {
			tell(err)
		}
		s.mu.Lock()
		s.failed = err
	}
	close(s.idle)
	s.idle = nil
}

// judge returns copies of those entries that can be written, and why the others are refused.
func (s *Store) judge(entries []state.Entry) (taken []state.Entry, refused error) {
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

// events lists the events of entries, as errors name them.
func events(entries []state.Entry) string {
	quoted := make([]string, 0, len(entries))
	for _, e := range entries {
		quoted = append(quoted, strconv.Quote(e.Event.ID))
	}
	return strings.Join(quoted, ", ")
}

// take puts entries where they belong, each in the place of an older one of the same event.
func (s *Store) take(entries []state.Entry) {
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

// forget drops the closed entries that were changed longest ago, and of the others the names of pods: nobody asks for them
// any more, and hundreds of entries with hundreds of names each are too much for one file. Those that were put last stay as
// they are, whatever became of the clock.
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
	for ; len(closed) > keepClosed; closed = closed[1:] {
		s.drop(closed[0].Event.ID)
	}
}

// recordContent is the content of the file.
type recordContent struct {
	Version int `json:"version"`
	// BootID is the boot in which the file was last written.
	BootID string `json:"boot_id"`
	// InService is the last boot in which the machine was in its Auto Scaling group's service.
	InService string        `json:"in_service_in,omitempty"`
	Entries   []state.Entry `json:"entries"`
}

// valid judges the content of the file as a whole: what nth wrote is right to the last entry, so anything else is not
// ours.
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

// sameVersion tells what keeps a file of another version from being read.
func sameVersion(found, ours int) error {
	if found != ours {
		return fmt.Errorf("the file has version %d, this nth reads version %d", found, ours)
	}
	return nil
}

// file is a file of ours. It is read whole and replaced whole, so that a reader finds the old content or the new one.
type file struct {
	dir, name string
	// public: anybody may read it, and it may be lost with the machine's power. Otherwise it is for its owner alone, and
	// on disk when it has been written.
	public bool
}

// path is where the file is.
func (f file) path() string { return filepath.Join(f.dir, f.name) }

// load reads what was written last; a missing file holds nothing. What cannot be read as ours is set aside, and the
// warning says so: what the file is, where it is now, and what follows. What a killed writer left is removed.
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

// read returns the content of a file, or nothing and why. A missing file is an error that is fs.ErrNotExist.
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

// text returns what is in a file.
func (f file) text() ([]byte, error) {
	info, err := os.Lstat(f.path())
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", f.path())
	}
	open, err := os.Open(f.path())
	if err != nil {
		return nil, err
	}
	defer func() { _ = open.Close() }() // Nothing was written.
	text, err := io.ReadAll(io.LimitReader(open, longest+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) == 0:
		return nil, errors.New("the file is empty")
	case len(text) > longest:
		return nil, fmt.Errorf("the file is larger than %d bytes", longest)
	}
	return text, nil
}

// write puts content in the place of what the file holds, whole, or leaves everything as it was. What would not be read
// again is not written.
func (f file) write(content any) error {
	text, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	if len(text) >= longest {
		return fmt.Errorf("%s would be larger than %d bytes", f.path(), longest)
	}
	mode := os.FileMode(0o700)
	if f.public {
		mode = 0o755
	}
	if err := os.MkdirAll(f.dir, mode); err != nil {
		return err
	}
	beside, err := f.beside(append(text, '\n'))
	if err != nil {
		return err
	}
	if err := os.Rename(beside, f.path()); err != nil {
		_ = os.Remove(beside)
		return err
	}
	if f.public {
		return nil
	}
	dir, err := os.Open(f.dir) // Without this, the rename need not survive a power cut.
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// beside writes a temporary file in the same directory and returns its path.
func (f file) beside(text []byte) (path string, err error) {
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

// sweep removes what a writer that was killed has left behind.
func (f file) sweep() {
	left, _ := fs.Glob(os.DirFS(f.dir), f.name+temporary+"*")
	for _, name := range left {
		_ = os.Remove(filepath.Join(f.dir, name)) // Tidiness, not worth a word.
	}
}

// setAside renames the file to a name that is free, forgets the oldest of those that were set aside before, and returns
// the new path.
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
	for ; len(numbers) >= keepBroken; numbers = numbers[1:] {
		_ = os.RemoveAll(numbered(numbers[0])) // Tidiness, not worth a word.
	}
	return numbered(next), nil
}

// Writable tells what keeps a directory from being written to, or from being created; nil if nothing does. It leaves
// nothing behind.
func Writable(dir string) error {
	for at := dir; ; at = filepath.Dir(at) {
		_, err := os.Stat(at)
		if errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
			continue // It would be created in the one above.
		}
		var path string
		if err == nil {
			path, err = recordFile(at).beside([]byte("nth\n"))
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
