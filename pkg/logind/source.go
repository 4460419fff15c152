// Package logind is the event source for the machine's own shutdown, whoever asked for it: EC2's StopInstances and
// TerminateInstances (which press the power button), a reboot, an administrator.
//
// It holds a delay inhibitor lock, which makes logind announce a shutdown and wait until the lock is given back, at most
// InhibitDelayMaxSec. A lock only ever delays: it is never held past that, whatever becomes of this process.
//
// What a signal says is not believed, since everybody on the bus may send one. It is a reason to ask logind itself, and
// so are a new connection and a logind that was started again. What was announced while nobody listened is heard of
// then, and so is what was called off.
//
// Not every shutdown goes through logind. The second net is nth's own stop job: a SIGTERM that arrives while systemd is
// stopping the system (Host.GoingDown) is the same event, and Stopping announces it. Both have the same ID, made from the
// boot ID, so that one shutdown is one event. A restart of the service alone is none.
//
// Where there is no D-Bus or no logind (a container, say) the source says so once and looks again from time to time.
package logind

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/nth-project/nth/pkg/event"
)

// Options say how a shutdown is announced.
type Options struct {
	// Host is the machine.
	Host Host
	// BootID is the kernel's ID of this boot; a shutdown is known by it.
	BootID string
	// Margin is how much of logind's delay is left unused.
	Margin time.Duration
	// Holding, if set, is called when the lock has been taken, with the longest delay that logind grants, and when that
	// has changed or is known again. Off, if set, is called with the reason when there is no logind to be had, once for
	// each time that it goes away.
	Holding func(delay time.Duration)
	Off     func(error)
}

// Source watches for shutdowns. Make one with New.
type Source struct {
	opts Options

	mu      sync.Mutex
	sink    event.Sink
	lock    *os.File      // nil while it is not held
	delay   time.Duration // what logind grants; 0 until it was asked
	pending *event.Event  // the shutdown that is announced
	told    time.Duration // the delay that Holding was called with last; 0 before, negative after Off
}

// New returns a source that has not looked yet.
func New(opts Options) *Source { return &Source{opts: opts} }

const (
	// firstPause is how long to wait before a bus that is not there is tried again. It doubles, up to lostPause where
	// there was one before, and to absentPause where there never was.
	firstPause  = 250 * time.Millisecond
	lostPause   = time.Second
	absentPause = time.Minute
	// quietFor is how long a logind that was there may be away before it is said: a restart is none of people's business.
	quietFor = 10 * time.Second
)

// Run holds the lock and watches until ctx ends, and returns nil then. The lock is given back when Run returns.
//
// It tells the sink nothing before logind has been asked: nth may be starting again in the middle of a shutdown.
func (s *Source) Run(ctx context.Context, sink event.Sink) error {
	s.mu.Lock()
	s.sink = sink
	s.tell()
	s.mu.Unlock()
	defer s.drop()
	pause, longest, since := firstPause, absentPause, time.Time{}
	for {
		met, err := s.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if met {
			pause, longest, since = firstPause, lostPause, time.Now()
		}
		if time.Since(since) >= quietFor {
			s.off(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, longest)
	}
}

var errLost = errors.New("the connection to the system bus was lost")

// session is one connection to the bus, from its beginning to its loss. met tells whether logind has answered.
func (s *Source) session(ctx context.Context) (met bool, err error) {
	b, err := s.opts.Host.dial(ctx)
	if err != nil {
		return false, err
	}
	defer b.close()
	// Subscribe first: what is announced between the two would be missed otherwise.
	hints, err := b.hints(ctx)
	if err != nil {
		return false, err
	}
	for {
		if err := s.look(ctx, b); err != nil {
			return met, err
		}
		met = true
		if err := awaitHint(ctx, hints); err != nil {
			return met, err
		}
	}
}

// awaitHint waits for a reason to ask logind again.
func awaitHint(ctx context.Context, hints <-chan *dbus.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case signal, connected := <-hints:
			if !connected {
				return errLost
			}
			if worthALook(signal) {
				return nil
			}
		}
	}
}

// look asks logind how things stand, and does what follows.
func (s *Source) look(ctx context.Context, b *bus) error {
	m, err := b.manager(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.delay = m.delay
	announced := s.pending != nil
	s.mu.Unlock()
	switch {
	case m.preparing:
		s.announce(s.budget())
		return nil
	case announced && s.opts.Host.GoingDown(ctx):
		// logind does not know of this one, or has forgotten it while it was started again. It happens all the same.
		return nil
	}
	s.withdraw()
	return s.take(ctx, b, m.delay)
}

// take takes the lock unless it is held.
func (s *Source) take(ctx context.Context, b *bus, delay time.Duration) error {
	s.mu.Lock()
	held := s.lock != nil
	s.mu.Unlock()
	if !held {
		// Refused if a shutdown was announced this very moment. The next look will find it.
		lock, err := b.inhibit(ctx)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.lock, s.told = lock, 0
		s.mu.Unlock()
	}
	s.mu.Lock()
	news := s.told != delay
	s.told = delay // also if it is 0: then there is nothing to hold
	s.mu.Unlock()
	if news && s.opts.Holding != nil {
		s.opts.Holding(delay)
	}
	return nil
}

// Release gives the lock back: as far as nth is concerned, the shutdown that is announced may go on. Without one it does
// nothing, so that a late word about a shutdown that was called off costs no lock.
func (s *Source) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil {
		s.giveBack()
	}
}

// drop gives the lock back for good.
func (s *Source) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.giveBack()
}

// giveBack closes the lock. s.mu is held.
func (s *Source) giveBack() {
	if s.lock != nil {
		_ = s.lock.Close() // closing is the release; there is nobody to hear of an error
		s.lock = nil
	}
}

// Stopping announces the shutdown that nth's own stop job belongs to. If logind announced it before, nothing changes;
// otherwise limit is how long there is.
func (s *Source) Stopping(limit time.Duration) { s.announce(limit) }

// budget is how long a shutdown can be held.
func (s *Source) budget() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.delay-s.opts.Margin, s.delay/2)
}

// announce tells of the shutdown, once.
func (s *Source) announce(limit time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil {
		return
	}
	s.pending = &event.Event{
		ID: "shutdown-" + s.opts.BootID, Kind: event.Shutdown, State: event.Pending,
		Description: "the system is shutting down",
		Deadline:    time.Now().Add(limit).Round(0),
	}
	s.tell()
}

// withdraw tells that no shutdown is announced, be it that one was called off.
func (s *Source) withdraw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = nil
	if s.sink != nil {
		s.sink.Snapshot(event.Snapshot{Kind: event.Shutdown})
	}
}

// tell delivers the shutdown that is announced, if there is one. s.mu is held.
func (s *Source) tell() {
	if s.sink != nil && s.pending != nil {
		s.sink.Snapshot(event.Snapshot{Kind: event.Shutdown, Events: []event.Event{*s.pending}})
	}
}

// off says once that there is no logind.
func (s *Source) off(err error) {
	s.mu.Lock()
	said := s.told < 0
	s.told = -1
	s.mu.Unlock()
	if !said && s.opts.Off != nil {
		s.opts.Off(err)
	}
}
