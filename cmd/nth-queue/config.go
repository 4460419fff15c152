package main

import (
	"cmp"
	"context"
	"errors"
	"flag"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/secrets"
	"github.com/nth-project/nth/cmd/internal/webhooks"
	"github.com/nth-project/nth/pkg/config"
)

// commandConfig is "nth-queue config".
func commandConfig(ctx context.Context, args []string, to program.Streams) error {
	if len(args) > 0 && args[0] == "import" {
		return importer().Run(args[1:], to)
	}
	var path string
	var check bool
	done, err := program.Parse("nth-queue config", configUsage, args, to, func(flags *flag.FlagSet) {
		program.ConfigFlag(flags, &path)
		flags.BoolVar(&check, "check", false, "")
	})
	if done || err != nil {
		return err
	}
	if check {
		return judgeConfig(ctx, path, to)
	}
	cfg, err := effectiveConfig(path)
	if _, fatal := webhooks.Degraded(err); fatal != nil {
		return err
	}
	return errors.Join(config.EncodeQueue(to.Out, cfg), err)
}

// judgeConfig says what was read and what was passed over, and whether it is right.
func judgeConfig(ctx context.Context, path string, to program.Streams) error {
	_, looked, err := configBeside(ctx, path)
	if _, fatal := webhooks.Degraded(err); fatal != nil {
		return err
	}
	sources, failed := config.QueueSources(path)
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
	cfg, err := config.LoadQueue(path)
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
