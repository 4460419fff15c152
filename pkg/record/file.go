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

// file is a JSON file that is replaced as a whole, so that a reader finds the old content or the new content.
type file struct {
	dir, name string
	// public: anybody may read the file, and it need not survive a power cut. Otherwise only its owner may read it, and it is on disk
	// when write returns.
	public bool
}

func (f file) path() string { return filepath.Join(f.dir, f.name) }

// read decodes the file into content, and checks that with content.valid. The error of a missing file is fs.ErrNotExist.
func (f file) read(content interface{ valid() error }) error {
	info, err := os.Lstat(f.path())
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular(): // A pipe, for example, would never end.
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

// write replaces the content of the file, and creates a missing directory. Even after an error, a reader finds the old content or the new content.
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
	dir, err := os.Open(f.dir) // The rename survives a power cut only after a sync of the directory.
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// writeTemporary writes text to a temporary file in the same directory, and syncs it unless the file is public. It returns the temporary file's path,
// also with an error, so that the caller can remove what was written.
func (f file) writeTemporary(text []byte) (path string, err error) {
	path = f.path() + ".tmp"
	_ = os.RemoveAll(path) // A killed process may have left one. If it cannot be removed, OpenFile returns an error.
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

// Writable returns why files cannot be written in a directory; nil if they can. If the directory is missing, Writable judges the nearest directory
// above that exists, in which the missing one has to be created. It tries with a file that it removes again.
func Writable(dir string) error {
	_, err := os.Stat(dir)
	for errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		_, err = os.Stat(dir)
	}
	var path string
	if err == nil {
		path, err = file{dir: dir, name: "nth-check"}.writeTemporary([]byte("nth\n"))
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("writing to %s: %w", dir, err)
	}
	return nil
}
