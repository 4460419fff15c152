// Command nth drains its own Kubernetes node before EC2 takes the machine away.
//
// The file wire.go connects the packages of pkg to the daemon.
package main

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/imds"
)

func main() {
	host, stderr, complain := detectHost(), os.Stderr, daemon.Complain("nth")
	if host.contained && slices.Contains(os.Args, "run") { // Bottlerocket keeps a container's standard output in the journal; standard error goes to the console.
		stderr, complain = os.Stdout, daemon.ComplainWithPriority("nth")
	}
	os.Exit(cli.Run(context.Background(), nth(host), os.Args[1:], os.Stdout, stderr, complain))
}

// nth returns the root command of the program, whose subcommands work on that host.
func nth(host hostInfo) *cobra.Command {
	const queue = false // "config import" makes settings for nth, not for nth-queue.
	return cli.Root("nth", "drain this Kubernetes node before EC2 takes the machine away",
		`nth drains its own Kubernetes node before EC2 takes the machine away.

Settings:       /etc/nth/nth.toml and /etc/nth/nth.toml.d/*.toml; "nth config" shows them all
Exit statuses:  0 success, 64 usage error, 78 invalid configuration, 1 any other failure`,
		host.runCommand(), host.rehearseCommand(), host.drainCommand(),
		checks.StatusCommand("nth", `Shows what the daemon does, what is announced, how the metadata service answers, with whose identity nth
acts, and what is off and why. The exit status is 0 if the daemon runs, and 1 if it does not, or hangs; then
the last known state is printed.`),
		host.checkCommand(), host.settings().Command(queue))
}

// settings describes where the settings come from: the files of nth.toml, or the user data of a host container.
func (h hostInfo) settings() settings.Program[config.Config, *config.Config] {
	p := settings.Program[config.Config, *config.Config]{Name: "nth", File: config.DefaultFile, Defaults: config.Default(), Lacks: h.lacks}
	if h.contained {
		p.File, p.Defaults.StateDirectory, p.Defaults.HostRoot = h.UserData, h.StateDirectory, h.Host
		p.Defaults.Log.Format = "prefix" // The output of the container leads to a journal.
	}
	return p
}

// lacks returns why nth cannot run here with the settings; nil if it can.
func (h hostInfo) lacks(cfg *config.Config) error {
	if h.contained && cfg.HostRoot == "" {
		return errors.New("this host container does not see the host: set settings.host-containers.NAME.superpowered to true")
	}
	_, err := newSource(imds.Options{}) // It refuses an environment with a wrong endpoint mode, and polls nothing.
	return err
}
