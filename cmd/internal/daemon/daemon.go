// Package daemon has what both daemons share: start, logging, metrics, the webhook, and reloading the settings on SIGHUP. It converts the
// settings that both have to those of the packages in pkg.
package daemon

import (
	"context"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/systemd"
)

// Daemon is a running program, with the settings of its start.
type Daemon[C any, P config.Pointer[C]] struct {
	Name   string
	Config C
	// Degraded lists faults in the settings, with which the program works nevertheless.
	Degraded []string
	Log      *logrus.Entry
	Service  *systemd.Notifier

	read    func() (C, error)
	hangups <-chan os.Signal
}

// Run reads the settings and calls run, which is the daemon of that name. A signal that asks to stop ends the context of run. stderr returns the
// stream to log to.
func Run[C any, P config.Pointer[C]](
	ctx context.Context, name string, read func() (C, error), stderr func(config.Log) io.Writer, run func(context.Context, *Daemon[C, P]) error,
) error {
	setGCPercent()
	cfg, err := read()
	degraded, fatal := settings.Degraded(err)
	if fatal != nil {
		return fatal
	}
	// Without a channel for it, a SIGHUP ends the process. Several in quick succession may become one.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	ctx, stop := UntilSignal(ctx)
	defer stop()
	logTo := P(&cfg).Base().Log
	logger := NewLogger(name, logTo, stderr(logTo))
	RouteKlog(logrus.NewEntry(logger))
	return run(ctx, &Daemon[C, P]{
		Name: name, Config: cfg, Degraded: degraded, Log: logrus.NewEntry(logger), Service: &systemd.Notifier{}, read: read, hangups: hangups,
	})
}

// SayDegraded logs the faults of Degraded. A daemon calls it once, when it starts.
func (d *Daemon[C, P]) SayDegraded() {
	for _, fault := range d.Degraded {
		d.Log.WithField(systemd.FieldMessageID, systemd.ConfigInvalid).Errorf("degraded: %s", fault)
	}
}

// Reload reloads the settings on each SIGHUP until ctx ends. late and apply are the fields Late and Apply of a Reloader.
func (d *Daemon[C, P]) Reload(ctx context.Context, late func(name string, started, now C) bool, apply func(cfg C, degraded []string)) {
	r := &Reloader[C, P]{
		Program: d.Name, Read: d.read, Service: d.Service, Log: d.Log, Started: d.Config, Current: d.Config, Late: late,
		Apply: func(cfg C, degraded []string) {
			SetLevel(d.Log.Logger, P(&cfg).Base().Log)
			apply(cfg, degraded)
		},
	}
	r.Run(ctx, d.hangups)
}

// Reloader reloads the settings. Invalid settings change nothing. If only [log], [webhook] or [metrics] are invalid, these tables stay as they
// were, and the others are applied. It logs settings that need a restart. All fields are required.
type Reloader[C any, P config.Pointer[C]] struct {
	Program string
	// Read reads the settings. If the error is a config.Degraded, they can be used.
	Read    func() (C, error)
	Service interface {
		Reloading()
		Ready()
	}
	Log *logrus.Entry
	// Apply applies the settings. degraded lists the faults in those that were read.
	Apply func(cfg C, degraded []string)
	// Late reports whether a setting takes effect only after a restart. name is its key.
	Late func(name string, started, now C) bool
	// Started are the settings of the start, and Current those of the last reload.
	Started, Current C
}

// Run reloads on each signal until ctx ends.
func (r *Reloader[C, P]) Run(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			r.Service.Reloading()
			r.reload()
			r.Service.Ready()
		}
	}
}

// reload reads the settings once and applies them. If they are invalid, it logs the faults, and those in use stay. It also logs which settings
// changed, and which of them only a restart applies.
func (r *Reloader[C, P]) reload() {
	cfg, err := r.Read()
	degraded, fatal := settings.Degraded(err)
	invalid := r.Log.WithField(systemd.FieldMessageID, systemd.ConfigInvalid)
	if fatal != nil {
		for line := range strings.SplitSeq(fatal.Error(), "\n") {
			invalid.Error(line)
		}
		invalid.Warn("invalid configuration; keeping the current one")
		return
	}
	if len(degraded) > 0 {
		for _, fault := range degraded {
			invalid.Errorf("degraded: %s", fault)
		}
		invalid.Warn("invalid [log], [webhook] or [metrics]; keeping the current ones")
		P(&cfg).Base().KeepNotifications(P(&r.Current).Base())
	}
	needsRestart := func(name string) bool { return r.Late(name, r.Started, cfg) }
	changed := slices.DeleteFunc(config.Diff[C, P](r.Current, cfg), needsRestart)
	// Compared with the settings of the start: a setting may wait for a restart since an earlier reload.
	waiting := slices.DeleteFunc(config.Diff[C, P](r.Started, cfg), func(name string) bool { return !needsRestart(name) })
	r.Apply(cfg, degraded)
	r.Current = cfg
	reloaded := r.Log.WithField(systemd.FieldMessageID, systemd.Reloaded)
	if len(changed) > 0 {
		reloaded.Infof("configuration reloaded; changed: %s", strings.Join(changed, ", "))
	} else {
		reloaded.Info("configuration reloaded; no changes")
	}
	if len(waiting) > 0 {
		reloaded.Warnf("restart %s to apply: %s", r.Program, strings.Join(waiting, ", "))
	}
}
