package metrics

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/common/expfmt"
)

// The file is written when something has changed, at most once in pause, and every refresh if nothing has: its age tells
// whether nth is there.
const (
	pause   = time.Second
	refresh = 15 * time.Second
	// lastWrite is how long the file is waited for at the end.
	lastWrite = 2 * time.Second
)

// fileUntil keeps the file until ctx ends. A disk that hangs keeps nobody from stopping.
func (m *Metrics) fileUntil(ctx context.Context) {
	written := make(chan struct{})
	go func() {
		defer close(written)
		m.keepFile(ctx)
	}()
	<-ctx.Done()
	select {
	case <-written:
	case <-time.After(lastWrite): // What it would say is of no use to anybody who waits for it.
	}
}

// keepFile writes the file until ctx ends, and once more then.
func (m *Metrics) keepFile(ctx context.Context) {
	write := func() { m.writing.of(m.writeFile()) }
	defer write()
	ticks := time.NewTicker(refresh)
	defer ticks.Stop()
	for {
		write()
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
		case <-ticks.C:
		}
	}
}

// writeFile puts the present metrics in the place of the last ones, so that a reader finds either. It is not made to
// survive a power cut: what it says would be wrong afterwards.
//
// What is read from the process is left out: node_exporter answers with its own series of these names, and refuses to
// answer at all if a file has them, too.
func (m *Metrics) writeFile() error {
	families, err := m.own.Gather()
	if err != nil {
		return fmt.Errorf("gathering metrics: %w", err)
	}
	// node_exporter reads names that end with .prom. What a writer that was killed has left is in the way of O_EXCL,
	// which makes sure that nobody else's link is followed.
	beside := m.opts.Textfile + ".new"
	if err := os.Remove(beside); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("writing metrics: %w", err)
	}
	file, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("writing metrics: %w", err)
	}
	encoder := expfmt.NewEncoder(file, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, family := range families {
		err = errors.Join(err, encoder.Encode(family))
	}
	err = errors.Join(err, file.Chmod(0o644), file.Close()) // The service's umask is stricter.
	if err == nil {
		err = os.Rename(beside, m.opts.Textfile)
	}
	if err != nil {
		return fmt.Errorf("writing metrics: %w", errors.Join(err, os.Remove(beside)))
	}
	return nil
}
