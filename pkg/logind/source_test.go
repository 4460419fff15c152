package logind_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/logind"
)

func TestShutdown_HasTheTimeThatLogindAndEC2Leave(t *testing.T) {
	for name, c := range map[string]struct {
		delay time.Duration
		kind  string
		want  time.Duration
	}{
		"less a margin":                     {90 * time.Second, "", 85 * time.Second},
		"at least the half":                 {5 * time.Second, "", 2500 * time.Millisecond},
		"of a delay that was raised since":  {120 * time.Second, "", 115 * time.Second},
		"of an unknown type, EC2's":         {300 * time.Second, "", 145 * time.Second},
		"of a power-off, EC2's":             {300 * time.Second, "power-off", 145 * time.Second},
		"of a reboot, all of it":            {300 * time.Second, "reboot", 295 * time.Second},
		"none, where logind waits for none": {0, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := holdingRig(t)
			r.mustHave(t, "shutdown", 1, 1)
			r.set(func() { r.delay, r.kind, r.preparing = c.delay, c.kind, true })
			mustEnd(t, r.announced(t), time.Now().Add(c.want))
			r.mustHave(t, "shutdown", 1, 1)
		})
	}
}

func TestShutdown_CalledOffIsWithdrawnAndTheNextOneSeen(t *testing.T) {
	r := holdingRig(t)
	r.source.Release(event.Shutdown) // Nothing is announced.
	r.mustHave(t, "shutdown", 1, 1)
	for round := range 2 {
		r.prepare(true)
		r.announced(t)
		r.source.Release(event.Shutdown)
		r.mustHave(t, "shutdown", round+1, 0)
		r.prepare(false)
		r.nothing(t)
		next(t, r.holding)
		r.source.Release(event.Shutdown) // late, about the one that was called off
		r.mustHave(t, "shutdown", round+2, 1)
	}
	r.prepare(true)
	r.announced(t)
	r.prepare(false)
	r.nothing(t)
	r.mustHave(t, "shutdown", 3, 1)
}

func TestRestart_OfLogindOrTheBusMissesNothing(t *testing.T) {
	for name, c := range map[string]struct{ down, up func(*testing.T, *rig) }{
		"of logind":  {func(_ *testing.T, r *rig) { r.set(func() { r.away = true }) }, func(_ *testing.T, r *rig) { r.set(func() { r.away = false }) }},
		"of the bus": {func(_ *testing.T, r *rig) { r.stop() }, func(t *testing.T, r *rig) { t.Helper(); r.start(t, r.serve) }},
	} {
		t.Run(name, func(t *testing.T) {
			r := holdingRig(t)
			c.down(t, r)
			if next(t, r.off) == nil {
				t.Error("the reason is nil")
			}
			r.set(func() { r.delay, r.preparing = 2*delay, true })
			c.up(t, r)
			r.announced(t)
			r.mustHave(t, "shutdown", 1, 1)
			r.prepare(false)
			r.nothing(t)
			if got := next(t, r.holding); got != 2*delay {
				t.Errorf("a shutdown is held for %s, want what logind grants now, %s", got, 2*delay)
			}
			r.mustHave(t, "shutdown", 1, 1)
		})
	}
}

func TestStart_InTheMiddleOfAShutdownDoesNotCallItOff(t *testing.T) {
	r := newRig(t)
	r.start(t, r.serve)
	r.prepare(true)
	r.run(t)
	if events := next(t, r.snapshots); len(events) != 1 {
		t.Errorf("the first snapshot is %v, want the shutdown", events)
	}
	r.mustHave(t, "shutdown", 0, 0)
}

func TestStopJob_IsTheShutdownThatLogindAnnounced(t *testing.T) {
	r := holdingRig(t)
	r.prepare(true)
	r.announced(t)
	r.source.Stopping(time.Hour)
	r.saidNoMore(t)
	r.mustHave(t, "shutdown", 1, 0) // The source has ended.
}

func TestStopJob_IsAShutdownWithoutLogind(t *testing.T) {
	r := newRig(t)
	r.run(t)
	if reason := next(t, r.off); reason == nil {
		t.Error("the reason is nil")
	}
	r.source.Stopping(time.Minute)
	mustEnd(t, r.announced(t), time.Now().Add(time.Minute))
	r.source.Release(event.Shutdown) // It has no lock.
}

func TestLogind_MissingIsReportedOnceAndTriedAgain(t *testing.T) {
	for name, withBus := range map[string]bool{"no bus": false, "a bus without logind": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if r.away = withBus; withBus {
				r.start(t, r.serve)
			}
			r.run(t)
			if err := next(t, r.off); err == nil {
				t.Error("no reason is given")
			}
			if r.set(func() { r.away = false }); !withBus {
				r.start(t, r.serve)
			}
			next(t, r.holding)
			r.nothing(t)
			if len(r.off) > 0 {
				t.Errorf("it was reported twice: %v", <-r.off)
			}
			if r.source.GoingDown(t.Context()) {
				t.Error("a host without systemd goes down")
			}
		})
	}
}

func TestGoingDown_WithoutTheBusNotWithoutLogind(t *testing.T) {
	r := holdingRig(t)
	r.set(func() { r.away = true })
	if err := next(t, r.off); err == nil {
		t.Error("no reason is given")
	}
	if r.source.GoingDown(t.Context()) {
		t.Error("the system counts as stopping while only logind is away")
	}
	r.host.stop()
	if !r.source.GoingDown(t.Context()) {
		t.Error("the system does not count as stopping, and the bus has stopped")
	}
}

func TestSleep_IsAnnouncedAndOverWhenTheMachineWakes(t *testing.T) {
	r := holdingRig(t)
	for round := range 2 {
		r.mustHave(t, "sleep", round+1, 1)
		r.set(func() { r.sleeping = true })
		events := next(t, r.sleeps)
		for len(events) == 0 {
			events = next(t, r.sleeps)
		}
		if ev := events[0]; ev.ID != "hibernation-"+bootID || ev.Kind != event.Hibernation {
			t.Fatalf("announced is %v", ev)
		}
		mustEnd(t, events[0], time.Now().Add(delay-margin))
		r.source.Release(event.Shutdown) // of another kind
		r.mustHave(t, "sleep", round+1, 1)
		r.source.Release(event.Hibernation)
		r.mustHave(t, "sleep", round+1, 0)
		r.set(func() { r.sleeping = false })
		for len(events) > 0 {
			events = next(t, r.sleeps)
		}
	}
	r.mustHave(t, "shutdown", 1, 1)
}

// bodies has simple and nested ones, with and without descriptors.
func bodies(file dbus.UnixFD) [][]any {
	deep := any(byte(1))
	for range 30 {
		deep = []dbus.Variant{dbus.MakeVariant(deep)}
	}
	return [][]any{
		{}, {true}, {"a", dbus.ObjectPath("/a"), dbus.SignatureOf("a")}, {deep}, {map[byte][]bool{1: {true}}}, {[]struct{ A, B string }{{"a", "b"}}},
		{file}, {slices.Repeat([]dbus.UnixFD{file}, 16)}, {[]struct{ A dbus.UnixFD }{{file}}}, {map[string]dbus.Variant{"a": dbus.MakeVariant(file)}},
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

// The test counts open files, so it does not run in parallel with others.
func TestSource_CannotBeStoppedOrBlindedOverTheBus(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = null.Close() })
	r := newSerialRig(t)
	for _, body := range bodies(dbus.UnixFD(null.Fd())) { // All that any user could send comes before each answer.
		r.noise = append(r.noise, message(dbus.TypeSignal, body), message(dbus.TypeMethodCall, body))
	}
	r.start(t, r.serve)
	before := openFiles(t)
	r.run(t)
	if got := next(t, r.holding); got != delay {
		t.Errorf("the lock holds a shutdown for %s, want %s", got, delay)
	}
	r.mustHave(t, "shutdown", 1, 1)
	const few = 40 // A message may have 16, and each answer came after 38.
	if open := openFiles(t); open > before+few {
		t.Errorf("%d descriptors are open, and %d were before", open, before)
	}
}

// The bus that a connection is made to may answer anything, or nothing.
func TestHost_DoesNotWaitForWhatIsNoBus(t *testing.T) {
	for name, answer := range map[string]string{
		"silence":              "",
		"another protocol":     "HTTP/1.1 400 Bad Request\r\n\r\n",
		"no end of a line":     string(make([]byte, 1000)),
		"no messages":          "OK 1\r\nAGREE_UNIX_FD\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
		"a message of 128 MiB": "OK 1\r\nAGREE_UNIX_FD\r\nl\x02\x01\x01\x00\x00\x00\x08\x01\x00\x00\x00\x00\x00\x00\x00",
		"half a message":       "OK 1\r\nAGREE_UNIX_FD\r\nl\x02\x01\x01\x08",
		"no descriptors":       "OK 1\r\nERROR\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.start(t, func(conn *net.UnixConn) {
				_, _ = io.WriteString(conn, answer) // Who hears too little has hung up.
				_, _ = io.Copy(io.Discard, conn)
			})
			if got, err := h.root().Settings(t.Context()); err == nil {
				t.Errorf("logind says %+v", got)
			}
		})
	}
}

const powerKey = "handle-power-key"

// answering returns a source that answers the power key.
func answering(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.start(t, r.serve)
	r.listening = true
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
	r.press(t, pressed)
	mustEnd(t, r.announced(t), pressed.Add(logind.PowerOffGrant-margin))
	r.press(t, time.Now()) // says nothing new
	r.timedFor(t, pressed)
	r.powersOffAfterTheDrain(t)
	r.mustHave(t, "shutdown", 1, 0)
	r.mustHave(t, powerKey, 1, 1)
	r.prepare(true) // The shutdown is the one that was announced.
	r.saidNoMore(t)
}

func TestPress_OutlivesLogind(t *testing.T) {
	r := answering(t)
	r.press(t, time.Now())
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
			r.press(t, time.Now())
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

func TestPress_JustBeforeTheEndIsLeftToLogind(t *testing.T) {
	r := answering(t)
	r.set(func() { r.pressed = time.Now() })
	r.end()
	r.timedFor(t, time.Now())
}

func TestPress_IsReadWhileLogindHangs(t *testing.T) {
	r := answering(t)
	r.set(func() { r.hangs = true })
	if err := next(t, r.off); !strings.Contains(err.Error(), "no answer within 1s") {
		t.Errorf("the key was not read meanwhile, and the reason is %v", err)
	}
	r.press(t, time.Now())
	r.announced(t)
}

func TestPress_IsLogindsIfSomebodyElseDecides(t *testing.T) {
	for name, change := range map[string]func(*rig){
		"the administrator has set HandlePowerKey": func(r *rig) { r.powerKey = "ignore" },
		"shutdown +10": func(r *rig) {
			r.powerKey, r.scheduled, r.words = "ignore", time.Now().Add(time.Minute), "maintenance"
		},
		"settings that were changed during the drain for a press": func(r *rig) {
			r.listening, r.scheduled = false, time.Now().Add(time.Minute)
			r.words = "The power button was pressed: nth drains this Kubernetes node first."
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.start(t, r.serve)
			r.listening = true
			change(r)
			before := r.scheduled
			r.run(t)
			if next(t, r.keyHeld) {
				t.Error("it answers the power key")
			}
			r.mustHave(t, powerKey, 0, 0)
			r.press(t, time.Now().Add(-time.Minute))
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
	r.press(t, pressed)
	mustEnd(t, r.announced(t), pressed.Add(logind.PowerOffGrant-margin))
	r.press(t, time.Now()) // says nothing new
	r.saidNoMore(t)
}

func TestPress_LongOverIsGivenUp(t *testing.T) {
	r := answering(t)
	r.press(t, time.Now().Add(-11*time.Minute))
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
			r.press(t, time.Now())
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
	r.set(func() { r.listening = false })
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
	r.listening = true
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
		"systemd refuses":       {refusal: errors.New("it is destructive"), want: "cannot start " + target + ": calling systemd's method StartUnit: it is destructive"},
		"a unit does not end":   {hangs: true, want: "cannot start " + target + ": context canceled"},
		"systemd is not on bus": {away: true, want: "cannot start " + target + ": calling systemd's method StartUnit: the name " + systemdName + " is not activatable"},
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
