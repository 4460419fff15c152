package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/logind"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/systemd"
)

// stopLimit is how long nth's own stop job may drain for, where logind did not announce the shutdown and the unit's
// TimeoutStopSec= cannot be asked for. Where it can, stopReserve of it is left to stop everything else.
const (
	stopLimit   = 145 * time.Second
	stopReserve = 35 * time.Second
)

// lastWords is how long nth has after that to say what is left, should its drain not end by itself.
const lastWords = 5 * time.Second

// dropInDelay is what systemd/80-nth.conf asks of logind.
const dropInDelay = 150 * time.Second

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
}

// shutdown is the part of the daemon that lives with the end of the system.
type shutdown struct {
	source *logind.Source // nil if shutdowns are to be ignored, or cannot be heard of
	system system

	mu   sync.Mutex
	done func() // what to call when the shutdown has got what it is due; nil until it is waited for
}

// newShutdown returns the part that treats shutdowns as the settings say. heard is called when it is known whether logind
// announces them: with nil, or with why it does not.
func newShutdown(c config.Shutdown, where system, bootID string, log *logrus.Entry, heard func(error)) *shutdown {
	s := &shutdown{system: where}
	if policy.Action(c.Action) == policy.Ignore {
		return s
	}
	off := func(err error) {
		heard(err)
		log.WithField(systemd.FieldMessageID, systemd.SourceTrouble).
			Infof("shutdowns cannot be heard of in advance: %s", err)
	}
	if where.deaf != nil {
		off(where.deaf)
		return s
	}
	s.source = logind.New(logind.Options{
		Host:   where.host,
		BootID: bootID,
		Margin: c.Margin,
		Holding: func(delay time.Duration) {
			heard(nil)
			entry := log.WithField(systemd.FieldMessageID, systemd.Started)
			if delay < dropInDelay {
				entry.Warnf("a shutdown can be held for %s", tooShort(delay))
				return
			}
			entry.Infof("a shutdown can be held for up to %s", delay)
		},
		Off: off,
	})
	return s
}

func (s *shutdown) sources() []agent.Source {
	if s.source == nil {
		return nil
	}
	return []agent.Source{s.source}
}

// settled lets the shutdown go on once nothing more is to be done for it.
func (s *shutdown) settled(ev event.Event) {
	if ev.Kind != event.Shutdown {
		return
	}
	s.source.Release()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done != nil {
		s.done()
	}
}

// outlive returns the context to run in. It ends with ctx; but if ctx ended since the whole system is stopping, only
// when the shutdown has got what it is due.
func (s *shutdown) outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		if s.source == nil || !s.system.host.GoingDown(running) {
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

// stopTime is how long nth's own stop job may drain for: what its unit allows less the reserve, but at least half of it.
func (s system) stopTime(ctx context.Context) time.Duration {
	timeout, err := s.host.StopTimeout(ctx)
	if err != nil {
		return s.limit
	}
	return max(timeout-stopReserve, timeout/2)
}
