// Package logind is the event source for shutdowns of the machine, and for its sleep, which is EC2's hibernation. A shutdown may be a reboot, a
// request of an administrator, or EC2's StopInstances and TerminateInstances, which press the power key. The package also has nth's requests to
// systemd over D-Bus. Start with Source.look; the power key is in key.go.
//
// A Source holds delay inhibitor locks. With them, logind announces a shutdown or a sleep, and waits until the locks are released, for
// InhibitDelayMaxSec at most. A delay lock never holds a shutdown longer than that, no matter what happens to this process.
//
// Twice a second, a look reads the power key, asks logind for its properties, and acts on them. So a Source also finds what was announced or called
// off while nth did not run. It reads no signals, because any local user may send them (conn.go).
//
// Not every shutdown goes through logind. nth also learns of a shutdown when systemd stops nth. If SIGTERM arrives while systemd is stopping the
// system (Source.GoingDown), Stopping announces the shutdown. All shutdowns of a boot have the same event ID, made from the boot ID: they are one
// event. A restart of the service alone is no event.
//
// Without D-Bus or logind, as in a container, the source reports that once and tries again at longer and longer intervals.
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
	// Notice is called with logind's longest delay (InhibitDelayMaxSec) when nth has taken a lock, when the delay has changed, and
	// after an outage. It is called with the reason when logind cannot be reached or refuses a lock, once for each outage.
	Notice func(delay time.Duration, err error)
	Key    KeyOptions
}

// Source watches for shutdowns and sleeps. Make one with New.
type Source struct {
	opts    Options
	reached atomic.Bool // logind has answered, so that there is a bus
	drained atomic.Bool // the drain for a press has ended, so that the machine may be powered off
	holds   []*hold
	// Only Run's goroutine uses these. delay is that of the last Notice; 0 before the first call, outage during an outage.
	delay time.Duration
	key   key

	mu   sync.Mutex // for sink, and for the fields lock and pending of each hold
	sink event.Sink // nil before Run
}

// outage is Source.delay while logind cannot be reached or refuses a lock.
const outage time.Duration = -1

// hold is a delay lock, and the event that logind announces to the holders of such a lock.
type hold struct {
	kind        event.Kind
	what        string       // logind's name for the lock
	description string       // the event's
	lock        *os.File     // nil while the lock is not held
	pending     *event.Event // the event; nil while it is not announced
}

// New returns a source that has not connected to logind yet.
func New(opts Options) *Source {
	s := &Source{opts: opts}
	for _, h := range []*hold{
		{kind: event.Shutdown, what: shutdownLock, description: "the system is shutting down"},
		{kind: event.Hibernation, what: sleepLock, description: "the system is going to sleep"},
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
	// longestPause is the longest time until nth connects again after a failure. The first pause is lookInterval, and each further one is twice
	// as long. Attempts have a price: at each, the bus tries to start a logind that does not run.
	longestPause = 15 * time.Second
)

// PowerOffGrant is how long nth may delay a shutdown that is a power-off, or may be one. EC2 cuts the power about three minutes after it has
// pressed the power key, even if logind would wait longer. EC2 documents no number; the maintainers of Amazon's images speak of three minutes.
// Half a minute is left for the system to stop everything else.
const PowerOffGrant = 150 * time.Second

// Run holds the locks and watches until ctx ends. It releases the locks before it returns.
//
// Run delivers an empty snapshot only after logind has answered that nothing is announced: nth may have been restarted during a shutdown.
func (s *Source) Run(ctx context.Context, sink event.Sink) {
	s.mu.Lock()
	s.sink = sink
	for _, h := range s.holds {
		s.deliver(h) // Stopping may have announced an event before Run.
	}
	s.mu.Unlock()
	defer s.drop()
	defer s.leavePress(context.WithoutCancel(ctx))
	pause := lookInterval
	for {
		answered, err := s.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if answered || s.key.lock != nil { // logind is coming back, or nth alone sees a press of the key.
			pause = lookInterval
		}
		const taken = false
		s.report(taken, 0, err)
		s.readKey(time.Time{}) // A press of the power key is answered without logind, too.
		s.answer(ctx, nil, manager{})
		if !loop.Await(ctx, nil, pause) {
			return
		}
		pause = min(2*pause, longestPause)
	}
}

// GoingDown reports whether the whole system is stopping, not this service alone: systemd says so, or the bus was there before and cannot be
// reached. While the system stops, the host's bus may stop before a container that nth runs in.
func (s *Source) GoingDown(ctx context.Context) bool {
	c, err := s.opts.Host.bus(ctx)
	if err != nil {
		return s.reached.Load()
	}
	defer c.close()
	return c.goingDown()
}

// session connects to the bus, and makes looks until the connection is lost or ctx ends. answered is true if logind has answered at least once.
// err is never nil.
func (s *Source) session(ctx context.Context) (answered bool, err error) {
	c, err := s.opts.Host.bus(ctx)
	if err != nil {
		return false, err
	}
	defer c.close()
	for {
		c.limit = lookTimeout
		m, err := c.manager()
		if err != nil {
			return answered, err
		}
		c.limit = callTimeout
		answered = true
		s.reached.Store(true)
		s.look(ctx, c, m)
		if !loop.Await(ctx, nil, lookInterval) {
			return answered, ctx.Err()
		}
	}
}

// look acts on the properties of logind, m. It announces or withdraws events, and takes locks that are missing. It also reads the power key, and
// answers a press, even one that an earlier process of nth was answering.
func (s *Source) look(ctx context.Context, c *conn, m manager) {
	s.readKey(m.scheduled)
	anyTaken, refused := false, error(nil)
	for _, h := range s.holds {
		taken, err := s.updateHold(c, h, m)
		anyTaken, refused = anyTaken || taken, errors.Join(refused, err)
	}
	if m.preparing[shutdownLock] { // logind is shutting down: it grants no locks, and needs no request to power off.
		return
	}
	s.holdKey(c, m.powerKey)
	s.answer(ctx, c, m)
	if ctx.Err() != nil { // The connection is closed, so that errors say nothing of logind.
		return
	}
	s.report(anyTaken, m.delay, refused) // If logind refuses a lock, the next look tries again.
}

// updateHold acts on the properties of logind, m, for one delay lock. If logind has announced the lock's event, updateHold announces the event to
// the sink. Otherwise it delivers that nothing is announced, and takes the lock if that is not held. taken is true if it took the lock now.
func (s *Source) updateHold(c *conn, h *hold, m manager) (taken bool, err error) {
	s.mu.Lock() // It is not held during requests to logind, for which Release and Stopping must not wait.
	announced, held := h.pending, h.lock != nil
	s.mu.Unlock()
	switch {
	case m.preparing[h.what]:
		s.announce(h, available(h, m))
		return false, nil
	case announced != nil && h.kind == event.Shutdown && (s.key.isAnswering() || c.goingDown()):
		return false, nil // The shutdown comes, although logind does not announce it, or has forgotten it in a restart.
	}
	s.mu.Lock()
	if h.pending == announced { // Stopping has announced nothing meanwhile.
		h.pending = nil
		s.sink.Snapshot(event.Snapshot{Kind: h.kind})
	}
	s.mu.Unlock()
	if held {
		return false, nil
	}
	// logind refuses if it has just announced a shutdown. The next look will find that.
	lock, err := c.inhibit(h.what, "delay")
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.lock = lock
	return true, nil
}

// Release releases the delay lock for an announced event: logind then lets the event happen. Callers use it when the drain has ended. After a
// press of the power key, it also lets the next look request the power-off.
//
// If no event of this kind is announced, Release does nothing: after a late call, the lock must still be held for the next shutdown.
func (s *Source) Release(kind event.Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.holds {
		if h.kind == kind && h.pending != nil {
			release(&h.lock)
			if kind == event.Shutdown {
				s.drained.Store(true) // It has no effect unless nth is answering a press: a new press resets it.
			}
		}
	}
}

// drop releases all locks.
func (s *Source) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.holds {
		release(&h.lock)
	}
	release(&s.key.lock)
}

// release releases an inhibitor lock, if that is held. The caller holds the source's mu.
func release(lock **os.File) {
	if *lock != nil {
		_ = (*lock).Close()
		*lock = nil
	}
}

// Stopping announces a shutdown whose deadline is limit from now. Callers use it when systemd stops nth together with the system. If a shutdown is
// announced already, Stopping changes that only to an earlier deadline.
func (s *Source) Stopping(limit time.Duration) {
	for _, h := range s.holds {
		if h.kind == event.Shutdown {
			s.announce(h, limit)
		}
	}
}

// available returns how long nth may take until an announced event happens. That is logind's delay, less the margin. Unless logind says that the
// event is a reboot, EC2 may have asked for it, and does not wait longer than PowerOffGrant.
func available(h *hold, m manager) time.Duration {
	grant := m.delay
	if isReboot := h.kind == event.Shutdown && m.shutdown == "reboot"; !isReboot {
		grant = min(grant, PowerOffGrant)
	}
	return within(grant)
}

// margin is how much of a grant nth leaves unused, to report which pods are left.
const margin = 5 * time.Second

// within returns how much of a grant nth uses: the grant less the margin, but at least half of the grant.
func within(grant time.Duration) time.Duration { return max(grant-margin, grant/2) }

// announce announces a lock's event to the sink. The deadline is limit from now. If the event is announced already, announce does so again only for
// an earlier deadline. For example, the power key may be pressed during a reboot. EC2 then leaves less time than logind has granted.
func (s *Source) announce(h *hold, limit time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.pending != nil && time.Until(h.pending.Deadline) <= limit {
		return
	}
	h.pending = &event.Event{
		ID: string(h.kind) + "-" + s.opts.BootID, Kind: h.kind, State: event.Pending,
		Description: h.description,
		Deadline:    time.Now().Add(limit),
	}
	s.deliver(h)
}

// deliver delivers a lock's event to the sink, if one is announced and Run has been called. The caller holds s.mu.
func (s *Source) deliver(h *hold) {
	if s.sink != nil && h.pending != nil {
		s.sink.Snapshot(event.Snapshot{Kind: h.kind, Events: []event.Event{*h.pending}})
	}
}

// report calls Options.Notice if nth has taken all missing locks, if the delay has changed, or if an outage begins or ends. err is why logind cannot
// be reached or refuses a lock; nil if it works. A delay of 0 means that locks have no effect.
func (s *Source) report(taken bool, delay time.Duration, err error) {
	if err != nil {
		delay = outage
	}
	changed := s.delay != delay
	s.delay = delay
	if changed || taken && err == nil {
		s.opts.Notice(delay, err)
	}
}
