// Package logind is the event source for shutdowns of the machine, whoever has requested them: EC2's StopInstances and
// TerminateInstances, which press the power button, a reboot, an administrator; and for sleep, which is EC2's hibernation.
//
// It holds delay inhibitor locks. With them, logind announces a shutdown or a sleep, and waits until the locks are released,
// for InhibitDelayMaxSec at most. A lock can only delay: it never lasts longer than that, whatever happens to this process.
//
// The power key is described in button.go.
//
// Signals are not trusted, because everybody on the bus may send them. After a signal, a new connection and a restart of
// logind, logind itself is queried. That also finds what was announced or called off while nobody listened.
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
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/nth-project/nth/pkg/event"
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
	// again. Off, if set, is called with the reason when logind cannot be reached, once for each outage.
	Holding func(delay time.Duration)
	Off     func(error)
	// Key is called about the power key.
	Key KeyOptions
	// Underway is the deadline of a shutdown that an earlier process of this boot has announced and that has not happened yet;
	// zero if there is none.
	Underway time.Time
	// Now reads the wall clock, which logind uses for scheduled shutdowns; nil means time.Now.
	Now func() time.Time
}

func (o Options) now() time.Time {
	if o.Now == nil {
		return time.Now()
	}
	return o.Now()
}

// Source watches for shutdowns and sleeps. Make one with New.
type Source struct {
	opts Options

	mu    sync.Mutex
	sink  event.Sink
	holds []*hold
	delay time.Duration // logind's longest delay; 0 until it is known
	// shutdownType is the type of the announced shutdown, such as "reboot"; "" if it is not known.
	shutdownType string
	told         time.Duration // the last argument of Holding; 0 before the first call, negative after Off

	key     key
	press   press
	resumed bool          // logind was asked whether an earlier process has scheduled a power-off
	wake    chan struct{} // logind has to be queried
	moved   chan struct{} // the press has changed
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
	s := &Source{opts: opts, wake: make(chan struct{}, 1), moved: make(chan struct{}, 1)}
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
	// firstBackoff is the time until a bus that cannot be reached is tried again. It doubles, up to lostBackoff if the bus
	// was reached before, and to absentBackoff if it never was.
	firstBackoff  = 250 * time.Millisecond
	lostBackoff   = time.Second
	absentBackoff = time.Minute
	// quietFor is how long logind may be unreachable before that is reported: a restart is not worth it.
	quietFor = 10 * time.Second
)

// PowerOffGrant is how long a shutdown may be delayed that is a power-off, or may be one. EC2 cuts the power about three minutes
// after it has pressed the button, however long logind would wait (EC2 documents no number; the maintainers of Amazon's images
// speak of three minutes), and half a minute is left for the system to stop everything else.
const PowerOffGrant = 150 * time.Second

// Run holds the locks and watches until ctx ends, and then returns nil. It releases the locks before it returns.
//
// It delivers nothing to the sink before logind was queried: nth may have been restarted during a shutdown.
func (s *Source) Run(ctx context.Context, sink event.Sink) error {
	s.mu.Lock()
	s.sink = sink
	for _, h := range s.holds {
		s.tell(h)
	}
	s.mu.Unlock()
	defer s.drop()
	var answering sync.WaitGroup
	answering.Go(func() { s.answerKey(ctx) })
	defer answering.Wait()
	pause, longest, since := firstBackoff, absentBackoff, time.Time{}
	for {
		met, err := s.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if met {
			pause, longest, since = firstBackoff, lostBackoff, time.Now()
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

// session watches over one connection to the bus, until that is lost. met reports whether logind has answered.
func (s *Source) session(ctx context.Context) (met bool, err error) {
	b, err := s.opts.Host.dial(ctx)
	if err != nil {
		return false, err
	}
	defer b.close()
	// Subscribing comes first, so that no announcement is missed in between.
	hints, err := b.hints(ctx)
	if err != nil {
		return false, err
	}
	for {
		if err := s.look(ctx, b, hints); err != nil {
			return met, err
		}
		met = true
		if err := s.awaitHint(ctx, b, hints); err != nil {
			return met, err
		}
	}
}

// awaitHint waits for a reason to query logind again.
func (s *Source) awaitHint(ctx context.Context, b *bus, hints <-chan *dbus.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.wake:
			return nil
		case signal, connected := <-hints:
			if !connected {
				return errLost
			}
			if s.heed(ctx, b, signal) {
				return nil
			}
		}
	}
}

// heed notes the type of shutdown that a signal announces, and reports whether logind has to be queried again.
func (s *Source) heed(ctx context.Context, b *bus, signal *dbus.Signal) bool {
	if shutdownType := b.shutdownType(ctx, signal); shutdownType != "" {
		s.mu.Lock()
		s.shutdownType = shutdownType
		s.mu.Unlock()
	}
	return isHint(signal)
}

// catchUp heeds the signals that have arrived while logind was queried: they may have the type of the shutdown that was found.
func (s *Source) catchUp(ctx context.Context, b *bus, hints <-chan *dbus.Signal) {
	for range len(hints) {
		if signal := <-hints; signal != nil && s.heed(ctx, b, signal) {
			poke(s.wake)
		}
	}
}

// look queries logind, announces or withdraws events, and takes locks.
func (s *Source) look(ctx context.Context, b *bus, hints <-chan *dbus.Signal) error {
	m, err := b.manager(ctx)
	if err != nil {
		return err
	}
	s.catchUp(ctx, b, hints)
	if err := s.resume(ctx, b, m.preparing[shutdownLock]); err != nil {
		return err
	}
	s.mu.Lock()
	s.delay = m.delay
	s.mu.Unlock()
	news := false
	for _, h := range s.holds {
		taken, err := s.settle(ctx, b, h, m.preparing[h.what])
		if err != nil {
			return err
		}
		news = news || taken
	}
	if m.preparing[shutdownLock] {
		return nil
	}
	if err := s.holdKey(ctx, b, m.powerKey); err != nil {
		return err
	}
	s.mu.Lock()
	news = news || s.told != m.delay
	s.told = m.delay // even if it is 0, which means that locks have no effect
	s.mu.Unlock()
	if news && s.opts.Holding != nil {
		s.opts.Holding(m.delay)
	}
	return nil
}

// settle announces or withdraws a lock's event, and takes the lock if nothing is announced. taken reports that it did.
func (s *Source) settle(ctx context.Context, b *bus, h *hold, preparing bool) (taken bool, err error) {
	switch {
	case preparing:
		s.announce(h, s.budget(h))
		return false, nil
	case s.announced(h.kind) && h.kind == event.Shutdown && (s.answering() || s.opts.Host.GoingDown(ctx)):
		// The shutdown will happen although logind does not know of it yet, or has forgotten it in a restart.
		return false, nil
	}
	s.withdraw(h)
	s.mu.Lock()
	held := h.lock != nil
	s.mu.Unlock()
	if held {
		return false, nil
	}
	// logind refuses if it has announced a shutdown just now. The next look will find that.
	lock, err := b.inhibit(ctx, h.what, "delay")
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	h.lock = lock
	s.mu.Unlock()
	return true, nil
}

// Release releases a lock: nth does not delay the announced event of this kind any longer. If none is announced, it does
// nothing, so that a late call for a shutdown that was called off does not cost the lock.
func (s *Source) Release(kind event.Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.holds {
		if h.kind == kind && h.pending != nil {
			h.giveBack()
			s.press.settled = s.press.settled || kind == event.Shutdown
			poke(s.moved)
		}
	}
}

// drop releases all locks.
func (s *Source) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.holds {
		h.giveBack()
	}
	s.key.giveBack()
}

// giveBack releases the lock. The source's mu is held.
func (h *hold) giveBack() {
	if h.lock != nil {
		_ = h.lock.Close()
		h.lock = nil
	}
}

// Stopping announces the shutdown to which nth's own stop job belongs, with its deadline after limit. A shutdown that was
// announced before stays as it is, unless its deadline is later.
func (s *Source) Stopping(limit time.Duration) {
	for _, h := range s.holds {
		if h.kind == event.Shutdown {
			s.announce(h, limit)
		}
	}
}

// budget is the time for the announced event. A machine that comes back by itself has logind's whole delay.
func (s *Source) budget(h *hold) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	grant := s.delay
	if h.kind != event.Shutdown || !slices.Contains([]string{"reboot", "kexec", "soft-reboot"}, s.shutdownType) {
		grant = min(grant, PowerOffGrant)
	}
	return s.opts.within(grant)
}

// within returns the time without the margin, but at least half of it.
func (o Options) within(grant time.Duration) time.Duration { return max(grant-o.Margin, grant/2) }

// muchNearer is how much a deadline has to move forward for the event to be announced again.
const muchNearer = time.Second

// announce announces an event once, and again if its deadline is earlier now: the power key may be pressed during a reboot,
// for which logind grants more time than EC2 then leaves.
func (s *Source) announce(h *hold, limit time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.pending != nil && time.Until(h.pending.Deadline) <= limit+muchNearer {
		return
	}
	h.pending = &event.Event{
		ID: string(h.kind) + "-" + s.opts.BootID, Kind: h.kind, State: event.Pending,
		Description: h.words,
		Deadline:    time.Now().Add(limit),
	}
	s.tell(h)
}

// announced reports whether an event of this kind is announced.
func (s *Source) announced(kind event.Kind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.holds, func(h *hold) bool { return h.kind == kind && h.pending != nil })
}

// withdraw delivers that nothing is announced, or not any longer.
func (s *Source) withdraw(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.kind == event.Shutdown && h.pending != nil { // otherwise the type may be that of the next shutdown, which is about to be found
		s.shutdownType = ""
	}
	h.pending = nil
	if s.sink != nil {
		s.sink.Snapshot(event.Snapshot{Kind: h.kind})
	}
}

// tell delivers the announced event, if there is one. s.mu is held.
func (s *Source) tell(h *hold) {
	if s.sink != nil && h.pending != nil {
		s.sink.Snapshot(event.Snapshot{Kind: h.kind, Events: []event.Event{*h.pending}})
	}
}

// off reports once that logind cannot be reached.
func (s *Source) off(err error) {
	s.mu.Lock()
	said := s.told < 0
	s.told = -1
	s.mu.Unlock()
	if !said && s.opts.Off != nil {
		s.opts.Off(err)
	}
}

// poke wakes the receiver of a channel.
func poke(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// errForeign is why the host's systemd cannot be asked about this process in a container.
var errForeign = errors.New("this process is no unit of the host's")

// StopTimeout asks systemd for TimeoutStopSec= of this process's service; a day if it is infinity.
func (h Host) StopTimeout(ctx context.Context) (time.Duration, error) {
	var usec uint64
	if err := h.ownProperty(ctx, "TimeoutStopUSec", &usec); err != nil {
		return 0, err
	}
	return fromMicroseconds(usec), nil
}

// Keeps asks systemd for FileDescriptorStoreMax= of this process's service: how many open files it keeps for the next process.
func (h Host) Keeps(ctx context.Context) (files uint32, err error) {
	err = h.ownProperty(ctx, "FileDescriptorStoreMax", &files)
	return files, err
}

// ServiceKeeps asks systemd for FileDescriptorStoreMax= of a service. It is an error if there is no such service.
func (h Host) ServiceKeeps(ctx context.Context, service string) (files uint32, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := h.systemd(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	loaded, err := isLoaded(ctx, conn, service)
	if err != nil {
		return 0, err
	}
	if !loaded {
		return 0, fmt.Errorf("asking systemd for %s: it is not there", service)
	}
	err = property(ctx, conn, service, "FileDescriptorStoreMax", &files)
	return files, err
}

// ownProperty asks systemd for a property of this process's service.
func (h Host) ownProperty(ctx context.Context, name string, into any) error {
	if h != "" {
		return fmt.Errorf("asking for the unit's %s: %w", name, errForeign)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := h.serviceManager(ctx)
	if err != nil {
		return fmt.Errorf("connecting to systemd: %w", err)
	}
	defer conn.Close()
	unit, err := conn.GetUnitNameByPID(ctx, uint32(os.Getpid())) // process IDs are small
	if err != nil {
		return fmt.Errorf("asking systemd for this process's unit: %w", err)
	}
	return property(ctx, conn, unit, name, into)
}

// property asks systemd for a property of a service.
func property(ctx context.Context, conn *systemd.Conn, service, name string, into any) error {
	found, err := conn.GetServicePropertyContext(ctx, service, name)
	if err == nil {
		err = found.Value.Store(into)
	}
	if err != nil {
		return fmt.Errorf("asking systemd for the %s of %s: %w", name, service, err)
	}
	return nil
}
