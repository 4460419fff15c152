// Package logind is the event source for shutdowns of the machine: EC2's StopInstances and
// TerminateInstances, which press the power key, a reboot, an administrator; and for sleep, which is EC2's hibernation. It also
// asks systemd over D-Bus, for the rest of nth. Begin with Source.look; the power key is in key.go.
//
// It holds delay inhibitor locks. With them, logind announces a shutdown or a sleep, and waits until the locks are released,
// for InhibitDelayMaxSec at most. A lock can only delay: it never lasts longer than that, whatever happens to this process.
//
// Twice a second, logind is asked for its state. That also finds what was announced or called off while nobody listened. Signals are not read,
// because any local user may send them (conn.go).
//
// Not every shutdown goes through logind. The second way to learn of one is nth's own stop job: a SIGTERM that arrives while
// systemd is stopping the system (Host.GoingDown) is announced by Stopping. All events of a boot have the same ID, made from
// the boot ID, so that one shutdown is one event. A restart of the service alone is no event.
//
// Without D-Bus or logind, as in a container, the source reports that once and tries again from time to time.
package logind

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
)

// Options configure a Source.
type Options struct {
	// Host is the machine.
	Host Host
	// BootID is the kernel's ID of this boot. It is part of the events' IDs.
	BootID string
	// Kinds are event.Shutdown, event.Hibernation, or both.
	Kinds []event.Kind
	// Margin is how much of the available time is not used.
	Margin time.Duration
	// Holding, if set, is called when the locks have been taken, and when logind's longest delay has changed or is known
	// again. Off, if set, is called with the reason when logind cannot be reached or refuses a lock, once for each outage.
	Holding func(delay time.Duration)
	Off     func(error)
	// Key is set if nth may answer the power key.
	Key *KeyOptions
}

// Source watches for shutdowns and sleeps. Make one with New.
type Source struct {
	opts Options
	lost atomic.Bool // logind was reached, and cannot be since

	mu    sync.Mutex
	sink  event.Sink
	holds []*hold
	last  time.Duration // the last argument of Holding; 0 before the first call, negative after Off

	key   key
	press press
}

// hold is a delay lock, and the event that is announced to its holders.
type hold struct {
	kind    event.Kind
	what    string       // logind's name for it
	words   string       // the event's description
	lock    *os.File     // nil while it is not held
	pending *event.Event // nil if nothing is announced
}

// New returns a source that has not connected to logind yet.
func New(opts Options) *Source {
	s := &Source{opts: opts}
	for _, h := range []*hold{
		{kind: event.Shutdown, what: shutdownLock, words: "the system is shutting down"},
		{kind: event.Hibernation, what: sleepLock, words: "the system is going to sleep"},
	} {
		if slices.Contains(opts.Kinds, h.kind) {
			s.holds = append(s.holds, h)
		}
	}
	return s
}

const (
	// lookInterval is the time between two looks.
	lookInterval = 500 * time.Millisecond
	// longestPause is the longest time until a bus or a logind that does not answer is tried again. The first pause is lookInterval, and each
	// is twice the last: with each call of a logind that is not there, the bus tries to start it.
	longestPause = 15 * time.Second
)

// PowerOffGrant is how long a shutdown may be delayed that is a power-off, or may be one. EC2 cuts the power about three minutes
// after it has pressed the button, however long logind would wait (EC2 documents no number; the maintainers of Amazon's images
// speak of three minutes), and half a minute is left for the system to stop everything else.
const PowerOffGrant = 150 * time.Second

// Run holds the locks and watches until ctx ends. It releases the locks before it returns.
//
// Run tells the sink that nothing is announced only when logind has said so: nth may have been restarted during a shutdown.
func (s *Source) Run(ctx context.Context, sink event.Sink) {
	s.mu.Lock()
	s.sink = sink
	for _, h := range s.holds {
		s.deliver(h) // Stopping may have announced it before Run.
	}
	s.mu.Unlock()
	defer s.drop()
	pause := lookInterval
	for {
		answered, err := s.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if answered {
			pause = lookInterval
			s.lost.Store(true)
		}
		s.reportFailure(err)
		s.answer(ctx, nil, manager{})
		if !loop.Await(ctx, nil, pause) {
			return
		}
		pause = min(2*pause, longestPause)
	}
}

// GoingDown reports whether the whole system is stopping, not this service alone: systemd says so, or the bus was reached before and is gone.
// Nothing orders a container before the host's bus, which may stop first.
func (s *Source) GoingDown(ctx context.Context) bool {
	return s.lost.Load() || s.opts.Host.GoingDown(ctx)
}

// session connects to the bus, and looks at what logind says, until the connection is lost or ctx ends. answered is true if logind has answered
// at least once. err is never nil.
func (s *Source) session(ctx context.Context) (answered bool, err error) {
	c, err := s.opts.Host.bus(ctx)
	if err != nil {
		return false, err
	}
	defer c.close()
	for {
		m, err := c.manager(ctx)
		if err != nil {
			return answered, err
		}
		answered = true
		s.lost.Store(false)
		s.look(ctx, c, m)
		if !loop.Await(ctx, nil, lookInterval) {
			return answered, ctx.Err()
		}
	}
}

// look acts on what logind says (m): it announces or withdraws events, takes locks that are missing, and answers a press of the power key, also
// one that an earlier process of nth was answering.
func (s *Source) look(ctx context.Context, c *conn, m manager) {
	if !m.scheduled.IsZero() {
		s.resume(m.scheduled)
	}
	changed, refused := false, error(nil) // changed: Options.Holding is to be called
	for _, h := range s.holds {
		taken, err := s.settle(ctx, c, h, m)
		changed, refused = changed || taken, errors.Join(refused, err)
	}
	if m.preparing[shutdownLock] { // logind grants no locks once it shuts down, and needs no request to power off.
		return
	}
	s.holdKey(ctx, c, m.powerKey)
	s.answer(ctx, c, m)
	if ctx.Err() != nil {
		return
	}
	if refused != nil { // The connection is good. The next look tries again.
		s.reportFailure(refused)
		return
	}
	s.mu.Lock()
	changed = changed || s.last != m.delay
	s.last = m.delay // even if it is 0, which means that locks have no effect
	s.mu.Unlock()
	if changed && s.opts.Holding != nil {
		s.opts.Holding(m.delay)
	}
}

// settle acts on what logind says (m) for one delay lock. If logind has announced the lock's event, settle announces it to the sink. Otherwise
// it withdraws the event, and takes the lock if that is not held. taken is true if it took the lock now.
func (s *Source) settle(ctx context.Context, c *conn, h *hold, m manager) (taken bool, err error) {
	switch {
	case m.preparing[h.what]:
		s.announce(h, s.available(h, m))
		return false, nil
	case h.kind == event.Shutdown && s.stands(ctx, c, h):
		return false, nil
	}
	if held := s.withdraw(h); held {
		return false, nil
	}
	// logind refuses if it has announced a shutdown just now. The next look will find that.
	lock, err := c.inhibit(ctx, h.what, "delay")
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.lock = lock
	return true, nil
}

// stands reports whether an announced shutdown will happen although logind does not know of it yet, or has forgotten it in a restart.
func (s *Source) stands(ctx context.Context, c *conn, h *hold) bool {
	s.mu.Lock()
	announced, answering := h.pending != nil, s.press.answered()
	s.mu.Unlock()
	return announced && (answering || c.goingDown(ctx))
}

// Release gives the inhibitor lock for an announced event back to logind, which then lets the event happen. Callers use it when the drain has
// ended. If no event of this kind is announced, Release does nothing: a late call for a shutdown that was called off must not cost the lock
// for the next one.
func (s *Source) Release(kind event.Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.holds {
		if h.kind == kind && h.pending != nil {
			giveBack(&h.lock)
			s.press.settled = s.press.settled || kind == event.Shutdown // The machine may be powered off now, if its power key was pressed.
		}
	}
}

// drop releases all locks.
func (s *Source) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.holds {
		giveBack(&h.lock)
	}
	giveBack(&s.key.lock)
}

// giveBack releases a lock, if that is held. The caller holds the source's mu.
func giveBack(lock **os.File) {
	if *lock != nil {
		_ = (*lock).Close() // Nothing was written to it.
		*lock = nil
	}
}

// Stopping announces a shutdown that comes after limit. Callers use it when systemd stops nth together with the system. A shutdown that is
// announced already stays as it is, unless its deadline is later.
func (s *Source) Stopping(limit time.Duration) {
	for _, h := range s.holds {
		if h.kind == event.Shutdown {
			s.announce(h, limit)
		}
	}
}

// available returns how long nth may take until the announced event happens. That is logind's delay, less the margin. EC2 does not wait longer
// than PowerOffGrant, unless logind says that the shutdown is a reboot.
func (s *Source) available(h *hold, m manager) time.Duration {
	grant := m.delay
	if h.kind != event.Shutdown || m.shutdown != "reboot" {
		grant = min(grant, PowerOffGrant)
	}
	return s.opts.within(grant)
}

// within returns the grant less the margin, but at least half of the grant.
func (o Options) within(grant time.Duration) time.Duration { return max(grant-o.Margin, grant/2) }

// announce announces a lock's event, with its deadline after limit. If the event is announced already, announce does so again only for an
// earlier deadline: the power key may be pressed during a reboot, and EC2 then leaves less time than logind has granted.
func (s *Source) announce(h *hold, limit time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.pending != nil && time.Until(h.pending.Deadline) <= limit {
		return
	}
	h.pending = &event.Event{
		ID: string(h.kind) + "-" + s.opts.BootID, Kind: h.kind, State: event.Pending,
		Description: h.words,
		Deadline:    time.Now().Add(limit),
	}
	s.deliver(h)
}

// withdraw forgets a lock's event, and delivers to the sink that nothing of its kind is announced. held reports whether the lock is held.
func (s *Source) withdraw(h *hold) (held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.pending = nil
	s.sink.Snapshot(event.Snapshot{Kind: h.kind})
	return h.lock != nil
}

// deliver delivers a lock's event to the sink, if one is announced and Run has been called. The caller holds s.mu.
func (s *Source) deliver(h *hold) {
	if s.sink != nil && h.pending != nil {
		s.sink.Snapshot(event.Snapshot{Kind: h.kind, Events: []event.Event{*h.pending}})
	}
}

// reportFailure handles a failure to reach logind or to take a lock. It calls Options.Off once for each outage.
func (s *Source) reportFailure(err error) {
	s.mu.Lock()
	reported := s.last < 0 // A look that succeeds sets it again.
	s.last = -1
	s.mu.Unlock()
	if !reported && s.opts.Off != nil {
		s.opts.Off(err)
	}
}
