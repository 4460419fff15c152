// Command nth-imds simulates EC2's instance metadata service, to rehearse an interruption on any machine. One process serves; others
// tell it what to announce and how to fail.
//
// It is a thin wrapper around pkg/imds/imdstest, which has the service, its control API and a client.
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
	"time"

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

// run runs the program and returns its exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout)
	if err == nil {
		return exitOK
	}
	if help, ok := errors.AsType[helpRequest](err); ok {
		fmt.Fprint(stdout, help.text)
		return exitOK
	}
	fmt.Fprintf(stderr, "nth-imds: %v\n", err)
	_, usage := errors.AsType[usageError](err)
	_, invalid := errors.AsType[imdstest.InvalidError](err)
	if usage || invalid {
		return exitUsage
	}
	return exitError
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
		return helpRequest{help()}
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return helpRequest{c.usage}
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

const defaultListen = "127.0.0.1:1338"

// serve serves until ctx ends.
func serve(ctx context.Context, args []string, out io.Writer) error {
	f := newFlags("serve", serveUsage)
	listen := f.String("listen", defaultListen, "")
	lifeCycle := f.String("life-cycle", "spot", "")
	verbose := f.Bool("verbose", false, "")
	if _, err := f.parse(args); err != nil {
		return err
	}
	if *lifeCycle != "spot" && *lifeCycle != "on-demand" {
		return usageError{fmt.Sprintf("serve: --life-cycle is %q: want spot or on-demand", *lifeCycle)}
	}
	srv, err := imdstest.Listen(*listen)
	if err != nil {
		return err
	}
	srv.SetLifeCycle(*lifeCycle)
	printBanner(out, srv.URL, *lifeCycle)
	logChanges(srv, out, *verbose)
	<-ctx.Done()
	srv.OnChange(nil)
	srv.Close()
	seen := srv.Requests()
	fmt.Fprintf(out, "%s stopped, after %d requests, %d of them for tokens\n", clock(), seen.Total, seen.Tokens)
	return nil
}

// printBanner says what is served where. The last word of its first line is the address, for programs.
func printBanner(out io.Writer, url, lifeCycle string) {
	server := ""
	if url != defaultServer {
		server = " --server " + url
	}
	fmt.Fprintf(out, `nth-imds serves the instance metadata service, version 2, on %s
  instance   %s, %s, %s in %s; nothing is announced
  interrupt  nth-imds trigger spot --in 2m%s
  more       nth-imds help
`, url, imdstest.InstanceID, imdstest.InstanceType, lifeCycle, imdstest.AvailabilityZone, server)
}

// logChanges prints each change and, if verbose, each request. The simulator does not call concurrently.
func logChanges(srv *imdstest.Server, out io.Writer, verbose bool) {
	srv.OnChange(func(change string) { fmt.Fprintf(out, "%s %s\n", clock(), change) })
	if !verbose {
		return
	}
	srv.OnRequest(func(e imdstest.Exchange) {
		status := "no answer"
		if e.Status != 0 {
			status = fmt.Sprint(e.Status)
		}
		if e.Fault != "" {
			status += ", fault: " + e.Fault
		}
		fmt.Fprintf(out, "%s %s %s: %s\n", clock(), e.Method, e.Path, status)
	})
}

func clock() string { return time.Now().Format("15:04:05.000") }
