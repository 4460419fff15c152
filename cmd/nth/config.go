package main

import (
	"context"
	"errors"
	"flag"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/webhooks"
	"github.com/nth-project/nth/pkg/config"
)

// commandConfig is "nth config".
func commandConfig(ctx context.Context, args []string, to program.Streams) error {
	if len(args) > 0 && args[0] == "import" {
		return importer().Run(args[1:], to)
	}
	var path string
	var check bool
	done, err := program.Parse("nth config", configUsage, args, to, func(flags *flag.FlagSet) {
		program.ConfigFlag(flags, &path)
		flags.BoolVar(&check, "check", false, "")
	})
	if done || err != nil {
		return err
	}
	if check {
		return judgeConfig(ctx, path, to)
	}
	cfg, err := soundConfig(path)
	if _, fatal := webhooks.Degraded(err); fatal != nil {
		return err
	}
	return errors.Join(config.Encode(to.Out, cfg), err)
}

// judgeConfig says what was read and what was passed over, and whether it is right.
func judgeConfig(ctx context.Context, path string, to program.Streams) error {
	_, looked, err := configBeside(ctx, path, false)
	if _, fatal := webhooks.Degraded(err); fatal != nil {
		return err
	}
	place := lookAround().place()
	sources, failed := place.Sources(path)
	if failed != nil {
		return program.ConfigError{Fault: failed}
	}
	return checks.Approve(to.Out, sources, place.File, looked.unit, looked.found, err)
}

// effectiveConfig reads the files and lets systemd's directories go before theirs. With config.Degraded, the settings are of use.
func effectiveConfig(path string) (config.Config, error) {
	around := lookAround()
	cfg, degraded := around.place().Load(path)
	if _, fatal := webhooks.Degraded(degraded); fatal != nil {
		return config.Config{}, program.ConfigError{Fault: fatal}
	}
	around.settle(&cfg)
	cfg.StateDirectory = program.DirectoryFrom("STATE_DIRECTORY", cfg.StateDirectory)
	cfg.RuntimeDirectory = program.DirectoryFrom("RUNTIME_DIRECTORY", cfg.RuntimeDirectory)
	return cfg, degraded
}

// quietConfig is effectiveConfig for a command that acts, and tells what it does itself: what only tells others may be degraded, and the
// libraries say nothing beside it.
func quietConfig(path string) (config.Config, error) {
	cfg, err := effectiveConfig(path)
	if _, fatal := webhooks.Degraded(err); fatal != nil {
		return config.Config{}, err
	}
	return cfg, checks.Hush()
}
