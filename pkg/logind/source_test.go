package logind_test

import (
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/nth-project/nth/pkg/event"
)

func TestAShutdownIsAnnouncedWithTheTimeThatLogindGrants(t *testing.T) {
	for name, grant := range map[string]struct{ delay, want time.Duration }{
		"less a margin":                           {delay: 90 * time.Second, want: 85 * time.Second},
		"at least the half":                       {delay: 5 * time.Second, want: 2500 * time.Millisecond},
		"also if it was raised after the lock":    {delay: 120 * time.Second, want: 115 * time.Second},
		"and no more than EC2 leaves":             {delay: 300 * time.Second, want: 145 * time.Second},
		"and nothing if logind does not hold any": {delay: 0, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := holdingRig(t)
			r.mustHaveLocks(t, 1, 1)
			r.logind.set(func(l *standIn) { l.delay = grant.delay })
			before := time.Now()
			r.logind.prepare(t, true)
			deadline := r.announced(t).Deadline
			if earliest, latest := before.Add(grant.want), time.Now().Add(grant.want); deadline.Before(earliest.Round(0)) || deadline.After(latest) {
				t.Errorf("the deadline is %s, want it between %s and %s", deadline, earliest, latest)
			}
			r.mustHaveLocks(t, 1, 1)
		})
	}
}

func TestTheLockIsGivenBackOnceAndNotTakenAgainWhileTheShutdownGoesOn(t *testing.T) {
	r := holdingRig(t)
	r.source.Release(event.Shutdown)
	r.mustHaveLocks(t, 1, 1) // nothing is announced
	r.logind.prepare(t, true)
	r.announced(t)
	r.source.Release(event.Shutdown)
	r.source.Release(event.Shutdown)
	r.mustHaveLocks(t, 1, 0)

	r.bus.stop()
	r.bus.start(t)
	r.logind.join(t)
	r.logind.prepare(t, true)
	r.logind.prepare(t, false) // the answer to this look is the first news since
	r.nothing(t)
	next(t, r.holding)
	r.mustHaveLocks(t, 2, 1)
}

func TestAShutdownThatIsCalledOffIsWithdrawnAndTheLockTakenAgain(t *testing.T) {
	r := holdingRig(t)
	for round := range 3 {
		r.logind.prepare(t, true)
		r.announced(t)
		r.source.Release(event.Shutdown)
		r.mustHaveLocks(t, round+1, 0)
		r.logind.prepare(t, false)
		r.nothing(t)
		next(t, r.holding)
		r.source.Release(event.Shutdown) // a late word about the one that was called off
		r.mustHaveLocks(t, round+2, 1)
	}
}

func TestAShutdownThatIsCalledOffBeforeTheLockWasGivenBackKeepsIt(t *testing.T) {
	r := holdingRig(t)
	r.logind.prepare(t, true)
	r.announced(t)
	r.logind.prepare(t, false)
	r.nothing(t)
	r.mustHaveLocks(t, 1, 1)
}

func TestARestartOfLogindKeepsTheLockAndTheEar(t *testing.T) {
	r := holdingRig(t)
	r.logind.leave()
	r.logind.set(func(l *standIn) { l.delay = 2 * delay })
	r.logind.join(t)
	if got := next(t, r.holding); got != 2*delay {
		t.Errorf("after the restart a shutdown is held for %s, want what it grants now, %s", got, 2*delay)
	}
	r.nothing(t)
	r.logind.prepare(t, true)
	r.announced(t)
	r.mustHaveLocks(t, 1, 1)
}

func TestAShutdownThatLogindForgetsInARestartIsWithdrawn(t *testing.T) {
	r := holdingRig(t)
	r.logind.prepare(t, true)
	r.announced(t)
	r.source.Release(event.Shutdown)
	r.logind.leave()
	r.logind.set(func(l *standIn) { l.preparing = false })
	r.logind.join(t)
	r.nothing(t)
	next(t, r.holding)
	r.mustHaveLocks(t, 2, 1)
}

func TestARestartOfTheBusKeepsTheLockAndMissesNothing(t *testing.T) {
	r := holdingRig(t)
	r.bus.stop()
	r.logind.leave()
	r.logind.set(func(l *standIn) { l.preparing = true }) // announced while nobody hears it
	r.bus.start(t)
	r.logind.join(t)
	r.announced(t)
	r.mustHaveLocks(t, 1, 1)
	r.logind.prepare(t, false)
	r.nothing(t)
	r.mustHaveLocks(t, 1, 1)
	if len(r.off) > 0 {
		t.Errorf("it was said that %v", <-r.off)
	}
}

// sendToAll sends a signal to each connection: what is addressed to one needs no subscription.
func sendToAll(t *testing.T, stranger *dbus.Conn, member string, body ...any) {
	t.Helper()
	var names []string
	if err := stranger.BusObject().Call("org.freedesktop.DBus.ListNames", 0).Store(&names); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if call := stranger.Send(forged(name, member, body...), nil); call != nil && call.Err != nil {
			t.Fatal(call.Err)
		}
	}
	// The bus has passed them on when it answers what comes after them.
	if err := stranger.BusObject().Call("org.freedesktop.DBus.ListNames", 0).Store(&names); err != nil {
		t.Fatal(err)
	}
}

func TestASignalOfSomebodyElseIsNotBelieved(t *testing.T) {
	r := holdingRig(t)
	stranger := connect(t, r.bus)
	if err := stranger.Emit(loginPath, announcement, true); err != nil {
		t.Fatal(err)
	}
	sendToAll(t, stranger, "PrepareForShutdown", true)
	r.looked(t)
	r.stop()
	for len(r.snapshots) > 0 {
		r.nothing(t)
	}
}

func TestAStartInTheMiddleOfAShutdownDoesNotCallItOff(t *testing.T) {
	r := newRig(t)
	r.bus.start(t)
	r.logind.join(t)
	r.logind.set(func(l *standIn) { l.preparing = true })
	r.run(t)
	r.announced(t)
	r.mustHaveLocks(t, 0, 0)
	if len(r.off) > 0 {
		t.Errorf("it was said that %v", <-r.off)
	}
}

func TestAStopJobIsTheSameShutdown(t *testing.T) {
	r := holdingRig(t)
	r.logind.prepare(t, true)
	deadline := r.announced(t).Deadline
	r.source.Stopping(time.Hour)
	r.stop()
	if len(r.snapshots) > 0 {
		t.Errorf("it was announced again: %v, after one that ends %s", <-r.snapshots, deadline)
	}
	r.mustHaveLocks(t, 1, 0)
}

func TestAStopJobIsAShutdownWhereThereIsNoLogind(t *testing.T) {
	r := newRig(t)
	r.run(t)
	if reason := next(t, r.off); reason == nil {
		t.Error("it is off for no reason")
	}
	before := time.Now()
	r.source.Stopping(time.Minute)
	if deadline := r.announced(t).Deadline; deadline.Before(before.Add(time.Minute).Round(0)) || deadline.After(time.Now().Add(time.Minute)) {
		t.Errorf("the deadline is %s, want a minute from now", deadline)
	}
	r.source.Release(event.Shutdown) // there is none
}

func TestWithoutALogindItIsSaidOnceAndLookedForAgain(t *testing.T) {
	for name, withBus := range map[string]bool{"no bus": false, "a bus without logind": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if withBus {
				r.bus.start(t)
			}
			r.run(t)
			if err := next(t, r.off); err == nil {
				t.Error("there is no reason given")
			}
			if !withBus {
				r.bus.start(t)
			}
			r.logind.join(t)
			next(t, r.holding)
			r.nothing(t)
			if len(r.off) > 0 {
				t.Errorf("it was said twice: %v", <-r.off)
			}
		})
	}
}

func TestTheLockIsGivenBackWhenTheSourceEnds(t *testing.T) {
	r := holdingRig(t)
	r.stop()
	r.mustHaveLocks(t, 1, 0)
}
