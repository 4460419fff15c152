package logind_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/logind"
)

// patience bounds every wait.
const patience = 30 * time.Second

const (
	bootID = "0f2c"
	delay  = 90 * time.Second
	margin = 5 * time.Second
)

// A rig is a source that runs, and what it says.
type rig struct {
	bus    *systemBus
	logind *standIn
	source *logind.Source

	snapshots chan []event.Event // of shutdowns
	sleeps    chan []event.Event
	holding   chan time.Duration
	keyHeld   chan bool
	over      chan struct{} // the press is
	claimed   chan struct{}
	troubles  chan error
	off       chan error
	ahead     atomic.Int64 // by which the wall clock was set, as the source reads it
	underway  time.Time    // the deadline of what an earlier process has left
	said      bool         // that a shutdown is announced
	stop      func()
}

// newRig returns a source that does not run yet, and a bus and a logind that are not there yet.
func newRig(t *testing.T) *rig {
	t.Helper()
	bus := newBus(t)
	r := &rig{
		bus: bus, logind: newLogind(t, bus, delay),
		snapshots: make(chan []event.Event, 100), sleeps: make(chan []event.Event, 100), keyHeld: make(chan bool, 100),
		over: make(chan struct{}, 100), claimed: make(chan struct{}, 100), troubles: make(chan error, 1000), holding: make(chan time.Duration, 100), off: make(chan error, 100),
	}
	r.source = r.newSource("")
	return r
}

// newSource returns a source like the one that the rig has, as the next process has it.
func (r *rig) newSource(host logind.Host) *logind.Source {
	return logind.New(logind.Options{
		Host: host, BootID: bootID, Margin: margin, Kinds: []event.Kind{event.Shutdown, event.Hibernation},
		Underway: r.underway,
		Now:      func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) },
		Holding:  func(d time.Duration) { r.holding <- d },
		Off:      func(err error) { r.off <- err },
		Key: logind.KeyOptions{
			Held:    func(held bool, _ string) { r.keyHeld <- held },
			Trouble: func(err error) { r.troubles <- err },
			Claimed: func() { r.claimed <- struct{}{} },
			Over:    func() { r.over <- struct{}{} },
		},
	})
}

// rooted returns a machine that has the rig's bus and nothing else, so that what is asked of it reaches nobody but the rig.
func (r *rig) rooted(t *testing.T) logind.Host {
	t.Helper()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nowhere")
	root, err := os.MkdirTemp("", "host, 100%") //nolint:usetesting // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.MkdirAll(filepath.Join(root, "run/dbus"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(r.bus.socket(), filepath.Join(root, "run/dbus/system_bus_socket")); err != nil {
		t.Fatal(err)
	}
	return logind.Host(root)
}

// holdingRig returns a source that holds the lock and has said that nothing is announced.
func holdingRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.bus.start(t)
	r.logind.join(t)
	r.run(t)
	if got := next(t, r.holding); got != delay {
		t.Fatalf("the lock holds a shutdown for %s, want %s", got, delay)
	}
	r.nothing(t)
	return r
}

func (r *rig) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.source.Run(ctx, r) }()
	r.stop = func() {
		cancel()
		if err := next(t, done); err != nil {
			t.Errorf("the source ended with %v", err)
		}
		r.stop = func() {}
	}
	t.Cleanup(func() { r.stop() })
}

// Snapshot implements event.Sink.
func (r *rig) Snapshot(s event.Snapshot) {
	if s.Kind == event.Shutdown {
		r.snapshots <- s.Events
	} else {
		r.sleeps <- s.Events
	}
}

// Trouble implements event.Sink.
func (r *rig) Trouble(event.Kind, error) {}

// announced takes the next snapshot, which must have the shutdown. Until the first one that has it, any number may have nothing: each look
// at logind says so, and a press may come between two.
func (r *rig) announced(t *testing.T) event.Event {
	t.Helper()
	events := next(t, r.snapshots)
	for ; len(events) == 0 && !r.said; events = next(t, r.snapshots) {
	}
	r.said = true
	if len(events) != 1 || events[0].ID != "shutdown-"+bootID || events[0].Kind != event.Shutdown ||
		events[0].State != event.Pending {
		t.Fatalf("announced is %v, want the shutdown", events)
	}
	return events[0]
}

// nothing takes the next snapshot, which must be empty.
func (r *rig) nothing(t *testing.T) {
	t.Helper()
	if events := next(t, r.snapshots); len(events) != 0 {
		t.Fatalf("announced is %v, want nothing", events)
	}
}

// looked makes the source ask logind once more, and returns when it has.
func (r *rig) looked(t *testing.T) {
	t.Helper()
	r.logind.set(func(l *standIn) { l.delay += time.Second })
	r.logind.prepare(t, false)
	next(t, r.holding)
}

// mustHaveLocks waits a while if need be: the bus closes its own copy of a lock some time after it was handed over.
func (r *rig) mustHaveLocks(t *testing.T, taken, held int) {
	t.Helper()
	r.mustHave(t, "shutdown", taken, held)
}

func (r *rig) mustHave(t *testing.T, what string, taken, held int) {
	t.Helper()
	r.awaitLocks(t, what, fmt.Sprintf("%d and %d", taken, held), func(gotTaken, gotHeld int) bool {
		return gotTaken == taken && gotHeld == held
	})
}

// mustHold fails the test unless the lock comes to be held so often, however often it was taken.
func (r *rig) mustHold(t *testing.T, what string, held int) {
	t.Helper()
	r.awaitLocks(t, what, fmt.Sprintf("it to be held %d times", held), func(_, got int) bool { return got == held })
}

func (r *rig) awaitLocks(t *testing.T, what, want string, right func(taken, held int) bool) {
	t.Helper()
	for limit := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		taken, held := r.logind.locks(t, what)
		if right(taken, held) {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("the lock on %s was taken %d times and is held %d times, want %s", what, taken, held, want)
		}
	}
}

func next[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatal("it does not come")
		panic("unreachable")
	}
}
