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

// KeyOptions are callbacks about the power key. All of them are required.
type KeyOptions struct {
	// Read says whether this process reads the power key, and when the key was pressed; pressed is zero if it was not pressed since the last
	// call. Only while the process reads the key does nth answer the key in logind's place. See powerkey.Keys.
	Read func() (listening bool, pressed time.Time)
	// Held is called with true when nth holds the lock on the power key, and with false when it cannot or need not. It is called once at the
	// start, and after each change. why is what prevents the lock, such as a setting of logind; "" if nothing does.
	Held func(held bool, why string)
	// Trouble is called with the error when nth cannot leave the schedule, while the node is being drained, or cannot power the machine off
	// after that. nth tries again.
	Trouble func(drained bool, err error)
}

// key is what nth knows of the power key.
type key struct {
	listening bool      // what KeyOptions.Read has said last
	lock      *os.File  // nil while the lock is not held
	reported  string    // the last arguments of KeyOptions.Held
	pressed   time.Time // the last press that counted, which nth answers for giveUp; zero before the first
}

// giveUp is how long after a press the machine is assumed to stay: EC2 would have cut the power long before.
const giveUp = 10 * time.Minute

// readKey reads the power key. A press counts only while nth holds the lock on the key: otherwise logind answers the press. While nth answers a
// press, it ignores further ones.
//
// scheduled is when logind powers off, PowerOffGrant after a press; zero if there is no such schedule. If this process does not know the press, an
// earlier one was answering it. A process that does not read the key, such as a dry run, leaves the schedule to logind.
//
// For a new press, readKey announces a shutdown. The deadline is that of EC2 (PowerOffGrant), not of logind.
func (s *Source) readKey(scheduled time.Time) {
	var pressed time.Time
	s.key.listening, pressed = s.opts.Key.Read()
	switch {
	case !scheduled.IsZero() && s.key.listening: // A press is being answered already.
		left := min(max(time.Until(scheduled), 0), PowerOffGrant) // bounded, as the wall clock may have been set since the press
		pressed = time.Now().Add(left - PowerOffGrant)
	case s.key.lock == nil:
		pressed = time.Time{}
	}
	if !pressed.IsZero() && !s.key.isAnswering() {
		s.key.pressed = pressed
		s.drained.Store(false)
		s.Stopping(max(time.Until(pressed.Add(within(PowerOffGrant))), 0))
	}
}

// isAnswering reports whether nth is answering a press.
func (k key) isAnswering() bool { return !k.pressed.IsZero() && time.Since(k.pressed) <= giveUp }

// holdKey takes or releases the block lock with which nth answers the power key instead of logind, and reports each change to
// Options.Key.Held. action is what logind does for a press (HandlePowerKey): nth takes the lock only if action is to power off.
func (s *Source) holdKey(c *conn, action string) {
	if s.key.lock != nil && s.key.isAnswering() { // Without the lock, logind would answer a second press at once.
		return
	}
	wanted, why := s.key.listening, ""
	if wanted && action != "poweroff" {
		wanted, why = false, fmt.Sprintf("set logind's HandlePowerKey, which is %q, to \"poweroff\"", action)
	}
	if wanted && s.key.lock == nil {
		var err error
		if s.key.lock, err = c.inhibit(powerKeyLock, "block"); err != nil {
			wanted, why = false, err.Error() // logind answers the key. The next look tries again.
		}
	}
	if !wanted {
		release(&s.key.lock)
	}
	arguments := fmt.Sprint(wanted, why)
	if arguments != s.key.reported {
		s.key.reported = arguments
		s.opts.Key.Held(wanted, why)
	}
}

// answer makes the machine power off for the press that nth is answering, if any. Until the drain has ended, it leaves a schedule with logind, to
// power off at the end of PowerOffGrant. After the drain, it requests the power-off at once, from logind or else from systemd.
//
// m has the properties of logind. If logind does not answer, c is nil and m zero.
func (s *Source) answer(ctx context.Context, c *conn, m manager) {
	var err error
	drained := s.drained.Load()
	switch {
	case !s.key.isAnswering():
	case drained:
		if c == nil || c.logind("PowerOff", nil, interactive) != nil { // logind does not answer, or refuses.
			err = s.opts.Host.startPowerOff(ctx)
		}
	case c != nil && m.scheduled.IsZero():
		// pressed is monotonic, and logind needs a time by the wall clock as it is now.
		err = c.schedulePowerOff(time.Now().Add(time.Until(s.key.pressed.Add(PowerOffGrant))))
	}
	if err != nil && ctx.Err() == nil {
		s.opts.Key.Trouble(drained, err)
	}
}

// leavePress reads the key for the last time, before Run releases the lock, and leaves a schedule for a press that has none: logind has not answered
// the press.
func (s *Source) leavePress(ctx context.Context) {
	s.readKey(time.Time{})
	if !s.key.isAnswering() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	c, err := s.opts.Host.bus(ctx)
	if err != nil {
		return // The machine stops when EC2 cuts the power.
	}
	defer c.close()
	if m, err := c.manager(); err == nil && !m.preparing[shutdownLock] {
		s.answer(ctx, c, m)
	}
}
