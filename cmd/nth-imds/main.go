// Command nth-imds simulates EC2's instance metadata service, to rehearse an interruption on any machine. The simulator is the process that
// serves, without a command. A process with a command changes what the simulator announces, or shows it.
//
// The service is that of pkg/imds/imdstest. A process with a command posts its command line to the simulator, which runs it (remote.go).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/imds/imdstest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	status := cli.Run(ctx, nthIMDS(), os.Args[1:], os.Stdout, os.Stderr, func(stderr io.Writer, err error) {
		fmt.Fprintf(stderr, "nth-imds: %v\n", err)
	})
	stop()
	os.Exit(status)
}

// nthIMDS returns the program's command, which serves, with its subcommands.
func nthIMDS() *cobra.Command {
	root := cli.Root("nth-imds", "simulate EC2's instance metadata service",
		`nth-imds simulates EC2's instance metadata service (IMDSv2), to rehearse an interruption on any machine.
Without a command it serves the metadata of a healthy instance, until it gets SIGTERM or SIGINT, and prints
the address and each change. What is announced stays until it is withdrawn, even when its time has come.

  nth-imds                         in one terminal
  nth-imds trigger spot --in 2m    in another`,
		remoteCommands()...)
	root.Args = cobra.NoArgs
	serve(root)
	return root
}

const defaultListen = "127.0.0.1:1338"

// serve makes cmd serve until its context ends, and adds the flags for that.
func serve(cmd *cobra.Command) {
	listen := cmd.Flags().String("listen", defaultListen, "the address to listen on; port 0 chooses a free one")
	lifeCycle := "spot"
	cli.Flag(cmd, "life-cycle", "HOW", "how the instance was bought: spot or on-demand (default spot)", func(value string) error {
		if value != "spot" && value != "on-demand" {
			return errors.New("want spot or on-demand")
		}
		lifeCycle = value
		return nil
	})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		simulator, err := imdstest.Listen(*listen)
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		simulator.Handle(controlPath, runPosted(simulator, func(done string) { fmt.Fprintf(out, "%s %s\n", clock(), done) }))
		simulator.Set("meta-data/instance-life-cycle", lifeCycle)
		printBanner(out, simulator.URL, lifeCycle)
		<-cmd.Context().Done()
		simulator.Close()
		requests := simulator.Requests()
		fmt.Fprintf(out, "%s stopped, after %d requests, %d of them for tokens\n", clock(), requests.Total, requests.Tokens)
		return nil
	}
}

// printBanner prints what is served and where. Programs read the address from the end of the first line.
func printBanner(out io.Writer, url, lifeCycle string) {
	server := "" // what a command needs to find this simulator
	if url != "http://"+defaultListen {
		server = " --server " + url
	}
	fmt.Fprintf(out, `nth-imds serves the instance metadata service, version 2, on %s
  instance   %s, %s, %s in %s; nothing is announced
  interrupt  nth-imds trigger spot --in 2m%s
  more       nth-imds help
`, url, imdstest.InstanceID, imdstest.InstanceType, lifeCycle, imdstest.AvailabilityZone, server)
}

// clock returns the time of day for a line of output.
func clock() string { return time.Now().Format("15:04:05.000") }
