package main

import (
	"context"
	"errors"
	"flag"
	"strconv"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/config"
)

// commandRun is "nth run".
func commandRun(ctx context.Context, args []string, to program.Streams) error {
	read, done, err := runSettings(args, to)
	if done || err != nil {
		return err
	}
	if err = watch(ctx, read, to); err != nil && lookAround().contained {
		return complainContained(to.Out, err)
	}
	return err
}

// watch runs the daemon with the settings that read reads, until a signal asks it to stop.
func watch(ctx context.Context, read func() (config.Config, error), to program.Streams) error {
	cfg, err := read()
	if err != nil {
		return err
	}
	ctx, stop := program.UntilSignal(ctx)
	defer stop()
	return runDaemon(ctx, cfg, read, logStream(cfg.Log, to))
}

// runSettings returns what reads the settings that "nth run" has with its flags; done tells that help was asked for
// instead.
func runSettings(args []string, to program.Streams) (read func() (config.Config, error), done bool, err error) {
	var path string
	override := func(*config.Config) {}
	done, err = program.Parse("nth run", runUsage, args, to, func(flags *flag.FlagSet) {
		program.ConfigFlag(flags, &path)
		flags.BoolFunc("dry-run", "", func(text string) error {
			dryRun, err := strconv.ParseBool(text)
			if err != nil {
				return errors.New("must be true or false")
			}
			override = func(cfg *config.Config) { cfg.DryRun = dryRun }
			return nil
		})
	})
	if done || err != nil {
		return nil, done, err
	}
	return func() (config.Config, error) {
		cfg, err := soundConfig(path)
		if err == nil {
			override(&cfg)
		}
		return cfg, err
	}, false, nil
}
