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

// found is what one good look found.
type found struct {
	events []event.Event
	// partial is set if a part of the document could not be read. What could be read is in events.
	partial error
}

// poller looks for events of one kind, again and again, one look after the other.
type poller struct {
	kind     event.Kind
	interval time.Duration // from the start of one look to the start of the next
	look     func(context.Context, *reader) (found, error)
	reader   *reader
	// alive is when a look began or ended last; nil while the poller does not run.
	alive atomic.Pointer[time.Time]
}

// run looks until ctx ends, and delivers what each look has found, or its error, to the sink. A failed look is repeated at the same interval,
// so that a notice is seen as soon as the service is back.
func (p *poller) run(ctx context.Context, sink event.Sink) {
	defer p.alive.Store(nil)
	for {
		start := time.Now()
		p.alive.Store(&start)
		found, err := p.look(ctx, p.reader)
		if ctx.Err() != nil { // The look was cut short: its error says nothing about the service.
			return
		}
		if err == nil {
			sink.Snapshot(p.snapshot(found.events))
			err = found.partial
		}
		if err != nil {
			sink.Trouble(p.kind, err)
		}
		end := time.Now()
		p.alive.Store(&end)
		// The jitter of a twentieth keeps the pollers of a machine, and machines that were started together, from looking at the same moment.
		next := start.Add(wait.Jitter(p.interval*19/20, 2.0/19))
		if !loop.Await(ctx, nil, time.Until(next)) {
			return
		}
	}
}

// snapshot makes a snapshot of the events, with the time by the service's clock. That is uncertain by a second, as the service dates its
// answers in whole seconds, and by the time that an answer took.
func (p *poller) snapshot(events []event.Event) event.Snapshot {
	s := event.Snapshot{Kind: p.kind, Events: events}
	if seen := p.reader.seen; !seen.date.IsZero() {
		s.Clock, s.Within = seen.date.Add(time.Since(seen.at)), time.Second+seen.took
	}
	return s
}

// minSilence is how long a poller may neither begin nor end a look, whatever the interval. It is far more than a machine without free
// processor time needs, and short enough to start nth again within a spot notice.
const minSilence = time.Minute

// stuck returns an error if the poller runs, and has neither begun nor ended a look for longer than its interval and the limits allow.
func (p *poller) stuck() error {
	longest := max(minSilence, 3*(p.interval+limit))
	if last := p.alive.Load(); last != nil && time.Since(*last) > longest {
		return fmt.Errorf("looking for %s: neither an answer nor an error for %s", p.kind, time.Since(*last).Round(time.Second))
	}
	return nil
}
