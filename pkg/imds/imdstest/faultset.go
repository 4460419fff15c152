package imdstest

import (
	"net/http"
	"slices"
	"sync"
	"time"
)

// faults are the faults in force, in the order in which they were set.
type faults struct {
	mu  sync.Mutex
	set []*setFault
}

type setFault struct {
	Fault
	// met counts the requests that the fault has broken.
	met int
	// lifted is closed when the fault is lifted.
	lifted chan struct{}
	timer  *time.Timer
}

// add puts a fault in force. lift is called when its time has passed.
func (f *faults) add(fault Fault, lift func(*setFault)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set := &setFault{Fault: fault, lifted: make(chan struct{})}
	if fault.For > 0 {
		set.timer = time.AfterFunc(fault.For, func() { lift(set) })
	}
	f.set = append(f.set, set)
}

// match returns the youngest fault that a request meets.
func (f *faults) match(r *http.Request) (*setFault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range slices.Backward(f.set) {
		if fault.meets(r) && (fault.Times == 0 || fault.met < fault.Times) {
			fault.met++
			return fault, true
		}
	}
	return nil, false
}

func (f *faults) all() []*setFault {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.set)
}

// remove takes a fault out of force and releases the requests that it holds. It returns whether the fault was in
// force.
func (f *faults) remove(fault *setFault) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.set, fault)
	if i < 0 {
		return false
	}
	f.set = slices.Delete(f.set, i, i+1)
	if fault.timer != nil {
		fault.timer.Stop()
	}
	close(fault.lifted)
	return true
}
