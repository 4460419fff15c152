package systemd

import (
	"fmt"
	"io"
	"strings"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/sirupsen/logrus"
)

// fieldIdentifier is the journal's field for the name of the program.
const fieldIdentifier = "SYSLOG_IDENTIFIER"

// OnJournal reports whether standard error is connected to the journal, as it is in a service of systemd. It is false if that is unknown.
func OnJournal() bool {
	connected, err := journal.StderrIsJournalStream()
	return err == nil && connected
}

// JournalHook is a logrus hook that sends entries with their fields to the journal. The journal ignores a field unless its name consists of
// capital letters, digits and underscores.
type JournalHook struct {
	// Identifier is the program's name, by which "journalctl -t" finds its entries.
	Identifier string
	// Send sends one entry. Priorities are those of syslog(3).
	Send func(message string, priority int, fields map[string]string) error
	// Fallback gets each entry that could not be sent, as lines that begin with "<priority>": see Prefixed. If it is nil, such an entry is
	// lost.
	Fallback io.Writer

	sender sender
}

// NewJournalHook returns a hook for the local journal. identifier and fallback are for the fields Identifier and Fallback. fallback is usually
// standard error.
func NewJournalHook(identifier string, fallback io.Writer) *JournalHook {
	return &JournalHook{Identifier: identifier, Send: sendToJournal, Fallback: fallback}
}

// sendToJournal is JournalHook.Send for the local journal.
func sendToJournal(message string, priority int, fields map[string]string) error {
	return journal.Send(message, journal.Priority(priority), fields)
}

// Levels implements logrus.Hook, for all levels.
func (h *JournalHook) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook: it sends one entry, and always returns nil. An entry that the journal refuses goes to Fallback. Fire waits
// sendTimeout at most: entries for a journal that hangs are queued. An entry for which the queue has no space is lost.
func (h *JournalHook) Fire(entry *logrus.Entry) error {
	message, priority := strings.TrimRight(entry.Message, "\n"), priorityOf(entry.Level)
	fields := map[string]string{fieldIdentifier: h.Identifier}
	for name, value := range entry.Data {
		fields[name] = fmt.Sprint(value)
	}
	h.sender.send(func() {
		if err := h.Send(message, priority, fields); err != nil && h.Fallback != nil {
			_, _ = io.WriteString(h.Fallback, prefixed(message, priority)) // If the fallback fails, too, the entry is lost.
		}
	})
	return nil
}

// Prefixed begins every line of a message with "<priority>" (sd-daemon(3)). systemd understands such lines on the standard output and error
// of a service.
func Prefixed(message string, level logrus.Level) string { return prefixed(message, priorityOf(level)) }

// prefixed is Prefixed with a priority of syslog(3).
func prefixed(message string, priority int) string {
	var b strings.Builder
	for line := range strings.SplitSeq(message, "\n") {
		fmt.Fprintf(&b, "<%d>%s\n", priority, line)
	}
	return b.String()
}

// priorityOf returns the priority of syslog(3) for a level.
func priorityOf(level logrus.Level) int {
	switch level {
	case logrus.PanicLevel, logrus.FatalLevel:
		return int(journal.PriCrit)
	case logrus.ErrorLevel:
		return int(journal.PriErr)
	case logrus.WarnLevel:
		return int(journal.PriWarning)
	case logrus.InfoLevel:
		return int(journal.PriInfo)
	default:
		return int(journal.PriDebug)
	}
}
