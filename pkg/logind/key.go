package logind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// The power key. EC2 presses it to stop or terminate an instance. logind then announces a shutdown, and the kubelet, if it is
// configured for that, ends all pods at once, without regard to disruption budgets. That has to happen after the drain. So nth answers the key
// in logind's place. It holds a block lock on handle-power-key, and on nothing else, and reads the key itself (pkg/powerkey). At a press, it
// announces the event, and requests the power-off from logind when the drain has ended.
//
// nth must never keep a machine from shutting down:
//   - At the press, logind gets a schedule to power off when EC2's time is over, whatever happens to nth. The schedule is also the memory
//     of the press: when nth is started again, it finds the schedule and continues the drain.
//   - The lock is an open file: it ends with the process, and logind answers the next press.
//   - Without the lock, a press is logind's.
//   - A power-off that logind refuses, as it does since systemd 257 even for root while somebody blocks shutdowns, is requested
//     from systemd.

// KeyOptions are callbacks about the power key.
type KeyOptions struct {
	// Held, if set, is called when it is known whether nth answers the power key, and when that changes. why is what prevents
	// it, such as a setting of logind's.
	Held func(held bool, why string)
	// Trouble, if set, is called when the machine cannot be powered off. nth tries again.
	Trouble func(error)
}

// key is the lock on the power key.
type key struct {
	known  bool     // ListenToKey was called
	wanted bool     // nth reads the key (pkg/powerkey), so it can answer the key
	lock   *os.File // nil while the lock is not held
	last   string   // the last arguments of KeyOptions.Held
}

// press is the press of the power key that nth answers, for giveUp at most.
type press struct {
	at      time.Time // zero if there was none
	settled bool      // the drain has ended, so that the machine may be powered off
}

// giveUp is how long after a press the machine is assumed to stay: EC2 would have cut the power long before.
const giveUp = 10 * time.Minute

// ListenToKey says whether this process reads the power key; powerkey.Keys calls it. Only while the process reads the key does nth answer the
// key in logind's place.
func (s *Source) ListenToKey(listening bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key.known, s.key.wanted = true, listening
}

// Pressed says that the power key was pressed, and when; powerkey.Keys calls it. A press counts only while nth holds the lock on the key:
// otherwise logind answers it. Further presses are ignored until the first one is answered or called off.
func (s *Source) Pressed(at time.Time) {
	const resumed = false
	s.beginPress(at, resumed)
}

// resume continues with the press that an earlier process of nth was answering. That process has left a schedule with logind: power off at
// scheduled, which is PowerOffGrant after the press. The wall clock may have been set since, so resume takes the press to be at most
// PowerOffGrant ago.
func (s *Source) resume(scheduled time.Time) {
	const resumed = true
	s.beginPress(time.Now().Add(min(max(time.Until(scheduled), 0), PowerOffGrant)-PowerOffGrant), resumed)
}

// beginPress announces the shutdown for which the power key was pressed. The deadline is that of EC2 (PowerOffGrant), not of logind. What
// follows is up to answer, at the next look.
func (s *Source) beginPress(at time.Time, resumed bool) {
	s.mu.Lock()
	counts := s.opts.Key != nil && (resumed || s.key.lock != nil) && !s.press.answered()
	if counts {
		s.press = press{at: at}
	}
	s.mu.Unlock()
	if counts {
		s.Stopping(max(time.Until(at.Add(s.opts.within(PowerOffGrant))), 0))
	}
}

// answered reports whether nth is answering the press.
func (p press) answered() bool { return !p.at.IsZero() && time.Since(p.at) <= giveUp }

// holdKey takes or releases the block lock with which nth answers the power key instead of logind, and reports each change to
// Options.Key.Held. action is what logind does for a press (HandlePowerKey): nth takes the lock only if that is to power off. Each look calls
// holdKey. While a press is being answered, the lock stays: without it, logind would answer a second press at once.
func (s *Source) holdKey(ctx context.Context, c *conn, action string) {
	s.mu.Lock()
	known, wanted, why, held := s.key.known, s.key.wanted, "", s.key.lock != nil
	answering := s.press.answered()
	s.mu.Unlock()
	if !known || held && answering {
		return
	}
	if wanted && action != "poweroff" {
		wanted, why = false, fmt.Sprintf("logind's HandlePowerKey is %q, and not \"poweroff\"", action)
	}
	var lock *os.File
	if wanted && !held {
		var err error
		if lock, err = c.inhibit(ctx, powerKeyLock, "block"); err != nil {
			wanted, why = false, err.Error() // logind answers the key, as usual. The next look tries again.
		}
	}
	s.mu.Lock()
	if lock != nil {
		s.key.lock = lock
	}
	if !wanted {
		giveBack(&s.key.lock)
	}
	arguments := fmt.Sprint(wanted, why)
	changed := arguments != s.key.last
	s.key.last = arguments
	s.mu.Unlock()
	if changed && s.opts.Key.Held != nil {
		s.opts.Key.Held(wanted, why)
	}
}

// answer makes the machine power off for a press, if there is one to answer. Until the drain has ended (settled), it leaves a schedule with
// logind to power off at the end of PowerOffGrant, whatever happens to nth. Then it requests the power-off at once, from logind or else from
// systemd. Each look calls it with what logind says (m). c is nil if logind does not answer.
func (s *Source) answer(ctx context.Context, c *conn, m manager) {
	s.mu.Lock()
	p := s.press
	s.mu.Unlock()
	var err error
	switch {
	case !p.answered():
		return
	case p.settled:
		if c != nil {
			err = c.logind(ctx, "PowerOff", nil, false)
		}
		if c == nil || err != nil {
			err = errors.Join(err, s.opts.Host.startPowerOff(ctx))
		}
	case c != nil && m.scheduled.IsZero():
		// The press has a monotonic time, and logind needs the wall clock's.
		err = c.schedulePowerOff(ctx, time.Now().Add(time.Until(p.at.Add(PowerOffGrant))))
	}
	if err != nil && ctx.Err() == nil && s.opts.Key.Trouble != nil {
		s.opts.Key.Trouble(err)
	}
}
