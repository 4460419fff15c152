package main

import (
	"context"
	"io"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/config"
)

// Run runs nth-queue, as the process does.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return cli.Run(ctx, nthQueue(), args, stdout, stderr, daemon.Complain("nth-queue"))
}

// CheckOwner is what "check" says of the cluster's name, where its Nodes' instances are tagged with those.
func CheckOwner(to io.Writer, settings config.Fleet, names ...string) {
	(&check{checks.For("nth-queue", to, false)}).owner(settings, names)
}
