// Package logind is the event source for the machine's own end, whoever asked for it: EC2's StopInstances and
// TerminateInstances (which press the power button), a reboot, an administrator; and for its sleep, which is what EC2's
// hibernation is.
//
// It holds delay inhibitor locks, which make logind announce a shutdown or a sleep and wait until the lock is given back,
// at most InhibitDelayMaxSec. Such a lock only ever delays: it is never held past that, whatever becomes of this process.
//
// The power key is another matter: see button.go.
//
// What a signal says is not believed, since everybody on the bus may send one. It is a reason to ask logind itself, and
// so are a new connection and a logind that was started again. What was announced while nobody listened is heard of
// then, and so is what was called off.
//
// Not every shutdown goes through logind. The second net is nth's own stop job: a SIGTERM that arrives while systemd is
// stopping the system (Host.GoingDown) is the same event, and Stopping announces it. All have the same ID, made from the
// boot ID, so that one shutdown is one event. A restart of the service alone is none.
//
// Where there is no D-Bus or no logind (a container, say) the source says so once and looks again from time to time.
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

// Options say what is announced, and how.
type Options struct {
	// Host is the machine.
	Host Host
	// BootID is the kernel's ID of this boot; what happens is known by it.
	BootID string
	// Kinds are those of event.Shutdown and event.Hibernation that are to be heard of.
	Kinds []event.Kind
	// Margin is how much of the time that there is is left unused.
	Margin time.Duration
	// Holding, if set, is called when the locks have been taken, with the longest delay that logind grants, and when that
	// has changed or is known again. Off, if set, is called with the reason when there is no logind to be had, once for
	// each time that it goes away.
	Holding func(delay time.Duration)
	Off     func(error)
	// Key says who answers the power key, and what becomes of a press.
	Key KeyOptions
	// Underway is the deadline of the shutdown that an earlier process of this boot was told of and has left under way; zero
	// if there is none.
	Underway time.Time
	// Now reads the wall clock, by which logind is told when to power off; nil is the system's.
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
	delay time.Duration // what logind grants; 0 until it was asked
	sort  string        // of the shutdown that is announced, by logind's word; "" if it did not tell
	told  time.Duration // the delay that Holding was called with last; 0 before, negative after Off

	key   key
	press press
	asked bool          // logind, whether an earlier process has left it a power-off
	wake  chan struct{} // logind is to be asked
	moved chan struct{} // there is something new about the press
}

// A hold is a delay lock, and what is announced to those who have it.
type hold struct {
	kind    event.Kind
	what    string       // as logind calls it
	words   string       // for people
	lock    *os.File     // nil while it is not held
	pending *event.Event // nil if nothing is announced
}

// New returns a source that has not looked yet.
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
	// firstPause is how long to wait before a bus that is not there is tried again. It doubles, up to lostPause where
	// there was one before, and to absentPause where there never was.
	firstPause  = 250 * time.Millisecond
	lostPause   = time.Second
	absentPause = time.Minute
	// quietFor is how long a logind that was there may be away before it is said: a restart is none of people's business.
	quietFor = 10 * time.Second
)

// PowerOffGrant is how long the end of the machine may be held where that is a power-off, or may be one: EC2 takes the power
// away about three minutes after it has pressed the button, however long logind would wait (it documents no number; the
// maintainers of Amazon's images speak of three minutes), and half a minute of them is for the system to stop all else.
const PowerOffGrant = 150 * time.Second

// Run holds the locks and watches until ctx ends, and returns nil then. The locks are given back when Run returns.
//
// It tells the sink nothing before logind has been asked: nth may be starting again in the middle of a shutdown.
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
		if err := s.look(ctx, b, hints); err != nil {
			return met, err
		}
		met = true
		if err := s.awaitHint(ctx, b, hints); err != nil {
			return met, err
		}
	}
}

// awaitHint waits for a reason to ask logind again.
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

// heed takes in what a signal says of the shutdown that is about to be found, and tells whether it is worth a look.
func (s *Source) heed(ctx context.Context, b *bus, signal *dbus.Signal) bool {
	if sort := b.shutdownType(ctx, signal); sort != "" {
		s.mu.Lock()
		s.sort = sort
		s.mu.Unlock()
	}
	return worthALook(signal)
}

// catchUp heeds the signals that have come while logind was asked: of what it answers, they may have told the sort.
func (s *Source) catchUp(ctx context.Context, b *bus, hints <-chan *dbus.Signal) {
	for range len(hints) {
		if signal := <-hints; signal != nil && s.heed(ctx, b, signal) {
			poke(s.wake)
		}
	}
}

// look asks logind how things stand, and does what follows.
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
	s.told = m.delay // also if it is 0: then there is nothing to hold
	s.mu.Unlock()
	if news && s.opts.Holding != nil {
		s.opts.Holding(m.delay)
	}
	return nil
}

// settle does for one lock what follows from how things stand; taken tells that it has taken it.
func (s *Source) settle(ctx context.Context, b *bus, h *hold, preparing bool) (taken bool, err error) {
	switch {
	case preparing:
		s.announce(h, s.budget(h))
		return false, nil
	case s.announced(h.kind) && h.kind == event.Shutdown && (s.answering() || s.opts.Host.GoingDown(ctx)):
		// logind does not know of this one yet, or has forgotten it while it was started again. It happens all the same.
		return false, nil
	}
	s.withdraw(h)
	s.mu.Lock()
	held := h.lock != nil
	s.mu.Unlock()
	if held {
		return false, nil
	}
	// Refused if a shutdown was announced this very moment. The next look will find it.
	lock, err := b.inhibit(ctx, h.what, "delay")
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	h.lock = lock
	s.mu.Unlock()
	return true, nil
}

// Release gives a lock back: as far as nth is concerned, what is announced of this kind may go on. Where nothing is, it
// does nothing, so that a late word about a shutdown that was called off costs no lock.
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

// drop gives the locks back for good.
func (s *Source) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.holds {
		h.giveBack()
	}
	s.key.giveBack()
}

// giveBack closes the lock. The source's mu is held.
func (h *hold) giveBack() {
	if h.lock != nil {
		_ = h.lock.Close() // closing is the release; there is nobody to hear of an error
		h.lock = nil
	}
}

// Stopping announces the shutdown that nth's own stop job belongs to; limit is how long there is. Of one that was announced
// before nothing changes, unless it has more time than that.
func (s *Source) Stopping(limit time.Duration) {
	for _, h := range s.holds {
		if h.kind == event.Shutdown {
			s.announce(h, limit)
		}
	}
}

// budget is how long there is for what is announced. What comes back by itself has all that logind grants.
func (s *Source) budget(h *hold) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	grant := s.delay
	if h.kind != event.Shutdown || !slices.Contains([]string{"reboot", "kexec", "soft-reboot"}, s.sort) {
		grant = min(grant, PowerOffGrant)
	}
	return s.opts.within(grant)
}

// within is what of a time may be used.
func (o Options) within(grant time.Duration) time.Duration { return max(grant-o.Margin, grant/2) }

// muchNearer is how much nearer the end of what is announced already has to be for another word.
const muchNearer = time.Second

// announce tells of what is going to happen, once; and again if it comes sooner than was told: the power key may be pressed
// in the midst of a reboot for which logind grants more than EC2 leaves then.
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

// announced tells whether something of this kind is.
func (s *Source) announced(kind event.Kind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.holds, func(h *hold) bool { return h.kind == kind && h.pending != nil })
}

// withdraw tells that nothing is announced, be it that it was called off.
func (s *Source) withdraw(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.kind == event.Shutdown && h.pending != nil { // else it may be the next one's, which is about to be found
		s.sort = ""
	}
	h.pending = nil
	if s.sink != nil {
		s.sink.Snapshot(event.Snapshot{Kind: h.kind})
	}
}

// tell delivers what is announced, if there is something. s.mu is held.
func (s *Source) tell(h *hold) {
	if s.sink != nil && h.pending != nil {
		s.sink.Snapshot(event.Snapshot{Kind: h.kind, Events: []event.Event{*h.pending}})
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

// poke leaves word for whoever waits on the channel.
func poke(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// errForeign is why the service manager of another machine, seen from a container, cannot tell.
var errForeign = errors.New("this process is no unit of the host's")

// StopTimeout asks systemd how long the stop of the service that this process belongs to may take, whichever file says so
// in TimeoutStopSec=. A service that may take for ever has a day.
func (h Host) StopTimeout(ctx context.Context) (time.Duration, error) {
	var usec uint64
	if err := h.ownProperty(ctx, "TimeoutStopUSec", &usec); err != nil {
		return 0, err
	}
	return fromMicroseconds(usec), nil
}

// Keeps asks systemd how many open files it would keep for the process after this one, whichever file says so in
// FileDescriptorStoreMax= of its service.
func (h Host) Keeps(ctx context.Context) (files uint32, err error) {
	err = h.ownProperty(ctx, "FileDescriptorStoreMax", &files)
	return files, err
}

// ServiceKeeps asks the same of a service by its name. Of one that is not there it is an error.
func (h Host) ServiceKeeps(ctx context.Context, service string) (files uint32, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := h.systemd(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	state, err := conn.GetUnitPropertyContext(ctx, service, "LoadState")
	if err == nil && state.Value.Value() != "loaded" {
		err = errAbsent
	}
	if err != nil {
		return 0, fmt.Errorf("asking systemd for %s: %w", service, err)
	}
	err = property(ctx, conn, service, "FileDescriptorStoreMax", &files)
	return files, err
}

// errAbsent is why a service tells nothing.
var errAbsent = errors.New("it is not there")

// ownProperty asks systemd for what it knows of the service that this process belongs to.
func (h Host) ownProperty(ctx context.Context, name string, into any) error {
	if h != "" {
		return fmt.Errorf("asking for the unit's %s: %w", name, errForeign)
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
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

// property asks systemd for what it knows of a service.
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
