package main

import (
	"context"
	"io"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
)

// Run runs nth, as the process does.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return cli.Run(ctx, nth(detectHost()), args, stdout, stderr, daemon.Complain("nth"))
}

// NewLogger returns the logger that the settings ask for.
func NewLogger(cfg config.Log, stderr io.Writer) *logrus.Logger {
	return daemon.NewLogger("nth", cfg, stderr)
}

// RunSettings returns the settings that "nth run" has after its flags.
func RunSettings(args ...string) (config.Config, error) {
	cmd := &cobra.Command{}
	read := detectHost().settings().RunFlags(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		return config.Config{}, err
	}
	l, err := read()
	return l.Config, err
}

// Watching is shown how the daemon stands, and says whether it does its work.
func Watching() (show func(state.Status), alive func() bool) {
	b := newStatusReporter(record.NewStatusFile("/proc/nowhere", func(error) {}), metrics.New(metrics.Options{}), nil, config.Default())
	return func(s state.Status) {
		b.setIdentity(identity.Identity{})
		b.Show(s)
	}, b.alive
}
