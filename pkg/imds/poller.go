package imds

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nth-project/nth/pkg/event"
)

// How polling slows down while it fails.
//
// An urgent poll that fails costs next to nothing and the notice it looks for is short, so the urgent pollers slow down
// to no more than twice their interval: once the service is back, a waiting notice is seen within a second. (A request
// that is not answered at all is repeated beside the first one, see hedge.run.) The others double their interval up to a
// minute, which is little compared to the minutes and days that they announce.
const (
	// failuresTolerated is how many failures in a row leave the interval as it is: a lost packet is no outage.
	failuresTolerated = 3
	// maxBackoff is the longest time between two polls of the documents that are not urgent.
	maxBackoff = time.Minute
	// mostDoublings bring the shortest interval to that, and the longest to no overflow.
	mostDoublings = 16
)

// cadence says when to poll again. All times are from the start of one poll to the start of the next.
type cadence struct {
	interval    time.Duration // while all is well
	maxInterval time.Duration // while polls fail
}

// next is the time until the next poll, after this many failures in a row. It is jittered, so that machines that were
// started together do not poll together, nor the pollers of one machine.
func (c cadence) next(failures int) time.Duration {
	if failures < failuresTolerated {
		return wait.Jitter(c.interval*19/20, 2.0/19)
	}
	longer := min(c.interval<<min(failures-failuresTolerated+1, mostDoublings), c.maxInterval)
	return wait.Jitter(longer*3/4, 1.0/3)
}

// found is what one successful poll found.
type found struct {
	events []event.Event
	// partial is set if a part of the document could not be read. What could be read is in events.
	partial error
}

// pollFunc reads the document or documents of one kind.
type pollFunc func(context.Context) (found, error)

// poller polls for events of one kind, again and again, one poll after the other.
type poller struct {
	kind      event.Kind
	cadence   cadence
	delay     time.Duration // before the first poll
	poll      pollFunc
	seldom    *atomic.Bool // nothing of the kind is to be expected; see Scope.Seldom
	heartbeat *heartbeat
}

// next is the time until the next poll, after this many failures in a row.
func (p poller) next(failures int) time.Duration {
	c := p.cadence
	if p.seldom.Load() {
		c.interval = max(c.interval, SeldomInterval)
		c.maxInterval = max(c.maxInterval, 2*SeldomInterval)
	}
	return c.next(failures)
}

// run polls until ctx ends, the first time at once. A poll that takes longer than the cadence allows is followed by the
// next one immediately, and missed ones are not made up for. A poll that takes too long is reported before it ends.
func (p poller) run(ctx context.Context, sink event.Sink) {
	defer p.heartbeat.stop()
	ctx = withLateReport(ctx, func(err error) { sink.Trouble(p.kind, err) })
	if p.delay > 0 && !sleep(ctx, p.delay) {
		return
	}
	failures := 0
	for {
		p.heartbeat.beat()
		start := time.Now()
		found, err := p.poll(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			failures = 0
			sink.Snapshot(event.Snapshot{Kind: p.kind, Events: found.events})
			err = found.partial
		} else {
			failures++
		}
		if err != nil {
			sink.Trouble(p.kind, err)
		}
		if !sleep(ctx, time.Until(start.Add(p.next(failures)))) {
			return
		}
	}
}

// sleep waits and returns false if ctx has ended.
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

// pollers runs those pollers that are in scope. It is used by one goroutine.
type pollers struct {
	all      []poller
	sink     event.Sink
	running  map[event.Kind]func() // stops the poller and returns when it has ended
	excluded map[event.Kind]bool   // out of scope, and the sink knows
}

func newPollers(all []poller, sink event.Sink) *pollers {
	return &pollers{all: all, sink: sink, running: map[event.Kind]func(){}, excluded: map[event.Kind]bool{}}
}

// apply starts the pollers that are in scope and stops the others. For a kind that is out of scope the sink gets one
// empty snapshot, after its poller has ended: now it is certain that nothing of the kind is to be handled.
func (p *pollers) apply(ctx context.Context, scope Scope) {
	for _, poller := range p.all {
		stop, runs := p.running[poller.kind]
		poller.seldom.Store(slices.Contains(scope.Seldom, poller.kind))
		switch wanted := slices.Contains(scope.Kinds, poller.kind); {
		case wanted && !runs:
			p.running[poller.kind] = p.start(ctx, poller)
		case !wanted && !p.excluded[poller.kind]:
			if runs {
				stop()
				delete(p.running, poller.kind)
			}
			p.excluded[poller.kind] = true
			p.sink.Snapshot(event.Snapshot{Kind: poller.kind})
		}
	}
}

// start runs a poller and returns the function that ends it.
func (p *pollers) start(ctx context.Context, poller poller) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { poller.run(ctx, p.sink) })
	return func() {
		cancel()
		running.Wait()
	}
}

func (p *pollers) stop() {
	for _, stop := range p.running {
		stop()
	}
}

// minSilence is how long a poller may report nothing, whatever its cadence. It is far more than a starved machine needs
// for one poll, and short enough to start again within a spot notice.
const minSilence = time.Minute

// heartbeat is a poller's sign of life. Its times are on the monotonic clock.
type heartbeat struct {
	kind  event.Kind
	limit time.Duration // how long the poller may report nothing

	mu   sync.Mutex
	last time.Time // zero while the poller does not run
}

// newHeartbeat returns the heartbeat of a poller with that cadence. Its limit allows for several requests in one poll,
// and a new session token for each.
func newHeartbeat(kind event.Kind, c cadence) *heartbeat {
	return &heartbeat{kind: kind, limit: max(minSilence, 3*(max(c.interval, c.maxInterval)+requestTimeout))}
}

func (h *heartbeat) beat() { h.set(time.Now()) }

func (h *heartbeat) stop() { h.set(time.Time{}) }

func (h *heartbeat) set(last time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = last
}

// stuck returns an error if the poller runs, and has reported nothing for longer than it may.
func (h *heartbeat) stuck() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if silence := time.Since(h.last); !h.last.IsZero() && silence > h.limit {
		return fmt.Errorf("looking for %s: neither an answer nor an error for %s", h.kind, silence.Round(time.Second))
	}
	return nil
}
