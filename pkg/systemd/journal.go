package systemd

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/sirupsen/logrus"
)

// Identifier is the name under which entries are found with "journalctl -t".
const Identifier = "nth"

const fieldIdentifier = "SYSLOG_IDENTIFIER"

// OnJournal tells whether standard error is connected to the journal, as systemd does for a service.
func OnJournal() bool {
	connected, err := journal.StderrIsJournalStream()
	return err == nil && connected
}

// JournalHook is a logrus hook that writes entries straight to the journal, with their fields. Fields that are not
// meant for the journal (all but NTH_*, MESSAGE_ID and SYSLOG_IDENTIFIER) end up in the message as key=value.
type JournalHook struct {
	// Send writes one entry. Priorities are those of syslog(3).
	Send func(message string, priority int, fields map[string]string) error
	// Fallback takes what could not be sent as lines of text that begin with "<priority>", which systemd understands
	// on standard error too; nil drops it.
	Fallback io.Writer
}

// NewJournalHook returns a hook for the local journal that falls back to the given writer, usually standard error.
func NewJournalHook(fallback io.Writer) *JournalHook {
	return &JournalHook{
		Send: func(message string, priority int, fields map[string]string) error {
			return journal.Send(message, journal.Priority(priority), fields)
		},
		Fallback: fallback,
	}
}

// Levels makes logrus call the hook for everything.
func (h *JournalHook) Levels() []logrus.Level { return logrus.AllLevels }

// Fire writes one entry. It never returns an error: what the journal refuses goes to Fallback.
func (h *JournalHook) Fire(entry *logrus.Entry) error {
	fields := map[string]string{fieldIdentifier: Identifier}
	message := strings.TrimRight(entry.Message, "\n")
	for _, name := range slices.Sorted(maps.Keys(entry.Data)) {
		value := fmt.Sprint(entry.Data[name])
		if ForJournal(name) {
			fields[name] = value
		} else {
			message += " " + name + "=" + quoteIfNeeded(value)
		}
	}
	priority := priorityOf(entry.Level)
	if err := h.Send(message, priority, fields); err != nil && h.Fallback != nil {
		_, _ = io.WriteString(h.Fallback, prefixed(message, priority))
	}
	return nil
}

// ForJournal tells whether a logrus field goes into the journal as a field of its own. The journal takes no names but
// upper-case ones, and go-systemd would send others all the same.
func ForJournal(name string) bool {
	if name == FieldMessageID || name == fieldIdentifier {
		return true
	}
	rest, ours := strings.CutPrefix(name, "NTH_")
	other := func(r rune) bool { return r != '_' && (r < 'A' || r > 'Z') && (r < '0' || r > '9') }
	return ours && rest != "" && len(name) <= 64 && !strings.ContainsFunc(rest, other)
}

// prefixed begins every line with the priority, or else only the first would have it.
func prefixed(message string, priority int) string {
	var b strings.Builder
	for line := range strings.SplitSeq(message, "\n") {
		fmt.Fprintf(&b, "<%d>%s\n", priority, line)
	}
	return b.String()
}

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

func quoteIfNeeded(value string) string {
	plain := func(r rune) bool { return unicode.IsGraphic(r) && !unicode.IsSpace(r) && r != '"' && r != '=' }
	if value != "" && !strings.ContainsFunc(value, func(r rune) bool { return !plain(r) }) {
		return value
	}
	return strconv.Quote(value)
}
