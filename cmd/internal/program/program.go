// Package program is what the project's programs have in common as commands: words with flags, help, exit statuses,
// signals, a version. It reads arguments and the environment, and takes signals; only main exits.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
)

// Exit statuses, of which 64 and 78 are EX_USAGE and EX_CONFIG of sysexits.h.
const (
	ExitOK     = 0
	ExitError  = 1
	ExitUsage  = 64
	ExitConfig = 78
)

// Streams are where a command writes.
type Streams struct{ Out, Err io.Writer }

// Command is one word that may follow the program's name.
type Command struct {
	Name, Summary, Usage string
	Run                  func(ctx context.Context, args []string, to Streams) error
}

// Program is a program with its commands, in the order of the help text.
type Program struct {
	Name string
	// Summary is the first line of the help text, and Notes are its last ones.
	Summary, Notes string
	Commands       []Command
	// Hidden are commands for the program's own use, in no help.
	Hidden []Command
	// Version is what --version does.
	Version func(ctx context.Context, args []string, to Streams) error
	// Complain writes what ended the program.
	Complain func(stderr io.Writer, err error)
}

// UsageError is a command line that makes no sense.
type UsageError struct{ Message string }

func (e UsageError) Error() string { return e.Message }

// ConfigError holds what is wrong with the settings, one line for each fault.
type ConfigError struct{ Fault error }

func (e ConfigError) Error() string { return e.Fault.Error() }

// Unwrap returns the faults.
func (e ConfigError) Unwrap() error { return e.Fault }

// ErrTold ends a program with status 1, or 78 within a ConfigError; what there was to say has been said.
var ErrTold = errors.New("told already")

// Run is the whole program but for its exit, whose status it returns.
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

// finish says what went wrong, once and here alone, and translates it into an exit status.
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

// UntilSignal returns a context that ends with the first SIGTERM or SIGINT, which context.Cause names. A second one
// ends the program at once. (With signal.NotifyContext, a second signal close behind the first would be lost.)
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
