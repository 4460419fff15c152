// Package logind is the event source for the machine's own shutdown, whoever asked for it: EC2's StopInstances and
// TerminateInstances (which press the power button), a reboot, an administrator.
//
// It holds a delay inhibitor lock, which makes logind announce a shutdown and wait until the lock is given back, at most
// InhibitDelayMaxSec. A lock only ever delays: it is never held past that, whatever becomes of this process.
//
// Not every shutdown goes through logind. The second net is nth's own stop job: a SIGTERM that arrives while systemd is
// stopping the system (GoingDown) is the same event, and Stopping announces it. Both have the same ID, made from the
// boot ID, so that one shutdown is one event. A restart of the service alone is none.
//
// Where there is no D-Bus or no logind (a container, say) the source says so once and looks again from time to time.
package logind

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/login1"

	"github.com/nth-project/nth/pkg/event"
)

// Options say how a shutdown is announced.
type Options struct {
	// BootID is the kernel's ID of this boot; a shutdown is known by it.
	BootID string
	// Margin is how much of logind's delay is left unused.
	Margin time.Duration
	// Holding, if set, is called when the lock has been taken, with the longest delay that logind grants; Off, if set,
	// once when there is no logind to be had.
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
	saidOff bool
}

// New returns a source that has not looked yet.
func New(opts Options) *Source { return &Source{opts: opts} }

const (
	// reconnectPause is how long to wait before the bus is tried again that was there before, and absentPause where
	// there never was one.
	reconnectPause = time.Second
	absentPause    = time.Minute
)

// Run holds the lock and watches until ctx ends, and returns nil then. The lock is given back when Run returns.
func (s *Source) Run(ctx context.Context, sink event.Sink) error {
	s.mu.Lock()
	s.sink = sink
	s.tell()
	s.mu.Unlock()
	defer s.Release()
	for {
		pause := reconnectPause
		if err := s.session(ctx); err != nil {
			s.off(err)
			pause = absentPause
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// session is one connection to the bus, from its beginning to its loss. It returns an error if there was none.
func (s *Source) session(ctx context.Context) error {
	conn, err := login1.New()
	if err != nil {
		return fmt.Errorf("connecting to the system bus: %w", err)
	}
	defer conn.Close()
	// Subscribe first: what is announced between the two would be missed otherwise.
	signals := conn.Subscribe("PrepareForShutdown")
	if err := s.take(ctx, conn); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case signal, connected := <-signals:
			if !connected {
				return nil
			}
			if begins, ok := prepares(signal); ok && begins {
				s.announce(s.budget())
			} else if ok {
				s.withdraw()
				if err := s.take(ctx, conn); err != nil {
					return err
				}
			}
		}
	}
}

// take takes the lock unless it is held. logind refuses one while a shutdown is under way; that shutdown is news then.
func (s *Source) take(ctx context.Context, conn *login1.Conn) error {
	manager, err := readManager(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.delay = manager.delay
	held := s.lock != nil
	s.mu.Unlock()
	if manager.preparing {
		s.announce(s.budget())
		return nil
	}
	if held {
		return nil
	}
	lock, err := conn.Inhibit("shutdown", "nth", "draining this Kubernetes node before it goes down", "delay")
	if err != nil {
		return fmt.Errorf("taking the inhibitor lock: %w", err)
	}
	s.mu.Lock()
	s.lock, s.saidOff = lock, false
	s.mu.Unlock()
	if s.opts.Holding != nil {
		s.opts.Holding(manager.delay)
	}
	return nil
}

// Release gives the lock back: as far as nth is concerned, the shutdown may go on.
func (s *Source) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
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

// withdraw tells that the shutdown was called off.
func (s *Source) withdraw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = nil
	s.tell()
}

// tell delivers the present state. s.mu is held.
func (s *Source) tell() {
	if s.sink == nil {
		return
	}
	snapshot := event.Snapshot{Kind: event.Shutdown}
	if s.pending != nil {
		snapshot.Events = []event.Event{*s.pending}
	}
	s.sink.Snapshot(snapshot)
}

// off says once that there is no logind.
func (s *Source) off(err error) {
	s.mu.Lock()
	said := s.saidOff
	s.saidOff = true
	s.mu.Unlock()
	if !said && s.opts.Off != nil {
		s.opts.Off(err)
	}
}
