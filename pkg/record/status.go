package record

import (
	"context"
	"fmt"
	"os"

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

// StatusFile shows the daemon's status in the file status.json in the runtime directory, which anybody may read. Unlike the
// record it need not survive a power cut.
type StatusFile struct {
	file file
	// newest holds the status that has not been written yet, if there is one.
	newest  chan state.Status
	trouble func(error) // see NewStatusFile
}

// NewStatusFile returns a status file in the runtime directory dir. Run calls trouble with the first of several errors in a row.
func NewStatusFile(dir string, trouble func(error)) *StatusFile {
	return &StatusFile{file: statusFile(dir), newest: make(chan state.Status, 1), trouble: trouble}
}

// Show hands a status over to Run, which writes only the newest. It does not block. All calls come from one goroutine, and nothing
// that the status refers to may change afterwards.
func (b *StatusFile) Show(s state.Status) {
	select {
	case <-b.newest: // Run has not taken the one before, which is old now.
	default:
	}
	b.newest <- s // It does not block: the channel has room for one, and only Show sends.
}

// Run writes what is shown until ctx ends, and then the last status if it is not written yet.
func (b *StatusFile) Run(ctx context.Context) {
	failed := false // the last write has failed
	write := func(s state.Status) {
		err := b.file.write(s)
		if err != nil {
			// A reader would take the old status for the present one. Removing a file works even on a full disk.
			_ = os.Remove(b.file.path())
			if !failed {
				b.trouble(fmt.Errorf("writing the status: %w", err))
			}
		}
		failed = err != nil
	}
	for ctx.Err() == nil {
		select {
		case s := <-b.newest:
			write(s)
		case <-ctx.Done():
		}
	}
	select {
	case s := <-b.newest:
		write(s)
	default:
	}
}
