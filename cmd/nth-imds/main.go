// Command nth-imds simulates EC2's instance metadata service, to rehearse an interruption on any machine. One process serves; others
// say what it announces.
//
// The service is that of pkg/imds/imdstest. A command line is posted to the process that serves, which runs it (remote.go).
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

// nthIMDS returns the commands of the program, which serves unless another is named.
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

// serve gives cmd the flags and the code to serve until its context ends.
func serve(cmd *cobra.Command) {
	listen := cmd.Flags().String("listen", defaultListen, "the address to listen on; port 0 chooses a free one")
	lifeCycle := "spot"
	cli.Flag(cmd, "life-cycle", "HOW", "how the instance was bought: spot or on-demand (default spot)", func(value string) error {
		if lifeCycle = value; value != "spot" && value != "on-demand" {
			return errors.New("want spot or on-demand")
		}
		return nil
	})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		srv, err := imdstest.Listen(*listen)
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		srv.Handle(controlPath, obey(srv, func(done string) { fmt.Fprintf(out, "%s %s\n", clock(), done) }))
		srv.Set("meta-data/instance-life-cycle", lifeCycle)
		printBanner(out, srv.URL, lifeCycle)
		<-cmd.Context().Done()
		srv.Close()
		seen := srv.Requests()
		fmt.Fprintf(out, "%s stopped, after %d requests, %d of them for tokens\n", clock(), seen.Total, seen.Tokens)
		return nil
	}
}

// printBanner prints what is served and where. Programs read the address from the end of its first line.
func printBanner(out io.Writer, url, lifeCycle string) {
	server := ""
	if url != "http://"+defaultListen {
		server = " --server " + url
	}
	fmt.Fprintf(out, `nth-imds serves the instance metadata service, version 2, on %s
  instance   %s, %s, %s in %s; nothing is announced
  interrupt  nth-imds trigger spot --in 2m%s
  more       nth-imds help
`, url, imdstest.InstanceID, imdstest.InstanceType, lifeCycle, imdstest.AvailabilityZone, server)
}

func clock() string { return time.Now().Format("15:04:05.000") }
