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

// How looks become fewer while they fail. One that fails costs next to nothing, and the notices of spot and target lifecycle state are
// short, so the pause between those only doubles: once the service is back, a notice is seen within a second. That between the others
// doubles with each failure up to a minute, which is little compared to the minutes and days that they announce.
const (
	// failuresTolerated is how many failures in a row change nothing: a lost packet is no outage.
	failuresTolerated = 3
	// longestPause is the longest pause between two looks that are not urgent.
	longestPause = time.Minute
	// mostDoublings bring the shortest pause to that, and the longest to no overflow.
	mostDoublings = 16
)

// cadence is the time from the start of one look to the start of the next.
type cadence struct {
	interval time.Duration // while all is well
	most     time.Duration // while looks fail
}

// next is the time until the next look, after this many failures in a row. It is jittered, so that machines that were started together
// do not look together, nor the loops of one machine.
func (c cadence) next(failures int) time.Duration {
	if failures < failuresTolerated {
		return wait.Jitter(c.interval*19/20, 2.0/19)
	}
	longer := min(c.interval<<min(failures-failuresTolerated+1, mostDoublings), c.most)
	return wait.Jitter(longer*3/4, 1.0/3)
}

// found is what one good look found.
type found struct {
	events []event.Event
	// partial is set if a part of the document could not be read. What could be read is in events.
	partial error
}

// loop looks for events of one kind, again and again, one look after the other.
type loop struct {
	kind    event.Kind
	cadence cadence
	delay   time.Duration // before the first look
	reader  *reader
	look    func(context.Context, *reader) (found, error)
	seldom  atomic.Bool // nothing of the kind is to be expected; see Scope.Seldom
	// alive is when a look began or ended last; nil while the loop does not run.
	alive atomic.Pointer[time.Time]
}

// run looks until ctx ends. A look that takes longer than the cadence allows is followed by the next one at once, and missed ones are
// not made up for. But a slow service may be one that answers one request after the other: only the spot notice is looked for all the
// time then, and the others rest for as long as they took.
func (l *loop) run(ctx context.Context, sink event.Sink) {
	defer l.alive.Store(nil)
	if !sleep(ctx, l.delay) {
		return
	}
	failures := 0
	for {
		start := time.Now()
		l.alive.Store(&start)
		found, err := l.look(ctx, l.reader)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			failures = 0
			sink.Snapshot(l.snapshot(found.events))
			err = found.partial
		} else {
			failures++
		}
		if err != nil {
			sink.Trouble(l.kind, err)
		}
		end := time.Now()
		l.alive.Store(&end)
		next := start.Add(l.next(failures))
		if rest := end.Add(min(end.Sub(start), longestLimit)); l.kind != event.SpotInterruption && rest.After(next) {
			next = rest
		}
		if !sleep(ctx, time.Until(next)) {
			return
		}
	}
}

// snapshot is what is known now, with the service's clock: it dates its answers in whole seconds, while they are on their way.
func (l *loop) snapshot(events []event.Event) event.Snapshot {
	s := event.Snapshot{Kind: l.kind, Events: events}
	if said := l.reader.answers; !said.date.IsZero() {
		s.Clock, s.Within = said.date.Add(time.Since(said.at)), time.Second+said.took
	}
	return s
}

// next is the time until the next look, after this many failures in a row.
func (l *loop) next(failures int) time.Duration {
	c := l.cadence
	if l.seldom.Load() {
		c.interval, c.most = max(c.interval, SeldomInterval), max(c.most, 2*SeldomInterval)
	}
	return c.next(failures)
}

// minSilence is how long a look and the pause after it may take, whatever the cadence. It is far more than a starved machine needs,
// and short enough to start again within a spot notice.
const minSilence = time.Minute

// stuck returns an error if the loop runs, and has neither begun nor ended a look for longer than its cadence and the limits allow.
func (l *loop) stuck() error {
	limit := max(minSilence, 3*(max(l.cadence.interval, l.cadence.most)+longestLimit))
	if last := l.alive.Load(); last != nil && time.Since(*last) > limit {
		return fmt.Errorf("looking for %s: neither an answer nor an error for %s", l.kind, time.Since(*last).Round(time.Second))
	}
	return nil
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

// running has the loops that run. It is used by one goroutine.
type running struct {
	loops    []*loop
	sink     event.Sink
	ends     map[event.Kind]func() // ends a loop, and returns when it has ended
	excluded map[event.Kind]bool   // out of scope, and the sink knows
}

// apply starts the loops that are in scope and ends the others. For a kind that is out of scope the sink gets one empty snapshot, after
// its loop has ended: now it is certain that nothing of the kind is to be handled.
func (r *running) apply(ctx context.Context, scope Scope) {
	for _, l := range r.loops {
		end, runs := r.ends[l.kind]
		l.seldom.Store(slices.Contains(scope.Seldom, l.kind))
		switch wanted := slices.Contains(scope.Kinds, l.kind); {
		case wanted && !runs:
			r.ends[l.kind] = r.start(ctx, l)
		case !wanted && !r.excluded[l.kind]:
			if runs {
				end()
				delete(r.ends, l.kind)
			}
			r.excluded[l.kind] = true
			r.sink.Snapshot(event.Snapshot{Kind: l.kind})
		}
	}
}

func (r *running) start(ctx context.Context, l *loop) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var runs sync.WaitGroup
	runs.Go(func() { l.run(ctx, r.sink) })
	return func() {
		cancel()
		runs.Wait()
	}
}

func (r *running) stop() {
	for _, end := range r.ends {
		end()
	}
}
