package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/systemd"
)

// reloader reads the settings anew when it is asked to by a SIGHUP. Settings that are wrong change nothing.
type reloader struct {
	read    func() (config.Config, error)
	service interface {
		Reloading()
		Ready()
	}
	log *logrus.Entry
	// apply puts settings into effect for what begins from now on.
	apply func(config.Config)
	// started are the settings that the process began with, and current those in effect since the last reload.
	started, current config.Config
}

// hangups returns a channel that has an element after each SIGHUP; several close together may be one. Without it, a
// SIGHUP ends the process, so it is asked for early.
func hangups() (hangups <-chan os.Signal, stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	return signals, func() { signal.Stop(signals) }
}

// run reloads at each hangup until ctx ends.
func (r *reloader) run(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			r.service.Reloading()
			r.reload()
			r.service.Ready()
		}
	}
}

func (r *reloader) reload() {
	cfg, err := r.read()
	if err != nil {
		invalid := r.log.WithField(systemd.FieldMessageID, systemd.ConfigInvalid)
		for line := range strings.SplitSeq(err.Error(), "\n") {
			invalid.Error(line)
		}
		invalid.Warn("the settings are wrong; those in effect stay so")
		return
	}
	changed := slices.DeleteFunc(config.Diff(r.current, cfg), func(name string) bool { return r.late(name, cfg) })
	late := slices.DeleteFunc(config.Diff(r.started, cfg), func(name string) bool { return !r.late(name, cfg) })
	r.apply(cfg)
	r.current = cfg
	reloaded := r.log.WithField(systemd.FieldMessageID, systemd.Reloaded)
	if len(changed) > 0 {
		reloaded.Infof("read the settings again; in effect from now on: %s", strings.Join(changed, ", "))
	} else {
		reloaded.Info("read the settings again; nothing changes by that")
	}
	if len(late) > 0 {
		reloaded.Warnf("in effect when nth is started again: %s", strings.Join(late, ", "))
	}
}

// late tells whether a setting, as cfg has it, takes effect at the next start only.
func (r *reloader) late(name string, cfg config.Config) bool {
	switch {
	case name == "events.shutdown.margin":
		return true // logind is watched with it
	case name == "log.level", strings.HasPrefix(name, "drain."), strings.HasPrefix(name, "webhook."):
		return false
	case strings.HasPrefix(name, "events."):
		// What is ignored is not asked for.
		before, after := policyOf(r.started.Events), policyOf(cfg.Events)
		kind := kindOf(name)
		return strings.HasSuffix(name, ".action") && before[kind].Action == policy.Ignore && after[kind].Action != policy.Ignore
	}
	return true
}

// kindOf is the kind whose table a setting stands in.
func kindOf(name string) event.Kind {
	table, _, _ := strings.Cut(strings.TrimPrefix(name, "events."), ".")
	return event.Kind(table)
}
