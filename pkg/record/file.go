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
	// temporary and broken follow the name of a file in the names of files beside it: not yet, and no longer, that file.
	temporary = ".tmp-"
	broken    = ".broken-"
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
	content, err := contentOf(path)
	if err != nil {
		return state{}, err
	}
	return parse(content)
}

// contentOf returns what is in a file of ours, and at most one byte more than longest of it.
func contentOf(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // Nothing was written.
	return io.ReadAll(io.LimitReader(file, longest+1))
}

// parse judges the content of a state file as a whole: what nth wrote is right to the last entry, so anything else is
// not ours.
func parse(content []byte) (state, error) {
	var s state
	if err := decode(content, &s); err != nil {
		return state{}, err
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

// decode reads the JSON of a file of ours.
func decode(content []byte, into any) error {
	if len(content) == 0 {
		return errors.New("the file is empty")
	}
	if len(content) > longest {
		return fmt.Errorf("the file is larger than %d bytes", longest)
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("decoding JSON: %w", err)
	}
	return nil
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

// replace puts content in the place of a file in dir, whole and durable, or leaves everything as it was.
func replace(dir, name string, content []byte) (err error) {
	file, err := os.CreateTemp(dir, name+temporary) // Mode 0600.
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
	if err = os.Rename(file.Name(), filepath.Join(dir, name)); err != nil {
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

// setAside renames a file in dir to a name that is free, forgets the oldest of those that were set aside before, and
// returns the new name.
func setAside(dir, name string) (string, error) {
	numbers := brokenNumbers(dir, name)
	next := 1
	if len(numbers) > 0 {
		next = numbers[len(numbers)-1] + 1
	}
	path := filepath.Join(dir, name+broken+strconv.Itoa(next))
	if err := os.Rename(filepath.Join(dir, name), path); err != nil {
		return "", err
	}
	for ; len(numbers) >= keepBroken; numbers = numbers[1:] {
		_ = os.RemoveAll(filepath.Join(dir, name+broken+strconv.Itoa(numbers[0]))) // Tidiness, not worth a word.
	}
	return path, nil
}

// brokenNumbers lists the numbers under which a file in dir was set aside, the oldest first.
func brokenNumbers(dir, name string) []int {
	var numbers []int
	for _, aside := range names(dir, name+broken) {
		if n, err := strconv.Atoi(strings.TrimPrefix(aside, name+broken)); err == nil && n > 0 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// sweep removes what a writer of a file in dir that was killed has left behind.
func sweep(dir, name string) {
	for _, left := range names(dir, name+temporary) {
		_ = os.Remove(filepath.Join(dir, left)) // Tidiness, not worth a word.
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
