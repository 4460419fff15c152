package main

import (
	"context"
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

// stopLimit is how long nth's own stop job may drain for, where logind did not announce the shutdown. The unit's
// TimeoutStopSec= is a little longer.
const stopLimit = 145 * time.Second

// shortDelay is the least that logind should grant: less is hardly enough for pods to end by themselves.
const shortDelay = 30 * time.Second

// dropInDelay is what systemd/80-nth.conf asks of logind.
const dropInDelay = 150 * time.Second

// shutdown is the part of the daemon that lives with the end of the system.
type shutdown struct {
	source *logind.Source // nil if shutdowns are to be ignored

	mu   sync.Mutex
	done func() // what to call when the shutdown has got what it is due; nil until it is waited for
}

// newShutdown returns the part that treats shutdowns as the settings say. heard is called when it is known whether logind
// announces them: with nil, or with why it does not.
func newShutdown(c config.Shutdown, bootID string, log *logrus.Entry, heard func(error)) *shutdown {
	s := &shutdown{}
	if policy.Action(c.Action) == policy.Ignore {
		return s
	}
	s.source = logind.New(logind.Options{
		BootID: bootID,
		Margin: c.Margin,
		Holding: func(delay time.Duration) {
			heard(nil)
			entry := log.WithField(systemd.FieldMessageID, systemd.Started)
			if delay < dropInDelay {
				entry.Warnf("a shutdown can be held for %s only, not for the %s that 80-nth.conf asks for: another file in "+
					"logind.conf.d has the last word, or that one is not there", delay, dropInDelay)
				return
			}
			entry.Infof("a shutdown can be held for up to %s", delay)
		},
		Off: func(err error) {
			heard(err)
			log.WithField(systemd.FieldMessageID, systemd.SourceTrouble).
				Infof("shutdowns cannot be heard of in advance: %s", err)
		},
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
		if s.source == nil || !logind.GoingDown(running) {
			stop()
			return
		}
		s.mu.Lock()
		s.done = stop
		s.mu.Unlock()
		s.source.Stopping(stopLimit)
		time.AfterFunc(stopLimit, stop)
	})
	return running, stop
}
