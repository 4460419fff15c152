package record

import (
	"fmt"
	"os"
	"sync"

	"github.com/nth-project/nth/pkg/state"
)

// ReadStatus returns the status that a daemon last wrote into the runtime directory. The error of a missing file is
// fs.ErrNotExist.
func ReadStatus(dir string) (state.Status, error) {
	f := statusFile(dir)
	var s status
	if err := f.read(&s); err != nil {
		return state.Status{}, fmt.Errorf("reading the status %s: %w", f.path(), err)
	}
	return s.Status, nil
}

// status is the content of the file.
type status struct{ state.Status }

// valid refuses a status of another version.
func (s status) valid() error {
	if s.Version != state.StatusVersion {
		return fmt.Errorf("the file has version %d, this nth reads version %d", s.Version, state.StatusVersion)
	}
	return nil
}

func statusFile(dir string) file { return file{dir: dir, name: "status.json", public: true} }

// WriteStatus writes a status into the runtime directory dir. After an error there is none: a reader would take the old one for the present one.
func WriteStatus(dir string, s state.Status) error {
	f := statusFile(dir)
	if err := f.write(s); err != nil {
		_ = os.Remove(f.path()) // This works even on a full disk.
		return fmt.Errorf("writing the status: %w", err)
	}
	return nil
}

// StatusFile shows the daemon's status in the file status.json in the runtime directory, which anybody may read. Unlike the
// record it need not survive a power cut.
type StatusFile struct {
	dir     string
	trouble func(error) // see NewStatusFile
	// writing is held during a write, and guards failed: the last write has failed.
	writing sync.Mutex
	failed  bool
}

// NewStatusFile returns a status file in the runtime directory dir. It calls trouble with the first of several errors in a row.
func NewStatusFile(dir string, trouble func(error)) *StatusFile {
	return &StatusFile{dir: dir, trouble: trouble}
}

// Show writes a status in the background. It skips one that comes while another is being written, as the next comes soon. But it waits until the
// status of a process that has stopped is written. Nothing that the status refers to may change afterwards.
func (b *StatusFile) Show(s state.Status) {
	if !s.Stopped.IsZero() {
		b.writing.Lock()
		b.write(s)
	} else if b.writing.TryLock() {
		go b.write(s)
	}
}

// write writes a status, and releases b.writing.
func (b *StatusFile) write(s state.Status) {
	defer b.writing.Unlock()
	err := WriteStatus(b.dir, s)
	if err != nil && !b.failed {
		b.trouble(err)
	}
	b.failed = err != nil
}
