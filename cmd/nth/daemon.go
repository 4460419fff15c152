package main

import (
	"context"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/webhooks"
	"github.com/nth-project/nth/pkg/config"
)

// commandRun is "nth run".
func commandRun(ctx context.Context, args []string, to program.Streams) error {
	read, done, err := runSettings(args, to)
	if done || err != nil {
		return err
	}
	if lookAround().contained {
		return supervise(args, to)
	}
	return watch(ctx, read, to)
}

// commandUnderParent is "nth run" in a host container, below the parent that starts it again.
func commandUnderParent(ctx context.Context, args []string, to program.Streams) error {
	read, done, err := runSettings(args, to)
	if done || err != nil {
		return err
	}
	if err := watch(ctx, read, to); err != nil {
		return complainContained(to.Out, err)
	}
	return nil
}

// watch runs the daemon with the settings that read reads, until a signal asks it to stop.
func watch(ctx context.Context, read func() (config.Config, error), to program.Streams) error {
	program.SpareMemory()
	cfg, err := read()
	degraded, fatal := webhooks.Degraded(err)
	if fatal != nil {
		return fatal
	}
	ctx, stop := program.UntilSignal(ctx)
	defer stop()
	return runDaemon(ctx, cfg, degraded, read, logStream(cfg.Log, to))
}

// runSettings returns what reads the settings that "nth run" has with its flags; done tells that help was asked for
// instead.
func runSettings(args []string, to program.Streams) (read func() (config.Config, error), done bool, err error) {
	flags, done, err := program.ParseRun("nth", runUsage, args, to)
	if done || err != nil {
		return nil, done, err
	}
	return func() (config.Config, error) {
		cfg, err := soundConfig(flags.Config)
		cfg.DryRun = flags.DryRun(cfg.DryRun)
		return cfg, err
	}, false, nil
}
