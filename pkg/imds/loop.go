package imds

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// The numbers of a service that fails.
//
// An urgent poll that fails costs next to nothing and the notice it looks for is short, so the urgent loops slow down to
// no more than twice their interval: once the service is back, a waiting notice is seen within a second. (One that
// is not answered at all is asked for again beside it, see wait.late.) The others double their interval up to a minute, which is little of the minutes and days that they announce.
const (
	// patience is how many failures in a row leave the cadence as it is: a lost packet is no outage.
	patience = 3
	// slowCeiling is the longest time between two polls of the documents that are not urgent.
	slowCeiling = time.Minute
)

// pace says when to look again. All times are from the start of one look to the start of the next.
type pace struct {
	interval time.Duration // while all is well
	ceiling  time.Duration // at most, while looks fail
}

// next is the time until the next look, after this many failures in a row. It is never quite the same, so that
// machines that were started together do not ask together, nor the loops of one machine.
func (p pace) next(failures int) time.Duration {
	if failures < patience {
		return spread(p.interval, 0.95, 1.05)
	}
	wait := p.interval
	for range failures - patience + 1 {
		if wait >= p.ceiling {
			break
		}
		wait *= 2
	}
	return spread(min(wait, p.ceiling), 0.75, 1)
}

// spread returns a random duration between d*from and d*to.
func spread(d time.Duration, from, to float64) time.Duration {
	return time.Duration(float64(d) * (from + rand.Float64()*(to-from)))
}

// reading is what one good look found.
type reading struct {
	events []event.Event
	// flaw is set if a part of the document could not be read. What could be read stands in events.
	flaw error
}

// look reads the document or documents of one kind.
type look func(context.Context) (reading, error)

// loop looks for events of one kind, again and again. Its looks follow one another.
type loop struct {
	kind   event.Kind
	pace   pace
	after  time.Duration // the wait before the first look
	look   look
	seldom *atomic.Bool // nothing of the kind is to be expected; see Scope.Seldom
	pulse  *pulse
}

// next is the time until the next look, after this many failures in a row.
func (l loop) next(failures int) time.Duration {
	p := l.pace
	if l.seldom.Load() {
		p.interval = max(p.interval, SeldomInterval)
		p.ceiling = max(p.ceiling, 2*SeldomInterval)
	}
	return p.next(failures)
}

// run looks until ctx ends, the first time at once. A look that takes longer than the pace allows is followed by the
// next one immediately, and none is made up for. A look that takes too long is trouble, before it ends.
func (l loop) run(ctx context.Context, sink event.Sink) {
	defer l.pulse.rest()
	ctx = withLateness(ctx, func(err error) { sink.Trouble(l.kind, err) })
	if l.after > 0 && !sleep(ctx, l.after) {
		return
	}
	failures := 0
	for {
		l.pulse.beat()
		start := time.Now()
		found, err := l.look(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			failures = 0
			sink.Snapshot(event.Snapshot{Kind: l.kind, Events: found.events})
			err = found.flaw
		} else {
			failures++
		}
		if err != nil {
			sink.Trouble(l.kind, err)
		}
		if !sleep(ctx, time.Until(start.Add(l.next(failures)))) {
			return
		}
	}
}

// sleep waits and tells whether ctx still stands.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// watch is the set of loops that run. It is used by one goroutine.
type watch struct {
	loops   []loop
	sink    event.Sink
	running map[event.Kind]func() // stops the loop and returns when it has ended
	ruled   map[event.Kind]bool   // ruled out, and the sink knows
}

func newWatch(loops []loop, sink event.Sink) *watch {
	return &watch{loops: loops, sink: sink, running: map[event.Kind]func(){}, ruled: map[event.Kind]bool{}}
}

// narrow runs the loops that are in scope and stops the others. A kind that the scope rules out gets one empty
// snapshot as its last word, after its loop has ended: it is certain now that nothing of the kind is to be handled.
func (w *watch) narrow(ctx context.Context, scope Scope) {
	for _, l := range w.loops {
		stop, runs := w.running[l.kind]
		l.seldom.Store(slices.Contains(scope.Seldom, l.kind))
		switch wanted := slices.Contains(scope.Kinds, l.kind); {
		case wanted && !runs:
			w.running[l.kind] = start(ctx, l, w.sink)
		case !wanted && !w.ruled[l.kind]:
			if runs {
				stop()
				delete(w.running, l.kind)
			}
			w.ruled[l.kind] = true
			w.sink.Snapshot(event.Snapshot{Kind: l.kind})
		}
	}
}

// stop ends all loops.
func (w *watch) stop() {
	for _, stop := range w.running {
		stop()
	}
}

// start runs a loop and returns the function that ends it.
func start(ctx context.Context, l loop, sink event.Sink) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { l.run(ctx, sink) })
	return func() {
		cancel()
		running.Wait()
	}
}
