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

// unitStop is the longest drain in nth's own stop job, for a shutdown that logind did not announce. The rest of TimeoutStopSec= of the unit is
// left to other units.
const unitStop = 145 * time.Second

// reportTime is how long nth has after the drain in its stop job to report what is left.
const reportTime = 5 * time.Second

// dropInDelay is InhibitDelayMaxSec= in systemd/80-nth.conf.
const dropInDelay = 150 * time.Second

// tooShort is the warning about a delay of logind's that is shorter than dropInDelay. It says why logind may have it.
func tooShort(delay time.Duration) string {
	return fmt.Sprintf("logind delays a shutdown by only %s, even if pods are left: 80-nth.conf, which sets %s, "+
		"is missing, or another file in logind.conf.d overrides it", delay, dropInDelay)
}

// shutdown handles shutdowns, hibernation and the power button.
type shutdown struct {
	source *logind.Source // nil if shutdowns and hibernation are ignored
	keys   powerkey.Keys  // reads nothing if nth does not handle the power button
	// drainsAtStop: the settings do not ignore shutdowns. So when the whole system stops, the daemon runs until the node is drained.
	drainsAtStop bool
	seesKey      bool          // drainsAtStop, and nth is in no container, which does not see the devices of the power button
	answersKey   bool          // seesKey, and the settings ask nth to handle the power button
	stopLimit    time.Duration // the longest drain in nth's own stop job
	log          *logrus.Entry

	mu      sync.Mutex
	endRun  func() // ends the daemon after its last drain; nil unless the whole system is stopping
	trouble string // what was last logged about an error in powering the machine off
}

// newShutdown returns the handler of shutdowns, by the settings. The handler calls report with nil when it is known that logind announces shutdowns,
// and with the reason when logind does not.
func newShutdown(cfg config.Config, stopLimit time.Duration, bootID string, log *logrus.Entry, report func(error)) *shutdown {
	s := &shutdown{stopLimit: stopLimit, log: log}
	kinds := slices.DeleteFunc(watched(policyOf(cfg)), func(kind event.Kind) bool { return !kind.Local() })
	if len(kinds) == 0 {
		return s
	}
	s.drainsAtStop = slices.Contains(kinds, event.Shutdown)
	s.seesKey = cfg.HostRoot == "" && s.drainsAtStop
	s.answersKey = s.seesKey && wantsPowerKey(cfg)
	s.source = logind.New(logind.Options{
		Host:   logind.Host(cfg.HostRoot),
		BootID: bootID,
		Kinds:  kinds,
		Notice: func(delay time.Duration, err error) {
			report(err)
			switch {
			case err != nil:
				log.WithField(systemd.FieldMessageID, systemd.SourceTrouble).Warnf("cannot watch logind for shutdowns: %s; nth might not drain the node before a shutdown; retrying", err)
			case delay < dropInDelay:
				s.startLog().Warn(tooShort(delay))
			default:
				s.startLog().Infof("logind delays a shutdown, such as a reboot, by up to %s for the drain (InhibitDelayMaxSec)", delay)
			}
		},
		Key: logind.KeyOptions{Read: s.readKey, Held: s.reportPowerKey, Trouble: s.cannotPowerOff},
	})
	return s
}

// startLog returns the log for messages about how nth handles shutdowns on this host. They have the message ID of a start.
func (s *shutdown) startLog() *logrus.Entry {
	return s.log.WithField(systemd.FieldMessageID, systemd.Started)
}

// wantsPowerKey reports whether nth is to handle the power button, by the settings.
func wantsPowerKey(cfg config.Config) bool {
	c := cfg.Events.Shutdown
	return policy.Action(c.Action) == policy.Drain && c.PowerKey == "nth" && !cfg.DryRun
}

// readKey reads the power button, and logs a press. It implements logind.KeyOptions.Read.
func (s *shutdown) readKey() (listening bool, pressed time.Time) {
	if !s.answersKey {
		return false, time.Time{}
	}
	listening, pressed = s.keys.Read()
	if !pressed.IsZero() {
		s.log.WithField(systemd.FieldMessageID, systemd.PowerButton).
			Warnf("power button pressed at %s (EC2 stops an instance this way); nth drains the node, then powers the machine off", pressed.UTC().Format("15:04:05.000Z"))
	}
	return listening, pressed
}

// reportPowerKey logs which process handles the power button, and what the kubelet does at a shutdown. held says that nth handles the button.
// Otherwise logind does, and why is what prevents nth; "" if the settings leave the button to logind. It implements logind.KeyOptions.Held.
func (s *shutdown) reportPowerKey(held bool, why string) {
	if !s.seesKey {
		return
	}
	level, then := logrus.InfoLevel, "logind tells nth and the kubelet at the same time, so the kubelet may end pods before nth can evict them"
	switch {
	case held:
		then = fmt.Sprintf("nth drains the node for up to %s, then powers the machine off", logind.PowerOffGrant)
	case why != "":
		level, then = logrus.WarnLevel, fmt.Sprintf("nth may not finish the drain, because nth cannot take the button over from logind: %s; retrying", why)
	}
	s.startLog().Logf(level, "if EC2 stops this instance by pressing its virtual power button, %s", then)
	graceful, err := identity.ReadGracefulShutdown("")
	if err == nil && graceful.Period > 0 {
		s.startLog().Info(kubeletsPart(graceful))
	}
}

// kubeletsPart says what the kubelet's graceful shutdown does to pods when logind announces a shutdown to it and to nth at once.
func kubeletsPart(k identity.GracefulShutdown) string {
	return fmt.Sprintf("if logind announces a reboot or another shutdown, the kubelet does not wait for nth, and ignores disruption budgets: "+
		"it ends normal pods within %s of the announcement, and system-critical pods within %s of it", k.Period-k.Critical, k.Period)
}

// cannotPowerOff logs an error in powering the machine off, unless the error before was the same. It implements logind.KeyOptions.Trouble.
func (s *shutdown) cannotPowerOff(drained bool, err error) {
	text := fmt.Sprintf("cannot schedule a fallback power-off with logind: %s; retrying; the drain continues, but if nth stops during it, the machine may stay on until EC2 cuts the power", err)
	if drained {
		text = fmt.Sprintf("cannot power the machine off: %s; retrying", err)
	}
	s.mu.Lock()
	changed := s.trouble != text
	s.trouble = text
	s.mu.Unlock()
	if changed {
		s.log.WithField(systemd.FieldMessageID, systemd.PowerButton).Error(text)
	}
}

// sources returns logind as a source of events for the agent; nil if the settings ignore shutdowns and hibernation.
func (s *shutdown) sources() []agent.Source {
	if s.source == nil {
		return nil
	}
	return []agent.Source{s.source}
}

// settled lets a shutdown or hibernation proceed when its event has an outcome, whatever the outcome is. The agent calls it for every event.
func (s *shutdown) settled(ev event.Event, outcome event.Outcome) {
	if !ev.Kind.Local() || outcome == "" { // EC2 has announced the event, or the drain has not ended.
		return
	}
	s.source.Release(ev.Kind)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endRun != nil && ev.Kind == event.Shutdown { // The system is stopping, and the daemon still runs only for this drain.
		s.endRun()
	}
}

// outlive returns the context for the daemon to run in. Usually it ends with ctx. If ctx ends because the whole system stops, it ends after the
// drain, or when the time of nth's stop job is nearly over. The CancelFunc ends it at once.
func (s *shutdown) outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		isReload := errors.Is(context.Cause(ctx), daemon.ErrReload)
		if isReload || !s.drainsAtStop || !s.source.GoingDown(running) {
			stop()
			return
		}
		s.mu.Lock()
		s.endRun = stop
		s.mu.Unlock()
		s.source.Stopping(s.stopLimit)
		time.AfterFunc(s.stopLimit+reportTime, stop)
	})
	return running, stop
}
