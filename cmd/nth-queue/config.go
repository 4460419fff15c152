package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/nth-project/nth/cmd/internal/posting"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/config"
)

// commandConfig is "nth-queue config".
func commandConfig(_ context.Context, args []string, to program.Streams) error {
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
	cfg, err := effectiveConfig(path)
	if _, fatal := posting.Degraded(err); fatal != nil || check && err != nil {
		return err
	}
	if !check {
		return errors.Join(config.EncodeQueue(to.Out, cfg), err)
	}
	files, err := config.QueueFiles(path)
	if err != nil {
		return program.ConfigError{Fault: err}
	}
	if len(files) == 0 {
		files = []string{config.QueueFile + " (absent)"}
	}
	_, err = fmt.Fprintf(to.Out, "%s: ok\n", strings.Join(files, ", "))
	return err
}

// effectiveConfig reads the files, lets systemd's directories go before theirs, and finds the kubeconfig that systemd has
// given the service. With config.Degraded in the error, the settings are of use.
func effectiveConfig(path string) (config.Queue, error) {
	cfg, err := config.LoadQueue(path)
	if err = posting.Judge(err, &cfg.Webhook, "nth-queue"); err != nil {
		err = program.ConfigError{Fault: err}
	}
	if _, fatal := posting.Degraded(err); fatal != nil {
		return config.Queue{}, fatal
	}
	cfg.StateDirectory = program.DirectoryFrom("STATE_DIRECTORY", cfg.StateDirectory)
	cfg.RuntimeDirectory = program.DirectoryFrom("RUNTIME_DIRECTORY", cfg.RuntimeDirectory)
	if cfg.Kubernetes.Kubeconfig == "" {
		cfg.Kubernetes.Kubeconfig = givenKubeconfig()
	}
	return cfg, err
}

// runningsKubeconfig is where root finds the credential of the service while that runs.
const runningsKubeconfig = "/run/credentials/nth-queue.service/kubeconfig"

// givenKubeconfig is the service's credential; for a command beside the service, that of the one which runs. "" if there
// is none.
func givenKubeconfig() string {
	if given := program.Credential("kubeconfig"); given != "" {
		return given
	}
	if _, err := os.Stat(runningsKubeconfig); err != nil {
		return ""
	}
	return runningsKubeconfig
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
		if _, fatal := posting.Degraded(err); fatal != nil {
			return config.Queue{}, fatal
		}
		cfg.DryRun = flags.DryRun(cfg.DryRun)
		if cfg.Queue.URL == "" {
			return config.Queue{}, program.ConfigError{Fault: errors.New("queue.url: must be set")}
		}
		return cfg, err
	}, false, nil
}
