package logind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/nth-project/nth/pkg/event"
)

// The power key. EC2 presses it to stop or terminate an instance. logind then announces a shutdown, and the kubelet, if it is
// configured for that, ends all pods at once, without regard to disruption budgets. To have that happen after the drain, nth
// answers the key in logind's place: it holds a block lock on handle-power-key, and on nothing else, reads the key itself
// (pkg/powerkey), announces the event, and requests the power-off from logind when the event is settled.
//
// nth must never keep a machine from shutting down:
//   - At the press, logind is told to power off when EC2's time is over (ScheduleShutdown), whatever happens to nth. That is
//     repeated until the shutdown is scheduled, because logind forgets it in a restart. If logind refuses, as it does since
//     systemd 257 even for root while somebody blocks shutdowns, or cannot be reached, systemd gets a timer for it.
//   - The lock is an open file: it ends with the process, and logind answers the next press.
//   - Without the lock, nth does nothing in logind's place. A press that was read without it is left to logind. nth answers it
//     only if logind does nothing or cannot be reached.
//   - A power-off that logind does not bring about is requested from systemd. If both refuse, the lock is released.

// KeyOptions are callbacks about the power key.
type KeyOptions struct {
	// Held, if set, is called when it is known whether nth answers the power key, and when that changes. why is what prevents
	// it, such as a setting of logind's.
	Held func(held bool, why string)
	// Trouble, if set, is called when the machine cannot be powered off. nth tries again.
	Trouble func(error)
	// Claimed, if set, is called when nth answers a press that was left to logind, because logind does not.
	Claimed func()
	// Over, if set, is called when a press needs no more attention.
	Over func()
}

// key is the lock on the power key.
type key struct {
	known  bool     // ListenToKey was called
	wanted bool     // the key is being read
	lock   *os.File // nil while it is not held
	logind string   // the bus name of the logind that has granted it
	told   string   // the last arguments of Held
}

// giveBack releases the lock. The source's mu is held.
func (k *key) giveBack() {
	if k.lock != nil {
		_ = k.lock.Close()
		k.lock = nil
	}
}

// press is the first press of the power key, and how far its answer is. Further presses are ignored.
type press struct {
	at        time.Time // zero if there was none
	ours      bool      // nth answers it, not logind
	settled   bool      // nothing delays the power-off any more
	asked     time.Time // when the power-off was last requested
	asks      int       // how often
	stuck     bool      // requests have no effect
	scheduled uint64    // the time of the power-off that logind was told, in microseconds; 0 if it was not
	timed     bool      // systemd has a timer for the power-off
}

const (
	// leftTo is how long logind may take to answer a press that is left to it.
	leftTo = time.Second
	// pressTick is the interval at which the answer to a press is checked.
	pressTick = 500 * time.Millisecond
	// askAgain is how long logind may take to announce a power-off that was requested.
	askAgain = 5 * time.Second
	// overdueAfter is how long after its deadline a drain that has not ended is no longer waited for.
	overdueAfter = 3 * time.Second
	// giveUp is how long after a press the machine is assumed to stay: EC2 would have cut the power long before.
	giveUp = 10 * time.Minute
)

// ListenToKey says whether the power key is being read. nth answers it only then.
func (s *Source) ListenToKey(listening bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key.known, s.key.wanted = true, listening
	if !listening && s.press.at.IsZero() {
		s.key.giveBack()
	}
	poke(s.wake)
}

// HoldsKey reports whether nth answers the power key.
func (s *Source) HoldsKey() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.key.lock != nil
}

// Pressed says when the power key was pressed, and whether nth held the lock then. A press that an earlier process has read
// must be passed before Run, which otherwise delivers that nothing is announced.
func (s *Source) Pressed(at time.Time, ours bool) {
	s.mu.Lock()
	if !s.press.at.IsZero() {
		s.mu.Unlock()
		return
	}
	if time.Since(at) > giveUp {
		s.mu.Unlock()
		s.forgetPress()
		return
	}
	s.press = press{at: at, ours: ours}
	poke(s.moved)
	s.mu.Unlock()
	if ours {
		s.announcePress()
	}
}

// resume restores the press for which an earlier process has scheduled a power-off. The service manager may not have kept the
// press: it keeps nothing of a service that was stopped or has failed. The power-off that logind was told then still happens.
func (s *Source) resume(ctx context.Context, b *bus, preparing bool) error {
	s.mu.Lock()
	done := s.resumed || s.opts.Underway.IsZero() || !s.press.at.IsZero()
	s.mu.Unlock()
	if done || preparing {
		return nil
	}
	known, err := b.scheduled(ctx)
	if err != nil {
		return err
	}
	at := time.UnixMicro(int64(known.At)) // logind's times fit
	after := at.Sub(s.opts.Underway)
	ours := known.What == "poweroff" && known.At > 0 && after >= 0 && after <= PowerOffGrant
	s.mu.Lock()
	s.resumed = true
	if ours {
		s.press = press{at: time.Now().Add(at.Sub(s.opts.now()) - PowerOffGrant), ours: true, scheduled: known.At}
		poke(s.moved)
	}
	s.mu.Unlock()
	if ours {
		s.announcePress()
	}
	return nil
}

// answering reports whether nth is answering a press.
func (s *Source) answering() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.press.ours
}

// announcePress announces the shutdown for which the power key was pressed. Its deadline is EC2's, not logind's.
func (s *Source) announcePress() {
	s.mu.Lock()
	left := time.Until(s.press.at.Add(s.opts.within(PowerOffGrant)))
	s.mu.Unlock()
	s.Stopping(max(left, 0))
}

// holdKey takes the lock on the power key, or releases it. After a restart of logind, it takes another lock, in case logind has
// lost the old one.
func (s *Source) holdKey(ctx context.Context, b *bus, action string) error {
	s.mu.Lock()
	known := s.key.known
	s.mu.Unlock()
	if !known {
		return nil
	}
	owner, err := b.owner(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	wanted, why := s.key.wanted, ""
	if wanted && action != "poweroff" {
		wanted, why = false, fmt.Sprintf("logind's HandlePowerKey is %q, and not \"poweroff\"", action)
	}
	if s.press.stuck {
		wanted = false
	}
	have := s.key.lock != nil && s.key.logind == owner
	s.mu.Unlock()
	if wanted && !have {
		lock, err := b.inhibit(ctx, powerKeyLock, "block")
		s.mu.Lock()
		if err != nil { // logind answers the key, and announces a shutdown as usual. The next look tries again.
			wanted, why = false, err.Error()
		} else {
			s.key.giveBack()
			s.key.lock, s.key.logind = lock, owner
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	if !wanted {
		s.key.giveBack()
	}
	arguments := fmt.Sprint(wanted, why)
	news := arguments != s.key.told
	s.key.told = arguments
	s.mu.Unlock()
	if news && s.opts.Key.Held != nil {
		s.opts.Key.Held(wanted, why)
	}
	return nil
}

// answerKey answers presses until ctx ends.
func (s *Source) answerKey(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.moved:
		case <-again:
		}
		again = nil
		if s.answer(ctx) {
			again = time.After(pressTick)
		}
	}
}

// answer takes the next step for the press, if there is one. again reports whether that has to be repeated.
func (s *Source) answer(ctx context.Context) (again bool) {
	s.mu.Lock()
	p := s.press
	s.mu.Unlock()
	if p.at.IsZero() {
		return false
	}
	b, err := s.opts.Host.dial(ctx)
	var m manager
	if err == nil {
		defer b.close()
		m, err = b.manager(ctx)
	}
	preparing := err == nil && m.preparing[shutdownLock]
	if !p.ours {
		if ours, again := s.leave(p, preparing, err == nil && m.powerKey != "poweroff"); !ours {
			return again
		}
	}
	switch {
	case time.Since(p.at) > giveUp:
		s.forgetPress()
		return false
	case preparing:
		s.releaseOverdue(p)
		return true
	}
	s.trouble(ctx, s.goDown(ctx, b, p, err))
	return true
}

// trouble reports why the machine could not be powered off, unless the process is ending, which aborts requests.
func (s *Source) trouble(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil && s.opts.Key.Trouble != nil {
		s.opts.Key.Trouble(err)
	}
}

// leave handles a press that is left to logind. preparing says that logind has announced a shutdown, and elsewhere that it is
// configured to do something else than to power off. leave reports whether nth has to answer the press after all, and if not,
// whether the press has to be checked again.
func (s *Source) leave(p press, preparing, elsewhere bool) (ours, again bool) {
	switch {
	case preparing && !s.announced(event.Shutdown):
		return false, true // the next look finds the shutdown
	case preparing:
		s.announcePress() // EC2's deadline may be nearer than that of the shutdown
		s.forgetPress()
		return false, false
	case elsewhere:
		s.forgetPress()
		return false, false
	case time.Since(p.at) < leftTo:
		return false, true
	}
	s.claimPress()
	return true, true
}

// goDown schedules the power-off for the end of EC2's time, and requests it at once when the drain has ended. unreachable is
// why logind cannot be reached; nil if it can.
func (s *Source) goDown(ctx context.Context, b *bus, p press, unreachable error) error {
	scheduling, poweringOff := s.schedule(ctx, b, p, unreachable), error(nil)
	s.releaseOverdue(p)
	if (p.settled || s.overdue(p)) && time.Since(p.asked) > askAgain {
		poweringOff = s.powerOff(ctx, b, p.asks, unreachable)
	}
	return errors.Join(scheduling, poweringOff)
}

// overdue reports whether the drain should have ended by now.
func (s *Source) overdue(p press) bool {
	return time.Since(p.at) > s.opts.within(PowerOffGrant)+overdueAfter
}

// releaseOverdue releases the shutdown if its drain is overdue.
func (s *Source) releaseOverdue(p press) {
	if s.overdue(p) && !p.settled {
		s.Release(event.Shutdown)
	}
}

// claimPress makes nth answer a press that was left to logind.
func (s *Source) claimPress() {
	s.mu.Lock()
	s.press.ours = true
	s.mu.Unlock()
	if s.opts.Key.Claimed != nil {
		s.opts.Key.Claimed()
	}
	s.announcePress()
}

// forgetPress ends the answer to the press.
func (s *Source) forgetPress() {
	s.mu.Lock()
	s.press = press{}
	s.mu.Unlock()
	if s.opts.Key.Over != nil {
		s.opts.Key.Over()
	}
	poke(s.wake)
}

// Inhibitor is a lock that logind has granted.
type Inhibitor struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

// KeyHolders asks logind for the locks on the power key, and for what it does itself if there is none (HandlePowerKey).
func (h Host) KeyHolders(ctx context.Context) (holders []Inhibitor, action string, err error) {
	b, err := h.dial(ctx)
	if err != nil {
		return nil, "", err
	}
	defer b.close()
	if err := b.property(ctx, "HandlePowerKey", &action); err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := b.logind.CallWithContext(ctx, busManager+".ListInhibitors", 0).Store(&holders); err != nil {
		return nil, "", fmt.Errorf("asking logind for its locks: %w", err)
	}
	return slices.DeleteFunc(holders, func(i Inhibitor) bool {
		return i.Mode != "block" || !slices.Contains(strings.Split(i.What, ":"), powerKeyLock)
	}), action, nil
}

// schedule makes logind, or else systemd, power the machine off when EC2's time is over, whatever happens to nth until then.
// unreachable is why logind cannot be reached; nil if it can.
func (s *Source) schedule(ctx context.Context, b *bus, p press, unreachable error) error {
	end := p.at.Add(PowerOffGrant)
	var refused error
	if unreachable == nil {
		var at uint64
		at, refused = b.ensurePowerOff(ctx, s.opts.now, end, p.scheduled)
		s.mu.Lock()
		s.press.scheduled = at
		s.mu.Unlock()
	}
	if unreachable == nil && refused == nil || p.timed {
		return nil
	}
	timing := s.opts.Host.startTimer(ctx, time.Until(end))
	s.mu.Lock()
	s.press.timed = timing == nil
	s.mu.Unlock()
	return errors.Join(refused, timing)
}

// scheduled is a scheduled shutdown: its type and its time, in microseconds.
type scheduled struct {
	What string
	At   uint64
}

// scheduled asks logind for the scheduled shutdown.
func (b *bus) scheduled(ctx context.Context) (known scheduled, err error) {
	err = b.property(ctx, "ScheduledShutdown", &known)
	return known, err
}

// ensurePowerOff makes logind power the machine off at a time at the latest, and returns the time that it was told, in
// microseconds: told, which may be 0, if nothing had to be changed. logind uses the wall clock. If that was set meanwhile, the
// time that nth told logind is wrong and is replaced; a time that others have set stands.
func (b *bus) ensurePowerOff(ctx context.Context, now func() time.Time, at time.Time, told uint64) (uint64, error) {
	known, err := b.scheduled(ctx)
	if err != nil {
		return told, err
	}
	const inexact = time.Second
	left := time.Until(at)
	wall := now().Add(max(left, inexact)).Round(0)
	ahead := time.UnixMicro(int64(known.At)).Sub(wall) // logind's times fit
	early := ahead < -inexact && known.At == told && left > inexact
	if known.What == "poweroff" && known.At > 0 && ahead <= inexact && !early {
		return told, nil
	}
	told = uint64(wall.UnixMicro()) // it is after 1970
	return told, b.call(ctx, "ScheduleShutdown", "poweroff", told)
}

// timer is the name of systemd's units for a power-off that logind does not schedule.
const timer = "nth-power-off"

// startTimer makes systemd power off after a time, by the monotonic clock, unless the timer exists already.
func (h Host) startTimer(ctx context.Context, after time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	type span struct {
		Base string
		Time uint64
	}
	set := func(name string, value any) systemd.Property {
		return systemd.Property{Name: name, Value: dbus.MakeVariant(value)}
	}
	why := set("Description", "Power off what EC2 is about to take the power from")
	spans := []span{{"OnActiveSec", uint64(max(after, time.Second).Microseconds())}} // it is positive
	// The service powers off when it ends, whether it succeeds or fails.
	end := systemd.PropertyCollection{Name: timer + ".service", Properties: []systemd.Property{
		why, systemd.PropType("oneshot"), systemd.PropExecStart([]string{"/bin/true"}, false),
		set("SuccessAction", "poweroff"), set("FailureAction", "poweroff"),
	}}
	conn, err := h.systemd(ctx)
	if err == nil {
		defer conn.Close()
		_, err = conn.StartTransientUnitAux(ctx, timer+".timer", "fail",
			[]systemd.Property{why, set("TimersMonotonic", spans), set("AccuracyUSec", uint64(100_000))},
			[]systemd.PropertyCollection{end}, nil)
	}
	if refused, _ := errors.AsType[dbus.Error](err); err != nil && refused.Name != "org.freedesktop.systemd1.UnitExists" {
		return fmt.Errorf("asking systemd for a timer: %w", err)
	}
	return nil
}

// powerOff requests the power-off from logind, and from systemd if logind fails or an earlier request had no effect. If systemd
// refuses, or this is not the first request, the lock is released, so that logind answers the next press.
func (s *Source) powerOff(ctx context.Context, b *bus, asks int, err error) error {
	if err == nil {
		err = b.call(ctx, "PowerOff", false)
	}
	stuck := asks > 0
	if err != nil || stuck {
		second := s.opts.Host.startPowerOff(ctx)
		stuck = stuck || second != nil
		err = errors.Join(err, second)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.press.asked = time.Now()
	s.press.asks++
	if stuck {
		s.press.stuck = true
		s.key.giveBack()
	}
	return err
}

// startPowerOff starts poweroff.target, as logind does.
func (h Host) startPowerOff(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := h.systemd(ctx)
	if err == nil {
		defer conn.Close()
		_, err = conn.StartUnitContext(ctx, "poweroff.target", "replace-irreversibly", nil)
	}
	if err != nil {
		return fmt.Errorf("asking systemd for poweroff.target: %w", err)
	}
	return nil
}
