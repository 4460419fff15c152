package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/logind"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/powerkey"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// stopLimit is how long nth's own stop job may drain for at most, where logind did not announce the shutdown: it may be a
// power-off of EC2's, however long the unit may take. Where the unit's TimeoutStopSec= is shorter, stopReserve of it is left
// to stop everything else.
const (
	stopLimit   = 145 * time.Second
	stopReserve = 35 * time.Second
)

// lastWords is how long nth has after that to say what is left, should its drain not end by itself.
const lastWords = 5 * time.Second

// dropInDelay is what systemd/80-nth.conf asks of logind.
const dropInDelay = 150 * time.Second

// keptFiles is how many open files systemd has to keep for the next process: what is known of a press, and a device at least.
const keptFiles = 2

// keepsTooLittle says what to make of a systemd that keeps less.
func keepsTooLittle(files uint32) string {
	return fmt.Sprintf("systemd keeps %d open files for the process after this one, so that a press would be lost with it: another "+
		"file than nth's own unit sets FileDescriptorStoreMax=", files)
}

// tooShort says what to make of a delay that is not what the drop-in asks for.
func tooShort(delay time.Duration) string {
	return fmt.Sprintf("%s only, not for the %s that 80-nth.conf asks for: another file in logind.conf.d has the last word, "+
		"or that one is not there", delay, dropInDelay)
}

// system is what that part of the daemon knows of where it runs.
type system struct {
	host  logind.Host
	limit time.Duration // for nth's own stop job, unless its unit says otherwise
	deaf  error         // why no shutdown can be heard of; nil if it can

	bootID   string
	underway time.Time // the deadline of the shutdown that an earlier process has left under way; zero if there is none
}

// in is the same in a boot, with what the record has of it.
func (s system) in(bootID string, book []state.Entry) system {
	s.bootID, s.underway = bootID, underway(book, bootID)
	return s
}

// shutdown is the part of the daemon that lives with the end of the system, and with its sleep.
type shutdown struct {
	source *logind.Source // nil if shutdowns and sleeps are to be ignored, or cannot be heard of
	keys   *powerkey.Keys // nil if nth cannot answer the power key here
	// outlived tells that the stop of the whole system is drained for: shutdowns are not to be ignored.
	outlived bool
	wanted   atomic.Bool // the settings want it to
	system   system
	log      *logrus.Entry

	mu      sync.Mutex
	done    func() // what to call when the shutdown has got what it is due; nil until it is waited for
	trouble string // what was said last of a machine that cannot be powered off
}

// newShutdown returns the part that treats shutdowns and sleeps as the settings say. heard is called when it is known
// whether logind announces them: with nil, or with why it does not. store is the service manager.
func newShutdown(ctx context.Context, cfg config.Config, where system, log *logrus.Entry, heard func(error), store powerkey.Store) *shutdown {
	s := &shutdown{system: where, log: log}
	kinds := slices.DeleteFunc(watched(policyOf(cfg.Events)), func(kind event.Kind) bool { return !kind.Local() })
	if len(kinds) == 0 {
		return s
	}
	s.outlived = slices.Contains(kinds, event.Shutdown)
	off := func(err error) {
		heard(err)
		log.WithField(systemd.FieldMessageID, systemd.SourceTrouble).
			Infof("no advance notice of shutdowns: %s", err)
	}
	if where.deaf != nil {
		off(where.deaf)
		return s
	}
	s.source = logind.New(logind.Options{
		Host:   where.host,
		BootID: where.bootID,
		Kinds:  kinds,
		Margin: cfg.Events.Shutdown.Margin,
		Holding: func(delay time.Duration) {
			heard(nil)
			if delay < dropInDelay {
				s.started().Warnf("a shutdown can be held for %s", tooShort(delay))
				return
			}
			s.started().Infof("a shutdown can be held for up to %s", delay)
		},
		Off:      off,
		Underway: where.underway,
		Key: logind.KeyOptions{
			Held: s.answersKey, Trouble: s.cannotPowerOff, Claimed: s.claimed, Over: s.over,
		},
	})
	s.use(cfg)
	if where.host == "" && slices.Contains(kinds, event.Shutdown) {
		s.keys = s.newKeys(ctx, store)
	}
	if s.keys == nil {
		s.source.ListenToKey(false)
	}
	return s
}

func (s *shutdown) started() *logrus.Entry {
	return s.log.WithField(systemd.FieldMessageID, systemd.Started)
}

// newKeys returns what hears the power key; nil where nobody would keep a press for the process after this one.
func (s *shutdown) newKeys(ctx context.Context, store powerkey.Store) *powerkey.Keys {
	if files, err := s.system.host.Keeps(ctx); err == nil && files < keptFiles {
		s.started().Warnf("the power button is handled by logind: %s", keepsTooLittle(files))
		return nil
	}
	keys, err := powerkey.New(powerkey.Options{
		Store: store, Kept: systemd.Kept(), Wanted: s.wanted.Load,
		Listening: s.source.ListenToKey, Ours: s.source.HoldsKey, Pressed: s.pressed,
	})
	if err != nil {
		s.started().Infof("the power button is handled by logind: %s", err)
		return nil
	}
	return keys
}

// use puts settings into effect.
func (s *shutdown) use(cfg config.Config) {
	s.wanted.Store(wantsKey(cfg))
}

// wantsKey tells whether nth is to answer the power key by the settings.
func wantsKey(cfg config.Config) bool {
	c := cfg.Events.Shutdown
	return policy.Action(c.Action) == policy.Drain && c.PowerKey == "nth" && !cfg.DryRun
}

// listen hears the power key until it is ended. What was pressed before is known when it returns.
func (s *shutdown) listen(ctx context.Context) (end func()) {
	if s.keys == nil {
		return func() {}
	}
	s.keys.Recall()
	listening, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() { s.keys.Run(listening) })
	return func() { stop(); ended.Wait() }
}

// claimed and over are told what becomes of a press, which may be one that nobody has kept.
func (s *shutdown) claimed() {
	if s.keys != nil {
		s.keys.Claim()
	}
}

func (s *shutdown) over() {
	if s.keys != nil {
		s.keys.Over()
	}
}

// pressed is told of the power key.
func (s *shutdown) pressed(at time.Time, ours bool) {
	s.source.Pressed(at, ours)
	s.log.WithField(systemd.FieldMessageID, systemd.PowerButton).
		Warnf("the power button was pressed at %s", at.UTC().Format("15:04:05.000Z"))
}

// answersKey says who answers the power key, and what the kubelet makes of it.
func (s *shutdown) answersKey(held bool, why string) {
	words := "logind's, which tells everybody at once"
	switch {
	case held:
		words = fmt.Sprintf("nth's: the node is drained for up to %s, and powered off then", logind.PowerOffGrant)
	case why != "":
		words = "logind's: " + why
	}
	kubelets, err := kubelet.ReadGracefulShutdown("")
	if err == nil && kubelets.Period > 0 {
		words += "; " + besideNth(kubelets)
	}
	s.started().Infof("the power button is %s", words)
}

// besideNth says what the kubelet's graceful shutdown means where it hears of a shutdown at the same time as nth.
func besideNth(k kubelet.GracefulShutdown) string {
	return fmt.Sprintf("where logind announces a shutdown, such as on a reboot, the kubelet ends all pods at the same time as "+
		"nth: it asks no disruption budget, and gives pods no more than %s, critical ones %s", k.Period-k.Critical, k.Critical)
}

// cannotPowerOff says it once.
func (s *shutdown) cannotPowerOff(err error) {
	s.mu.Lock()
	news := s.trouble != err.Error()
	s.trouble = err.Error()
	s.mu.Unlock()
	if news {
		s.log.WithField(systemd.FieldMessageID, systemd.PowerButton).
			Errorf("powering the machine off: %s", err)
	}
}

func (s *shutdown) sources() []agent.Source {
	if s.source == nil {
		return nil
	}
	return []agent.Source{s.source}
}

// settled lets the shutdown or the sleep go on once nothing more is to be done for it; also on a node that people want left alone, and
// where it is only told.
func (s *shutdown) settled(ev event.Event, outcome event.Outcome) {
	if !ev.Kind.Local() || outcome == "" {
		return
	}
	s.source.Release(ev.Kind)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done != nil && ev.Kind == event.Shutdown {
		s.done()
	}
}

// outlive returns the context to run in. It ends with ctx; but if ctx ended since the whole system is stopping, only
// when the shutdown has got what it is due.
func (s *shutdown) outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		if s.source == nil || !s.outlived || !s.system.host.GoingDown(running) {
			stop()
			return
		}
		s.mu.Lock()
		s.done = stop
		s.mu.Unlock()
		limit := s.system.stopTime(running)
		s.source.Stopping(limit)
		time.AfterFunc(limit+min(lastWords, limit/4), stop)
	})
	return running, stop
}

// stopTime is how long nth's own stop job may drain for.
func (s system) stopTime(ctx context.Context) time.Duration {
	timeout, err := s.host.StopTimeout(ctx)
	if err != nil {
		return s.limit
	}
	return s.stopWithin(timeout)
}

// stopWithin is what of the time that its unit allows a stop job may drain for: all but the reserve, but at least half of
// it, and no more than the limit.
func (s system) stopWithin(timeout time.Duration) time.Duration {
	return min(max(timeout-stopReserve, timeout/2), s.limit)
}

// underway is the deadline of the shutdown that the record has of this boot, and that was not called off; zero if none.
func underway(book []state.Entry, bootID string) time.Time {
	for _, e := range book {
		if e.Event.Kind == event.Shutdown && e.BootID == bootID && e.Phase != state.Undoing && e.Phase != state.Closed {
			return e.Event.Deadline
		}
	}
	return time.Time{}
}
