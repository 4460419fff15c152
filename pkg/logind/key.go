package logind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// The power key. EC2 presses it to stop or terminate an instance. logind then announces a shutdown, and the kubelet, if it is
// configured for that, ends all pods at once, without regard to disruption budgets. To have that happen after the drain, nth
// answers the key in logind's place: it holds a block lock on handle-power-key, and on nothing else, reads the key itself
// (pkg/powerkey), announces the event, and requests the power-off from logind when the event is settled.
//
// nth must never keep a machine from shutting down:
//   - At the press, systemd gets a timer that powers off when EC2's time is over, whatever happens to nth. It is also the memory
//     of the press: a process that finds it goes on with the drain.
//   - The lock is an open file: it ends with the process, and logind answers the next press.
//   - Without the lock, nth does nothing in logind's place. A press that was read without it is left to logind. nth answers it
//     only if logind does nothing or cannot be reached.
//   - A power-off that logind refuses, as it does since systemd 257 even for root while somebody blocks shutdowns, is requested
//     from systemd. If both refuse, the lock is released.

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
	wanted bool     // the key is being read
	lock   *os.File // nil while it is not held
	told   string   // the last arguments of Held
}

// press is the first press of the power key, and how far its answer is. Further presses are ignored.
type press struct {
	at      time.Time // zero if there was none
	ours    bool      // nth answers it, not logind
	timed   bool      // systemd has the timer
	settled bool      // nothing delays the power-off any more
	asked   time.Time // when the power-off was last requested; zero if it was not
	stuck   bool      // requests have no effect
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
		giveBack(&s.key.lock)
	}
	poke(s.wake)
}

// Pressed says when the power key was pressed.
func (s *Source) Pressed(at time.Time) {
	s.mu.Lock()
	ours, news := s.key.lock != nil, s.press.at.IsZero()
	if news {
		s.press = press{at: at, ours: ours}
		poke(s.moved)
	}
	s.mu.Unlock()
	if news && ours {
		s.announcePress()
	}
}

// resume finds the press that an earlier process was answering, by the timer that it has left with systemd.
func (s *Source) resume(ctx context.Context) error {
	if s.opts.Key == nil || s.resumed {
		return nil
	}
	at, err := s.opts.Host.powerOffTimerSince(ctx)
	if err != nil {
		return err
	}
	s.resumed = true
	s.mu.Lock()
	found := s.press.at.IsZero() && !at.IsZero()
	if found {
		// By the wall clock, which may have been set since: the press was within the timer's time in any case.
		s.press = press{at: time.Now().Add(-min(max(time.Since(at), 0), PowerOffGrant)), ours: true, timed: true}
		poke(s.moved)
	}
	s.mu.Unlock()
	if found {
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

// holdKey takes the lock on the power key, or releases it. action is what logind does when the key is pressed.
func (s *Source) holdKey(ctx context.Context, action string) {
	s.mu.Lock()
	known, wanted, why, have := s.key.known, s.key.wanted && !s.press.stuck, "", s.key.lock != nil
	s.mu.Unlock()
	if !known {
		return
	}
	if wanted && action != "poweroff" {
		wanted, why = false, fmt.Sprintf("logind's HandlePowerKey is %q, and not \"poweroff\"", action)
	}
	var lock *os.File
	if wanted && !have {
		var err error
		if lock, err = s.opts.Host.inhibit(ctx, powerKeyLock, "block"); err != nil {
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
	news := arguments != s.key.told
	s.key.told = arguments
	s.mu.Unlock()
	if news && s.opts.Key.Held != nil {
		s.opts.Key.Held(wanted, why)
	}
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
	if time.Since(p.at) > giveUp {
		s.forgetPress()
		return false
	}
	trouble := s.startTimer(ctx, p) // before anything else: from here on, the machine goes down whatever becomes of nth
	m, err := s.opts.Host.ask(ctx)
	preparing := err == nil && m.preparing[shutdownLock]
	switch {
	case !p.ours:
		return s.leave(p, preparing, err == nil && m.powerKey != "poweroff")
	case s.overdue(p) && !p.settled:
		s.Release(event.Shutdown)
	case !preparing && p.settled && time.Since(p.asked) > askAgain:
		trouble = errors.Join(trouble, s.goDown(ctx, p))
	}
	if trouble != nil && !preparing && ctx.Err() == nil && s.opts.Key.Trouble != nil {
		s.opts.Key.Trouble(trouble)
	}
	return true
}

// startTimer gives systemd the timer for a press that nth answers, unless it has it.
func (s *Source) startTimer(ctx context.Context, p press) error {
	if !p.ours || p.timed {
		return nil
	}
	err := s.opts.Host.startPowerOffTimer(ctx, time.Until(p.at.Add(PowerOffGrant)))
	s.mu.Lock()
	s.press.timed = err == nil
	s.mu.Unlock()
	return err
}

// leave handles a press that is left to logind. preparing says that logind has announced a shutdown, and elsewhere that it is
// configured to do something else than to power off. again reports whether the press has to be checked again.
func (s *Source) leave(p press, preparing, elsewhere bool) (again bool) {
	switch {
	case preparing && !s.announced(event.Shutdown):
		return true // The next look finds the shutdown.
	case preparing:
		s.announcePress() // EC2's deadline may be nearer than that of the shutdown.
		s.forgetPress()
		return false
	case elsewhere:
		s.forgetPress()
		return false
	case time.Since(p.at) < leftTo:
		return true
	}
	s.mu.Lock()
	s.press.ours = true
	s.mu.Unlock()
	s.announcePress()
	return true
}

// overdue reports whether the drain should have ended by now.
func (s *Source) overdue(p press) bool {
	return time.Since(p.at) > s.opts.within(PowerOffGrant)+overdueAfter
}

// forgetPress ends the answer to the press.
func (s *Source) forgetPress() {
	s.mu.Lock()
	s.press = press{}
	s.mu.Unlock()
	poke(s.wake)
}

// goDown requests the power-off from logind, and from systemd if logind fails or an earlier request had no effect. If systemd
// refuses, or this is not the first request, the lock is released, so that logind answers the next press.
func (s *Source) goDown(ctx context.Context, p press) error {
	err := s.opts.Host.powerOff(ctx)
	stuck := !p.asked.IsZero()
	if err != nil || stuck {
		second := s.opts.Host.startPowerOff(ctx)
		stuck = stuck || second != nil
		err = errors.Join(err, second)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.press.asked = time.Now()
	if stuck {
		s.press.stuck = true
		giveBack(&s.key.lock)
	}
	return err
}
