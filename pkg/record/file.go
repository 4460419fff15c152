package record

import (
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
)

const (
	// fileName is the state file's name in the state directory.
	fileName = "record.json"
	// version is the format of the file. A change that an older nth would misread takes the next number.
	version = 1
	// longest is the largest file that is read as ours: far above what keepClosed entries need.
	longest = 16 << 20
	// temporary and broken begin the names of files beside the state file: not yet, and no longer, the record.
	temporary = fileName + ".tmp-"
	broken    = fileName + ".broken-"
	// keepBroken is how many files that were set aside are kept.
	keepBroken = 4
)

// state is the content of the file.
type state struct {
	Version int `json:"version"`
	// BootID is the boot in which the file was last written.
	BootID  string  `json:"boot_id"`
	Entries []Entry `json:"entries"`
}

// read returns the content of a state file. A missing file is an error that is fs.ErrNotExist.
func read(path string) (state, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return state{}, err
	}
	if !info.Mode().IsRegular() {
		return state{}, fmt.Errorf("%s is not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return state{}, err
	}
	defer func() { _ = file.Close() }() // Nothing was written.
	content, err := io.ReadAll(io.LimitReader(file, longest+1))
	if err != nil {
		return state{}, err
	}
	return parse(content)
}

// parse judges the content of a state file as a whole: what nth wrote is right to the last entry, so anything else is
// not ours.
func parse(content []byte) (state, error) {
	if len(content) == 0 {
		return state{}, errors.New("the file is empty")
	}
	if len(content) > longest {
		return state{}, fmt.Errorf("the file is larger than %d bytes", longest)
	}
	var s state
	if err := json.Unmarshal(content, &s); err != nil {
		return state{}, fmt.Errorf("decoding JSON: %w", err)
	}
	if s.Version != version {
		return state{}, fmt.Errorf("the file has version %d, this nth writes version %d", s.Version, version)
	}
	seen := make(map[string]bool, len(s.Entries))
	for i, e := range s.Entries {
		if err := e.valid(); err != nil {
			return state{}, fmt.Errorf("entry %d: %w", i, err)
		}
		if seen[e.Event.ID] {
			return state{}, fmt.Errorf("entry %d: the event %q is there twice", i, e.Event.ID)
		}
		seen[e.Event.ID] = true
	}
	return s, nil
}

// valid tells what keeps an entry from being one of ours.
func (e Entry) valid() error {
	if e.Event.ID == "" {
		return errors.New("the event has no ID")
	}
	switch e.Phase {
	case Seen, Cordoning, Cordoned, Draining, Drained, Incomplete, Undoing, Closed:
		return nil
	}
	return fmt.Errorf("the phase %q is unknown", e.Phase)
}

// replace puts content in the place of dir's state file, whole and durable, or leaves everything as it was.
func replace(dir string, content []byte) (err error) {
	file, err := os.CreateTemp(dir, temporary) // Mode 0600.
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err = os.Rename(file.Name(), filepath.Join(dir, fileName)); err != nil {
		return err
	}
	return syncDirectory(dir)
}

// syncDirectory makes a rename in dir survive a power cut.
func syncDirectory(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// setAside renames dir's state file to a name that is free, forgets the oldest of those that were set aside before, and
// returns the new name.
func setAside(dir string) (string, error) {
	numbers := brokenNumbers(dir)
	next := 1
	if len(numbers) > 0 {
		next = numbers[len(numbers)-1] + 1
	}
	path := filepath.Join(dir, broken+strconv.Itoa(next))
	if err := os.Rename(filepath.Join(dir, fileName), path); err != nil {
		return "", err
	}
	for ; len(numbers) >= keepBroken; numbers = numbers[1:] {
		_ = os.RemoveAll(filepath.Join(dir, broken+strconv.Itoa(numbers[0]))) // Tidiness, not worth a word.
	}
	return path, nil
}

// brokenNumbers lists the numbers of the files that were set aside in dir, the oldest first.
func brokenNumbers(dir string) []int {
	var numbers []int
	for _, name := range names(dir, broken) {
		if n, err := strconv.Atoi(strings.TrimPrefix(name, broken)); err == nil && n > 0 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// sweep removes what a writer that was killed has left behind.
func sweep(dir string) {
	for _, name := range names(dir, temporary) {
		_ = os.Remove(filepath.Join(dir, name)) // Tidiness, not worth a word.
	}
}

// names lists what in dir has a name with that prefix; a directory that cannot be read has nothing.
func names(dir, prefix string) []string {
	var found []string
	entries, err := fs.ReadDir(os.DirFS(dir), ".")
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			found = append(found, entry.Name())
		}
	}
	return found
}
