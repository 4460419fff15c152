package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/nth-project/nth/cmd/internal/posting"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/config"
)

// commandConfig is "nth config".
func commandConfig(_ context.Context, args []string, to program.Streams) error {
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
	cfg, err := soundConfig(path)
	if _, fatal := posting.Degraded(err); fatal != nil || check && err != nil {
		return err
	}
	if !check {
		return errors.Join(config.Encode(to.Out, cfg), err)
	}
	return approve(path, to)
}

// approve says which files were judged and found right.
func approve(path string, to program.Streams) error {
	place := lookAround().place()
	files, err := place.Files(path)
	if err != nil {
		return program.ConfigError{Fault: err}
	}
	if len(files) == 0 {
		files = []string{place.File + " (absent)"}
	}
	_, err = fmt.Fprintf(to.Out, "%s: ok\n", strings.Join(files, ", "))
	return err
}

// effectiveConfig reads the files and lets systemd's directories go before theirs. With config.Degraded, the settings are of use.
func effectiveConfig(path string) (config.Config, error) {
	around := lookAround()
	cfg, degraded := around.place().Load(path)
	if _, fatal := posting.Degraded(degraded); fatal != nil {
		return config.Config{}, program.ConfigError{Fault: fatal}
	}
	around.settle(&cfg)
	cfg.StateDirectory = program.DirectoryFrom("STATE_DIRECTORY", cfg.StateDirectory)
	cfg.RuntimeDirectory = program.DirectoryFrom("RUNTIME_DIRECTORY", cfg.RuntimeDirectory)
	return cfg, degraded
}
