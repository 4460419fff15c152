package main

import (
	"context"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/statusfile"
	"github.com/nth-project/nth/cmd/internal/webhooks"
)

// commandStatus is "nth-queue status".
func commandStatus(_ context.Context, args []string, to program.Streams) error {
	return statusfile.Command("nth-queue", statusUsage, args, to, func(path string) (string, error) {
		cfg, err := effectiveConfig(path)
		_, fatal := webhooks.Degraded(err)
		return cfg.RuntimeDirectory, fatal
	})
}
