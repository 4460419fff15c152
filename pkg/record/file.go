package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	// maxFile is the largest file, in bytes, that is read or written: far more than maxClosed entries need.
	maxFile = 32 << 20
	// temporary is what a file's name ends in while it is written, and broken what it ends in when it has been set aside.
	temporary = ".tmp-"
	broken    = ".broken"
)

// file is a file that is replaced as a whole, so that a reader finds the old content or the new one.
type file struct {
	dir, name string
	// public: anybody may read it, and it need not survive a power cut. Otherwise only its owner may read it, and it is on disk
	// when write returns.
	public bool
}

func (f file) path() string { return filepath.Join(f.dir, f.name) }

// versionError is a file of another version than ours.
type versionError struct{ found, ours int }

func (e versionError) Error() string {
	return fmt.Sprintf("the file has version %d, this nth reads version %d", e.found, e.ours)
}

// read reads the content of a file. The error of a missing file is fs.ErrNotExist.
func (f file) read(content interface{ valid() error }) error {
	info, err := os.Lstat(f.path())
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", f.path())
	case info.Size() == 0:
		return errors.New("the file is empty")
	case info.Size() > maxFile:
		return fmt.Errorf("the file is larger than %d bytes", maxFile)
	}
	text, err := os.ReadFile(f.path())
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, content); err != nil {
		return fmt.Errorf("decoding JSON: %w", err)
	}
	return content.valid()
}

// write replaces the content of the file. Even after an error, a reader finds the old content or the new one. It refuses content that read would
// reject as too large.
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

// setAside renames a broken file, for an operator to look at. It removes the one that was set aside before. The result is never nil: it says what
// has become of the file, for the end of a warning.
func (f file) setAside() error {
	aside := f.path() + broken
	_ = os.RemoveAll(aside) // If this fails, Rename may fail, too, and says why.
	if err := os.Rename(f.path(), aside); err != nil {
		return fmt.Errorf("setting it aside: %w", err)
	}
	return fmt.Errorf("it is now %s", aside)
}

// Writable returns an error if files cannot be written in a directory, or the directory cannot be created. It tries that with a file that it
// removes again.
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
