// Command nth-imds simulates EC2's instance metadata service, to rehearse an interruption on any machine. The simulator is the process that
// serves, without a command. A process with a command has the simulator announce something, or take it back.
//
// The service is that of pkg/imds/imdstest. Newcomers begin with kinds (change.go): what can be announced.
package main

import (
	"context"
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

const defaultListen = "127.0.0.1:1338"

// nthIMDS returns the program's command, which serves, with its subcommands.
func nthIMDS() *cobra.Command {
	root := cli.Root("nth-imds", "simulate EC2's instance metadata service",
		`nth-imds simulates EC2's instance metadata service (IMDSv2), to rehearse an interruption on any machine.
Without a command it serves the metadata of a healthy spot instance, until it gets SIGTERM or SIGINT, and prints
the address and each change. What is announced stays until it is withdrawn, even when its time has come.

  nth-imds                         in one terminal
  nth-imds trigger spot --in 2m    in another

NTH_IMDS in the environment of the second is the address of the first, if that is another than http://`+defaultListen+`.`,
		triggerCommand(), withdrawCommand())
	root.Args = cobra.NoArgs
	listen := root.Flags().String("listen", defaultListen, "the address to listen on; port 0 chooses a free one")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		simulator, err := imdstest.Listen(*listen)
		if err != nil {
			return err
		}
		defer simulator.Close()
		out := cmd.OutOrStdout()
		simulator.Handle(controlPath, takeChanges(simulator, func(done string) {
			fmt.Fprintf(out, "%s %s\n", time.Now().Format("15:04:05.000"), done)
		}))
		// Programs read the address from the end of the first line.
		fmt.Fprintf(out, "nth-imds serves the instance metadata service, version 2, on %s\n", simulator.URL)
		fmt.Fprintf(out, "  instance   %s, %s in %s; nothing is announced\n", imdstest.InstanceID, imdstest.InstanceType, imdstest.AvailabilityZone)
		fmt.Fprintf(out, "  interrupt  NTH_IMDS=%s nth-imds trigger spot --in 2m\n", simulator.URL)
		<-cmd.Context().Done()
		return nil
	}
	return root
}
