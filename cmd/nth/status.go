package main

import (
	"context"
	"fmt"
	"io"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/statusfile"
	"github.com/nth-project/nth/cmd/internal/webhooks"
	"github.com/nth-project/nth/pkg/config"
)

// commandStatus is "nth status".
func commandStatus(_ context.Context, args []string, to program.Streams) error {
	return statusfile.Command("nth", statusUsage, args, to, func(path string) (string, error) { return runtimeDirectory(path, to.Err) })
}

// runtimeDirectory is where the daemon shows its status. Without a file that was asked for, settings that are wrong do
// not keep anybody from the status of a daemon that runs with those it had before.
func runtimeDirectory(path string, stderr io.Writer) (string, error) {
	cfg, err := effectiveConfig(path)
	if _, err = webhooks.Degraded(err); err != nil && path == "" {
		fmt.Fprintln(stderr, err)
		return program.DirectoryFrom("RUNTIME_DIRECTORY", config.Default().RuntimeDirectory), nil
	}
	return cfg.RuntimeDirectory, err
}
