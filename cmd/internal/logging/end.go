package logging

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/systemd"
)

// farewell is how long a program that ends waits for a journal that hangs.
const farewell = 5 * time.Second

// Complain returns what writes that an error ends the program of that name: to the journal with its priority if stderr
// leads there, else as it is.
func Complain(name string) func(stderr io.Writer, err error) {
	return func(stderr io.Writer, err error) {
		message, text := LastWords(err)
		if message == "" {
			text = name + ": " + text
		}
		if !onJournal(stderr) {
			fmt.Fprintln(stderr, text)
			return
		}
		Errors(New(name, config.Default().Log, stderr), message, text)
		systemd.AwaitJournal(farewell)
	}
}

// LastWords are the ID of the message that says what ended a program, or "", and its text. With wrong settings every line
// begins with the name of a file.
func LastWords(err error) (message, text string) {
	if _, wrongConfig := errors.AsType[program.ConfigError](err); wrongConfig {
		message = systemd.ConfigInvalid
	}
	return message, err.Error()
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
