package logind_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/logind"
)

const powerKey = "handle-power-key"

// keyRig returns a source that does not run yet, on a machine with logind.
func keyRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.bus.start(t)
	r.logind.join(t)
	return r
}

// answering returns one that answers the power key.
func answering(t *testing.T) *rig {
	t.Helper()
	r := keyRig(t)
	r.source.ListenToKey(true)
	r.run(t)
	if !next(t, r.keyHeld) {
		t.Fatal("it does not answer the power key")
	}
	r.nothing(t)
	r.mustHave(t, powerKey, 1, 1)
	return r
}

// timedFor waits until logind is to power off when EC2 would, for a press at that time.
func (r *rig) timedFor(t *testing.T, pressed time.Time) {
	t.Helper()
	var at time.Time
	r.await(t, "logind is to power off by itself", func() bool {
		r.logind.set(func(l *standIn) { at = l.scheduled })
		return !at.IsZero()
	})
	if off := pressed.Add(logind.PowerOffGrant).Sub(at); off.Abs() > 5*time.Second {
		t.Errorf("logind is to power off %s too early", off)
	}
}

// powerOffs is how often logind was asked to power off.
func (r *rig) powerOffs() (count int) {
	r.logind.set(func(l *standIn) { count = l.powerOffs })
	return count
}

func (r *rig) powersOffAfterTheDrain(t *testing.T) {
	t.Helper()
	if r.powerOffs() > 0 {
		t.Error("logind was asked to power off before the drain")
	}
	r.source.Release(event.Shutdown)
	r.await(t, "logind is asked to power off", func() bool { return r.powerOffs() > 0 })
}

func TestPress_IsDrainedForAndPoweredOffThen(t *testing.T) {
	r := answering(t)
	r.logind.set(func(l *standIn) { l.delay = 5 * time.Second }) // EC2's time counts, not logind's.
	pressed := time.Now().Add(-20 * time.Second)
	r.source.Pressed(pressed)
	mustEnd(t, r.announced(t), pressed.Add(logind.PowerOffGrant-margin))
	r.source.Pressed(time.Now()) // says nothing new
	r.timedFor(t, pressed)
	r.logind.prepare(t, false) // nor does logind
	r.powersOffAfterTheDrain(t)
	r.mustHave(t, "shutdown", 1, 0)
	r.mustHave(t, powerKey, 1, 1)
	r.logind.prepare(t, true) // The shutdown is the one that was announced.
	r.saidNoMore(t)
}

func TestPress_OutlivesLogind(t *testing.T) {
	r := answering(t)
	r.source.Pressed(time.Now())
	r.announced(t)
	r.timedFor(t, time.Now())
	r.logind.leave()
	r.logind.set(func(l *standIn) { l.scheduled = time.Time{} }) // as before systemd 254
	r.logind.join(t)
	r.timedFor(t, time.Now())
	r.mustHave(t, powerKey, 1, 1)
	r.powersOffAfterTheDrain(t)
	r.saidNoMore(t)
}

// logind's schedule is the memory of a press.
func TestPress_OutlivesTheProcess(t *testing.T) {
	for name, c := range map[string]struct{ ago, want time.Duration }{
		"a minute ago":                     {time.Minute, logind.PowerOffGrant - margin - time.Minute},
		"before the clock was set forward": {24 * time.Hour, 0},
		"before the clock was set back":    {-time.Hour, logind.PowerOffGrant - margin},
	} {
		t.Run(name, func(t *testing.T) {
			r := answering(t)
			r.source.Pressed(time.Now())
			r.announced(t)
			r.timedFor(t, time.Now())
			r.stop()
			r.logind.set(func(l *standIn) { l.scheduled = l.scheduled.Add(-c.ago) })
			r.source, r.snapshots = r.newSource(), make(chan []event.Event, 1000)
			r.run(t)
			first := next(t, r.snapshots)
			if len(first) != 1 {
				t.Fatalf("the first word is %v, want the shutdown", first)
			}
			mustEnd(t, first[0], time.Now().Add(c.want))
			r.source.Release(event.Shutdown)
			r.await(t, "logind is asked to power off", func() bool { return r.powerOffs() > 0 })
			r.saidNoMore(t)
		})
	}
}

// "shutdown +10" is no press.
func TestPress_IsNoScheduleOfSomebodyElse(t *testing.T) {
	r := answering(t)
	r.logind.set(func(l *standIn) { l.scheduled, l.words = time.Now().Add(time.Minute), "maintenance" })
	for range 3 {
		r.logind.prepare(t, false)
		r.nothing(t)
	}
	r.saidNoMore(t)
}

// A machine whose administrator has set HandlePowerKey= to "ignore" is not to be powered off.
func TestPress_IsLogindsIfItDoesSomethingElse(t *testing.T) {
	r := keyRig(t)
	r.logind.set(func(l *standIn) { l.powerKey = "ignore" })
	r.source.ListenToKey(true)
	r.run(t)
	if next(t, r.keyHeld) {
		t.Error("it answers the power key")
	}
	r.mustHave(t, powerKey, 0, 0)
	r.source.Pressed(time.Now().Add(-time.Minute))
	for range 3 { // Looks go on, and none finds a shutdown.
		r.logind.prepare(t, false)
		r.nothing(t)
	}
	r.logind.set(func(l *standIn) {
		if l.powerOffs > 0 || !l.scheduled.IsZero() {
			t.Error("the machine is to be powered off")
		}
	})
}

func TestPress_DuringARebootLeavesTheTimeOfEC2(t *testing.T) {
	r := keyRig(t)
	r.logind.set(func(l *standIn) { l.delay, l.kind = 300*time.Second, "reboot" })
	r.source.ListenToKey(true)
	r.run(t)
	r.mustHave(t, powerKey, 1, 1)
	r.nothing(t)
	r.logind.prepare(t, true)
	mustEnd(t, r.announced(t), time.Now().Add(295*time.Second))
	pressed := time.Now().Add(-20 * time.Second)
	r.source.Pressed(pressed)
	mustEnd(t, r.announced(t), pressed.Add(logind.PowerOffGrant-margin))
	r.source.Pressed(time.Now()) // says nothing new
	r.saidNoMore(t)
}

func TestPress_LongOverIsGivenUp(t *testing.T) {
	r := answering(t)
	r.source.Pressed(time.Now().Add(-11 * time.Minute))
	r.announced(t)
	r.nothing(t)
	r.mustHave(t, powerKey, 1, 1)
}

// systemd-inhibit --what=shutdown --mode=block: since systemd 257 logind refuses root, too, and would not answer the key itself.
func TestPowerOff_RefusedByLogindIsAskedOfSystemd(t *testing.T) {
	r := answering(t)
	systemd := manage(t, r.bus)
	r.logind.set(func(l *standIn) { l.refuses = true })
	r.source.Pressed(time.Now())
	r.announced(t)
	r.source.Release(event.Shutdown)
	r.await(t, "systemd is asked", func() bool { return systemd.wasAsked("poweroff.target replace-irreversibly") })
	if next(t, r.troubles) == nil {
		t.Error("it is not said what the trouble is")
	}
	r.mustHave(t, powerKey, 1, 1)
}

func TestKey_IsReleasedWhenItIsNotRead(t *testing.T) {
	r := answering(t)
	r.source.ListenToKey(false)
	if next(t, r.keyHeld) {
		t.Error("it is not said")
	}
	r.mustHave(t, powerKey, 1, 0)
	r.mustHave(t, "shutdown", 1, 1)
	if s, err := r.bus.host().Settings(t.Context()); err != nil || s.Delay != delay || s.PowerKey != "poweroff" || len(s.KeyHolders) != 1 ||
		s.KeyHolders[0].Who != "nth" || s.KeyHolders[0].PID != 2 {
		t.Errorf("logind says %+v, %v", s, err)
	}
}

// Any user may take locks until logind has no more of them (InhibitorsMax).
func TestLock_RefusedLeavesTheKeyAndShutdownsToNth(t *testing.T) {
	r := newRig(t)
	r.logind.noSleep = true
	r.source.ListenToKey(true)
	r.bus.start(t)
	r.logind.join(t)
	r.run(t)
	if !next(t, r.keyHeld) {
		t.Error("the power key is not held")
	}
	r.mustHave(t, "shutdown", 1, 1)
	if err := next(t, r.off); err == nil {
		t.Error("it is not said that a lock is refused")
	}
}
