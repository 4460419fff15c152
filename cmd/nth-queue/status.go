package main

import (
	"context"

	"github.com/nth-project/nth/cmd/internal/posting"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/standing"
)

// commandStatus is "nth-queue status".
func commandStatus(_ context.Context, args []string, to program.Streams) error {
	return standing.Command("nth-queue", statusUsage, args, to, func(path string) (string, error) {
		cfg, err := effectiveConfig(path)
		_, fatal := posting.Degraded(err)
		return cfg.RuntimeDirectory, fatal
	})
}
