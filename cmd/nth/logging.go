package main

import (
	"errors"
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

// newLogger returns the logger that the settings ask for. Everything it writes that does not go to the journal goes
// to stderr.
func newLogger(cfg config.Log, stderr io.Writer) *logrus.Logger {
	logger := logrus.New()
	logger.SetOutput(stderr)
	setLevel(logger, cfg)
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

func setLevel(logger *logrus.Logger, cfg config.Log) {
	if level, err := logrus.ParseLevel(cfg.Level); err == nil {
		logger.SetLevel(level)
	}
}

// onJournal tells whether stderr is this process's own and connected to the journal.
func onJournal(stderr io.Writer) bool { return stderr == os.Stderr && systemd.OnJournal() }

// complain writes what ends the program: to the journal with its priority if stderr leads there, else as it is.
func complain(stderr io.Writer, err error) {
	_, wrongConfig := errors.AsType[configError](err)
	switch {
	case onJournal(stderr):
		complainTo(logrus.NewEntry(newLogger(config.Default().Log, stderr)), err)
	case wrongConfig: // Every line begins with the name of a file.
		fmt.Fprintln(stderr, err)
	default:
		fmt.Fprintln(stderr, "nth:", err)
	}
}

// complainTo logs what ends the program, line by line.
func complainTo(entry *logrus.Entry, err error) {
	if _, wrongConfig := errors.AsType[configError](err); wrongConfig {
		entry = entry.WithField(systemd.FieldMessageID, systemd.ConfigInvalid)
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
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
