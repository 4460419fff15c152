package logind_test

import (
	"context"
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

	snapshots chan []event.Event
	holding   chan time.Duration
	off       chan error
	stop      func()
}

// newRig returns a source that does not run yet, and a bus and a logind that are not there yet.
func newRig(t *testing.T) *rig {
	t.Helper()
	bus := newBus(t)
	r := &rig{
		bus: bus, logind: newLogind(t, bus, delay),
		snapshots: make(chan []event.Event, 100), holding: make(chan time.Duration, 100), off: make(chan error, 100),
	}
	r.source = logind.New(logind.Options{
		BootID: bootID, Margin: margin,
		Holding: func(d time.Duration) { r.holding <- d },
		Off:     func(err error) { r.off <- err },
	})
	return r
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
	}
}

// Trouble implements event.Sink.
func (r *rig) Trouble(event.Kind, error) {}

// announced takes the next snapshot, which must have the shutdown.
func (r *rig) announced(t *testing.T) event.Event {
	t.Helper()
	events := next(t, r.snapshots)
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
	for limit := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		gotTaken, gotHeld := r.logind.locks(t)
		if gotTaken == taken && gotHeld == held {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("the lock was taken %d times and is held %d times, want %d and %d", gotTaken, gotHeld, taken, held)
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
