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
	read, done, err := runSettings(args, to)
	if done || err != nil {
		return err
	}
	if err = watch(ctx, read, to); err != nil && lookAround().contained {
		return complainContained(to.out, err)
	}
	return err
}

// watch runs the daemon with the settings that read reads, until a signal asks it to stop.
func watch(ctx context.Context, read func() (config.Config, error), to streams) error {
	cfg, err := read()
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	return runDaemon(ctx, cfg, read, logStream(cfg.Log, to))
}

// runSettings returns what reads the settings that "nth run" has with its flags; done tells that help was asked for
// instead.
func runSettings(args []string, to streams) (read func() (config.Config, error), done bool, err error) {
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
		return nil, done, err
	}
	return func() (config.Config, error) {
		cfg, err := soundConfig(path)
		if err == nil {
			override(&cfg)
		}
		return cfg, err
	}, false, nil
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
