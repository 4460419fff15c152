// Package daemon has what both daemons share: start, logging, metrics, the webhook, and reloading the settings on SIGHUP. It converts the
// settings that both have to those of the packages in pkg.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/systemd"
)

// Daemon is a running program with its settings.
type Daemon[C any] struct {
	Config C
	// Degraded lists faults in the settings, with which the program works nevertheless.
	Degraded []string
	// Webhook is where notices are posted to; nil if the settings have no address, or a faulty one.
	Webhook *notify.WebhookOptions
	Log     *logrus.Entry
	Service Service
}

// ErrReload is the cause of the end of a daemon's context (context.Cause) if the daemon is to begin again with other settings.
var ErrReload = errors.New("the settings have changed")

// Service reports the state of a daemon to the service manager.
type Service struct {
	*systemd.Notifier
	ctx context.Context // the daemon's
}

// Stopping reports that the service has begun to stop. It reports nothing if the daemon only begins again with other settings.
func (s Service) Stopping() {
	if !errors.Is(context.Cause(s.ctx), ErrReload) {
		s.Notifier.Stopping()
	}
}

// Run reads the settings and calls run, which is the daemon of that name. A signal that asks to stop ends the context of run, and then Run. SIGHUP
// also ends the context of run, if the settings are valid then: Run calls run again with the new settings. If run refuses these with a
// cli.ConfigError, Run calls it again with the settings from before. At the end, the error is that of run, or why the service manager cannot be
// notified. The log goes to stderr unless it goes to the journal.
func Run[C any, P config.Pointer[C]](
	ctx context.Context, name string, read func() (config.Loaded[C], error), stderr io.Writer,
	run func(context.Context, *Daemon[C]) error,
) error {
	setGCPercent()
	current, err := read()
	if err != nil {
		return err
	}
	// Without a channel for SIGHUP, the signal would end the process. Several in quick succession may become one.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	ctx, stop := UntilSignal(ctx)
	defer stop()
	notifier := &systemd.Notifier{}
	var before *config.Loaded[C] // the settings before the last reload; nil if there was none, or if its settings were refused
	for {
		log := logrus.NewEntry(NewLogger(name, P(&current.Config).Base().Log, stderr))
		RouteKlog(log)
		webhook, faults := settings.Webhook(P(&current.Config).Base().Webhook, name)
		degraded := slices.Concat(current.Warnings, faults)
		for _, fault := range degraded {
			log.WithField(systemd.FieldMessageID, systemd.ConfigInvalid).Warnf("ignoring an invalid setting: %s; drains are not affected", fault)
		}
		running, end := context.WithCancelCause(ctx)
		reloaded := make(chan config.Loaded[C], 1)
		go awaitReload(running, hangups, notifier, log, read, func(l config.Loaded[C]) {
			reloaded <- l
			end(ErrReload)
		})
		err := run(running, &Daemon[C]{
			Config: current.Config, Degraded: degraded, Webhook: webhook, Log: log, Service: Service{notifier, running},
		})
		isReload := errors.Is(context.Cause(running), ErrReload)
		end(nil) // This ends awaitReload.
		_, isRefused := errors.AsType[cli.ConfigError](err)
		switch {
		case isReload && (err == nil || isRefused): // Refused settings do not matter once others have come.
			if !isRefused {
				before = new(current)
			}
			current = <-reloaded
			log.WithField(systemd.FieldMessageID, systemd.Reloaded).Info("configuration reloaded")
		case isRefused && before != nil: // The last reload was wrong.
			logInvalid(log, err)
			current, before = *before, nil
		default:
			return cmp.Or(err, notifier.Err())
		}
	}
}

// awaitReload reads the settings at each SIGHUP, until ctx ends or the settings are valid. It calls apply with valid settings, and returns. It logs why
// others are invalid, and the daemon keeps those that it has.
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
			apply(l) // The daemon calls Ready when it has begun again.
			return
		}
		logInvalid(log, err)
		service.Ready()
	}
}

// logInvalid logs why settings that were read at a reload are not used.
func logInvalid(log *logrus.Entry, err error) {
	invalid := log.WithField(systemd.FieldMessageID, systemd.ConfigInvalid)
	for line := range strings.SplitSeq(err.Error(), "\n") {
		invalid.Error(line)
	}
	invalid.Warn("invalid configuration; keeping the previous configuration")
}
