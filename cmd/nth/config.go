package main

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/config"
)

// commandConfig is "nth config".
func commandConfig(_ context.Context, args []string, to program.Streams) error {
	if len(args) > 0 && args[0] == "import" {
		return importConfig(args[1:], to)
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
	if err != nil {
		return err
	}
	if !check {
		return config.Encode(to.Out, cfg)
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

// effectiveConfig reads the files and lets systemd's directories go before theirs.
func effectiveConfig(path string) (config.Config, error) {
	around := lookAround()
	cfg, err := around.place().Load(path)
	if err != nil {
		return config.Config{}, program.ConfigError{Fault: err}
	}
	around.settle(&cfg)
	cfg.StateDirectory = program.DirectoryFrom("STATE_DIRECTORY", cfg.StateDirectory)
	cfg.RuntimeDirectory = program.DirectoryFrom("RUNTIME_DIRECTORY", cfg.RuntimeDirectory)
	return cfg, nil
}
