package logind_test

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/nth-project/nth/pkg/event"
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

// bodies has all basic types and containers of D-Bus, with and without descriptors.
func bodies(file dbus.UnixFD) [][]any {
	deep := any(byte(1))
	for range 30 {
		deep = []dbus.Variant{dbus.MakeVariant(deep)}
	}
	files := make([]dbus.UnixFD, 16)
	for i := range files {
		files[i] = file
	}
	return [][]any{
		{}, {byte(1)}, {true}, {int16(1)}, {uint16(1)}, {int32(1)}, {uint32(1)}, {int64(1)}, {uint64(1)}, {1.5}, {"a"},
		{dbus.ObjectPath("/a")}, {dbus.SignatureOf("a")}, {dbus.MakeVariant(1.5)}, {deep}, {[]byte{1}}, {[]string{"a", "b"}},
		{[]dbus.UnixFD{}}, {map[string]dbus.Variant{"a": dbus.MakeVariant("b")}}, {map[byte][]bool{1: {true}}}, {[][]uint64{{1}, {}}},
		{[]struct{ A, B string }{{"a", "b"}}}, {struct {
			A byte
			B []struct{ C int64 }
		}{}}, {file}, {files}, {[]struct{ A dbus.UnixFD }{{file}}}, {dbus.MakeVariant(file)}, {map[string]dbus.UnixFD{"a": file}},
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
	const few = 40 // A message may have 16, and each answer came after a hundred.
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
