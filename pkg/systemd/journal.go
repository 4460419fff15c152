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

// fieldIdentifier is the journal's field for the name of the program.
const fieldIdentifier = "SYSLOG_IDENTIFIER"

// OnJournal reports whether standard error is connected to the journal, as it is in a service of systemd.
func OnJournal() bool {
	connected, err := journal.StderrIsJournalStream()
	return err == nil && connected
}

// JournalHook is a logrus hook that sends entries to the journal. Of an entry's fields, NTH_*, MESSAGE_ID and SYSLOG_IDENTIFIER become fields
// in the journal. The hook appends the others to the message as key=value.
type JournalHook struct {
	// Identifier is the program's name, by which "journalctl -t" finds its entries.
	Identifier string
	// Send sends one entry. Priorities are those of syslog(3).
	Send func(message string, priority int, fields map[string]string) error
	// Fallback gets each entry that could not be sent, as lines that begin with "<priority>": systemd understands those on standard error.
	// With nil, such an entry is dropped.
	Fallback io.Writer

	sender sender
}

// NewJournalHook returns a hook for the local journal. identifier and fallback are the fields of the same name; fallback is usually standard
// error.
func NewJournalHook(identifier string, fallback io.Writer) *JournalHook {
	return &JournalHook{Identifier: identifier, Send: sendToJournal, Fallback: fallback}
}

// sendToJournal is JournalHook.Send for the local journal.
func sendToJournal(message string, priority int, fields map[string]string) error {
	return journal.Send(message, journal.Priority(priority), fields)
}

// Levels implements logrus.Hook, for all levels.
func (h *JournalHook) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook. It never returns an error: what the journal refuses goes to Fallback. It waits sendTimeout at most:
// entries for a journal that hangs are queued. Those for which the queue has no space are lost, and counted.
func (h *JournalHook) Fire(entry *logrus.Entry) error {
	fields := map[string]string{fieldIdentifier: h.Identifier}
	message := strings.TrimRight(entry.Message, "\n")
	for _, name := range slices.Sorted(maps.Keys(entry.Data)) {
		value := fmt.Sprint(entry.Data[name])
		if forJournal(name) {
			fields[name] = value
		} else {
			message += " " + name + "=" + quoteIfNeeded(value)
		}
	}
	h.sender.send(datagram{message: message, priority: priorityOf(entry.Level), fields: fields}, h.sendEntry)
	return nil
}

// sendEntry sends a queued entry to the journal, or to Fallback if the journal refuses it; the sender calls it. In place of entries that were
// lost, it sends their number.
func (h *JournalHook) sendEntry(d datagram) {
	if d.lost > 0 {
		d.message, d.priority = fmt.Sprintf("the journal did not accept messages in time, and lost %d", d.lost), int(journal.PriWarning)
		d.fields = map[string]string{fieldIdentifier: h.Identifier, FieldMessageID: MessagesLost}
	}
	if err := h.Send(d.message, d.priority, d.fields); err != nil && h.Fallback != nil {
		_, _ = io.WriteString(h.Fallback, prefixed(d.message, d.priority)) // An error of the last resort has nowhere to go.
	}
}

// forJournal reports whether a logrus field becomes a field in the journal. The journal accepts names of up to 64 capital letters, digits and
// underscores; go-systemd does not check that.
func forJournal(name string) bool {
	if name == FieldMessageID || name == fieldIdentifier {
		return true
	}
	rest, ofNth := strings.CutPrefix(name, "NTH_")
	forbidden := func(r rune) bool { return r != '_' && (r < 'A' || r > 'Z') && (r < '0' || r > '9') }
	return ofNth && rest != "" && len(name) <= 64 && !strings.ContainsFunc(rest, forbidden)
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

// quoteIfNeeded returns a value as it stands in "key=value": in quotation marks if it is empty, or has blanks or the like.
func quoteIfNeeded(value string) string {
	special := func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) || r == '"' || r == '=' }
	if value == "" || strings.ContainsFunc(value, special) {
		return strconv.Quote(value)
	}
	return value
}
