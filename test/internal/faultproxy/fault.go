package faultproxy

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Kind is one way in which the API server, or the way to it, can break.
type Kind string

// The kinds of faults. The first two concern all connections, whatever Fault.Call says.
const (
	// Refuse cuts all connections and closes the port.
	Refuse Kind = "refuse"
	// BlackHole accepts connections and lets nothing through, in either direction, on these and on older ones.
	BlackHole Kind = "black hole"
	// Reset passes Fault.After bytes of the answer on and then resets the connection, with all that is on it.
	Reset Kind = "reset"
	// Latency passes the request on after Fault.Delay.
	Latency Kind = "latency"
	// Status answers with Fault.Status, Fault.RetryAfter and Fault.Message.
	Status Kind = "status"
	// Garbage answers 200 with bytes that mean nothing.
	Garbage Kind = "garbage"
	// WatchClose ends all watches, and each new one as soon as it has begun.
	WatchClose Kind = "watch closed"
	// WatchGone ends all watches, and tells each new one that its resource version is too old (410).
	WatchGone Kind = "watch gone"
)

// Fault is one breakage. Several can be set; a request meets the one that was set last among those that match it.
type Fault struct {
	Kind Kind
	// Call limits the fault to one call; empty means all.
	Call Call
	// Status is the HTTP status of Status, Message what it says, and RetryAfter when to come again, in whole seconds.
	Status     int
	Message    string
	RetryAfter time.Duration
	// After is how many bytes of an answer Reset lets through.
	After int64
	// Delay is how long Latency holds a request.
	Delay time.Duration
	// For is how long the fault is in force; without limit unless given.
	For time.Duration
}

// meets tells whether a fault that concerns single calls concerns this one.
func (f Fault) meets(call Call) bool {
	switch f.Kind {
	case Refuse, BlackHole:
		return false
	case WatchClose, WatchGone:
		return call == WatchPods
	default:
		return f.Call == "" || f.Call == call
	}
}

// faults are the faults in force, in the order in which they were set.
type faults struct {
	mu      sync.Mutex
	set     []*setFault
	met     int
	changed chan struct{}
}

type setFault struct {
	Fault
	timer *time.Timer
}

// add puts a fault in force. expired is called when its time has passed.
func (f *faults) add(fault Fault, expired func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &setFault{Fault: fault}
	if fault.For > 0 {
		s.timer = time.AfterFunc(fault.For, func() {
			f.remove(s)
			expired()
		})
	}
	f.set = append(f.set, s)
}

func (f *faults) remove(s *setFault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set = slices.DeleteFunc(f.set, func(other *setFault) bool { return other == s })
}

func (f *faults) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.set {
		if s.timer != nil {
			s.timer.Stop()
		}
	}
	f.set = nil
}

func (f *faults) inForce(kind Kind) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.set, func(s *setFault) bool { return s.Kind == kind })
}

// match returns the youngest fault that a call meets.
func (f *faults) match(call Call) (Fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range slices.Backward(f.set) {
		if s.meets(call) {
			f.count()
			return s.Fault, true
		}
	}
	return Fault{}, false
}

// meet counts what met a fault without being a request.
func (f *faults) meet() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count()
}

func (f *faults) count() {
	f.met++
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

func (f *faults) read() (int, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.met, f.changed
}

// patience bounds every wait for a request that meets a fault.
const patience = 2 * time.Minute

func (f *faults) await(ctx context.Context, more int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begin, _ := f.read()
	for {
		met, changed := f.read()
		if met >= begin+more {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting until %d more requests meet a fault: %d have, then: %w", more, met-begin, ctx.Err())
		}
	}
}
