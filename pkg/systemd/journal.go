package systemd

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/sirupsen/logrus"
)

const fieldIdentifier = "SYSLOG_IDENTIFIER"

// OnJournal tells whether standard error is connected to the journal, as systemd does for a service.
func OnJournal() bool {
	connected, err := journal.StderrIsJournalStream()
	return err == nil && connected
}

// JournalHook is a logrus hook that writes entries straight to the journal, with their fields. Fields that are not
// meant for the journal (all but NTH_*, MESSAGE_ID and SYSLOG_IDENTIFIER) end up in the message as key=value.
type JournalHook struct {
	// Identifier is the program's name, under which its entries are found with "journalctl -t".
	Identifier string
	// Send writes one entry. Priorities are those of syslog(3).
	Send func(message string, priority int, fields map[string]string) error
	// Fallback takes what could not be sent as lines of text that begin with "<priority>", which systemd understands
	// on standard error too; nil drops it.
	Fallback io.Writer

	begin   sync.Once
	courier courier
}

// NewJournalHook returns a hook of the program of that name for the local journal. It falls back to the given writer,
// usually standard error.
func NewJournalHook(identifier string, fallback io.Writer) *JournalHook {
	return &JournalHook{Identifier: identifier, Send: sendToJournal, Fallback: fallback}
}

func sendToJournal(message string, priority int, fields map[string]string) error {
	return journal.Send(message, journal.Priority(priority), fields)
}

// Levels makes logrus call the hook for everything.
func (h *JournalHook) Levels() []logrus.Level { return logrus.AllLevels }

// Fire writes one entry. It never returns an error: what the journal refuses goes to Fallback. It never waits for long
// either: what a journal that hangs does not take is kept and written later, and what is too much of that is counted.
func (h *JournalHook) Fire(entry *logrus.Entry) error {
	fields := map[string]string{fieldIdentifier: h.Identifier}
	message := strings.TrimRight(entry.Message, "\n")
	for _, name := range slices.Sorted(maps.Keys(entry.Data)) {
		value := fmt.Sprint(entry.Data[name])
		if ForJournal(name) {
			fields[name] = value
		} else {
			message += " " + name + "=" + quoteIfNeeded(value)
		}
	}
	h.begin.Do(func() { h.courier.deliver, h.courier.identifier = h.deliver, h.Identifier })
	h.courier.take(message, priorityOf(entry.Level), fields)
	return nil
}

// deliver is called for one entry at a time.
func (h *JournalHook) deliver(l letter) {
	if err := h.Send(l.message, l.priority, l.fields); err != nil && h.Fallback != nil {
		_, _ = io.WriteString(h.Fallback, prefixed(l.message, l.priority))
	}
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

// Prefixed begins every line of a message with "<priority>", which systemd understands on the standard output and error
// of a service. With the first line alone, the others would have none.
func Prefixed(message string, level logrus.Level) string { return prefixed(message, priorityOf(level)) }

func prefixed(message string, priority int) string {
	var b strings.Builder
	for line := range strings.SplitSeq(message, "\n") {
		fmt.Fprintf(&b, "<%d>%s\n", priority, line)
	}
	return b.String()
}

// warning is the priority of what is worth a look.
const warning = int(journal.PriWarning)

func priorityOf(level logrus.Level) int {
	switch level {
	case logrus.PanicLevel, logrus.FatalLevel:
		return int(journal.PriCrit)
	case logrus.ErrorLevel:
		return int(journal.PriErr)
	case logrus.WarnLevel:
		return warning
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

const (
	// courierPatience is how long the one who writes an entry waits until it is taken. That takes microseconds.
	courierPatience = 100 * time.Millisecond
	// courierLoad is how many entries wait for a journal that takes none: more than a drain of a full node writes.
	courierLoad = 1024
)

// A letter is one entry for the journal, or one word to the service manager.
type letter struct {
	message  string
	priority int
	fields   map[string]string

	delivered chan struct{} // closed then
}

// A courier delivers entries one at a time, in their order, and keeps those who write them from waiting for a journal
// that hangs: its socket then takes some entries more, and after them blocks whoever writes to it.
//
// In ordinary times an entry is with the journal when take returns, so that a crash loses nothing. When one is late,
// nobody waits any more until the courier has caught up.
type courier struct {
	deliver    func(letter)
	identifier string // of its own entries

	mu      sync.Mutex
	waiting []letter
	busy    bool // work is running
	late    bool // nobody waits
	lost    int  // entries that there was no room for, after those that wait
}

// take takes an entry.
func (c *courier) take(message string, priority int, fields map[string]string) {
	l := letter{message, priority, fields, make(chan struct{})}
	if !c.accept(l) {
		return
	}
	overdue := time.NewTimer(courierPatience)
	defer overdue.Stop()
	select {
	case <-l.delivered:
	case <-overdue.C:
		c.mu.Lock()
		c.late = c.busy
		c.mu.Unlock()
	}
}

// accept puts an entry behind the others, and tells whether its delivery is to be waited for.
func (c *courier) accept(l letter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) >= courierLoad {
		c.lost++
		return false
	}
	if c.lost > 0 {
		c.waiting = append(c.waiting, c.gap())
	}
	c.waiting = append(c.waiting, l)
	if !c.busy {
		c.busy = true
		go c.work()
	}
	return !c.late
}

// work delivers what waits, and ends when that is all.
func (c *courier) work() {
	for {
		l, more := c.next()
		if !more {
			return
		}
		c.deliver(l)
		close(l.delivered)
	}
}

func (c *courier) next() (letter, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 && c.lost > 0 {
		return c.gap(), true
	}
	if len(c.waiting) == 0 {
		c.waiting, c.busy, c.late = nil, false, false
		return letter{}, false
	}
	l := c.waiting[0]
	c.waiting = c.waiting[1:]
	return l, true
}

// gap is the entry that stands for those that were lost. c.mu is held.
func (c *courier) gap() letter {
	l := letter{
		message:   fmt.Sprintf("here %d messages are missing: the journal took none", c.lost),
		priority:  warning,
		fields:    map[string]string{fieldIdentifier: c.identifier, FieldMessageID: MessagesLost},
		delivered: make(chan struct{}),
	}
	c.lost = 0
	return l
}
