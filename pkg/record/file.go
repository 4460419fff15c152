package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// maxFile is the largest file, in bytes, that is read: far more than maxClosed entries need.
const maxFile = 32 << 20

// file is a file that is replaced as a whole, so that a reader finds the old content or the new one.
type file struct {
	dir, name string
	// public: anybody may read it, and it need not survive a power cut. Otherwise only its owner may read it, and it is on disk
	// when write returns.
	public bool
}

func (f file) path() string { return filepath.Join(f.dir, f.name) }

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

// write replaces the content of the file. Even after an error, a reader finds the old content or the new one.
func (f file) write(content any) error {
	text, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	mode := os.FileMode(0o700)
	if f.public {
		mode = 0o755
	}
	if err := os.MkdirAll(f.dir, mode); err != nil {
		return err
	}
	temp, err := f.writeTemporary(append(text, '\n'))
	if err == nil {
		err = os.Rename(temp, f.path())
	}
	if err != nil {
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

// writeTemporary writes a temporary file in the same directory and returns its path. One that a killed writer has left is replaced.
func (f file) writeTemporary(text []byte) (path string, err error) {
	path = f.path() + ".tmp"
	_ = os.RemoveAll(path)
	temp, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return path, err
	}
	_, err = temp.Write(text)
	if err == nil && f.public {
		err = temp.Chmod(0o644) // The service's umask is stricter.
	} else if err == nil {
		err = temp.Sync()
	}
	return path, errors.Join(err, temp.Close())
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
			path, err = file{dir: at, name: "nth-check"}.writeTemporary([]byte("nth\n"))
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
