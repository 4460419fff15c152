package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// idleWait is how long to wait when there is nothing to wait for.
	idleWait = time.Hour
	// maxMessageAge is the age at which a message is given up.
	maxMessageAge = 24 * time.Hour
	// minPause is the pause after a first failure. Later pauses grow up to a limit, which depends on whether the message is older than
	// young: most interrupted machines are gone then.
	minPause = time.Second
	young    = 15 * time.Minute
	// maxRetryAfter bounds the pause that a destination may ask for.
	maxRetryAfter = time.Hour
	// flushTimeout bounds the last attempt to deliver what is left when nth stops.
	flushTimeout = 2 * time.Second
)

// message is one thing to deliver.
type message interface {
	// deliver tries once. Without an error it is delivered. A refusedError gives the message up, errNothing drops it without a report,
	// and a retryAfterError asks for a pause; after any other error it is tried again.
	deliver(ctx context.Context) error
}

// refusedError says that there is no use in trying a message again.
type refusedError struct{ why string }

func (e refusedError) Error() string { return e.why }

// retryAfterError is an answer that says when to try again.
type retryAfterError struct {
	answer string
	after  time.Duration
}

func (e retryAfterError) Error() string {
	return fmt.Sprintf("%s: it asks for a pause of %s", e.answer, e.after.Round(time.Second))
}

// errNothing: there is nothing to deliver.
var errNothing = errors.New("there is nothing to deliver")

// Notice identifies a message.
type Notice struct {
	// ID is unique, and stays the same however often the message is sent.
	ID string
	// Event is the ID of the event that it is about, and Outcome what is reported of it.
	Event, Outcome string
}

// DeliveryResult is the result of an attempt to deliver a message.
type DeliveryResult struct {
	Notice Notice
	// Err is why it was not delivered; nil if it was.
	Err error
	// Lost is set if it never will be.
	Lost bool
	// Again is set if the attempt before failed, too.
	Again bool
	// Alike counts further messages with the same result.
	Alike int
}

// parcel is a message in a queue.
type parcel struct {
	message
	Notice
	// line is what the message stands in: messages of one line are delivered in turn, one at a time.
	line   string
	gate   *gate
	queued time.Time // with a monotonic reading, so that a change of the clock does not matter
	tries  int
	busy   bool // it is being delivered
	probe  bool // that shows whether the destination works again
	// lastTry: it is the attempt that each message has when nth stops.
	lastTry bool
}

// queue holds the messages for one destination, the oldest first, and delivers them. Of several lines the newest message goes first.
//
// While the destination fails, one message at a time probes whether it works again, and new ones are tried once without waiting for that.
type queue struct {
	limit    int           // messages; with more, the oldest is lost
	workers  int           // messages that are delivered at a time
	pace     time.Duration // from the beginning of one delivery to the next
	maxPause time.Duration // between two attempts for a message that is young
	oldPause time.Duration // and for one that is not
	report   func(DeliveryResult)
	wake     chan struct{}

	mu       sync.Mutex // for all that follows
	waiting  []*parcel
	dropped  DeliveryResult // what was lost since the last report
	busy     int
	next     time.Time // the earliest time of the next delivery
	stopping bool
	finishBy time.Time // when run ends at the latest; zero until finish
	outage   outage
}

func newQueue(limit, workers int, pace, maxPause, oldPause time.Duration, report func(DeliveryResult)) *queue {
	return &queue{limit: limit, workers: workers, pace: pace, maxPause: maxPause, oldPause: oldPause, report: report, wake: make(chan struct{}, 1)}
}

// add adds a message. It does not block.
func (q *queue) add(p *parcel) {
	p.queued = time.Now()
	q.mu.Lock()
	q.waiting = append(q.waiting, p)
	if i := slices.IndexFunc(q.waiting, func(p *parcel) bool { return !p.busy }); len(q.waiting) > q.limit && i >= 0 {
		q.drop(q.waiting[i].Notice, errors.New("too many are waiting"))
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
	q.mu.Unlock()
	q.poke()
}

// drop notes a lost message for the next report.
func (q *queue) drop(n Notice, why error) {
	if q.dropped.Lost {
		q.dropped.Alike++
		return
	}
	q.dropped = DeliveryResult{Notice: n, Err: why, Lost: true}
}

// poke makes run look at the queue again.
func (q *queue) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// forget forgets an outage, as after a change of the settings.
func (q *queue) forget() {
	q.mu.Lock()
	q.outage = outage{}
	q.mu.Unlock()
	q.poke()
}

// finish makes run end once all is delivered, or after a duration.
func (q *queue) finish(within time.Duration) {
	q.mu.Lock()
	q.finishBy = time.Now().Add(within)
	q.mu.Unlock()
	q.poke()
}

// run delivers until ctx ends or finish is called. Then it tries each message that is left once more, for a moment, and reports what is lost.
func (q *queue) run(ctx context.Context) {
	q.work(ctx)
	q.mu.Lock()
	q.stopping = true
	q.mu.Unlock()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	q.work(last)
	q.mu.Lock()
	for _, p := range q.waiting {
		q.drop(p.Notice, errors.New("nth stopped before it was delivered"))
	}
	q.waiting = nil
	q.mu.Unlock()
	q.reportDropped()
}

// work starts deliveries until ctx ends or nothing is left to be done, and waits for those under way.
func (q *queue) work(ctx context.Context) {
	var busy sync.WaitGroup
	defer busy.Wait()
	for ctx.Err() == nil {
		p, wait := q.take(time.Now())
		if p != nil {
			busy.Go(func() {
				q.try(ctx, p)
				q.poke()
			})
			continue
		}
		q.reportDropped()
		if wait == 0 {
			return
		}
		select {
		case <-ctx.Done():
		case <-q.wake:
		case <-time.After(wait):
		}
	}
}

// take returns the message to deliver now; nil, and for how long, if there is none, and nil and 0 if nothing is left to be done.
func (q *queue) take(now time.Time) (best *parcel, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.finishBy.IsZero() && (len(q.waiting) == 0 || now.After(q.finishBy)) {
		return nil, 0
	}
	if pause := q.next.Sub(now); pause > 0 && !q.stopping {
		return nil, pause
	}
	wait = idleWait
	if q.busy >= q.workers {
		return nil, wait
	}
	lines := map[string]bool{} // that have a message before
	for _, p := range q.waiting {
		if lines[p.line] {
			continue
		}
		lines[p.line] = true
		if p.busy {
			continue
		}
		if pause := q.pause(p, now); pause > 0 {
			wait = min(wait, pause)
		} else if best == nil || p.tries <= best.tries {
			best = p
		}
	}
	if best == nil {
		if q.stopping && q.busy == 0 {
			wait = 0
		}
		return nil, wait
	}
	best.busy, best.probe, best.lastTry = true, q.outage.wouldProbe(best), q.stopping
	q.outage.probing = q.outage.probing || best.probe
	q.busy++
	q.next = now.Add(q.pace)
	return best, 0
}

// pause is how long a message must not be tried.
func (q *queue) pause(p *parcel, now time.Time) time.Duration {
	asked := q.outage.retryAfter.Sub(now)
	switch {
	case q.stopping && (p.lastTry || asked > 0):
		return idleWait
	case q.stopping:
		return 0
	case asked > 0:
		return asked
	}
	return max(p.gate.wait(now), q.outage.pause(p, now))
}

// try delivers a message once, and handles the result.
func (q *queue) try(ctx context.Context, p *parcel) {
	began := time.Now()
	var err error = refusedError{"it is older than a day"}
	if time.Since(p.queued) < maxMessageAge {
		err = p.deliver(ctx)
	}
	_, refused := errors.AsType[refusedError](err)
	nothing := errors.Is(err, errNothing)
	over := err == nil || refused || nothing
	canceled := !over && ctx.Err() != nil

	q.mu.Lock()
	if p.probe {
		q.outage.probing = false
	}
	switch {
	case canceled, nothing:
	case over:
		q.outage = outage{retryAfter: q.outage.retryAfter} // A pause that was asked for holds.
	default:
		longest := q.maxPause
		if time.Since(p.queued) > young {
			longest = q.oldPause
		}
		q.outage.failed(err, began, longest)
	}
	if over {
		q.waiting = slices.DeleteFunc(q.waiting, func(other *parcel) bool { return other == p })
	}
	again := p.tries > 0
	p.tries++
	p.busy = false
	q.busy--
	q.mu.Unlock()
	if !canceled && !nothing {
		q.report(DeliveryResult{Notice: p.Notice, Err: err, Lost: refused, Again: again})
	}
}

func (q *queue) reportDropped() {
	q.mu.Lock()
	dropped := q.dropped
	q.dropped = DeliveryResult{}
	q.mu.Unlock()
	if dropped.Lost {
		q.report(dropped)
	}
}

// outage is how a destination fails; the zero value works.
type outage struct {
	failures   int
	failedAt   time.Time // the last failure
	nextProbe  time.Time // what was queued by failedAt is not tried before
	probing    bool      // a message is being delivered to see whether the destination works again
	retryAfter time.Time // the end of the pause that the destination has asked for
}

// wouldProbe reports whether a delivery is a probe. A message that was queued after the last failure is tried once in any case.
func (o *outage) wouldProbe(p *parcel) bool {
	return !o.failedAt.IsZero() && (p.tries > 0 || !p.queued.After(o.failedAt))
}

func (o *outage) pause(p *parcel, now time.Time) time.Duration {
	switch {
	case !o.wouldProbe(p):
		return 0
	case o.probing:
		return idleWait // Its result wakes the queue.
	}
	return max(o.nextProbe.Sub(now), 0)
}

// failed handles a failure of a delivery that began then. The pause doubles with each failure in a row. It is jittered, so that the nodes of
// a fleet do not all come at once when their destination works again.
func (o *outage) failed(err error, began time.Time, longest time.Duration) {
	now := time.Now()
	if later, ok := errors.AsType[retryAfterError](err); ok {
		if until := now.Add(later.after); until.After(o.retryAfter) {
			o.retryAfter = until
		}
	}
	if began.Before(o.failedAt) {
		return // It was on its way when another delivery failed: this is the same failure.
	}
	pause := min(minPause<<min(o.failures, 16), longest)
	o.failures++
	o.failedAt, o.nextProbe = now, now.Add(wait.Jitter(pause/2, 1))
}
