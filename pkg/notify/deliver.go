package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nth-project/nth/pkg/loop"
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
	// lasting: it is about the present whenever it is delivered, so it is never too old.
	lasting bool

	queued time.Time // with a monotonic reading, so that a change of the clock does not matter
	// The queue's mutex is held for these.
	next     time.Time // the earliest time of the next attempt
	failures int
	inFlight bool
	again    bool // it was added once more while it was in flight
	period   int  // the queue's at the last attempt
}

// queue holds the messages for one destination. Its loop, deliver, starts a goroutine for each attempt.
type queue struct {
	limit    int           // messages; with more, the oldest is lost
	workers  int           // attempts at a time
	pace     time.Duration // the pause after each attempt
	maxPause time.Duration // between two attempts for a message that is young
	oldPause time.Duration // and for one that is not
	report   func(DeliveryResult)
	woken    chan struct{} // has an element if the loop is to look again

	mu         sync.Mutex // for all that follows
	waiting    []*parcel  // the oldest first
	flying     int        // attempts under way
	nextStart  time.Time  // when pace allows the next attempt
	retryAfter time.Time  // the end of the pause that the destination has asked for
	period     int        // counts calls of retry: a failure of an earlier period causes no pause
	finishBy   time.Time  // when run ends at the latest; zero until finish
	closed     bool       // nothing is added any more
}

// newQueue returns a queue for at most limit messages, of which that many workers deliver one each. pace, maxPause and oldPause are its
// fields' values.
func newQueue(limit, workers int, pace, maxPause, oldPause time.Duration, report func(DeliveryResult)) *queue {
	return &queue{
		limit: limit, workers: workers, pace: pace, maxPause: maxPause, oldPause: oldPause, report: report, woken: make(chan struct{}, 1),
	}
}

// wake makes the loop look again.
func (q *queue) wake() {
	loop.Nudge(q.woken)
}

// add adds a message, unless the queue has ended. It does not block. One that waits already is not added, and one that is being delivered is
// delivered once more.
func (q *queue) add(p *parcel) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	p.queued = time.Now()
	if slices.Contains(q.waiting, p) {
		p.again = p.inFlight
		return
	}
	q.waiting = append(q.waiting, p)
	if i := slices.IndexFunc(q.waiting, func(p *parcel) bool { return !p.inFlight }); len(q.waiting) > q.limit && i >= 0 {
		oldest := q.waiting[i]
		q.waiting = slices.Delete(q.waiting, i, i+1)
		go q.report(DeliveryResult{Notice: oldest.Notice, Err: errors.New("too many are waiting"), Lost: true})
	}
	q.wake()
}

// retry has all messages tried now, as after a change of the settings.
func (q *queue) retry() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.period++
	q.retryAfter = time.Time{}
	for _, p := range q.waiting {
		p.next = time.Time{}
	}
	q.wake()
}

// finish makes run end once all is delivered, or after a duration.
func (q *queue) finish(within time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.finishBy = time.Now().Add(within)
	q.wake()
}

// run returns when ctx has ended, or all is delivered after finish, and each message that is left was tried once more.
func (q *queue) run(ctx context.Context) {
	var attempts sync.WaitGroup
	q.deliver(ctx, &attempts, false)
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer stop()
	q.deliver(last, &attempts, true)
	attempts.Wait()
	for _, p := range q.waiting {
		q.report(DeliveryResult{Notice: p.Notice, Err: errStopped, Lost: true, Again: p.failures > 0})
	}
}

// deliver makes attempts until ctx ends or there is nothing more to deliver. last says that each is a message's last one.
func (q *queue) deliver(ctx context.Context, attempts *sync.WaitGroup, last bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for ctx.Err() == nil && !q.finished(last) {
		ready, pause := q.takeReady(last)
		for _, p := range ready {
			attempts.Go(func() { q.attempt(ctx, p, last) })
		}
		select {
		case <-ctx.Done():
		case <-q.woken:
		case <-time.After(pause):
		}
	}
}

// finished reports whether run may return. last: ctx has ended, and each message gets one more attempt.
func (q *queue) finished(last bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if last || q.finishBy.IsZero() {
		return last && len(q.waiting) == 0
	}
	return len(q.waiting) == 0 || !time.Now().Before(q.finishBy)
}

// takeReady returns the messages to try now, each the first of its line, and for how long no other gets ready by itself. Those that have
// failed least come first, so that they hold up no new one. Last attempts wait for nothing but a worker.
func (q *queue) takeReady(last bool) (ready []*parcel, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	soonest := now.Add(maxMessageAge)
	if !last && !q.finishBy.IsZero() {
		soonest = q.finishBy
	}
	lines := map[string]bool{}
	for _, p := range q.waiting {
		first := !lines[p.line]
		lines[p.line] = true
		if !first || p.inFlight {
			continue
		}
		at := slices.MaxFunc([]time.Time{p.next, q.retryAfter, q.nextStart, p.gate.opensAt()}, time.Time.Compare)
		switch {
		case last || !at.After(now):
			ready = append(ready, p)
		case at.Before(soonest):
			soonest = at
		}
	}
	slices.SortStableFunc(ready, func(a, b *parcel) int { return cmp.Compare(a.failures, b.failures) })
	ready = ready[:min(len(ready), q.workers-q.flying)]
	for _, p := range ready {
		p.inFlight, p.period = true, q.period
	}
	q.flying += len(ready)
	return ready, soonest.Sub(now)
}

var errStopped = refusedError{"nth stopped before it was delivered"}

// attempt tries a message once, and reports the result.
func (q *queue) attempt(ctx context.Context, p *parcel, last bool) {
	defer q.wake()
	var err error = refusedError{"it is older than a day"}
	if p.lasting || time.Since(p.queued) < maxMessageAge {
		err = p.deliver(ctx)
	}
	_, lost := errors.AsType[refusedError](err)
	nothing := errors.Is(err, errNothing)
	failed := err != nil && !lost && !nothing
	interrupted := failed && !last && ctx.Err() != nil
	if failed && last {
		failed, lost, err = false, true, errStopped
	}
	q.mu.Lock()
	q.flying--
	q.nextStart = time.Now().Add(q.pace)
	p.inFlight = false
	result := DeliveryResult{Notice: p.Notice, Err: err, Lost: lost, Again: p.failures > 0}
	switch {
	case failed && !interrupted:
		q.failed(p, err)
	case !failed && p.again:
		p.failures = 0
	case !failed:
		q.waiting = slices.DeleteFunc(q.waiting, func(other *parcel) bool { return other == p })
	}
	p.again = false
	q.mu.Unlock()
	if !nothing && !interrupted {
		q.report(result)
	}
}

// failed plans the next attempt. The pause is jittered, so that not all messages come at once when their destination works again. The
// mutex is held.
func (q *queue) failed(p *parcel, err error) {
	now := time.Now()
	longest := q.maxPause
	if now.Sub(p.queued) > young {
		longest = q.oldPause
	}
	pause := min(minPause<<min(p.failures, 16), longest)
	p.failures++
	if p.period != q.period { // An endpoint of former settings has failed.
		return
	}
	p.next = now.Add(wait.Jitter(pause/2, 1))
	if later, asks := errors.AsType[retryAfterError](err); asks && now.Add(later.after).After(q.retryAfter) {
		q.retryAfter = now.Add(later.after)
	}
}
