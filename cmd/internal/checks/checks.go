// Package checks is how a program tells whether it could do its work: "check" looks at one thing after the other, and
// each finding is a line with a verdict, what it is about, and the rest in words. The programs differ in what they look at.
package checks

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/logging"
	"github.com/nth-project/nth/cmd/internal/program"
)

// Limit bounds a check as a whole: whatever hangs, a build gets its answer.
const Limit = time.Minute

// List prints findings as they come, and knows in the end whether the program could do its work.
type List struct {
	program string
	out     io.Writer
	failed  bool
}

// For returns the list of the program of that name, without a finding yet.
func For(program string, out io.Writer) *List { return &List{program: program, out: out} }

// OK tells of what is as it should be.
func (l *List) OK(subject, format string, args ...any) { l.line("ok", subject, format, args) }

// Warn tells of what deserves a look.
func (l *List) Warn(subject, format string, args ...any) { l.line("warn", subject, format, args) }

// Fail tells of what keeps the program from its work.
func (l *List) Fail(subject, format string, args ...any) {
	l.failed = true
	l.line("fail", subject, format, args)
}

func (l *List) line(verdict, subject, format string, args []any) {
	text := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	fmt.Fprintf(l.out, "%-4s  %-10s  %s\n", verdict, subject, text)
}

// Right tells whether a right is there, which is needed for something, or which the program can do without.
func (l *List) Right(name, why string, optional, allowed bool) {
	switch {
	case allowed:
		l.OK("right", "%s", name)
	case optional:
		l.Warn("right", "%s: refused; %s asks for it %s, and can do without", name, l.program, why)
	default:
		l.Fail("right", "%s: refused; it is needed %s", name, why)
	}
}

// DryRun tells that the settings keep the program from acting.
func (l *List) DryRun() {
	l.Warn("settings", "dry_run = true: %s logs what it would do and changes nothing", l.program)
}

// Wrong tells what is wrong with the settings, one finding for each line, and returns what ends the program with status 78.
func (l *List) Wrong(err error) error {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		l.Fail("settings", "%s", line)
	}
	return program.ConfigError{Fault: program.ErrTold}
}

// Degraded tells what is wrong with what is only told: the program starts and works without it.
func (l *List) Degraded(faults []string) {
	for _, fault := range faults {
		l.Fail("degraded", "%s", fault)
	}
}

// End returns what ends the program with status 1 if anything has failed.
func (l *List) End() error {
	if l.failed {
		return program.ErrTold
	}
	return nil
}

// Hush makes the libraries say nothing beside the findings, and wait for nothing longer than they do in the service.
func Hush() error {
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	logging.QuietLibraries(logrus.NewEntry(silent))
	if err := logging.HurryLibraries(); err != nil {
		return fmt.Errorf("setting client-go's limits: %w", err)
	}
	return nil
}
