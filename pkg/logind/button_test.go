package logind_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/logind"
)

const powerKey = "handle-power-key"

// keyRig returns a source that does not run yet, on a machine that nothing can reach but the rig.
func keyRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.bus.start(t)
	r.source = r.newSource(r.rooted(t))
	return r
}

// answering returns one that answers the power key.
func answering(t *testing.T) *rig {
	t.Helper()
	r := keyRig(t)
	r.logind.join(t)
	r.source.ListenToKey(true)
	r.run(t)
	if !next(t, r.keyHeld) {
		t.Fatal("it does not answer the power key")
	}
	r.nothing(t)
	r.mustHave(t, powerKey, 1, 1)
	return r
}

// await waits until logind is as the condition wants it.
func (r *rig) await(t *testing.T, what string, condition func(*standIn) bool) {
	t.Helper()
	for limit := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		met := false
		r.logind.set(func(l *standIn) { met = condition(l) })
		if met {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("it does not come that %s", what)
		}
	}
}

// scheduledFor waits until logind is to power off when EC2 would, for a press at that time.
func (r *rig) scheduledFor(t *testing.T, pressed time.Time) {
	t.Helper()
	want := pressed.Add(logind.PowerOffGrant + time.Duration(r.ahead.Load()))
	r.await(t, "logind is to power off by itself", func(l *standIn) bool {
		return l.scheduled.What == "poweroff" && time.UnixMicro(int64(l.scheduled.At)).Sub(want).Abs() < 2*time.Second // a time
	})
}

// powersOffAfter settles what is announced, and waits until logind is asked to power off.
func (r *rig) powersOffAfterTheDrain(t *testing.T) {
	t.Helper()
	r.source.Release(event.Shutdown)
	r.await(t, "logind is asked to power off", func(l *standIn) bool { return l.powerOffs > 0 })
}

func TestAPressIsAnnouncedWithTheTimeThatEC2LeavesAndPoweredOffAfterTheDrain(t *testing.T) {
	r := answering(t)
	r.logind.set(func(l *standIn) { l.delay = 5 * time.Second })
	pressed := time.Now().Add(-20 * time.Second)
	r.source.Pressed(pressed, true)
	deadline := r.announced(t).Deadline
	if want := pressed.Add(logind.PowerOffGrant - margin); deadline.Sub(want).Abs() > 2*time.Second {
		t.Errorf("the deadline is %s, want %s", deadline, want)
	}
	r.scheduledFor(t, pressed)
	r.logind.set(func(l *standIn) {
		if l.powerOffs > 0 {
			t.Error("logind was asked to power off before the drain")
		}
	})
	r.powersOffAfterTheDrain(t)
	r.mustHaveLocks(t, 1, 0)
	r.mustHave(t, powerKey, 1, 1)
	r.logind.prepare(t, true) // its own shutdown is the one that was announced
	r.stop()
	if len(r.snapshots) > 0 {
		t.Errorf("it was announced again: %v", <-r.snapshots)
	}
}

func TestASecondPressSaysNothingNew(t *testing.T) {
	r := answering(t)
	first := time.Now().Add(-time.Minute)
	r.source.Pressed(first, true)
	r.source.Pressed(time.Now(), true)
	r.announced(t)
	r.scheduledFor(t, first)
	r.logind.prepare(t, false) // no word of logind's takes it back
	r.stop()
	if len(r.snapshots) > 0 {
		t.Errorf("then it was announced %v", <-r.snapshots)
	}
}

func TestALogindThatWasStartedAgainIsAskedForTheLockAndForThePowerOffAnew(t *testing.T) {
	r := answering(t)
	pressed := time.Now()
	r.source.Pressed(pressed, true)
	r.announced(t)
	r.scheduledFor(t, pressed)
	r.logind.leave()
	r.logind.set(func(l *standIn) { l.scheduled = scheduled{} })
	r.logind.join(t)
	r.mustHave(t, powerKey, 2, 1)
	r.scheduledFor(t, pressed)
	r.powersOffAfterTheDrain(t)
}

func TestAPressBeforeTheLockWasThereIsLeftToTheLogindThatAnswersIt(t *testing.T) {
	r := keyRig(t)
	r.logind.join(t)
	r.logind.set(func(l *standIn) { l.preparing = true })
	r.source.Pressed(time.Now(), false)
	r.run(t)
	r.announced(t)
	next(t, r.over)
	r.logind.prepare(t, false) // by whoever has asked logind
	r.nothing(t)
	r.stop()
	if r.logind.powerOffs > 0 || r.logind.scheduled.At > 0 {
		t.Errorf("logind was asked to power off: %d times, %v", r.logind.powerOffs, r.logind.scheduled)
	}
}

func TestAPressThatLogindDoesNotAnswerIsNotLost(t *testing.T) {
	for name, c := range map[string]struct{ before, after func(*testing.T, *rig) }{
		"since nth of an earlier process had the lock": {before: func(t *testing.T, r *rig) { r.logind.join(t) }},
		"since there is none":                          {after: func(t *testing.T, r *rig) { r.logind.join(t) }},
	} {
		t.Run(name, func(t *testing.T) {
			r := keyRig(t)
			if c.before != nil {
				c.before(t, r)
			}
			pressed := time.Now().Add(-time.Minute)
			r.source.Pressed(pressed, false)
			r.source.ListenToKey(true)
			r.run(t)
			for events := next(t, r.snapshots); len(events) == 0; {
				events = next(t, r.snapshots)
			}
			if c.after != nil {
				c.after(t, r)
			}
			r.scheduledFor(t, pressed)
			if len(r.claimed) != 1 {
				t.Errorf("it was claimed %d times, want once", len(r.claimed))
			}
			r.powersOffAfterTheDrain(t)
		})
	}
}

func TestAPowerOffThatLogindRefusesIsAskedOfSystemd(t *testing.T) {
	r := answering(t)
	r.logind.servesAsSystemd(t)
	r.logind.set(func(l *standIn) { l.refuses = true })
	r.source.Pressed(time.Now(), true)
	r.announced(t)
	r.source.Release(event.Shutdown)
	r.await(t, "systemd is asked", func(l *standIn) bool { return slices.Contains(l.started, "poweroff.target") })
	if next(t, r.troubles) == nil {
		t.Error("it is not said what the trouble is")
	}
	r.mustHave(t, powerKey, 1, 1)
}

// systemd-inhibit --what=shutdown --mode=block: since systemd 257 logind refuses root, too, and would not answer the key itself.
func TestAMachineWhoseShutdownSomebodyBlocksGoesDownAllTheSame(t *testing.T) {
	r := answering(t)
	r.logind.servesAsSystemd(t)
	r.logind.set(func(l *standIn) { l.blocked = true })
	pressed := time.Now()
	r.source.Pressed(pressed, true)
	r.announced(t)
	if next(t, r.troubles) == nil {
		t.Error("it is not said what the trouble is")
	}
	r.await(t, "systemd is to power off in any case", func(l *standIn) bool { return len(l.timers) == 1 })
	r.stop()
	r.source = r.newSource(r.rooted(t)) // systemd has its timer still
	r.source.Pressed(pressed, true)
	r.run(t)
	r.announced(t)
	r.source.Release(event.Shutdown)
	r.await(t, "systemd is asked", func(l *standIn) bool { return slices.Contains(l.started, "poweroff.target") })
	r.stop()
	for len(r.troubles) > 0 {
		if err := <-r.troubles; strings.Contains(err.Error(), "timer") {
			t.Errorf("it is said that %v", err)
		}
	}
}

func TestWhereThereIsNoLogindSystemdIsToPowerOffInAnyCase(t *testing.T) {
	r := keyRig(t)
	r.logind.join(t)
	r.logind.servesAsSystemd(t)
	if _, err := r.logind.conn.ReleaseName(loginName); err != nil {
		t.Fatal(err)
	}
	r.run(t)
	r.source.Pressed(time.Now(), true)
	r.announced(t)
	r.await(t, "systemd is to power off by itself", func(l *standIn) bool { return len(l.timers) == 1 })
}

func TestAClockThatIsSetMovesWhenLogindIsToPowerOff(t *testing.T) {
	for name, by := range map[string]time.Duration{"ahead": time.Minute, "far ahead": 24 * time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			r := answering(t)
			pressed := time.Now()
			r.source.Pressed(pressed, true)
			r.scheduledFor(t, pressed)
			r.ahead.Store(int64(by))
			r.scheduledFor(t, pressed)
		})
	}
}

func TestWhatOthersHaveScheduledForEarlierStands(t *testing.T) {
	r := answering(t)
	at := uint64(time.Now().Add(time.Minute).UnixMicro()) // it is after 1970
	r.logind.set(func(l *standIn) { l.scheduled = scheduled{"poweroff", at} })
	r.source.Pressed(time.Now(), true)
	r.powersOffAfterTheDrain(t)
	r.logind.set(func(l *standIn) {
		if l.scheduled.At != at {
			t.Errorf("it is scheduled for %s now", time.UnixMicro(int64(l.scheduled.At))) // a time
		}
	})
}

func TestWhereNobodyPowersOffTheKeyIsGivenBackAndItIsTriedAgain(t *testing.T) {
	r := answering(t)
	r.logind.set(func(l *standIn) { l.refuses = true })
	r.source.Pressed(time.Now(), true)
	r.announced(t)
	r.source.Release(event.Shutdown)
	if next(t, r.troubles) == nil {
		t.Error("it is not said what the trouble is")
	}
	r.mustHave(t, powerKey, 1, 0)
	r.await(t, "logind is asked again", func(l *standIn) bool { return l.powerOffs > 1 })
	r.mustHave(t, powerKey, 1, 0)
}

func TestTheKeyIsLeftToALogindThatDoesSomethingElseAboutIt(t *testing.T) {
	r := keyRig(t)
	r.logind.join(t)
	r.logind.set(func(l *standIn) { l.powerKey = "ignore" })
	r.source.ListenToKey(true)
	r.run(t)
	if next(t, r.keyHeld) {
		t.Error("it answers the power key")
	}
	r.mustHave(t, powerKey, 0, 0)
}

func TestTheKeyIsGivenBackWhenItIsNotListenedToAnyMore(t *testing.T) {
	r := answering(t)
	r.source.ListenToKey(false)
	if next(t, r.keyHeld) {
		t.Error("it is not said")
	}
	r.mustHold(t, powerKey, 0)
	r.source.ListenToKey(true)
	r.mustHold(t, powerKey, 1)
}

func TestARebootHasAllThatLogindGrantsIfLogindSaysThatItIsOne(t *testing.T) {
	for name, c := range map[string]struct {
		sort   string
		forged bool
		want   time.Duration
	}{
		"a reboot":                     {"reboot", false, 300*time.Second - margin},
		"a kexec":                      {"kexec", false, 300*time.Second - margin},
		"a power-off":                  {"power-off", false, logind.PowerOffGrant - margin},
		"a reboot of somebody's words": {"reboot", true, logind.PowerOffGrant - margin},
	} {
		t.Run(name, func(t *testing.T) {
			r := holdingRig(t)
			r.logind.set(func(l *standIn) { l.delay = 300 * time.Second })
			metadata := map[string]dbus.Variant{"type": dbus.MakeVariant(c.sort)}
			if c.forged {
				sendToAll(t, connect(t, r.bus), "PrepareForShutdownWithMetadata", true, metadata)
			} else if err := r.logind.conn.Emit(loginPath, announcement+"WithMetadata", true, metadata); err != nil {
				t.Fatal(err)
			}
			r.logind.prepare(t, true)
			if left := time.Until(r.announced(t).Deadline); (left - c.want).Abs() > 2*time.Second {
				t.Errorf("it has %s, want %s", left, c.want)
			}
		})
	}
}

// keyless returns one that does not answer the power key yet.
func keyless(t *testing.T) *rig {
	t.Helper()
	r := keyRig(t)
	r.logind.join(t)
	r.run(t)
	r.nothing(t)
	return r
}

// reboots announces a reboot that logind grants 300 s.
func (r *rig) reboots(t *testing.T) {
	t.Helper()
	r.logind.set(func(l *standIn) { l.delay = 300 * time.Second })
	r.logind.prepare(t, false)
	for next(t, r.holding) != 300*time.Second {
	}
	if err := r.logind.conn.Emit(loginPath, announcement+"WithMetadata", true, map[string]dbus.Variant{"type": dbus.MakeVariant("reboot")}); err != nil {
		t.Fatal(err)
	}
	r.logind.prepare(t, true)
	events := next(t, r.snapshots)
	for len(events) == 0 {
		events = next(t, r.snapshots)
	}
	if left := time.Until(events[0].Deadline); left < 290*time.Second-patience {
		t.Fatalf("a reboot has %s", left)
	}
}

func TestAPressInTheMidstOfARebootLeavesItTheTimeThatEC2Leaves(t *testing.T) {
	for name, begin := range map[string]func(*testing.T) *rig{
		"whose key nth holds": answering,
		"whose key nth does not hold, as it was started again meanwhile": keyless,
	} {
		t.Run(name, func(t *testing.T) {
			r := begin(t)
			r.reboots(t)
			pressed := time.Now().Add(-20 * time.Second)
			r.source.Pressed(pressed, r.source.HoldsKey())
			deadline := r.announced(t).Deadline
			if want := pressed.Add(logind.PowerOffGrant - margin); deadline.Sub(want).Abs() > 2*time.Second {
				t.Errorf("the deadline is %s after the press, want %s", deadline.Sub(pressed), want.Sub(pressed))
			}
			r.source.Pressed(time.Now(), r.source.HoldsKey()) // says nothing new
			r.logind.prepare(t, true)
			r.stop()
			if len(r.snapshots) > 0 {
				t.Errorf("then it was announced %v", <-r.snapshots)
			}
		})
	}
}

func TestASleepIsAnnouncedAndOverWhenTheMachineWakes(t *testing.T) {
	r := holdingRig(t)
	if events := next(t, r.sleeps); len(events) != 0 {
		t.Fatalf("announced is %v, want nothing", events)
	}
	for round := range 2 {
		r.mustHave(t, "sleep", round+1, 1)
		r.logind.prepareSleep(t, true)
		events := next(t, r.sleeps)
		for len(events) == 0 {
			events = next(t, r.sleeps)
		}
		if ev := events[0]; ev.ID != "hibernation-"+bootID || ev.Kind != event.Hibernation || (time.Until(ev.Deadline)-delay+margin).Abs() > 2*time.Second {
			t.Fatalf("announced is %v", ev)
		}
		r.source.Release(event.Shutdown) // of another kind
		r.mustHave(t, "sleep", round+1, 1)
		r.source.Release(event.Hibernation)
		r.mustHave(t, "sleep", round+1, 0)
		r.logind.prepareSleep(t, false)
		for len(events) > 0 {
			events = next(t, r.sleeps)
		}
	}
	r.mustHave(t, "sleep", 3, 1)
	r.mustHaveLocks(t, 1, 1)
}

func TestItIsKnownWhoAnswersThePowerKey(t *testing.T) {
	r := keyRig(t)
	r.logind.join(t)
	holders, action, err := r.rooted(t).KeyHolders(t.Context())
	if err != nil || action != "poweroff" || len(holders) != 1 || holders[0].Who != "nth" || holders[0].PID != 2 {
		t.Errorf("it is answered by %v, logind does %q, %v", holders, action, err)
	}
}
