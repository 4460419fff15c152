// Command nth-queue drains Kubernetes nodes for EC2 interruptions that arrive in an SQS queue.
//
// It runs on any host, or in a pod, with an identity that may drain every node. The file wire.go connects the packages of pkg to the service.
package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/config"
)

func main() {
	os.Exit(cli.Run(context.Background(), nthQueue(), os.Args[1:], os.Stdout, os.Stderr, daemon.Complain("nth-queue")))
}

// nthQueue returns the root command of the program.
func nthQueue() *cobra.Command {
	const queue = true // "config import" makes settings for nth-queue, not for nth.
	return cli.Root("nth-queue", "drain Kubernetes nodes for EC2 interruptions that arrive in an SQS queue",
		`nth-queue drains Kubernetes nodes for EC2 interruptions that arrive in an SQS queue.

Settings:       /etc/nth/nth-queue.toml and /etc/nth/nth-queue.toml.d/*.toml; "nth-queue config" shows them all
Exit statuses:  0 success, 64 usage error, 78 invalid configuration, 1 any other failure`,
		runCommand(),
		checks.StatusCommand(own.Name, `Shows how many nodes the daemon drains, what is announced for them, and whether the queue can be read.
The exit status is 0 if the daemon runs, and 1 if it does not, or hangs; then the last known state is printed.`),
		checks.Command(own, "verify that nodes can be drained from the queue", `Checks everything that nth-queue needs, one line each: "ok", "warn" for what deserves a look, and "fail" for
what would keep nth-queue from working; a summary comes last. Nothing is changed, and no message is received.
The exit status is 0 without a "fail", 1 with one, and 78 if the configuration is invalid.`, runCheck),
		own.Command(queue))
}

// runCommand returns "nth-queue run".
func runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "run", Short: "drain nodes from an SQS queue", Args: cobra.NoArgs,
		Long: `Reads the SQS queue that EventBridge, Auto Scaling or SNS fill, and cordons and drains the nodes that its
messages name. A dry run leaves the messages in the queue. Runs until it gets SIGTERM or SIGINT; a second
one ends it at once. SIGHUP makes it read the settings again.`,
	}
	read := own.RunFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return daemon.Run(cmd.Context(), own.Name, read, cmd.ErrOrStderr(), serve)
	}
	return cmd
}

// own reads the settings of nth-queue.
var own = settings.Program[config.Queue, *config.Queue]{
	Name: "nth-queue", File: config.QueueFile, Defaults: config.DefaultQueue(), Settle: useCredential,
	Lacks: func(cfg *config.Queue) error {
		if cfg.Queue.URL == "" {
			return errors.New("the setting queue.url must be set")
		}
		return nil
	},
}

// kubeconfigFile is what the unit loads as the credential "kubeconfig".
const kubeconfigFile = "/etc/nth/nth-queue.kubeconfig"

// useCredential sets the kubeconfig that the settings leave open: the credential "kubeconfig" that systemd passes to the service, or else
// kubeconfigFile. The second is for a command that an operator runs while the service is stopped.
func useCredential(cfg *config.Queue) {
	if cfg.Kubernetes.Kubeconfig != "" {
		return
	}
	cfg.Kubernetes.Kubeconfig = settings.Credential("nth-queue", "kubeconfig")
	if _, err := os.Stat(kubeconfigFile); err == nil && cfg.Kubernetes.Kubeconfig == "" {
		cfg.Kubernetes.Kubeconfig = kubeconfigFile
	}
}
