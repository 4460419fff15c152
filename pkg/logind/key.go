package logind

import (
	"context"
	"fmt"
	"os"
	"time"
)

// EC2 presses the power key to stop or terminate an instance. To answer a press is to make the machine power off. If logind answers, it announces
// a shutdown, and the kubelet may then end all pods at once, without regard to disruption budgets. That has to happen after the drain.
//
// So nth answers the key in logind's place. It holds a block lock on handle-power-key, and on nothing else, and reads the key itself
// (pkg/powerkey). At a press, nth announces a shutdown to its sink. When the drain has ended, nth requests the power-off from logind.
//
// nth must never keep a machine from shutting down:
//   - At the press, nth leaves a schedule with logind, to power off when EC2's time is over, no matter what happens to nth. The schedule is also
//     the memory of the press: when nth is started again, it finds the schedule and continues the drain.
//   - The lock is an open file: it ends with the process, and logind answers the next press.
//   - While nth does not hold the lock, logind answers.
//   - Since systemd 257, logind refuses a power-off even to root while somebody blocks shutdowns. Then nth requests the power-off from systemd.

// KeyOptions are callbacks about the power key.
type KeyOptions struct {
	// Held, if set, is called with true when nth holds the lock on the power key, and with false when it cannot or need not. It is called
	// once at the start, and after each change. why is what prevents the lock, such as a setting of logind; "" if nothing does.
	Held func(held bool, why string)
	// Trouble, if set, is called with the error when nth cannot leave the schedule, while the node is being drained, or cannot power the machine
	// off after that. nth tries again.
	Trouble func(drained bool, err error)
}

// key is the lock on the power key.
type key struct {
	known     bool     // ListenToKey was called
	listening bool     // the last argument of ListenToKey: nth reads the key, so it can answer a press
	lock      *os.File // nil while the lock is not held
	reported  string   // the last arguments of KeyOptions.Held
}

// press is the press of the power key that nth answers, for giveUp at most.
type press struct {
	at      time.Time // zero if there was none
	drained bool      // the drain has ended, so that the machine may be powered off
}

// giveUp is how long after a press the machine is assumed to stay: EC2 would have cut the power long before.
const giveUp = 10 * time.Minute

// ListenToKey says whether this process reads the power key; powerkey.Keys calls it. Only while the process reads the key does nth answer the
// key in logind's place.
func (s *Source) ListenToKey(listening bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key.known, s.key.listening = true, listening
}

// Pressed announces a shutdown for a press of the power key; powerkey.Keys calls it. at is when the key was pressed. A press counts only while nth
// holds the lock on the key: otherwise logind answers the press. While nth answers a press, it ignores further ones.
func (s *Source) Pressed(at time.Time) {
	const resumed = false
	s.beginPress(at, resumed)
}

// resume continues with a press that an earlier process of nth was answering. That process has left a schedule with logind: power off at
// scheduled, which is PowerOffGrant after the press. If this process answers the press already, resume does nothing.
func (s *Source) resume(scheduled time.Time) {
	const resumed = true
	left := min(max(time.Until(scheduled), 0), PowerOffGrant) // bounded, as the wall clock may have been set since the press
	s.beginPress(time.Now().Add(left-PowerOffGrant), resumed)
}

// beginPress announces the shutdown for which the power key was pressed, unless nth answers an earlier press. resumed says that an earlier process
// of nth held the lock on the key at the press. The deadline is that of EC2 (PowerOffGrant), not of logind. The next look calls answer.
func (s *Source) beginPress(at time.Time, resumed bool) {
	s.mu.Lock()
	lockHeld := resumed || s.key.lock != nil // Otherwise logind answers the press.
	counts := s.opts.Key != nil && lockHeld && !s.press.inProgress()
	if counts {
		s.press = press{at: at}
	}
	s.mu.Unlock()
	if counts {
		s.Stopping(max(time.Until(at.Add(s.opts.within(PowerOffGrant))), 0))
	}
}

// inProgress reports whether nth is answering the press.
func (p press) inProgress() bool { return !p.at.IsZero() && time.Since(p.at) <= giveUp }

// holdKey takes or releases the block lock with which nth answers the power key instead of logind, and reports each change to
// Options.Key.Held. Each look calls it. action is what logind does for a press (HandlePowerKey): nth takes the lock only if action is to power
// off.
func (s *Source) holdKey(ctx context.Context, c *conn, action string) {
	s.mu.Lock()
	known, wanted, why, held := s.key.known, s.key.listening, "", s.key.lock != nil
	answering := s.press.inProgress()
	s.mu.Unlock()
	if !known || held && answering { // Without the lock, logind would answer a second press at once.
		return
	}
	if wanted && action != "poweroff" {
		wanted, why = false, fmt.Sprintf("logind's HandlePowerKey is %q, and not \"poweroff\"", action)
	}
	var lock *os.File
	if wanted && !held {
		var err error
		if lock, err = c.inhibit(ctx, powerKeyLock, "block"); err != nil {
			wanted, why = false, err.Error() // logind answers the key. The next look tries again.
		}
	}
	s.mu.Lock()
	if lock != nil {
		s.key.lock = lock
	}
	if !wanted {
		release(&s.key.lock)
	}
	arguments := fmt.Sprint(wanted, why)
	changed := arguments != s.key.reported
	s.key.reported = arguments
	s.mu.Unlock()
	if changed && s.opts.Key.Held != nil {
		s.opts.Key.Held(wanted, why)
	}
}

// answer makes the machine power off for a press, if nth is answering one. Until the drain has ended, it leaves a schedule with logind, to power
// off at the end of PowerOffGrant. After the drain, it requests the power-off at once, from logind or else from systemd.
//
// Each look calls answer with the properties of logind, m. If logind does not answer, Run calls it with c nil and m zero.
func (s *Source) answer(ctx context.Context, c *conn, m manager) {
	s.mu.Lock()
	p := s.press
	s.mu.Unlock()
	var err error
	switch {
	case !p.inProgress():
		return
	case p.drained:
		if c == nil || c.logind(ctx, "PowerOff", nil, false) != nil { // logind does not answer, or refuses.
			err = s.opts.Host.startPowerOff(ctx)
		}
	case c != nil && m.scheduled.IsZero():
		// p.at is monotonic, and logind needs a time by the wall clock as it is now.
		err = c.schedulePowerOff(ctx, time.Now().Add(time.Until(p.at.Add(PowerOffGrant))))
	}
	if err != nil && ctx.Err() == nil && s.opts.Key.Trouble != nil {
		s.opts.Key.Trouble(p.drained, err)
	}
}
