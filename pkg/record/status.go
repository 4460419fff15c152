package record

import (
	"context"
	"fmt"

	"github.com/nth-project/nth/pkg/state"
)

// ReadStatus reads what a daemon has written last into the runtime directory. A missing file is an error that is
// fs.ErrNotExist.
func ReadStatus(dir string) (state.Status, error) {
	f := statusFile(dir)
	s, err := read[status](f)
	if err != nil {
		return s.Status, fmt.Errorf("reading the status %s: %w", f.path(), err)
	}
	return s.Status, nil
}

// status is the content of the file.
type status struct{ state.Status }

func (s status) valid() error { return sameVersion(s.Version, state.StatusVersion) }

// statusFile is where the daemon's status is shown.
func statusFile(dir string) file { return file{dir: dir, name: "status.json", public: true} }

// StatusFile is where the daemon's status is shown: the file status.json in the runtime directory, which anybody may read.
// Unlike the record it need not survive anything, and nobody waits for it.
type StatusFile struct {
	file file
	// newest holds the status that has not been written yet, if there is one.
	newest  chan state.Status
	trouble func(error)
}

// NewStatusFile returns a board in the runtime directory dir. trouble is called from Run with the first error of a series.
func NewStatusFile(dir string, trouble func(error)) *StatusFile {
	return &StatusFile{file: statusFile(dir), newest: make(chan state.Status, 1), trouble: trouble}
}

// Show hands a status over to Run, which passes over those that are replaced before it comes to them. It does not block.
// It is called from one goroutine, which must not change what the status refers to.
func (b *StatusFile) Show(s state.Status) {
	select {
	case <-b.newest:
	default:
	}
	b.newest <- s // There is room: nobody else puts.
}

// Run writes what is shown until ctx ends, and then what was shown last.
func (b *StatusFile) Run(ctx context.Context) {
	b.file.sweep()
	wrong := false
	write := func(s state.Status) {
		err := b.file.write(s)
		if err != nil && !wrong {
			b.trouble(fmt.Errorf("writing the status: %w", err))
		}
		wrong = err != nil
	}
	for {
		select {
		case s := <-b.newest:
			write(s)
		case <-ctx.Done():
			select {
			case s := <-b.newest:
				write(s)
			default:
			}
			return
		}
	}
}
