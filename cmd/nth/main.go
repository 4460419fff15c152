// Command nth drains its own Kubernetes node before EC2 takes the machine away.
//
// The file wire.go connects the packages of pkg to the daemon.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/config"
)

func main() {
	os.Exit(cli.Run(context.Background(), nth(detectHost()), os.Args[1:], os.Stdout, os.Stderr, daemon.Complain("nth")))
}

// nth returns the commands of the program on that host.
func nth(host hostInfo) *cobra.Command {
	const queue = false
	return cli.Root("nth", "drain this Kubernetes node before EC2 takes the machine away",
		`nth drains its own Kubernetes node before EC2 takes the machine away.

Settings:       /etc/nth/nth.toml and /etc/nth/nth.toml.d/*.toml; "nth config" shows them all
Exit statuses:  0 success, 64 usage error, 78 invalid configuration, 1 any other failure`,
		host.runCommand(), host.rehearseCommand(), host.drainCommand(), host.statusCommand(), host.checkCommand(), host.settings().Command(queue))
}

// statusCommand returns "nth status".
func (h hostInfo) statusCommand() *cobra.Command {
	return checks.StatusCommand("nth", `Shows what the daemon does, what is announced, how the metadata service answers, with whose identity nth
acts, and what is off and why. The exit status is 0 if the daemon runs, and 1 if it does not, or hangs; then
the last known state is printed.`, h.settings().ConfigFlag, h.runtimeDirectory)
}

// runtimeDirectory returns the directory of the daemon's status. Unless a file is named, invalid settings are no error: the daemon may
// be running with those that it had before.
func (h hostInfo) runtimeDirectory(path string, stderr io.Writer) (string, error) {
	l, err := h.settings().Load(path)
	if err != nil && path == "" {
		fmt.Fprintln(stderr, err)
		return h.settings().Defaults().RuntimeDirectory, nil
	}
	return l.Config.RuntimeDirectory, err
}

// settings describes where the settings come from.
func (h hostInfo) settings() settings.Program[config.Config, *config.Config] {
	return settings.Program[config.Config, *config.Config]{Name: "nth", Place: h.place(), Settle: h.settle}
}

// quietConfig reads the settings for a command that reports what it does itself: libraries are silenced.
func (h hostInfo) quietConfig(path string) (config.Loaded[config.Config], error) {
	checks.Hush()
	return h.settings().Load(path)
}
