package record

import (
	"cmp"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/state"
)

// ReadStatus returns the status that a daemon last wrote into the runtime directory, and when it did, by the machine's clock. The error of a
// missing file is fs.ErrNotExist.
func ReadStatus(dir string) (shown state.Status, written time.Time, err error) {
	f := statusFile(dir)
	var s status
	err = f.read(&s)
	info, statErr := os.Stat(f.path())
	if err = cmp.Or(err, statErr); err != nil {
		return state.Status{}, time.Time{}, fmt.Errorf("reading the status file %s: %w", f.path(), err)
	}
	return s.Status, info.ModTime(), nil
}

// status is the content of the file.
type status struct{ state.Status }

// valid returns an error for a status that another version of nth has written.
func (s status) valid() error {
	if s.Version != state.StatusVersion {
		return fmt.Errorf("the file has format version %d, but this program reads only version %d", s.Version, state.StatusVersion)
	}
	return nil
}

// statusFile returns the file of the status in a runtime directory.
func statusFile(dir string) file { return file{dir: dir, name: "status.json", public: true} }

// WriteStatus writes a status into the runtime directory dir. After an error no status is left, as a reader would take the old status for the present
// one.
func WriteStatus(dir string, s state.Status) error {
	f := statusFile(dir)
	if err := f.write(s); err != nil {
		_ = os.Remove(f.path()) // This works even on a full disk. The caller gets the error of the write.
		return fmt.Errorf("cannot write the status file, which only the command \"status\" reads: %w", err)
	}
	return nil
}

// StatusFile shows the daemon's status in the file status.json in the runtime directory, which anybody may read. Unlike the
// record, the status need not survive a power cut.
type StatusFile struct {
	dir     string
	trouble func(error) // see NewStatusFile
	writing sync.Mutex  // held during a write; guards failed
	failed  bool        // the last write has failed
}

// NewStatusFile returns a status file in the runtime directory dir. The status file calls trouble with the first of several errors in a row.
func NewStatusFile(dir string, trouble func(error)) *StatusFile {
	return &StatusFile{dir: dir, trouble: trouble}
}

// Show writes a status in the background. A status that comes during a write is skipped, as the next status comes soon. The last status, of a process
// that has stopped, is never skipped: Show returns when it is written. Nothing that the status refers to may change after the call.
func (f *StatusFile) Show(s state.Status) {
	if !s.Stopped.IsZero() {
		f.writing.Lock()
		f.writeAndUnlock(s)
	} else if f.writing.TryLock() {
		go f.writeAndUnlock(s)
	}
}

// writeAndUnlock writes a status, reports the first of several errors in a row, and unlocks f.writing, which the caller has locked.
func (f *StatusFile) writeAndUnlock(s state.Status) {
	defer f.writing.Unlock()
	err := WriteStatus(f.dir, s)
	if err != nil && !f.failed {
		f.trouble(err)
	}
	f.failed = err != nil
}
