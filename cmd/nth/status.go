package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/standing"
	"github.com/nth-project/nth/pkg/config"
)

// commandStatus is "nth status".
func commandStatus(_ context.Context, args []string, to program.Streams) error {
	var path string
	var asJSON bool
	done, err := program.Parse("nth status", statusUsage, args, to, func(flags *flag.FlagSet) {
		program.ConfigFlag(flags, &path)
		flags.BoolVar(&asJSON, "json", false, "")
	})
	if done || err != nil {
		return err
	}
	dir, err := runtimeDirectory(path, to.Err)
	if err != nil {
		return err
	}
	found := standing.Examine("nth", dir, time.Now())
	if asJSON {
		err = standing.WriteJSON(to.Out, found)
	} else {
		err = standing.WriteText(to.Out, found)
	}
	if err == nil && found.State != standing.Running {
		err = program.ErrTold
	}
	return err
}

// runtimeDirectory is where the daemon shows its status. Without a file that was asked for, settings that are wrong do
// not keep anybody from the status of a daemon that runs with those it had before.
func runtimeDirectory(path string, stderr io.Writer) (string, error) {
	cfg, err := effectiveConfig(path)
	if err != nil && path == "" {
		fmt.Fprintln(stderr, err)
		return program.DirectoryFrom("RUNTIME_DIRECTORY", config.Default().RuntimeDirectory), nil
	}
	return cfg.RuntimeDirectory, err
}
