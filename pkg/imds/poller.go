package imds

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
)

// found is the result of a good look.
type found struct {
	events []event.Event
	// partial says which part of the documents could not be read; nil if all could be read. The events of the other parts are in events.
	partial error
}

// poller looks for events of one kind, again and again, in one goroutine.
type poller struct {
	kind     event.Kind
	interval time.Duration // from the start of one look to the start of the next
	look     func(context.Context, *reader) (found, error)
	reader   *reader
	// alive is when a look last began or ended; nil while the poller does not run.
	alive atomic.Pointer[time.Time]
}

// run looks until ctx ends. It delivers each look's events to the sink as a snapshot, and each look's error as trouble. After an error the
// interval stays the same, so that a notice is seen as soon as the service is back.
func (p *poller) run(ctx context.Context, sink event.Sink) {
	defer p.alive.Store(nil)
	for {
		start := time.Now()
		p.alive.Store(&start)
		result, err := p.look(ctx, p.reader)
		if ctx.Err() != nil { // The end of ctx may have canceled the look: its result does not count.
			return
		}
		if err == nil {
			sink.Snapshot(p.snapshot(result.events))
			err = result.partial
		}
		if err != nil {
			sink.Trouble(p.kind, err)
		}
		end := time.Now()
		p.alive.Store(&end)
		// The interval varies by a twentieth, so that pollers of a machine, and machines that were started together, do not look at the same moment.
		next := start.Add(wait.Jitter(p.interval*19/20, 2.0/19))
		if !loop.Await(ctx, nil, time.Until(next)) {
			return
		}
	}
}

// snapshot makes a snapshot of the events, with the time by the service's clock, if known. That time is uncertain by a second, as the service
// dates its answers in whole seconds, and by the time that the answer took.
func (p *poller) snapshot(events []event.Event) event.Snapshot {
	s := event.Snapshot{Kind: p.kind, Events: events}
	if seen := p.reader.seen; !seen.date.IsZero() {
		s.Clock, s.Within = seen.date.Add(time.Since(seen.at)), time.Second+seen.took
	}
	return s
}

// minSilence is how long a poller may neither begin nor end a look, whatever the interval. A machine without free processor time needs far less.
// It is short enough for systemd to restart nth within a spot notice.
const minSilence = time.Minute

// stuck returns an error if the poller runs, and has neither begun nor ended a look for longer than its interval and the limits allow.
func (p *poller) stuck() error {
	longest := max(minSilence, 3*(p.interval+limit)) // A look at maintenance makes up to three requests.
	if last := p.alive.Load(); last != nil && time.Since(*last) > longest {
		return fmt.Errorf("looking for %s: neither an answer nor an error for %s", p.kind, time.Since(*last).Round(time.Second))
	}
	return nil
}
