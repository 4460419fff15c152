package logging

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/systemd"
)

// lineFormatter writes log entries as lines for people:
//
//	2026-01-31 09:00:00.250  info     cordoned the node  event=spot-… node=ip-10-0-0-1
//
// A terminal gets the time of day alone, and colours; what reads priorities gets those and no time, since it knows that:
//
//	<6>cordoned the node  event=spot-… node=ip-10-0-0-1
type lineFormatter struct {
	time     string
	colour   bool
	priority bool
}

func newLineFormatter(w io.Writer) *lineFormatter {
	if !isTerminal(w) {
		return &lineFormatter{time: "2006-01-02 15:04:05.000"}
	}
	plain := os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb"
	return terminal(!plain)
}

func terminal(colour bool) *lineFormatter {
	return &lineFormatter{time: "15:04:05.000", colour: colour}
}

// Colourful writes lines as a terminal gets them.
func Colourful() logrus.Formatter { return terminal(true) }

// Format writes one entry.
func (f *lineFormatter) Format(entry *logrus.Entry) ([]byte, error) {
	var b bytes.Buffer
	if !f.priority {
		fmt.Fprintf(&b, "%s  %s  ", entry.Time.Format(f.time), f.paint(entry.Level, fmt.Sprintf("%-7s", entry.Level)))
	}
	b.WriteString(strings.TrimRight(entry.Message, "\n"))
	separator := "  "
	for _, name := range slices.Sorted(maps.Keys(entry.Data)) {
		if name == systemd.FieldMessageID {
			continue
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

// field writes NTH_EVENT_ID as event_id: people need not see where the journal keeps it.
func (f *lineFormatter) field(name, value string) string {
	if rest, ours := strings.CutPrefix(name, "NTH_"); ours {
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
