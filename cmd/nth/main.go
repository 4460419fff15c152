// Command nth drains its own Kubernetes node before EC2 takes the machine away.
//
// It is the only part of the project that reads arguments, the environment and signals, and that exits. The file
// run.go wires the packages of pkg into the daemon.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// Exit statuses, of which 64 and 78 are EX_USAGE and EX_CONFIG of sysexits.h.
const (
	exitOK     = 0
	exitError  = 1
	exitUsage  = 64
	exitConfig = 78
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// streams are where a command writes.
type streams struct{ out, err io.Writer }

// command is one word that may follow "nth".
type command struct {
	name, summary, usage string
	run                  func(ctx context.Context, args []string, to streams) error
}

// commands lists the commands in the order of the help text.
func commands() []command {
	return []command{
		{"run", "watch, and drain this node when it is doomed", runUsage, commandRun},
		{"status", "tell how the running nth stands", statusUsage, commandStatus},
		{"check", "tell whether nth can do its work here", checkUsage, commandCheck},
		{"config", "print the settings in effect, or judge them", configUsage, commandConfig},
		{"version", "print the version", versionUsage, commandVersion},
	}
}

// run is the whole program but for its exit.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	to := streams{stdout, stderr}
	if len(args) == 0 {
		fmt.Fprint(stderr, help())
		return exitUsage
	}
	return finish(dispatch(ctx, args[0], args[1:], to), stderr)
}

func dispatch(ctx context.Context, name string, args []string, to streams) error {
	switch name {
	case "help", "-h", "-help", "--help":
		return commandHelp(args, to)
	case "-version", "--version":
		return commandVersion(ctx, args, to)
	case inRoot:
		return commandInRoot(args)
	}
	for _, c := range commands() {
		if c.name == name {
			return c.run(ctx, args, to)
		}
	}
	return usageError{fmt.Sprintf("nth: there is no command %q, see \"nth help\"", name)}
}

// usageError is a command line that makes no sense.
type usageError struct{ message string }

func (e usageError) Error() string { return e.message }

// configError holds what is wrong with the settings, one line for each fault.
type configError struct{ error }

func (e configError) Unwrap() error { return e.error }

// finish says what went wrong, once and here alone, and translates it into an exit status.
func finish(err error, stderr io.Writer) int {
	if err == nil {
		return exitOK
	}
	if _, ok := errors.AsType[usageError](err); ok {
		fmt.Fprintln(stderr, err)
		return exitUsage
	}
	if !errors.Is(err, errTold) {
		complain(stderr, err)
	}
	if _, ok := errors.AsType[configError](err); ok {
		return exitConfig
	}
	return exitError
}
