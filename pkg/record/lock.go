package record

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RunningError says that another process has the lock of a runtime directory.
type RunningError struct{ PID int }

func (e RunningError) Error() string { return fmt.Sprintf("nth already runs (pid %d)", e.PID) }

// Lock makes this process the only daemon with the runtime directory dir, until the process ends or the caller closes the lock. The error wraps a
// RunningError if another process has the lock. The kernel releases the lock of a process that is killed.
func Lock(dir string) (io.Closer, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot create and lock the runtime directory: %w", err)
	}
	file, err := os.OpenFile(lockPath(dir), os.O_RDWR|os.O_CREATE, 0o644)
	if err == nil {
		err = unix.FcntlFlock(file.Fd(), unix.F_SETLK, wholeFile())
		if err == nil {
			return file, nil
		}
		_ = file.Close() // Nothing was written.
	}
	// Another user's daemon also explains why the file cannot be opened.
	if pid := Holder(dir); pid != 0 {
		err = RunningError{pid}
	}
	return nil, fmt.Errorf("cannot lock the runtime directory %s: %w", dir, err)
}

// Holder returns the ID of the process that has the lock of the runtime directory dir; 0 if no other process has the lock, or if the lock cannot be
// read. The process that has the lock must not call Holder: by closing the file, it would release the lock (fcntl(2)).
func Holder(dir string) int {
	file, err := os.Open(lockPath(dir))
	if err != nil {
		return 0
	}
	defer func() { _ = file.Close() }() // Nothing was written.

	// The kernel replaces lock with the lock that is in the way, or sets Type to F_UNLCK if there is none.
	lock := wholeFile()
	if err := unix.FcntlFlock(file.Fd(), unix.F_GETLK, lock); err != nil || lock.Type == unix.F_UNLCK {
		return 0
	}
	return int(lock.Pid)
}

// lockPath returns the path of the lock in a runtime directory.
func lockPath(dir string) string { return filepath.Join(dir, "nth.lock") }

// wholeFile describes a write lock on a whole file, for fcntl(2).
func wholeFile() *unix.Flock_t { return &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart} }
