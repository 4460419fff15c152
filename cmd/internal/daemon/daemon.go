// Package daemon has what both daemons share: start, logging, metrics, the webhook, and reloading the settings on SIGHUP. It converts the
// settings that both have to those of the packages in pkg.
package daemon

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/systemd"
)

// Daemon is a running program with its settings.
type Daemon[C any] struct {
	Config C
	// Degraded lists faults in the settings, with which the program works nevertheless.
	Degraded []string
	Log      *logrus.Entry
	Service  Service
}

// ErrReload is the cause for which the context of a daemon ends if it is to begin again with other settings.
var ErrReload = errors.New("the settings have changed")

// Service is the service manager of a daemon. Stopping is not reported if the daemon only begins again.
type Service struct {
	*systemd.Notifier
	ctx context.Context // of the daemon
}

// Stopping reports that the service has begun to stop.
func (s Service) Stopping() {
	if !errors.Is(context.Cause(s.ctx), ErrReload) {
		s.Notifier.Stopping()
	}
}

// Run reads the settings and calls run, which is the daemon of that name. A signal that asks to stop ends the context of run. So does SIGHUP after a
// change of the settings: then Run calls run again, with the new ones, or with those before if its error is a cli.ConfigError. stderr is what it logs to unless it logs to the journal.
func Run[C any, P config.Pointer[C]](
	ctx context.Context, name string, read func() (config.Loaded[C], error), stderr io.Writer,
	run func(context.Context, *Daemon[C]) error,
) error {
	setGCPercent()
	current, err := read()
	if err != nil {
		return err
	}
	// Without a channel for it, a SIGHUP ends the process. Several in quick succession may become one.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	ctx, stop := UntilSignal(ctx)
	defer stop()
	notifier := &systemd.Notifier{}
	var before *config.Loaded[C] // the settings before a reload
	for {
		log := logrus.NewEntry(NewLogger(name, P(&current.Config).Base().Log, stderr))
		RouteKlog(log)
		for _, fault := range current.Warnings {
			log.WithField(systemd.FieldMessageID, systemd.ConfigInvalid).Errorf("%s drains as usual, but its reporting is degraded: %s", name, fault)
		}
		running, end := context.WithCancelCause(ctx)
		reloaded := make(chan config.Loaded[C], 1)
		go awaitReload(running, hangups, notifier, log, read, func(l config.Loaded[C]) {
			reloaded <- l
			end(ErrReload)
		})
		err := run(running, &Daemon[C]{Config: current.Config, Degraded: current.Warnings, Log: log, Service: Service{notifier, running}})
		again := errors.Is(context.Cause(running), ErrReload)
		end(nil)
		if _, wrong := errors.AsType[cli.ConfigError](err); wrong && before != nil && !again {
			sayInvalid(log, err)
			current, before = *before, nil
			continue
		}
		if err != nil || !again {
			return err
		}
		before, current = new(current), <-reloaded
		log.WithField(systemd.FieldMessageID, systemd.Reloaded).Info("configuration reloaded")
	}
}

// awaitReload reads the settings at each SIGHUP until ctx ends. It calls apply with valid ones, and returns. Invalid ones change nothing.
func awaitReload[C any](
	ctx context.Context, hangups <-chan os.Signal, service *systemd.Notifier, log *logrus.Entry,
	read func() (config.Loaded[C], error), apply func(config.Loaded[C]),
) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
		}
		service.Reloading()
		l, err := read()
		if err == nil {
			apply(l) // The daemon reports that it is ready when it has begun again.
			return
		}
		sayInvalid(log, err)
		service.Ready()
	}
}

// sayInvalid logs why settings that were read at a reload are not used.
func sayInvalid(log *logrus.Entry, err error) {
	invalid := log.WithField(systemd.FieldMessageID, systemd.ConfigInvalid)
	for line := range strings.SplitSeq(err.Error(), "\n") {
		invalid.Error(line)
	}
	invalid.Warn("invalid configuration; keeping the current one")
}
