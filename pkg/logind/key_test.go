package logind_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/logind"
)

const powerKey = "handle-power-key"

// answering returns a source that answers the power key.
func answering(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.start(t, r.serve)
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
		r.set(func() { at = r.scheduled })
		return !at.IsZero()
	})
	if off := pressed.Add(logind.PowerOffGrant).Sub(at); off.Abs() > 5*time.Second {
		t.Errorf("logind is to power off %s too early", off)
	}
}

func (r *rig) powersOffAfterTheDrain(t *testing.T) {
	t.Helper()
	r.set(func() {
		if r.powerOffs > 0 {
			t.Error("logind was asked to power off before the drain")
		}
	})
	r.source.Release(event.Shutdown)
	r.await(t, "logind is asked to power off", func() (asked bool) {
		r.set(func() { asked = r.powerOffs > 0 })
		return asked
	})
}

func TestPress_IsDrainedForAndPoweredOffThen(t *testing.T) {
	r := answering(t)
	r.set(func() { r.delay = 5 * time.Second }) // EC2's time counts, not logind's.
	pressed := time.Now().Add(-20 * time.Second)
	r.source.Pressed(pressed)
	mustEnd(t, r.announced(t), pressed.Add(logind.PowerOffGrant-margin))
	r.source.Pressed(time.Now()) // says nothing new
	r.timedFor(t, pressed)
	r.powersOffAfterTheDrain(t)
	r.mustHave(t, "shutdown", 1, 0)
	r.mustHave(t, powerKey, 1, 1)
	r.prepare(true) // The shutdown is the one that was announced.
	r.saidNoMore(t)
}

func TestPress_OutlivesLogind(t *testing.T) {
	r := answering(t)
	r.source.Pressed(time.Now())
	r.announced(t)
	r.timedFor(t, time.Now())
	r.set(func() { r.away = true })
	if next(t, r.off) == nil {
		t.Error("the reason is nil")
	}
	r.set(func() { r.away, r.scheduled = false, time.Time{} }) // as before systemd 254
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
			r.end()
			r.set(func() { r.scheduled = r.scheduled.Add(-c.ago) })
			r.source, r.snapshots = r.newSource(), make(chan []event.Event, 1000)
			r.run(t)
			first := next(t, r.snapshots)
			if len(first) != 1 {
				t.Fatalf("the first snapshot is %v, want the shutdown", first)
			}
			mustEnd(t, first[0], time.Now().Add(c.want))
			r.powersOffAfterTheDrain(t)
			r.saidNoMore(t)
		})
	}
}

func TestPress_IsLogindsIfSomebodyElseDecides(t *testing.T) {
	for name, change := range map[string]func(*rig){
		"the administrator has set HandlePowerKey": func(r *rig) { r.powerKey = "ignore" },
		"shutdown +10": func(r *rig) {
			r.powerKey, r.scheduled, r.words = "ignore", time.Now().Add(time.Minute), "maintenance"
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.start(t, r.serve)
			change(r)
			before := r.scheduled
			r.source.ListenToKey(true)
			r.run(t)
			if next(t, r.keyHeld) {
				t.Error("it answers the power key")
			}
			r.mustHave(t, powerKey, 0, 0)
			r.source.Pressed(time.Now().Add(-time.Minute))
			for range 3 { // No look finds a shutdown.
				r.nothing(t)
			}
			r.set(func() {
				if r.powerOffs > 0 || !r.scheduled.Equal(before) {
					t.Error("the machine is to be powered off")
				}
			})
			r.saidNoMore(t)
		})
	}
}

func TestPress_DuringARebootLeavesTheTimeOfEC2(t *testing.T) {
	r := answering(t)
	r.set(func() { r.delay, r.kind, r.preparing = 300*time.Second, "reboot", true })
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

func TestPowerOff_IsAskedOfSystemdWithoutLogind(t *testing.T) {
	for name, change := range map[string]func(*rig){
		// systemd-inhibit --what=shutdown --mode=block: since systemd 257 logind refuses root, too, and would not answer the key itself.
		"it refuses":         func(r *rig) { r.refuses = true },
		"it does not answer": func(r *rig) { r.away = true },
	} {
		t.Run(name, func(t *testing.T) {
			r := answering(t)
			r.source.Pressed(time.Now())
			r.announced(t)
			r.await(t, "there is a schedule", func() (scheduled bool) {
				r.set(func() { scheduled = !r.scheduled.IsZero() })
				return scheduled
			})
			r.set(func() { r.systemd = true; change(r) })
			r.source.Release(event.Shutdown)
			r.await(t, "systemd is asked", func() bool { return r.wasAsked("poweroff.target replace-irreversibly") })
			r.set(func() { r.units = nil })
			r.await(t, "systemd is asked again, so that the first look is over", func() bool { return r.wasAsked("poweroff.target replace-irreversibly") })
			if len(r.trouble) > 0 {
				t.Errorf("reported is %v, and systemd powers off", <-r.trouble)
			}
			r.mustHave(t, powerKey, 1, 1)
		})
	}
}

func TestReboot_IsAskedOfLogindAlone(t *testing.T) {
	h := newHost(t)
	h.start(t, h.serve)
	err := h.root().Reboot(t.Context())
	h.set(func() {
		if err != nil || h.powerOffs != 1 {
			t.Errorf("asked %d times: %v", h.powerOffs, err)
		}
		h.refuses = true
	})
	err = h.root().Reboot(t.Context())
	h.set(func() {
		if err == nil || len(h.units) > 0 {
			t.Errorf("it refuses, and the error is %v; systemd was asked for %v", err, h.units)
		}
	})
}

func TestKey_IsReleasedWhenItIsNotRead(t *testing.T) {
	r := answering(t)
	r.source.ListenToKey(false)
	if next(t, r.keyHeld) {
		t.Error("it is reported as held")
	}
	r.mustHave(t, powerKey, 1, 0)
	r.mustHave(t, "shutdown", 1, 1)
	if s, err := r.root().Settings(t.Context()); err != nil || s.Delay != delay || s.PowerKey != "poweroff" || len(s.KeyHolders) != 1 ||
		s.KeyHolders[0].Who != "nth" || s.KeyHolders[0].PID != 2 {
		t.Errorf("logind says %+v, %v", s, err)
	}
}

// Any user may take locks until logind has no more of them (InhibitorsMax).
func TestLock_RefusedLeavesTheKeyAndShutdownsToNth(t *testing.T) {
	r := newRig(t)
	r.noSleep = true
	r.source.ListenToKey(true)
	r.start(t, r.serve)
	r.run(t)
	if !next(t, r.keyHeld) {
		t.Error("the power key is not held")
	}
	r.mustHave(t, "shutdown", 1, 1)
	if err := next(t, r.off); err == nil {
		t.Error("the reason is nil")
	}
}

func TestTarget_IsStartedWhenItsJobIsDone(t *testing.T) {
	const target = "nth-before-drain.target"
	for name, c := range map[string]struct {
		away, hangs bool
		refusal     error
		want        string // the error; "" if it is to succeed
	}{
		"its units have run":    {},
		"systemd refuses":       {refusal: errors.New("it is destructive"), want: "starting " + target + ": asking systemd for StartUnit: it is destructive"},
		"a unit does not end":   {hangs: true, want: "starting " + target + ": context canceled"},
		"systemd is not on bus": {away: true, want: "starting " + target + ": asking systemd for StartUnit: the name " + systemdName + " is not activatable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.systemd, h.refusal, h.working = !c.away, c.refusal, true
			h.start(t, h.serve)
			done := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { done <- h.root().StartTarget(ctx, target) }()
			if !c.away {
				h.await(t, "systemd is asked", func() bool { return h.wasAsked(target + " replace") })
			}
			if c.hangs {
				cancel()
			} else {
				h.set(func() { h.working = false })
			}
			if err := next(t, done); (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
				t.Errorf("it ended with %v, want %q", err, c.want)
			}
		})
	}
}
