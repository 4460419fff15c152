// Command nth-imds simulates EC2's instance metadata service, so that people can rehearse an interruption on their own
// machine: one nth-imds serves, others tell it what EC2 announces and how the service breaks.
//
// It is a thin shell around pkg/imds/imdstest, where the service, its control API and the client of that live.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

// Exit statuses, of which 64 is EX_USAGE of sysexits.h.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 64
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// command is one word that may follow "nth-imds".
type command struct {
	name, summary, usage string
	run                  func(ctx context.Context, args []string, out io.Writer) error
}

// commands lists the commands in the order of the help text.
func commands() []command {
	return []command{
		{"serve", "be the metadata service of a healthy instance (the default)", serveUsage, serve},
		{"trigger", "announce something: spot, rebalance, maintenance, lifecycle", triggerUsage, trigger},
		{"withdraw", "take back what was announced", withdrawUsage, withdraw},
		{"fault", "break the service", faultUsage, fault},
		{"lift", "repair the service", liftUsage, lift},
		{"expire-tokens", "make all tokens invalid that were handed out", expireUsage, expireTokens},
		{"show", "tell what is announced, broken and asked for", showUsage, show},
	}
}

// run is the whole program but for its exit.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout)
	var help helpWanted
	var usage usageError
	var invalid imdstest.InvalidError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &help):
		_, _ = io.WriteString(stdout, help.text)
		return exitOK
	case errors.As(err, &usage), errors.As(err, &invalid):
		_, _ = fmt.Fprintf(stderr, "nth-imds: %v\n", err)
		return exitUsage
	default:
		_, _ = fmt.Fprintf(stderr, "nth-imds: %v\n", err)
		return exitError
	}
}

func dispatch(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 && isHelp(args[0]) {
		return helpFor(args[1:])
	}
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return serve(ctx, args, out)
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:], out)
		}
	}
	return noCommand(args[0])
}

func isHelp(word string) bool {
	return word == "help" || word == "-h" || word == "-help" || word == "--help"
}

func helpFor(args []string) error {
	if len(args) == 0 {
		return helpWanted{help()}
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return helpWanted{c.usage}
		}
	}
	return noCommand(args[0])
}

func noCommand(name string) error {
	var names []string
	for _, c := range commands() {
		names = append(names, c.name)
	}
	return usageError{fmt.Sprintf("there is no command %q: want one of %s", name, strings.Join(names, ", "))}
}
