// Package logging is how the project's programs write what they say: to the journal with its fields, or as lines for
// people or machines, as the settings ask. It also gives client-go, which logs by itself and has limits of its own, its
// place.
package logging

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/systemd"
)

// Begin returns the logger of a daemon of that name as New does, and gives client-go its place.
func Begin(name string, cfg config.Log, stderr io.Writer) (*logrus.Logger, error) {
	logger := New(name, cfg, stderr)
	QuietLibraries(logrus.NewEntry(logger))
	if err := HurryLibraries(); err != nil {
		return nil, fmt.Errorf("setting client-go's limits: %w", err)
	}
	return logger, nil
}

// New returns the logger that the settings ask for, of the program of that name. Everything it writes that does not go to
// the journal goes to stderr.
func New(name string, cfg config.Log, stderr io.Writer) *logrus.Logger {
	logger := logrus.New()
	logger.SetOutput(stderr)
	SetLevel(logger, cfg)
	switch {
	case cfg.Format == "json":
		logger.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano})
	case cfg.Format == "prefix":
		logger.SetFormatter(&lineFormatter{priority: true})
	case cfg.Format == "journal" || cfg.Format == "auto" && onJournal(stderr):
		// The journal takes entries with their fields; stderr is left for the time it does not answer.
		logger.SetOutput(io.Discard)
		logger.AddHook(systemd.NewJournalHook(name, stderr))
	default:
		logger.SetFormatter(newLineFormatter(stderr))
	}
	return logger
}

// SetLevel makes a logger say what the settings ask for, from now on.
func SetLevel(logger *logrus.Logger, cfg config.Log) {
	if level, err := logrus.ParseLevel(cfg.Level); err == nil {
		logger.SetLevel(level)
	}
}

// onJournal tells whether stderr is this process's own and connected to the journal.
func onJournal(stderr io.Writer) bool { return stderr == os.Stderr && systemd.OnJournal() }

// isTerminal tells whether a person watches.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
