// Package program is the command line of the project's programs: commands with flags, help, exit statuses, signals, a version.
package program

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Exit statuses, of which 64 and 78 are EX_USAGE and EX_CONFIG of sysexits.h.
const (
	ExitOK     = 0
	ExitError  = 1
	ExitUsage  = 64
	ExitConfig = 78
)

// Streams are the standard output and error of a command.
type Streams struct{ Out, Err io.Writer }

// Command is a subcommand of a program.
type Command struct {
	Name, Summary, Usage string
	Run                  func(ctx context.Context, args []string, to Streams) error
}

// Program is a program with its commands, which are in the order of the help text.
type Program struct {
	Name string
	// Summary is the first line of the help text, and Notes are its last lines.
	Summary, Notes string
	Commands       []Command
	// Hidden are commands for internal use, which no help text shows.
	Hidden []Command
	// Version implements --version.
	Version func(ctx context.Context, args []string, to Streams) error
	// Complain writes the error that ended the program.
	Complain func(stderr io.Writer, err error)
}

// UsageError is an invalid command line.
type UsageError struct{ Message string }

func (e UsageError) Error() string { return e.Message }

// ConfigError holds what is wrong with the configuration, with one line for each fault.
type ConfigError struct{ Fault error }

func (e ConfigError) Error() string { return e.Fault.Error() }

// Unwrap returns the faults.
func (e ConfigError) Unwrap() error { return e.Fault }

// ErrTold ends a program with status 1, or 78 within a ConfigError, without another message.
var ErrTold = errors.New("told already")

// Run runs the program and returns its exit status.
func (p Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	to := Streams{stdout, stderr}
	if len(args) == 0 {
		fmt.Fprint(stderr, p.help())
		return ExitUsage
	}
	return p.finish(p.dispatch(ctx, args[0], args[1:], to), stderr)
}

func (p Program) dispatch(ctx context.Context, name string, args []string, to Streams) error {
	switch name {
	case "help", "-h", "-help", "--help":
		return p.commandHelp(args, to)
	case "-version", "--version":
		return p.Version(ctx, args, to)
	}
	for _, c := range slices.Concat(p.Commands, p.Hidden) {
		if c.Name == name {
			return c.Run(ctx, args, to)
		}
	}
	return UsageError{fmt.Sprintf("%s: there is no command %q, see \"%s help\"", p.Name, name, p.Name)}
}

// finish reports an error, and translates it into an exit status.
func (p Program) finish(err error, stderr io.Writer) int {
	if err == nil {
		return ExitOK
	}
	if _, ok := errors.AsType[UsageError](err); ok {
		fmt.Fprintln(stderr, err)
		return ExitUsage
	}
	if !errors.Is(err, ErrTold) {
		p.Complain(stderr, err)
	}
	if _, ok := errors.AsType[ConfigError](err); ok {
		return ExitConfig
	}
	return ExitError
}

// UntilSignal returns a context that ends with the first SIGTERM or SIGINT, which context.Cause names. A second signal
// ends the program at once; signal.NotifyContext might lose it if it comes immediately after the first.
func UntilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	stopped := make(chan struct{})
	go func() {
		select {
		case s := <-signals:
			cancel(fmt.Errorf("%s signal received", s))
		case <-stopped:
			return
		}
		select {
		case <-signals:
			os.Exit(ExitError)
		case <-stopped:
		}
	}()
	return ctx, sync.OnceFunc(func() {
		signal.Stop(signals)
		close(stopped)
		cancel(nil)
	})
}

// help is the help text.
func (p Program) help() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage: %s COMMAND [FLAGS]\n\n", p.Summary, p.Name)
	for _, c := range p.Commands {
		fmt.Fprintf(&b, "  %-9s%s\n", c.Name, c.Summary)
	}
	fmt.Fprintf(&b, "\n\"%s COMMAND --help\" tells more about each.\n\n%s", p.Name, p.Notes)
	return b.String()
}

// commandHelp implements "help" and "help COMMAND".
func (p Program) commandHelp(args []string, to Streams) error {
	if len(args) == 0 {
		_, err := io.WriteString(to.Out, p.help())
		return err
	}
	for _, c := range p.Commands {
		if c.Name == args[0] && len(args) == 1 {
			_, err := io.WriteString(to.Out, c.Usage)
			return err
		}
	}
	return UsageError{fmt.Sprintf("%s help: there is no command %q, see \"%s help\"", p.Name, strings.Join(args, " "), p.Name)}
}

// Parse parses the flags of a command, and allows no arguments after them. The name is that of the program and the command. If done is
// true, help was asked for and printed.
func Parse(name, usage string, args []string, to Streams, define func(*flag.FlagSet)) (done bool, err error) {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	define(flags)
	err = flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, err = io.WriteString(to.Out, usage)
		return true, err
	case err != nil:
		return false, UsageError{fmt.Sprintf("%s: %v, see \"%s --help\"", name, err, name)}
	case flags.NArg() > 0:
		return false, UsageError{fmt.Sprintf("%s: unexpected argument %q, see \"%s --help\"", name, flags.Arg(0), name)}
	}
	return false, nil
}

// ConfigFlag defines --config. An empty value is refused, as it is probably a shell variable that was never set.
func ConfigFlag(flags *flag.FlagSet, path *string) {
	flags.Func("config", "", func(value string) error {
		if value == "" {
			return errors.New("must name a file")
		}
		*path = value
		return nil
	})
}

// DirectoryFrom returns the first directory that systemd lists in an environment variable.
func DirectoryFrom(variable, otherwise string) string {
	first, _, _ := strings.Cut(os.Getenv(variable), ":")
	if filepath.IsAbs(first) {
		return first
	}
	return otherwise
}

// Set by the linker, with -ldflags "-X <this package>.version=... -X <this package>.commit=...". Otherwise, Go's build information is
// used.
var version, commit string

// CommandVersion returns the command "version" of the program of that name.
func CommandVersion(name, usage string) func(context.Context, []string, Streams) error {
	return func(_ context.Context, args []string, to Streams) error {
		done, err := Parse(name+" version", usage, args, to, func(*flag.FlagSet) {})
		if done || err != nil {
			return err
		}
		v, c := BuildVersion()
		_, err = fmt.Fprintf(to.Out, "%s %s (commit %s, %s, %s/%s)\n", name, v, c, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return err
	}
}

// BuildVersion returns the version and the commit of this program.
func BuildVersion() (string, string) {
	v, c := version, commit
	if info, ok := debug.ReadBuildInfo(); ok {
		v = cmp.Or(v, info.Main.Version)
		c = cmp.Or(c, builtFrom(info.Settings))
	}
	return cmp.Or(v, "unknown"), cmp.Or(c, "unknown")
}

// builtFrom returns the commit from Go's build information, marked if there were uncommitted changes.
func builtFrom(settings []debug.BuildSetting) string {
	var revision, changed string
	for _, s := range settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				changed = "+changes"
			}
		}
	}
	if revision == "" {
		return ""
	}
	return revision[:min(len(revision), 12)] + changed
}

// LastWords is how long a program that stops waits for its listeners to report what has happened. All of them need less, unless a disk
// hangs, and that must not keep the program from stopping.
const LastWords = 5 * time.Second

// Within waits up to the limit for a function to return, and tells whether it has.
func Within(limit time.Duration, wait func()) bool {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		wait()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}

// heapGrowth is the default of GOGC: how much garbage may accumulate before it is collected, in percent of the live heap. Go's own
// default is 100 and at least 4 MB, and nth needs half of that.
const heapGrowth = 50

// SpareMemory keeps a daemon's heap small, unless GOGC is set in the environment. A collection takes about a millisecond in nth, and
// its memory is not available to the node's pods. The heap of nth-queue grows with the cluster.
func SpareMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}
}
