package record

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Board is where the daemon's status is shown: the file status.json in the runtime directory, which anybody may read.
// Unlike the record it need not survive anything, and nobody waits for it.
type Board struct {
	dir string
	// newest holds the status that has not been written yet, if there is one.
	newest  chan Status
	trouble func(error)
}

// NewBoard returns a board in the runtime directory dir. trouble is called from Run with the first error of a series.
func NewBoard(dir string, trouble func(error)) *Board {
	return &Board{dir: dir, newest: make(chan Status, 1), trouble: trouble}
}

// Show hands a status over to Run, which passes over those that are replaced before it comes to them. It does not block.
// It is called from one goroutine, which must not change what the status refers to.
func (b *Board) Show(s Status) {
	select {
	case <-b.newest:
	default:
	}
	b.newest <- s // There is room: nobody else puts.
}

// Run writes what is shown until ctx ends, and then what was shown last.
func (b *Board) Run(ctx context.Context) {
	wrong := false
	write := func(s Status) {
		err := b.write(s)
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

// write puts the status in the place of the last one, so that a reader finds either.
func (b *Board) write(s Status) error {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	path := filepath.Join(b.dir, statusFile)
	beside := path + ".new" // What a writer that was killed left there is overwritten.
	if err := os.WriteFile(beside, append(content, '\n'), 0o644); err != nil {
		return err
	}
	if err := os.Chmod(beside, 0o644); err != nil { // The service's umask is stricter.
		return err
	}
	return os.Rename(beside, path)
}
