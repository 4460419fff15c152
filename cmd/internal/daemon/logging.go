package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/pkg/text"
)

// NewLogger returns a logger for the program of that name, as the settings ask for. It logs to stderr unless it logs to the journal.
func NewLogger(name string, cfg config.Log, stderr io.Writer) *logrus.Logger {
	logger := logrus.New()
	logger.AddHook(visible{}) // It comes before the journal's hook, which sends what this one has made visible.
	logger.SetOutput(stderr)
	SetLevel(logger, cfg)
	switch {
	case cfg.Format == "json":
		logger.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano})
	case cfg.Format == "prefix":
		logger.SetFormatter(&lineFormatter{priority: true})
	case cfg.Format == "journal" || cfg.Format == "auto" && onJournal(stderr):
		// stderr is the fallback for when the journal does not answer.
		logger.SetOutput(io.Discard)
		logger.AddHook(systemd.NewJournalHook(name, stderr))
	default:
		logger.SetFormatter(newLineFormatter(stderr))
	}
	return logger
}

// visible makes each entry one line of visible text, for every format: messages quote what pods, messages and servers say.
type visible struct{}

// Levels implements logrus.Hook.
func (visible) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook. The entry is a copy for this message.
func (visible) Fire(entry *logrus.Entry) error {
	entry.Message = text.Visible(strings.TrimRight(entry.Message, "\n"), text.Page)
	for name, value := range entry.Data {
		entry.Data[name] = text.Visible(fmt.Sprint(value), text.Page)
	}
	return nil
}

// SetLevel sets the level that the settings ask for. An unknown level changes nothing.
func SetLevel(logger *logrus.Logger, cfg config.Log) {
	if level, err := logrus.ParseLevel(cfg.Level); err == nil {
		logger.SetLevel(level)
	}
}

// onJournal reports whether stderr is the standard error of this process, and connected to the journal.
func onJournal(stderr io.Writer) bool { return stderr == os.Stderr && systemd.OnJournal() }

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

// lineFormatter writes log entries as lines for operators:
//
//	2026-01-31 09:00:00.250  info     cordoned the node  event=spot-… node=ip-10-0-0-1
//
// A terminal gets the time of day only, and colours. With priorities there is no time, which the journal adds:
//
//	<6>cordoned the node  event=spot-… node=ip-10-0-0-1
type lineFormatter struct {
	time     string
	colour   bool
	priority bool
}

// newLineFormatter returns the formatter for a stream: that of a terminal, or one with the date.
func newLineFormatter(w io.Writer) *lineFormatter {
	if !isTerminal(w) {
		return &lineFormatter{time: "2006-01-02 15:04:05.000"}
	}
	return &lineFormatter{time: timeOfDay, colour: HasColours(w)}
}

// HasColours reports whether w is a terminal on which colours are wanted.
func HasColours(w io.Writer) bool {
	return isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

const timeOfDay = "15:04:05.000"

// Colourful returns the formatter for terminals with colours.
func Colourful() logrus.Formatter { return &lineFormatter{time: timeOfDay, colour: true} }

// Format implements logrus.Formatter.
func (f *lineFormatter) Format(entry *logrus.Entry) ([]byte, error) {
	var b bytes.Buffer
	if !f.priority {
		fmt.Fprintf(&b, "%s  %s  ", entry.Time.Format(f.time), f.paint(entry.Level, fmt.Sprintf("%-7s", entry.Level)))
	}
	b.WriteString(entry.Message)
	separator := "  "
	for _, name := range slices.Sorted(maps.Keys(entry.Data)) {
		if name == systemd.FieldMessageID {
			continue // Only programs need it.
		}
		b.WriteString(separator + f.field(name, fmt.Sprint(entry.Data[name])))
		separator = " "
	}
	if f.priority {
		return []byte(systemd.Prefixed(b.String(), entry.Level)), nil
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// field returns a field as "name=value" for operators: NTH_EVENT_ID is event_id.
func (f *lineFormatter) field(name, value string) string {
	if rest, ofNth := strings.CutPrefix(name, "NTH_"); ofNth {
		name = strings.ToLower(rest)
	}
	if value == "" || strings.ContainsAny(value, " \t\n\"=") {
		value = strconv.Quote(value)
	}
	if f.colour {
		return "\x1b[2m" + name + "=\x1b[0m" + value
	}
	return name + "=" + value
}

// paint colours a word by its level, if the output has colours.
func (f *lineFormatter) paint(level logrus.Level, word string) string {
	if !f.colour {
		return word
	}
	code := "36" // cyan
	switch {
	case level <= logrus.ErrorLevel:
		code = "31" // red
	case level == logrus.WarnLevel:
		code = "33" // yellow
	case level >= logrus.DebugLevel:
		code = "2" // dim
	}
	return "\x1b[" + code + "m" + word + "\x1b[0m"
}

// libraries is where client-go logs to. klog's logger is set only once, as a pending request may be reading it.
var (
	libraries  atomic.Pointer[logrus.Entry]
	setLibrary sync.Once
)

// RouteKlog logs what client-go logs at the debug level: nth logs the errors that client-go returns.
func RouteKlog(log *logrus.Entry) {
	libraries.Store(log)
	setLibrary.Do(func() {
		klog.SetLogger(funcr.New(func(_, args string) { libraries.Load().Debug(args) }, funcr.Options{}))
	})
}

// journalTimeout is how long a program that exits waits for a journal that hangs.
const journalTimeout = 5 * time.Second

// Complain returns a function that reports the error which ends the program of that name: to the journal if stderr is connected to it,
// otherwise as plain text.
func Complain(name string) func(stderr io.Writer, err error) {
	return func(stderr io.Writer, err error) {
		message, lines := FinalMessage(err)
		if message == "" { // Lines about the configuration begin with the file or the setting.
			lines[0] = name + ": " + lines[0]
		}
		if !onJournal(stderr) {
			for _, line := range lines {
				fmt.Fprintln(stderr, text.Visible(line, text.Page))
			}
			return
		}
		LogErrors(NewLogger(name, config.Default().Log, stderr), message, lines)
		systemd.AwaitJournal(journalTimeout)
	}
}

// FinalMessage returns the message ID, or "", and the lines for an error that ends a program: one for each fault in the configuration, and
// else a single one.
func FinalMessage(err error) (message string, lines []string) {
	if _, wrongConfig := errors.AsType[cli.ConfigError](err); wrongConfig {
		return systemd.ConfigInvalid, strings.Split(err.Error(), "\n")
	}
	return "", []string{err.Error()}
}

// LogErrors logs lines as errors, with a message ID unless that is "".
func LogErrors(logger *logrus.Logger, message string, lines []string) {
	entry := logrus.NewEntry(logger)
	if message != "" {
		entry = entry.WithField(systemd.FieldMessageID, message)
	}
	for _, line := range lines {
		entry.Error(line)
	}
}
