// Package cli runs the command tree of a program, which is made of cobra's commands. Errors, exit statuses and the version have the same form in
// all programs.
//
// Only cobra's built-in texts are used. A template of our own (SetUsageTemplate and the like) would link text/template, and with it every
// method of every type.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/pkg/text"
)

// Exit statuses, of which 64 and 78 are EX_USAGE and EX_CONFIG of sysexits.h.
const (
	ExitOK     = 0
	ExitError  = 1
	ExitUsage  = 64
	ExitConfig = 78
)

// ConfigError holds what is wrong with the configuration. Its text has one line for each fault. A program that ends with it has status 78.
type ConfigError struct{ Fault error }

func (e ConfigError) Error() string { return e.Fault.Error() }

// Unwrap returns the faults.
func (e ConfigError) Unwrap() error { return e.Fault }

// ErrReported is returned by a command that has printed what is wrong. The program then ends without another message, with status 1, or with 78 if a
// ConfigError holds it.
var ErrReported = errors.New("reported already")

// Root returns the root of a program's commands, with the flag --version.
func Root(name, short, long string, commands ...*cobra.Command) *cobra.Command {
	version, commit := BuildVersion()
	root := &cobra.Command{
		Use: name, Short: short, Long: long,
		Version:       fmt.Sprintf("%s (commit %s, %s, %s/%s)", version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH),
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.AddCommand(commands...)
	addManual(root)
	return root
}

// Run runs the command that args name, and returns the exit status of the program. It prints an error about the command line itself, and calls
// complain with any other error that ends the command.
func Run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer, complain func(stderr io.Writer, err error)) int {
	cobra.EnableCommandSorting = false
	root.SetArgs(append([]string{}, args...)) // cobra takes nil for the arguments of the process, and this slice is never nil.
	root.SetOut(stdout)
	root.SetErr(stderr)
	if len(args) == 0 && !root.Runnable() { // The command line names no command.
		root.SetArgs([]string{"--help"})
		root.SetOut(stderr)
		_ = root.ExecuteContext(ctx) // Printing the help cannot fail.
		return ExitUsage
	}
	accepted := false // cobra has accepted the command line, and has begun to run a command
	root.PersistentPreRun = func(*cobra.Command, []string) { accepted = true }
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return ExitOK
	case !accepted:
		// cobra lists similar commands on lines of their own. Here they become part of the one line.
		why := strings.NewReplacer("\n\nDid you mean this?\n\t", "; did you mean ", "\n\t", " or ").Replace(strings.TrimSpace(err.Error()))
		fmt.Fprintf(stderr, "%s: %s; see \"%[1]s --help\"\n", cmd.CommandPath(), text.Visible(why, text.Line))
		return ExitUsage
	case !errors.Is(err, ErrReported):
		complain(stderr, err)
	}
	if _, ok := errors.AsType[ConfigError](err); ok {
		return ExitConfig
	}
	return ExitError
}

// Set by the linker, with -ldflags "-X <this package>.version=... -X <this package>.commit=...".
var version, commit string

// BuildVersion returns the version and the commit of this program, each "unknown" if it is. A build without the linker's version has the version
// in Go's build information, which contains the commit.
func BuildVersion() (versionOrUnknown, commitOrUnknown string) {
	v := version
	if info, ok := debug.ReadBuildInfo(); ok {
		v = cmp.Or(v, info.Main.Version)
	}
	return cmp.Or(v, "unknown"), cmp.Or(commit, "unknown")
}
