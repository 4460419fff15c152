package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Writable tells what keeps a directory from being written to, or from being created; nil if nothing does. It leaves
// nothing behind.
func Writable(dir string) error {
	for at := dir; ; at = filepath.Dir(at) {
		_, err := os.Stat(at)
		if errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
			continue // It would be created in the one above.
		}
		if err == nil {
			err = try(at)
		}
		if err != nil {
			return fmt.Errorf("writing to %s: %w", at, err)
		}
		return nil
	}
}

// try writes a file, syncs it and removes it.
func try(dir string) error {
	file, err := os.CreateTemp(dir, fileName+temporary)
	if err != nil {
		return err
	}
	_, err = file.WriteString("nth\n")
	return errors.Join(err, file.Sync(), file.Close(), os.Remove(file.Name()))
}
