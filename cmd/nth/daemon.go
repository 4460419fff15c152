package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"github.com/nth-project/nth/pkg/config"
)

// commandRun is "nth run".
func commandRun(ctx context.Context, args []string, to streams) error {
	cfg, done, err := runSettings(args, to)
	if done || err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	return runDaemon(ctx, cfg, to.err)
}

// runSettings returns the settings that "nth run" has after its flags; done tells that help was asked for instead.
func runSettings(args []string, to streams) (cfg config.Config, done bool, err error) {
	var path string
	override := func(*config.Config) {}
	done, err = parse("run", runUsage, args, to, func(flags *flag.FlagSet) {
		configFlag(flags, &path)
		flags.BoolFunc("dry-run", "", func(text string) error {
			dryRun, err := strconv.ParseBool(text)
			if err != nil {
				return errors.New("must be true or false")
			}
			override = func(cfg *config.Config) { cfg.DryRun = dryRun }
			return nil
		})
	})
	if done || err != nil {
		return cfg, done, err
	}
	if cfg, err = effectiveConfig(path); err == nil {
		override(&cfg)
	}
	return cfg, false, err
}

// untilSignal returns a context that ends with the first SIGTERM or SIGINT, which context.Cause names. A second one
// ends the program at once. (With signal.NotifyContext, a second signal close behind the first would be lost.)
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	stopped := make(chan struct{})
	go func() {
		select {
		case s := <-signals:
			cancel(fmt.Errorf("%s signal received", s))
		case <-stopped:
			return
		}
		select {
		case <-signals:
			os.Exit(exitError)
		case <-stopped:
		}
	}()
	return ctx, sync.OnceFunc(func() {
		signal.Stop(signals)
		close(stopped)
		cancel(nil)
	})
}
