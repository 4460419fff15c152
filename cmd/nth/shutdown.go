package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/logind"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/powerkey"
	"github.com/nth-project/nth/pkg/systemd"
)

// stopLimit is the longest drain in nth's own stop job, for a shutdown that logind did not announce. The rest of TimeoutStopSec= of the unit is
// left to other units.
const stopLimit = 145 * time.Second

// lastWords is how long nth has after the drain in its stop job to report what is left.
const lastWords = 5 * time.Second

// dropInDelay is InhibitDelayMaxSec= in systemd/80-nth.conf.
const dropInDelay = 150 * time.Second

// tooShort describes a delay that is shorter than dropInDelay, and why that may be.
func tooShort(delay time.Duration) string {
	return fmt.Sprintf("%s only, not for the %s that 80-nth.conf asks for: another file in logind.conf.d overrides "+
		"it, or it is not installed", delay, dropInDelay)
}

// system is what shutdown knows about the host.
type system struct {
	host  logind.Host
	limit time.Duration // for nth's own stop job
}

// shutdown handles shutdowns, hibernation and the power button.
type shutdown struct {
	source *logind.Source // nil if shutdowns and hibernation are ignored
	keys   *powerkey.Keys // nil if nth does not handle the power button
	// drainsAtStop: when the whole system stops, the daemon runs until the node is drained, as shutdowns are not ignored.
	drainsAtStop bool
	system       system
	log          *logrus.Entry

	mu      sync.Mutex
	done    func() // is called when the shutdown may proceed; nil unless the daemon has been asked to stop
	trouble string // the last error in powering the machine off
}

// shutdownMargin is how much of the time for a shutdown or a sleep is left unused, so that it continues by itself.
const shutdownMargin = 5 * time.Second

// newShutdown returns the handler of shutdowns, by the settings. report is called with nil when logind announces shutdowns, or with the
// reason why it does not.
func newShutdown(cfg config.Config, where system, bootID string, log *logrus.Entry, report func(error)) *shutdown {
	s := &shutdown{system: where, log: log}
	kinds := slices.DeleteFunc(watched(policyOf(cfg)), func(kind event.Kind) bool { return !kind.Local() })
	if len(kinds) == 0 {
		return s
	}
	s.drainsAtStop = slices.Contains(kinds, event.Shutdown)
	lacksNotice := func(err error) {
		report(err)
		log.WithField(systemd.FieldMessageID, systemd.SourceTrouble).
			Infof("no advance notice of shutdowns: %s", err)
	}
	options := logind.Options{
		Host:   where.host,
		BootID: bootID,
		Kinds:  kinds,
		Margin: shutdownMargin,
		Holding: func(delay time.Duration) {
			report(nil)
			if delay < dropInDelay {
				s.startLog().Warnf("a shutdown can be held for %s", tooShort(delay))
				return
			}
			s.startLog().Infof("a shutdown can be held for up to %s", delay)
		},
		Off: lacksNotice,
	}
	hasKey := where.host == "" && s.drainsAtStop // In a container, the devices of the power button are out of sight.
	if hasKey {
		options.Key = &logind.KeyOptions{Held: s.reportPowerKey, Trouble: s.cannotPowerOff}
	}
	s.source = logind.New(options)
	switch {
	case hasKey && wantsPowerKey(cfg):
		s.keys = &powerkey.Keys{Listening: s.source.ListenToKey, Pressed: s.pressed}
	case hasKey:
		s.source.ListenToKey(false)
	}
	return s
}

// startLog returns the log for messages about how shutdowns are handled here, with the message ID of a start.
func (s *shutdown) startLog() *logrus.Entry {
	return s.log.WithField(systemd.FieldMessageID, systemd.Started)
}

// wantsPowerKey reports whether nth is to handle the power button, by the settings.
func wantsPowerKey(cfg config.Config) bool {
	c := cfg.Events.Shutdown
	return policy.Action(c.Action) == policy.Drain && c.PowerKey == "nth" && !cfg.DryRun
}

// listen reads the power button, if nth can handle it, until ctx ends or end is called. end waits until nothing is read any more.
func (s *shutdown) listen(ctx context.Context) (end func()) {
	if s.keys == nil {
		return func() {}
	}
	listening, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() { s.keys.Run(listening) })
	return func() { stop(); ended.Wait() }
}

// pressed passes a press of the power button on to the source, and logs it.
func (s *shutdown) pressed(at time.Time) {
	s.source.Pressed(at)
	s.log.WithField(systemd.FieldMessageID, systemd.PowerButton).
		Warnf("the power button was pressed at %s", at.UTC().Format("15:04:05.000Z"))
}

// reportPowerKey logs which process handles the power button, and what the kubelet does then. held: nth does. why is why nth does not, if it
// wants to.
func (s *shutdown) reportPowerKey(held bool, why string) {
	handler := "logind, which announces the shutdown to nth and the kubelet at once"
	switch {
	case held:
		handler = fmt.Sprintf("nth: the node is drained for up to %s, and then powered off", logind.PowerOffGrant)
	case why != "":
		handler = "logind: " + why
	}
	kubelets, err := identity.ReadGracefulShutdown("")
	if err == nil && kubelets.Period > 0 {
		handler += "; " + kubeletsPart(kubelets)
	}
	s.startLog().Infof("the power button is handled by %s", handler)
}

// kubeletsPart says what the kubelet's graceful shutdown does to pods when logind announces a shutdown to it and to nth at once.
func kubeletsPart(k identity.GracefulShutdown) string {
	return fmt.Sprintf("where logind announces a shutdown, such as on a reboot, the kubelet ends all pods at the same time as "+
		"nth: it asks no disruption budget, and gives pods no more than %s, critical ones %s", k.Period-k.Critical, k.Critical)
}

// cannotPowerOff logs an error in powering the machine off, unless the last one was the same.
func (s *shutdown) cannotPowerOff(err error) {
	s.mu.Lock()
	changed := s.trouble != err.Error()
	s.trouble = err.Error()
	s.mu.Unlock()
	if changed {
		s.log.WithField(systemd.FieldMessageID, systemd.PowerButton).
			Errorf("cannot power the machine off: %s", err)
	}
}

// sources returns logind as a source of events for the agent; nil if logind announces nothing.
func (s *shutdown) sources() []agent.Source {
	if s.source == nil {
		return nil
	}
	return []agent.Source{s.source}
}

// settled lets a shutdown or hibernation proceed once its event has an outcome, whatever that is.
func (s *shutdown) settled(ev event.Event, outcome event.Outcome) {
	if !ev.Kind.Local() || outcome == "" { // EC2 has announced it, or there is still something to do.
		return
	}
	s.source.Release(ev.Kind)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done != nil && ev.Kind == event.Shutdown { // The system is stopping, and the daemon has run on only for this drain.
		s.done()
	}
}

// outlive returns the context for the daemon to run in. Usually it ends with ctx. If the whole system is stopping then, it ends when the drain is
// settled, or when the time of nth's stop job is nearly over. stop ends it at once.
func (s *shutdown) outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		if reload := errors.Is(context.Cause(ctx), daemon.ErrReload); reload || s.source == nil || !s.drainsAtStop || !s.source.GoingDown(running) {
			stop()
			return
		}
		s.mu.Lock()
		s.done = stop
		s.mu.Unlock()
		s.source.Stopping(s.system.limit)
		time.AfterFunc(s.system.limit+lastWords, stop)
	})
	return running, stop
}
