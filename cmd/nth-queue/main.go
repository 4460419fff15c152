// Command nth-queue drains Kubernetes nodes for EC2 interruptions that arrive in an SQS queue.
//
// It runs on any host, or in a pod, with an identity that may drain every node. The file wire.go wires the packages of pkg into the
// service.
package main

import (
	"cmp"
	"context"
	"errors"
	"os"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/config"
)

func main() {
	os.Exit(service().Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

func service() program.Program {
	version := program.CommandVersion("nth-queue", versionUsage)
	return program.Program{
		Name:    "nth-queue",
		Summary: "nth-queue drains Kubernetes nodes for EC2 interruptions that arrive in an SQS queue.",
		Notes: `Settings:       /etc/nth/nth-queue.toml and /etc/nth/nth-queue.toml.d/*.toml; "nth-queue config" shows them all
Exit statuses:  0 success, 64 usage error, 78 invalid configuration, 1 any other failure
`,
		Commands: []program.Command{
			{Name: "run", Summary: "drain nodes from an SQS queue", Usage: runUsage, Run: commandRun},
			{Name: "status", Summary: "show daemon status", Usage: statusUsage, Run: commandStatus},
			{Name: "check", Summary: "verify that nodes can be drained from the queue", Usage: checkUsage, Run: commandCheck},
			{Name: "config", Summary: "print or validate the configuration", Usage: configUsage, Run: commandConfig},
			{Name: "version", Summary: "print the version", Usage: versionUsage, Run: version},
		},
		Version:  version,
		Complain: daemon.Complain("nth-queue"),
	}
}

const runUsage = `Usage: nth-queue run [--config FILE] [--dry-run]

Reads the SQS queue that EventBridge, Auto Scaling or SNS fill, and cordons and drains the nodes it tells of.
Runs until it gets SIGTERM or SIGINT; a second one ends it at once. SIGHUP makes it read the settings again.

  --config FILE  read FILE and FILE.d/*.toml instead of /etc/nth/nth-queue.toml and /etc/nth/nth-queue.toml.d/*.toml
  --dry-run      log what would be done, but write nothing to the cluster, and leave the messages in the queue
`

const statusUsage = `Usage: nth-queue status [--config FILE] [--json]

Shows the daemon's status: how many nodes it drains, what is announced for them, and whether the queue can be
read. The status is 0 if it runs, and 1 if it does not, or hangs; what is printed is the last that is known of it then.

  --config FILE  read FILE and FILE.d/*.toml to find the runtime directory
  --json         print it for programs
`

const checkUsage = `Usage: nth-queue check [--config FILE] [--webhook]

Tries everything that nth-queue needs, one line each: "ok" is as it should be, "warn" deserves a look, and with "fail"
nth-queue would not do its work. Nothing is changed, and no message received. The status is 0 without a "fail", 1 with one,
and 78 if the settings are wrong.

  --config FILE  read FILE and FILE.d/*.toml instead of /etc/nth/nth-queue.toml and /etc/nth/nth-queue.toml.d/*.toml
  --webhook      post a message to the webhook, marked as a test
`

const configUsage = `Usage: nth-queue config [--config FILE] [--check]
       nth-queue config import [--secrets DIR] FILE

Prints the settings in effect, all of them, as a valid configuration file. With import, it turns the settings of
aws-node-termination-handler's queue mode into those of nth-queue and prints them: FILE holds its environment ("NAME=value"
lines), the values of its Helm chart, or its Deployment ("kubectl get deployment -o yaml"),
with the ConfigMaps and Secrets that it takes settings from, behind lines "---"; "-" is standard input. What comes of it is
judged before it is printed: status 78 and one line for each fault if anything cannot be taken over as it is.

  --config FILE  read FILE and FILE.d/*.toml instead of /etc/nth/nth-queue.toml and /etc/nth/nth-queue.toml.d/*.toml
  --check        only validate it, with the service's credentials: one line for each file that was read or ignored, and
                 status 78 if anything is wrong
  --secrets DIR  put the webhook's address and headers into files of mode 0600 in DIR; without it, they are named only
`

const versionUsage = `Usage: nth-queue version

Prints the version of nth-queue, the commit it was built from, and what it was built with.
`

// commandStatus is "nth-queue status".
func commandStatus(_ context.Context, args []string, to program.Streams) error {
	return checks.StatusCommand("nth-queue", statusUsage, args, to, func(path string) (string, error) {
		cfg, err := own.Files(path)
		_, fatal := settings.Degraded(err)
		return cfg.RuntimeDirectory, fatal
	})
}

// commandConfig is "nth-queue config".
func commandConfig(ctx context.Context, args []string, to program.Streams) error {
	return own.Command(ctx, configUsage, true, args, to)
}

// own reads the settings of nth-queue.
var own = settings.Program[config.Queue, *config.Queue]{
	Name: "nth-queue", Place: config.UsualQueue(), Identity: kubeconfig,
	Lacks: func(cfg *config.Queue) error {
		if cfg.Queue.URL == "" {
			return errors.New("queue.url: must be set")
		}
		return nil
	},
}

// kubeconfig uses the kubeconfig that systemd has handed to the service, unless the settings name one.
func kubeconfig(cfg *config.Queue, given settings.Given) []settings.Finding {
	found := given("kubeconfig")
	if found.Name == "" {
		return nil
	}
	before := ""
	if cfg.Kubernetes.Kubeconfig != "" {
		before = "kubernetes.kubeconfig"
	}
	cfg.Kubernetes.Kubeconfig = cmp.Or(cfg.Kubernetes.Kubeconfig, found.File)
	return []settings.Finding{settings.Found(found, before)}
}
