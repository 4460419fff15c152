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

// The power key. EC2 stops and terminates an instance by pressing it, logind answers by announcing a shutdown, and the
// kubelet, if it was told to, then ends all pods at once, asking no disruption budget. So that this comes after the drain,
// nth answers the key in logind's place: it holds a block lock on handle-power-key, and on nothing else, reads the key
// itself (pkg/powerkey), announces the event, and asks logind for the power-off when that is settled.
//
// A machine must never fail to go down because of nth. The ways out:
//   - At the press, logind is asked to power off at the time that EC2 leaves, whatever becomes of nth, and again until it
//     is seen to intend that, which a logind that was started again does not. One that refuses, as since systemd 257 it does
//     for root, too, while somebody blocks shutdowns, or cannot be asked, has systemd's timer in its place.
//   - The lock is an open file: it ends with the process, and the next press is logind's.
//   - Nothing is done in logind's place without the lock. A press that was read without it is left to logind, and only if
//     that does nothing about it, or is not there, it is answered here.
//   - A power-off that logind does not bring about is asked of systemd; where both refuse, the lock is given back.

// KeyOptions say what is told of the power key.
type KeyOptions struct {
	// Held, if set, is called when it is known whether nth answers the power key, and when that changes; if the settings of
	// logind keep it from that, with why.
	Held func(held bool, why string)
	// Trouble, if set, is called when the machine cannot be powered off. It is tried again.
	Trouble func(error)
	// Claimed, if set, is called when a press that was left to logind is answered here, since logind does not.
	Claimed func()
	// Over, if set, is called when nothing more is to be done about a press.
	Over func()
}

// key is the lock on the power key.
type key struct {
	known  bool     // whether it is wanted
	wanted bool     // the key is being read
	lock   *os.File // nil while it is not held
	logind string   // which has given it
	told   string   // what Held was called with last
}

// giveBack closes the lock. The source's mu is held.
func (k *key) giveBack() {
	if k.lock != nil {
		_ = k.lock.Close() // closing is the release; there is nobody to hear of an error
		k.lock = nil
	}
}

// press is what becomes of the first press of the power key. More of them say nothing new.
type press struct {
	at      time.Time // zero if there was none
	ours    bool      // logind does not answer it
	settled bool      // nothing holds the power-off any more
	asked   time.Time // when the power-off was asked for last
	asks    int
	stuck   bool   // what is asked for does not happen
	until   uint64 // when logind was told to power off in any case, as it calls the time; 0 if it was not
	timed   bool   // systemd has a timer for that
}

const (
	// leftTo is how long logind has to begin with the answer to a press that may be its own.
	leftTo = time.Second
	// pressTick is the time between two looks at what becomes of a press.
	pressTick = 500 * time.Millisecond
	// askAgain is how long a power-off that was asked for may take to be announced.
	askAgain = 5 * time.Second
	// overdueAfter is how long after its deadline a drain that does not end by itself is no longer waited for.
	overdueAfter = 3 * time.Second
	// giveUp is when a machine that is still there will not go down for this press: EC2 would have ended it long ago.
	giveUp = 10 * time.Minute
)

// ListenToKey says whether the power key is being read. Only then nth answers it.
func (s *Source) ListenToKey(listening bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key.known, s.key.wanted = true, listening
	if !listening && s.press.at.IsZero() {
		s.key.giveBack()
	}
	poke(s.wake)
}

// HoldsKey tells whether nth answers the power key.
func (s *Source) HoldsKey() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.key.lock != nil
}

// Pressed says that the power key was pressed at a time, and whether logind was held off it then. What an earlier process
// has heard is to be told before Run: else Run finds that nothing is announced, and says so.
func (s *Source) Pressed(at time.Time, ours bool) {
	s.mu.Lock()
	if !s.press.at.IsZero() {
		s.mu.Unlock()
		return
	}
	if time.Since(at) > giveUp {
		s.mu.Unlock()
		s.forgetPress() // it is nobody's any more
		return
	}
	s.press = press{at: at, ours: ours}
	poke(s.moved)
	s.mu.Unlock()
	if ours {
		s.announcePress()
	}
}

// resume goes on with the press for which an earlier process has left a shutdown under way, although nobody has kept the
// press: a service that was stopped, or has failed for good, keeps nothing. What that process has told logind is still to
// come then, and the machine goes down by it, whatever is said here.
func (s *Source) resume(ctx context.Context, b *bus, preparing bool) error {
	s.mu.Lock()
	asked := s.asked || s.opts.Underway.IsZero() || !s.press.at.IsZero()
	s.mu.Unlock()
	if asked || preparing {
		return nil
	}
	known, err := b.scheduled(ctx)
	if err != nil {
		return err
	}
	at := time.UnixMicro(int64(known.At)) // a time of logind's
	after := at.Sub(s.opts.Underway)
	ours := known.What == "poweroff" && known.At > 0 && after >= 0 && after <= PowerOffGrant
	s.mu.Lock()
	s.asked = true
	if ours {
		s.press = press{at: time.Now().Add(at.Sub(s.opts.now()) - PowerOffGrant), ours: true, until: known.At}
		poke(s.moved)
	}
	s.mu.Unlock()
	if ours {
		s.announcePress()
	}
	return nil
}

// answering tells whether a press is being answered here.
func (s *Source) answering() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.press.ours
}

// announcePress announces the shutdown for which the power key was pressed. It has EC2's time, and not logind's.
func (s *Source) announcePress() {
	s.mu.Lock()
	left := time.Until(s.press.at.Add(s.opts.within(PowerOffGrant)))
	s.mu.Unlock()
	s.Stopping(max(left, 0))
}

// holdKey takes the lock on the power key, or gives it back. A logind that was started again is asked for another one:
// whether it knows the old one is not worth a doubt.
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
		if err != nil { // The key stays logind's, and shutdowns are heard of as ever. The next look tries again.
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
	word := fmt.Sprint(wanted, why)
	news := word != s.key.told
	s.key.told = word
	s.mu.Unlock()
	if news && s.opts.Key.Held != nil {
		s.opts.Key.Held(wanted, why)
	}
	return nil
}

// answerKey sees a press through, until ctx ends.
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

// answer does what is due for the press, if there is one, and tells whether it is to be looked at again.
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
		s.forgetPress() // it is nobody's any more
		return false
	case preparing:
		s.releaseOverdue(p)
		return true
	}
	s.trouble(ctx, s.goDown(ctx, b, p, err))
	return true
}

// trouble tells why the machine could not be powered off. What is asked as the process ends is cut off, and no news.
func (s *Source) trouble(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil && s.opts.Key.Trouble != nil {
		s.opts.Key.Trouble(err)
	}
}

// leave sees to a press that may be logind's, which may be preparing for a shutdown, or be told to do something else about
// the key. It tells whether the press is to be answered here after all, or else looked at again.
func (s *Source) leave(p press, preparing, elsewhere bool) (ours, again bool) {
	switch {
	case preparing && !s.announced(event.Shutdown):
		return false, true // the look that finds it is on its way
	case preparing:
		s.announcePress() // what logind goes down for may have more time than EC2
		s.forgetPress()
		return false, false
	case elsewhere:
		s.forgetPress() // it is nobody's
		return false, false
	case time.Since(p.at) < leftTo:
		return false, true
	}
	s.claimPress()
	return true, true
}

// goDown sees to it that the machine is powered off when EC2's time is over, and before, when the drain is. unreachable is
// why logind cannot be asked.
func (s *Source) goDown(ctx context.Context, b *bus, p press, unreachable error) error {
	scheduling, poweringOff := s.schedule(ctx, b, p, unreachable), error(nil)
	s.releaseOverdue(p)
	if (p.settled || s.overdue(p)) && time.Since(p.asked) > askAgain {
		poweringOff = s.powerOff(ctx, b, p.asks, unreachable)
	}
	return errors.Join(scheduling, poweringOff)
}

// overdue tells whether the drain should have ended.
func (s *Source) overdue(p press) bool {
	return time.Since(p.at) > s.opts.within(PowerOffGrant)+overdueAfter
}

// releaseOverdue lets the shutdown go if its drain does not end by itself.
func (s *Source) releaseOverdue(p press) {
	if s.overdue(p) && !p.settled {
		s.Release(event.Shutdown)
	}
}

// claimPress answers a press that was left to logind.
func (s *Source) claimPress() {
	s.mu.Lock()
	s.press.ours = true
	s.mu.Unlock()
	if s.opts.Key.Claimed != nil {
		s.opts.Key.Claimed()
	}
	s.announcePress()
}

// forgetPress is the end of a press.
func (s *Source) forgetPress() {
	s.mu.Lock()
	s.press = press{}
	s.mu.Unlock()
	if s.opts.Key.Over != nil {
		s.opts.Key.Over()
	}
	poke(s.wake)
}

// An Inhibitor is a lock that logind has given.
type Inhibitor struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

// KeyHolders asks logind who answers the power key in its place, and what it does itself if nobody does.
func (h Host) KeyHolders(ctx context.Context) (holders []Inhibitor, action string, err error) {
	b, err := h.dial(ctx)
	if err != nil {
		return nil, "", err
	}
	defer b.close()
	if err := b.property(ctx, "HandlePowerKey", &action); err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	if err := b.logind.CallWithContext(ctx, busManager+".ListInhibitors", 0).Store(&holders); err != nil {
		return nil, "", fmt.Errorf("asking logind for its locks: %w", err)
	}
	return slices.DeleteFunc(holders, func(i Inhibitor) bool {
		return i.Mode != "block" || !slices.Contains(strings.Split(i.What, ":"), powerKeyLock)
	}), action, nil
}

// schedule sees to it that the machine is powered off when EC2's time is over, whatever becomes of nth until then.
// unreachable is why logind cannot be asked.
func (s *Source) schedule(ctx context.Context, b *bus, p press, unreachable error) error {
	end := p.at.Add(PowerOffGrant)
	var refused error
	if unreachable == nil {
		var until uint64
		until, refused = b.ensurePowerOff(ctx, s.opts.now, end, p.until)
		s.mu.Lock()
		s.press.until = until
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

// scheduled is what logind is going to do at a time, in microseconds.
type scheduled struct {
	What string
	At   uint64
}

// scheduled asks logind what it is going to do.
func (b *bus) scheduled(ctx context.Context) (known scheduled, err error) {
	err = b.property(ctx, "ScheduledShutdown", &known)
	return known, err
}

// ensurePowerOff makes logind power the machine off at the given time at the latest, and returns what it was told then:
// the same as before, which may be 0, unless that has changed. logind goes by the wall clock. When that has been set, what
// logind was told here is another time than it was meant to be, and is told anew; what it was told by others stands.
func (b *bus) ensurePowerOff(ctx context.Context, now func() time.Time, at time.Time, told uint64) (uint64, error) {
	known, err := b.scheduled(ctx)
	if err != nil {
		return told, err
	}
	const inexact = time.Second
	left := time.Until(at)
	wall := now().Add(max(left, inexact)).Round(0)
	ahead := time.UnixMicro(int64(known.At)).Sub(wall) // a time of logind's
	early := ahead < -inexact && known.At == told && left > inexact
	if known.What == "poweroff" && known.At > 0 && ahead <= inexact && !early {
		return told, nil
	}
	told = uint64(wall.UnixMicro()) // it is after 1970
	return told, b.call(ctx, "ScheduleShutdown", "poweroff", told)
}

// timer is the name of what systemd has where logind does not schedule a power-off.
const timer = "nth-power-off"

// startTimer has systemd power off after a time, unless it is to do so already. Its clock is not the wall's.
func (h Host) startTimer(ctx context.Context, after time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	type span struct {
		Base string
		Time uint64
	}
	set := func(name string, value any) systemd.Property {
		return systemd.Property{Name: name, Value: dbus.MakeVariant(value)}
	}
	why := set("Description", "Power off what EC2 is about to take the power from")
	spans := []span{{"OnActiveSec", uint64(max(after, time.Second).Microseconds())}} // it is more than nothing
	// It need not run: its end is what counts, whatever that is.
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

// powerOff asks logind, or if that has not helped or cannot be asked, the service manager. Where neither takes it, or
// nothing comes of it, the key is logind's again.
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

// startPowerOff asks the service manager for what logind asks it for.
func (h Host) startPowerOff(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
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
