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
	// maxMessageAge is the age at which a message is given up.
	maxMessageAge = 24 * time.Hour
	// minPause is the pause after a first failure. It doubles with each failure, up to a limit that depends on whether the message is
	// older than young: most interrupted machines are gone then.
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
}

// parcel is a message in a queue.
type parcel struct {
	message
	Notice
	// line is what the message stands in: messages of one line are delivered in turn, one at a time.
	line string
	gate *gate

	queued  time.Time     // with a monotonic reading, so that a change of the clock does not matter
	dropped chan struct{} // closed when the message makes room for a newer one
	// The queue's mutex is held for these.
	next     time.Time // the earliest time of the next attempt
	tries    int
	inFlight bool
	retried  chan struct{} // the queue's at the last attempt
}

// queue holds the messages for one destination, and delivers each line of them in a goroutine of its own.
type queue struct {
	limit    int           // messages; with more, the oldest is lost
	slots    chan struct{} // an element for each delivery under way
	pace     time.Duration // how long a slot rests after a delivery
	maxPause time.Duration // between two attempts for a message that is young
	oldPause time.Duration // and for one that is not
	report   func(DeliveryResult)

	mu         sync.Mutex      // for all that follows
	waiting    []*parcel       // the oldest first
	working    map[string]bool // lines
	lines      sync.WaitGroup
	retried    chan struct{} // closed when pauses no longer hold
	retryAfter time.Time     // the end of the pause that the destination has asked for
	finishBy   time.Time     // when run ends at the latest; zero until finish
	// ctx is the context of attempts, nil before run. After its end, each message has one more attempt, with last.
	ctx, last context.Context
	stop      context.CancelFunc
}

func newQueue(limit, workers int, pace, maxPause, oldPause time.Duration, report func(DeliveryResult)) *queue {
	return &queue{
		limit: limit, slots: make(chan struct{}, workers), pace: pace, maxPause: maxPause, oldPause: oldPause, report: report,
		working: map[string]bool{}, retried: make(chan struct{}),
	}
}

// add adds a message, unless the queue has ended. It does not block.
func (q *queue) add(p *parcel) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ctx != nil && q.ctx.Err() != nil {
		return
	}
	p.queued, p.dropped = time.Now(), make(chan struct{})
	q.waiting = append(q.waiting, p)
	if i := slices.IndexFunc(q.waiting, func(p *parcel) bool { return !p.inFlight }); len(q.waiting) > q.limit && i >= 0 {
		oldest := q.waiting[i]
		close(oldest.dropped)
		q.waiting = slices.Delete(q.waiting, i, i+1)
		go q.report(DeliveryResult{Notice: oldest.Notice, Err: errors.New("too many are waiting"), Lost: true})
	}
	q.start(p.line)
}

// start delivers a line, once run has begun. The mutex is held.
func (q *queue) start(line string) {
	if q.ctx != nil && !q.working[line] {
		q.working[line] = true
		q.lines.Go(func() { q.deliverLine(line) })
	}
}

// retry has all messages tried now, as after a change of the settings.
func (q *queue) retry() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.retryAfter = time.Time{}
	for _, p := range q.waiting {
		p.next = time.Time{}
	}
	close(q.retried)
	q.retried = make(chan struct{})
}

// finish makes run end once all is delivered, or after a duration.
func (q *queue) finish(within time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.finishBy = time.Now().Add(within)
	q.endIfFinished()
}

// endIfFinished ends run soon if nothing more is to come. The mutex is held.
func (q *queue) endIfFinished() {
	if q.ctx == nil || q.finishBy.IsZero() {
		return
	}
	if len(q.working) == 0 {
		q.stop()
	}
	time.AfterFunc(time.Until(q.finishBy), q.stop)
}

// run returns when ctx has ended, or all is delivered after finish, and each message that is left was tried once more.
func (q *queue) run(ctx context.Context) {
	last, stopLast := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLast()
	q.mu.Lock()
	q.ctx, q.stop = context.WithCancel(ctx)
	q.last = last
	for _, p := range q.waiting {
		q.start(p.line)
	}
	q.endIfFinished()
	q.mu.Unlock()
	<-q.ctx.Done()
	defer time.AfterFunc(flushTimeout, stopLast).Stop()
	q.lines.Wait()
}

// deliverLine delivers the messages of a line, the oldest first.
func (q *queue) deliverLine(line string) {
	for {
		q.mu.Lock()
		i := slices.IndexFunc(q.waiting, func(p *parcel) bool { return p.line == line })
		if i < 0 {
			delete(q.working, line)
			if !q.finishBy.IsZero() && len(q.working) == 0 {
				q.stop()
			}
			q.mu.Unlock()
			return
		}
		p := q.waiting[i]
		q.mu.Unlock()
		q.deliver(p)
	}
}

// deliver tries a message until it is delivered, lost or dropped.
func (q *queue) deliver(p *parcel) {
	for {
		ctx := q.turn(p)
		if ctx == nil {
			return
		}
		var err error = refusedError{"it is older than a day"}
		if time.Since(p.queued) < maxMessageAge {
			err = p.deliver(ctx)
		}
		_, refused := errors.AsType[refusedError](err)
		over := err == nil || refused || errors.Is(err, errNothing)
		q.release()
		switch {
		case !over && ctx == q.last:
			q.end(p, errStopped)
			return
		case over:
			q.end(p, err)
			return
		}
		q.failed(p, err)
	}
}

var errStopped = refusedError{"nth stopped before it was delivered"}

// turn waits until a message may be tried, and returns the context for that, and a slot; nil if it was dropped or nth has stopped.
func (q *queue) turn(p *parcel) context.Context {
	for {
		now, ctx, slots := time.Now(), q.ctx, q.slots
		pause, opened := p.gate.wait(now)
		q.mu.Lock()
		pause, retried := max(pause, p.next.Sub(now), q.retryAfter.Sub(now)), q.retried
		q.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			ctx, pause = q.last, maxMessageAge
		case pause > 0:
			slots = nil // It does not want one yet.
		default:
			pause = maxMessageAge
		}
		select {
		case slots <- struct{}{}:
			if q.fly(p, ctx == q.last) {
				return ctx
			}
			<-q.slots
		case <-p.dropped:
			return nil
		case <-ctx.Done():
			if ctx == q.last {
				q.end(p, errStopped)
				return nil
			}
		case <-opened:
		case <-retried:
		case <-time.After(pause):
		}
	}
}

// fly marks a message as being delivered, so that it is not dropped; false if it was, or if it has to wait again: it may have waited for a slot.
func (q *queue) fly(p *parcel, final bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	closed, _ := p.gate.wait(now)
	p.inFlight = slices.Contains(q.waiting, p) && (final || closed == 0 && !now.Before(q.retryAfter))
	p.retried = q.retried
	return p.inFlight
}

// release gives a slot back, after its rest.
func (q *queue) release() {
	if q.pace > 0 {
		select {
		case <-time.After(q.pace):
		case <-q.ctx.Done():
		}
	}
	<-q.slots
}

// failed plans the next attempt. The pause is jittered, so that not all messages come at once when their destination works again.
func (q *queue) failed(p *parcel, err error) {
	if q.ctx.Err() != nil {
		return // It was interrupted, and is tried once more.
	}
	now := time.Now()
	q.mu.Lock()
	longest := q.maxPause
	if now.Sub(p.queued) > young {
		longest = q.oldPause
	}
	pause := min(minPause<<min(p.tries, 16), longest)
	if p.retried == q.retried { // It was not an endpoint of former settings that has failed.
		p.next = now.Add(wait.Jitter(pause/2, 1))
		if later, asks := errors.AsType[retryAfterError](err); asks && now.Add(later.after).After(q.retryAfter) {
			q.retryAfter = now.Add(later.after)
		}
	}
	again := p.tries > 0
	p.tries++
	p.inFlight = false
	q.mu.Unlock()
	q.report(DeliveryResult{Notice: p.Notice, Err: err, Again: again})
}

// end removes a message, and reports what became of it.
func (q *queue) end(p *parcel, err error) {
	q.mu.Lock()
	q.waiting = slices.DeleteFunc(q.waiting, func(other *parcel) bool { return other == p })
	q.mu.Unlock()
	_, refused := errors.AsType[refusedError](err)
	if !errors.Is(err, errNothing) {
		q.report(DeliveryResult{Notice: p.Notice, Err: err, Lost: refused, Again: p.tries > 0})
	}
}
