package soak_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/test/internal/faultproxy"
)

// mostHappenings is how much happens in a round at most.
const mostHappenings = 6

// play plays a round.
func (l *life) play(t *testing.T) {
	l.note("round %d", l.round)
	l.from, l.toldBefore = len(l.heard()), len(l.toldSoFar())
	l.prepare(t)
	l.calm = l.chance(30)
	for range 1 + l.random.IntN(mostHappenings) {
		l.happen(t)
		l.pause(700 * time.Millisecond)
		if l.chance(30) {
			l.startKubelet(t)
		}
	}
	l.imds.Lift()
	l.proxy.Lift()
	if l.nth == nil {
		l.start(t)
	}
	if l.model.starting {
		l.pause(1500 * time.Millisecond)
		l.startKubelet(t)
	}
	l.settle(t)
	l.soak.toll.add("times settled")
}

// pause lets some time pass, or none.
func (l *life) pause(longest time.Duration) {
	if l.chance(60) {
		<-time.After(time.Duration(l.random.Int64N(int64(longest))))
	}
}

// happen lets one thing happen. What cannot happen now does not.
func (l *life) happen(t *testing.T) {
	switch n := l.random.IntN(100); {
	case n < 31:
		l.announce()
	case n < 47:
		l.withSome(l.withdraw, func(*notice) bool { return true })
	case n < 54:
		l.withSome(l.move, func(n *notice) bool { return n.waits() && !n.over && !n.moved })
	case l.calm:
		l.addPods(t)
	case n < 58:
		l.withSome(l.flicker, func(n *notice) bool { return !n.over })
	case n < 67:
		l.breakMetadata()
	case n < 76:
		l.breakAPI()
	case n < 86:
		l.addPods(t)
	case n < 90:
		l.reconfigure(t)
	case !l.steady:
		l.interrupt(t)
	}
}

// withSome does something with one of the notices that are such, if there is any.
func (l *life) withSome(do func(*notice), such func(*notice) bool) {
	var some []*notice
	for _, n := range l.model.notices {
		if such(n) {
			some = append(some, n)
		}
	}
	if len(some) > 0 {
		do(some[l.random.IntN(len(some))])
	}
}

// documents are the paths below which a fault of the metadata service can be.
var documents = []string{
	"", "/latest/meta-data/spot", "/latest/meta-data/events/recommendations", "/latest/meta-data/events/maintenance",
	"/latest/meta-data/events/maintenance/history", "/latest/meta-data/autoscaling", "/latest/api/token",
}

// breakMetadata has the metadata service fail for a moment.
func (l *life) breakMetadata() {
	kinds := imdstest.Kinds()
	f := imdstest.Fault{
		Kind: kinds[l.random.IntN(len(kinds))],
		Path: documents[l.random.IntN(len(documents))],
		Over: 3 * time.Second,
		For:  time.Duration(100+l.random.IntN(2400)) * time.Millisecond,
	}
	l.imds.Fault(f)
	l.model.troubled = true
	l.did("faults of the metadata service", "%s", f)
}

var (
	apiFaults = []faultproxy.Kind{
		faultproxy.Refuse, faultproxy.BlackHole, faultproxy.Reset, faultproxy.Latency, faultproxy.Status, faultproxy.Status,
		faultproxy.Status, faultproxy.Garbage, faultproxy.WatchClose, faultproxy.WatchGone,
	}
	apiCalls = []faultproxy.Call{
		"", faultproxy.EvictPod, faultproxy.DeletePod, faultproxy.ListPods, faultproxy.WatchPods, faultproxy.GetNode, faultproxy.PatchNode,
	}
	// apiStatuses are those that may pass by themselves.
	apiStatuses = []int{401, 429, 500, 503}
)

// breakAPI has the API server, or the way to it, fail for a moment.
func (l *life) breakAPI() {
	f := faultproxy.Fault{
		Kind:   apiFaults[l.random.IntN(len(apiFaults))],
		Call:   apiCalls[l.random.IntN(len(apiCalls))],
		Status: apiStatuses[l.random.IntN(len(apiStatuses))],
		After:  int64(l.random.IntN(2) * l.random.IntN(2000)),
		Delay:  time.Duration(l.random.IntN(1500)) * time.Millisecond,
		For:    time.Duration(100+l.random.IntN(2900)) * time.Millisecond,
	}
	if l.chance(50) {
		f.RetryAfter = time.Second
	}
	l.proxy.Fault(f)
	l.model.troubled = true
	l.did("faults of the API server", "%s of %q for %v (status %d, after %d bytes, delay %v)", f.Kind, f.Call, f.For, f.Status, f.After, f.Delay)
}

// interrupt ends nth and starts it again, at once, later, without its record or in the next boot.
func (l *life) interrupt(t *testing.T) {
	if l.nth == nil {
		l.start(t)
		l.note("nth starts")
		return
	}
	l.model.troubled = true
	kill := l.chance(60)
	l.stopNTH(t, kill)
	l.did("restarts", "nth has ended, killed: %t", kill)
	switch n := l.random.IntN(10); {
	case n < 3:
		return // down for a while
	case n < 6 && !l.model.any(func(n *notice) bool { return n.moved }):
		l.reboot(t)
	case n == 6 && l.forgettable():
		l.machine.Forget(t)
		l.model.forget()
		l.did("records lost", "the state directory is removed")
	}
	l.start(t)
}

// forgettable tells whether what follows is certain if nth loses its record: that a reboot has been is nowhere else, nor which of
// the pods came after an administrator's order.
func (l *life) forgettable() bool {
	return !l.model.starting && !l.model.any(func(n *notice) bool { return n.over && n.reboots() || n.acts() && n.order == given })
}
