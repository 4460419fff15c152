package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nth-project/nth/pkg/config"
)

// commandConfig is "nth config".
func commandConfig(_ context.Context, args []string, to streams) error {
	if len(args) > 0 && args[0] == "import" {
		return importConfig(args[1:], to)
	}
	var path string
	var check bool
	done, err := parse("config", configUsage, args, to, func(flags *flag.FlagSet) {
		configFlag(flags, &path)
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
		return config.Encode(to.out, cfg)
	}
	return approve(path, to)
}

// approve says which files were judged and found right.
func approve(path string, to streams) error {
	place := lookAround().place()
	files, err := place.Files(path)
	if err != nil {
		return configError{err}
	}
	if len(files) == 0 {
		files = []string{place.File + " (absent)"}
	}
	_, err = fmt.Fprintf(to.out, "%s: ok\n", strings.Join(files, ", "))
	return err
}

// configFlag defines --config. An empty value is refused: it is a variable that was never set, and what was meant is
// hardly the default.
func configFlag(flags *flag.FlagSet, path *string) {
	flags.Func("config", "", func(value string) error {
		if value == "" {
			return errors.New("must name a file")
		}
		*path = value
		return nil
	})
}

// effectiveConfig reads the files and lets systemd's directories go before theirs.
func effectiveConfig(path string) (config.Config, error) {
	around := lookAround()
	cfg, err := around.place().Load(path)
	if err != nil {
		return config.Config{}, configError{err}
	}
	around.settle(&cfg)
	cfg.StateDirectory = directoryFrom("STATE_DIRECTORY", cfg.StateDirectory)
	cfg.RuntimeDirectory = directoryFrom("RUNTIME_DIRECTORY", cfg.RuntimeDirectory)
	return cfg, nil
}

// directoryFrom returns the first of the directories that systemd lists in an environment variable.
func directoryFrom(variable, otherwise string) string {
	first, _, _ := strings.Cut(os.Getenv(variable), ":")
	if filepath.IsAbs(first) {
		return first
	}
	return otherwise
}
