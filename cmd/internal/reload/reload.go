// Package reload lets a program read its settings anew when it gets a SIGHUP. Settings that are wrong change nothing, and where only what is
// told is wrong, it stays as it was and all else is in effect; what needs another start is said.
package reload

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/webhooks"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/systemd"
)

// Reloader reads the settings anew when it is asked to. All fields are needed.
type Reloader[C any, P config.Pointer[C]] struct {
	// Program is the program's name.
	Program string
	// Read reads the settings. With config.Degraded, they are of use.
	Read func() (C, error)
	// Service is the service manager.
	Service interface {
		Reloading()
		Ready()
	}
	Log *logrus.Entry
	// Apply puts settings into effect for what begins from now on; degraded is what is wrong with those that were read.
	Apply func(cfg C, degraded []string)
	// Late tells whether a setting, as now has it, takes effect only when the program is started again.
	Late func(name string, started, now C) bool
	// Started are the settings that the process began with, and Current those in effect since the last reload.
	Started, Current C
}

// Hangups returns a channel that has an element after each SIGHUP; several close together may be one. Without it, a
// SIGHUP ends the process, so it is asked for early.
func Hangups() (hangups <-chan os.Signal, stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	return signals, func() { signal.Stop(signals) }
}

// Run reloads at each hangup until ctx ends.
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

func (r *Reloader[C, P]) reload() {
	cfg, err := r.Read()
	degraded, fatal := webhooks.Degraded(err)
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
	late := func(name string) bool { return r.Late(name, r.Started, cfg) }
	changed := slices.DeleteFunc(config.Diff[C, P](r.Current, cfg), late)
	waiting := slices.DeleteFunc(config.Diff[C, P](r.Started, cfg), func(name string) bool { return !late(name) })
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
