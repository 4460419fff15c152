package daemon

import (
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
	"k8s.io/klog/v2"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/pkg/text"
)

// NewLogger returns a logger for the program of that name, with the level and the format in the settings. It logs to stderr unless it logs to the
// journal.
func NewLogger(name string, cfg config.Log, stderr io.Writer) *logrus.Logger {
	logger := logrus.New()
	logger.AddHook(visible{}) // It runs before the hook for the journal, which sends the text that visible has made.
	logger.SetOutput(stderr)
	if level, err := logrus.ParseLevel(cfg.Level); err == nil { // Reading the settings has refused an unknown level.
		logger.SetLevel(level)
	}
	switch {
	case cfg.Format == "json":
		logger.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano})
	case cfg.Format == "prefix":
		logger.SetFormatter(lineFormatter{priority: true})
	case cfg.Format == "auto" && onJournal(stderr):
		// The hook writes to stderr only while the journal does not answer.
		logger.SetOutput(io.Discard)
		logger.AddHook(systemd.NewJournalHook(name, stderr))
	default:
		logger.SetFormatter(lineFormatter{})
	}
	return logger
}

// visible makes each log entry one line of visible text, in every format: entries quote pods, messages of the queue and servers.
type visible struct{}

// Levels implements logrus.Hook.
func (visible) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook. It may change the entry, which is logrus's copy for this message.
func (visible) Fire(entry *logrus.Entry) error {
	entry.Message = text.Visible(strings.TrimRight(entry.Message, "\n"), text.Page)
	for name, value := range entry.Data {
		entry.Data[name] = text.Visible(fmt.Sprint(value), text.Page)
	}
	return nil
}

// onJournal reports whether stderr is the standard error of this process, and connected to the journal.
func onJournal(stderr io.Writer) bool { return stderr == os.Stderr && systemd.OnJournal() }

// lineFormatter writes log entries as lines for operators. A line begins with the time and the level, or with a priority for a journal, which adds
// the time:
//
//	2026-01-31 09:00:00.250  info     cordoned the node  event=spot-… node=ip-10-0-0-1
//	<6>cordoned the node  event=spot-… node=ip-10-0-0-1
type lineFormatter struct{ priority bool }

// Format implements logrus.Formatter. It shortens the names of nth's fields: NTH_EVENT_ID becomes event_id.
func (f lineFormatter) Format(entry *logrus.Entry) ([]byte, error) {
	line, separator := entry.Message, "  "
	for _, name := range slices.Sorted(maps.Keys(entry.Data)) {
		if name == systemd.FieldMessageID {
			continue // Only programs need it.
		}
		value := fmt.Sprint(entry.Data[name])
		if value == "" || strings.ContainsAny(value, " \t\n\"=") {
			value = strconv.Quote(value)
		}
		if rest, ofNth := strings.CutPrefix(name, "NTH_"); ofNth {
			name = strings.ToLower(rest)
		}
		line += separator + name + "=" + value
		separator = " "
	}
	if f.priority {
		return []byte(systemd.Prefixed(line, entry.Level)), nil
	}
	return fmt.Appendf(nil, "%s  %-7s  %s\n", entry.Time.Format("2006-01-02 15:04:05.000"), entry.Level, line), nil
}

// klogTo is the log for what client-go logs. klog's own logger is set only once, as a pending request may be reading it.
var (
	klogTo  atomic.Pointer[logrus.Entry]
	setKlog sync.Once
)

// RouteKlog sends what client-go logs to log, from now on, at the debug level: nth logs the errors that client-go returns.
func RouteKlog(log *logrus.Entry) {
	klogTo.Store(log)
	setKlog.Do(func() {
		klog.SetLogger(funcr.New(func(_, args string) { klogTo.Load().Debug(args) }, funcr.Options{}))
	})
}

// journalTimeout is how long a program that exits waits for a journal that hangs.
const journalTimeout = 5 * time.Second

// Complain returns a function that reports the error with which the program of that name ends. It reports to the journal if stderr is connected to the
// journal, and otherwise as plain text.
func Complain(name string) func(stderr io.Writer, err error) {
	return func(stderr io.Writer, err error) {
		if onJournal(stderr) {
			logFault(NewLogger(name, config.Default().Log, stderr), err)
			systemd.AwaitJournal(journalTimeout)
			return
		}
		prefix := name + ": "
		if isConfigError(err) { // The lines of such an error begin with the file or the setting.
			prefix = ""
		}
		for _, line := range faults(err) {
			fmt.Fprintln(stderr, prefix+text.Visible(line, text.Page))
		}
	}
}

// ComplainWithPriority is Complain for a stream that leads to a journal, such as the standard output of a host container.
func ComplainWithPriority(name string) func(stderr io.Writer, err error) {
	return func(stderr io.Writer, err error) {
		logFault(NewLogger(name, config.Log{Level: "info", Format: "prefix"}, stderr), err)
	}
}

// isConfigError reports whether the error is about the configuration.
func isConfigError(err error) bool {
	_, ok := errors.AsType[cli.ConfigError](err)
	return ok
}

// faults returns the lines to report for an error: one line for each fault in the configuration, or a single one for any other error.
func faults(err error) []string {
	if isConfigError(err) {
		return strings.Split(err.Error(), "\n")
	}
	return []string{err.Error()}
}

// logFault logs each line of the error that ends a program.
func logFault(logger *logrus.Logger, err error) {
	entry := logrus.NewEntry(logger)
	if !isConfigError(err) {
		entry.Errorf("exiting: %s", err)
		return
	}
	entry = entry.WithField(systemd.FieldMessageID, systemd.ConfigInvalid)
	for _, line := range faults(err) {
		entry.Error(line)
	}
	entry.Error("invalid configuration; not starting")
}
