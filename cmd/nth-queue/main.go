// Command nth-queue drains Kubernetes nodes for EC2 interruptions that arrive in an SQS queue.
//
// It runs on any host, or in a pod, with an identity that may drain
// every node. The file run.go wires the packages of pkg into the service.
package main

import (
	"cmp"
	"context"
	"errors"
	"os"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/importing"
	"github.com/nth-project/nth/cmd/internal/logging"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/secrets"
	"github.com/nth-project/nth/cmd/internal/statusfile"
	"github.com/nth-project/nth/cmd/internal/webhooks"
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
		Complain: logging.Complain("nth-queue"),
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
	return statusfile.Command("nth-queue", statusUsage, args, to, func(path string) (string, error) {
		cfg, err := effectiveConfig(path)
		_, fatal := webhooks.Degraded(err)
		return cfg.RuntimeDirectory, fatal
	})
}

// commandConfig is "nth-queue config".
func commandConfig(ctx context.Context, args []string, to program.Streams) error {
	command := importing.Command{
		Program: "nth-queue", Usage: configUsage, Queue: true,
		Judge: func(name string, text []byte) error {
			cfg := config.DefaultQueue()
			return config.Decode(name, text, &cfg)
		},
		Check: func(path string) error { return judgeConfig(ctx, path, to) },
		Show: func(path string) error {
			cfg, err := effectiveConfig(path)
			if _, fatal := webhooks.Degraded(err); fatal != nil {
				return err
			}
			return errors.Join(config.Encode(to.Out, cfg), err)
		},
	}
	return command.Run(args, to)
}

// judgeConfig says what was read and what was passed over, and whether it is right.
func judgeConfig(ctx context.Context, path string, to program.Streams) error {
	_, looked, err := configBeside(ctx, path)
	if _, fatal := webhooks.Degraded(err); fatal != nil {
		return err
	}
	sources, failed := config.UsualQueue().Sources(path)
	if failed != nil {
		return program.ConfigError{Fault: failed}
	}
	return checks.Approve(to.Out, sources, config.QueueFile, looked.unit, append(looked.kubeconfig, looked.webhook...), err)
}

// effectiveConfig reads the files, lets systemd's directories go before theirs, and finds the kubeconfig that systemd has
// given the service. With config.Degraded in the error, the settings are of use.
func effectiveConfig(path string) (config.Queue, error) {
	cfg, _, err := configWith(path, secrets.Own)
	return cfg, err
}

// looked is what a command that people run beside the service has found: what was read and passed over, and what the unit hands the service.
type looked struct {
	kubeconfig, webhook []webhooks.Finding
	unit                secrets.Unit
}

// configBeside is effectiveConfig with the credentials that the service would get by its unit.
func configBeside(ctx context.Context, path string) (config.Queue, looked, error) {
	unit := secrets.Beside(ctx, "", "nth-queue.service", false)
	cfg, found, err := configWith(path, unit.Find)
	found.unit = unit
	return cfg, found, err
}

func configWith(path string, given secrets.Given) (config.Queue, looked, error) {
	var found looked
	cfg, err := config.UsualQueue().Load(path)
	if _, fatal := webhooks.Degraded(err); fatal != nil {
		return config.Queue{}, found, program.ConfigError{Fault: fatal}
	}
	cfg.StateDirectory = program.DirectoryFrom("STATE_DIRECTORY", cfg.StateDirectory)
	cfg.RuntimeDirectory = program.DirectoryFrom("RUNTIME_DIRECTORY", cfg.RuntimeDirectory)
	if kubeconfig := given("kubeconfig"); kubeconfig.Name != "" {
		before := ""
		if cfg.Kubernetes.Kubeconfig != "" {
			before = "kubernetes.kubeconfig"
		}
		found.kubeconfig = []webhooks.Finding{webhooks.Of(kubeconfig, before)}
		cfg.Kubernetes.Kubeconfig = cmp.Or(cfg.Kubernetes.Kubeconfig, kubeconfig.File)
	}
	found.webhook = webhooks.Look(&cfg.Webhook, "nth-queue", given)
	if err = webhooks.Add(err, append(found.kubeconfig, found.webhook...)); err != nil {
		err = program.ConfigError{Fault: err}
	}
	return cfg, found, err
}

// runSettings returns what reads the settings that "nth-queue run" has with its flags; done tells that help was asked for
// instead.
func runSettings(args []string, to program.Streams) (read func() (config.Queue, error), done bool, err error) {
	flags, done, err := program.ParseRun("nth-queue", runUsage, args, to)
	if done || err != nil {
		return nil, done, err
	}
	return func() (config.Queue, error) {
		cfg, err := effectiveConfig(flags.Config)
		if _, fatal := webhooks.Degraded(err); fatal != nil {
			return config.Queue{}, fatal
		}
		cfg.DryRun = flags.DryRun(cfg.DryRun)
		if cfg.Queue.URL == "" {
			return config.Queue{}, program.ConfigError{Fault: errors.New("queue.url: must be set")}
		}
		return cfg, err
	}, false, nil
}
