package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/nth-project/nth/cmd/internal/posting"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/config"
)

// commandVersion is "nth-queue version".
func commandVersion(_ context.Context, args []string, to program.Streams) error {
	done, err := program.Parse("nth-queue version", versionUsage, args, to, func(*flag.FlagSet) {})
	if done || err != nil {
		return err
	}
	return program.PrintVersion("nth-queue", to)
}

// commandConfig is "nth-queue config".
func commandConfig(_ context.Context, args []string, to program.Streams) error {
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
	if err != nil {
		return err
	}
	if !check {
		return config.EncodeQueue(to.Out, cfg)
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

// effectiveConfig reads the files and lets systemd's directories go before theirs.
func effectiveConfig(path string) (config.Queue, error) {
	cfg, err := config.LoadQueue(path)
	if err != nil {
		return config.Queue{}, program.ConfigError{Fault: err}
	}
	if _, err := posting.Settings(cfg.Webhook, "nth-queue"); err != nil {
		return config.Queue{}, program.ConfigError{Fault: err}
	}
	cfg.StateDirectory = program.DirectoryFrom("STATE_DIRECTORY", cfg.StateDirectory)
	cfg.RuntimeDirectory = program.DirectoryFrom("RUNTIME_DIRECTORY", cfg.RuntimeDirectory)
	return cfg, nil
}

// runSettings returns what reads the settings that "nth-queue run" has with its flags; done tells that help was asked for
// instead.
func runSettings(args []string, to program.Streams) (read func() (config.Queue, error), done bool, err error) {
	var path string
	override := func(*config.Queue) {}
	done, err = program.Parse("nth-queue run", runUsage, args, to, func(flags *flag.FlagSet) {
		program.ConfigFlag(flags, &path)
		flags.BoolFunc("dry-run", "", func(text string) error {
			dryRun, err := strconv.ParseBool(text)
			if err != nil {
				return errors.New("must be true or false")
			}
			override = func(cfg *config.Queue) { cfg.DryRun = dryRun }
			return nil
		})
	})
	if done || err != nil {
		return nil, done, err
	}
	return func() (config.Queue, error) {
		cfg, err := effectiveConfig(path)
		if err != nil {
			return config.Queue{}, err
		}
		override(&cfg)
		if cfg.Queue.URL == "" {
			return config.Queue{}, program.ConfigError{Fault: errors.New("queue.url: must be set")}
		}
		return cfg, nil
	}, false, nil
}
