package main

import (
	"context"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/state"
)

// What the tests see of the program besides its streams and its exit status.
var (
	Complain = daemon.Complain("nth")

	PolicyOf  = policyOf
	FirstSeen = firstSeen
)

// Run runs nth, as the process does.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return cli.Run(ctx, nth(detectHost()), args, stdout, stderr, Complain)
}

// StopWithin is how long the stop job of a unit on a machine may drain for.
func StopWithin(timeout time.Duration) time.Duration {
	return hostInfo{}.system(config.Config{}).stopWithin(timeout)
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
	return read()
}

// ColourfulLines returns the formatter of a terminal.
var ColourfulLines = daemon.Colourful

// Service is what a reload tells the service manager.
type Service interface {
	Reloading()
	Ready()
}

// Reloads plays a daemon that began with some settings and gets one SIGHUP for each reading.
func Reloads(log *logrus.Entry, service Service, started config.Config, apply func(config.Config, []string), readings ...func() (config.Config, error)) {
	ctx, stop := context.WithCancel(context.Background())
	hangups := make(chan os.Signal)
	r := &daemon.Reloader[config.Config, *config.Config]{
		Program: "nth", Service: service, Log: log, Started: started, Current: started, Apply: apply, Late: late,
	}
	r.Read = func() (config.Config, error) {
		reading := readings[0]
		readings = readings[1:]
		return reading()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx, hangups)
	}()
	for range readings {
		hangups <- syscall.SIGHUP
	}
	stop()
	<-ended
}

// Watching is shown how the daemon stands, and says whether it does its work; stuck says what has come to a stop.
func Watching(stuck func() error) (show func(state.Status), alive func() bool) {
	l := &liveness{statusWriter: unseen{}, meter: metrics.New(metrics.Options{})}
	l.follow(pulse(stuck))
	return l.Show, l.alive
}

// unseen drops the status.
type unseen struct{}

func (unseen) Show(state.Status) {}

// pulse is a source of which nothing is asked but whether it is stuck.
type pulse func() error

func (p pulse) Stalled() error { return p() }
