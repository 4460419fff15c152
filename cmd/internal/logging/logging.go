// Package logging is how the project's programs write what they say: to the journal with its fields, or as lines for
// people or machines, as the settings ask. It also gives client-go, which logs by itself and has limits of its own, its
// place.
package logging

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/systemd"
)

// New returns the logger that the settings ask for. Everything it writes that does not go to the journal goes
// to stderr.
func New(cfg config.Log, stderr io.Writer) *logrus.Logger {
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
		logger.AddHook(systemd.NewJournalHook(stderr))
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

// Fatal writes what ends a program: to the journal with its priority if stderr leads there, else as it is. message is the
// ID of the kind of message; "" is none.
func Fatal(stderr io.Writer, message, text string) {
	if !onJournal(stderr) {
		fmt.Fprintln(stderr, text)
		return
	}
	Errors(New(config.Default().Log, stderr), message, text)
}

// Errors logs a text as errors, one for each of its lines.
func Errors(logger *logrus.Logger, message, text string) {
	entry := logrus.NewEntry(logger)
	if message != "" {
		entry = entry.WithField(systemd.FieldMessageID, message)
	}
	for line := range strings.SplitSeq(text, "\n") {
		entry.Error(line)
	}
}

// isTerminal tells whether a person watches.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
