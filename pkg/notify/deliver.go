package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nth-project/nth/pkg/loop"
)

const (
	// minPause is the pause after a first failure. It doubles with each failure, up to shortPause or, for an old message, a sixtieth of its
	// age: most interrupted machines are gone soon.
	minPause, shortPause = time.Second, 30 * time.Second
	// maxRetryAfter bounds the pause that a destination may ask for.
	maxRetryAfter = time.Hour
	// flushTimeout bounds the last attempt to deliver what is left when nth stops.
	flushTimeout = 2 * time.Second
)

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

// DeliveryResult is the result of an attempt to deliver a message.
type DeliveryResult struct {
	// Event is the ID of the event that the message is about, and Outcome what is reported of it.
	Event, Outcome string
	// Err is why it was not delivered; nil if it was.
	Err error
	// Lost is set if it never will be.
	Lost bool
	// Again is set if the attempt before failed, too.
	Again bool
}

// message is one thing to deliver.
type message struct {
	// deliver tries once. Without an error it is delivered. A refusedError gives the message up, errNothing drops it without a report,
	// and a retryAfterError asks for a pause; after any other error it is tried again.
	deliver func(ctx context.Context) error
	// line is what the message stands in: messages of one line are delivered in turn, one at a time.
	line           string
	event, outcome string
	gate           *gate

	// The queue's mutex is held for these.
	queued   time.Time // with a monotonic reading, so that a change of the clock does not matter
	next     time.Time // the earliest time of the next attempt
	failures int
}

// result is what is reported of an attempt, or of a message that is lost without one. The queue's mutex is held, or its loop has ended.
func (m *message) result(err error, lost bool) DeliveryResult {
	return DeliveryResult{Event: m.event, Outcome: m.outcome, Err: err, Lost: lost, Again: m.failures > 0}
}

// queue holds the messages for one destination. Its loop, deliver, starts a goroutine for each attempt.
type queue struct {
	limit    int           // messages that wait, besides those that are being delivered
	workers  int           // attempts at a time
	pace     time.Duration // the pause after each attempt
	maxPause time.Duration // the longest pause between two attempts for a message
	report   func(DeliveryResult)
	woken    chan struct{} // has an element if the loop is to look again

	mu         sync.Mutex      // for all that follows
	waiting    []*message      // the oldest first; not those that are being delivered
	busy       map[string]bool // the lines of those
	nextStart  time.Time       // when pace allows the next attempt
	retryAfter time.Time       // the end of the pause that the destination has asked for
	finishBy   time.Time       // when run ends at the latest; zero until finish
	closed     bool            // nothing is added any more
}

// newQueue returns an empty queue. The parameters are the values of its fields.
func newQueue(limit, workers int, pace, maxPause time.Duration, report func(DeliveryResult)) *queue {
	return &queue{
		limit: limit, workers: workers, pace: pace, maxPause: maxPause, report: report, woken: make(chan struct{}, 1), busy: map[string]bool{},
	}
}

// wake makes the loop look again.
func (q *queue) wake() { loop.Nudge(q.woken) }

// add adds a message, unless the queue has ended or the message waits already. It does not block. One that is being delivered is delivered
// once more. With too many, the oldest is lost.
func (q *queue) add(m *message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || slices.Contains(q.waiting, m) {
		return
	}
	m.queued = time.Now()
	q.waiting = append(q.waiting, m)
	for len(q.waiting) > q.limit {
		go q.report(q.waiting[0].result(errors.New("too many are waiting"), true))
		q.waiting = q.waiting[1:]
	}
	q.wake()
}

// putBack puts a message that was tried among those that wait, before all younger ones. The mutex is held.
func (q *queue) putBack(m *message) {
	if slices.Contains(q.waiting, m) { // It was added while it was being delivered.
		return
	}
	at := slices.IndexFunc(q.waiting, func(other *message) bool { return !other.queued.Before(m.queued) })
	if at < 0 {
		at = len(q.waiting)
	}
	q.waiting = slices.Insert(q.waiting, at, m)
}

// retry has all messages tried now, as after a change of the settings.
func (q *queue) retry() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.retryAfter = time.Time{}
	for _, m := range q.waiting {
		m.next = time.Time{}
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
	for _, m := range q.waiting {
		q.report(m.result(errStopped, true))
	}
}

// deliver makes attempts until ctx ends or there is nothing more to deliver. last says that each is a message's last one.
func (q *queue) deliver(ctx context.Context, attempts *sync.WaitGroup, last bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for ctx.Err() == nil && !q.finished(last) {
		ready, pause := q.takeReady(last)
		for _, m := range ready {
			attempts.Go(func() { q.attempt(ctx, m, last) })
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
	if !last && q.finishBy.IsZero() {
		return false
	}
	return len(q.waiting)+len(q.busy) == 0 || !last && !time.Now().Before(q.finishBy)
}

// takeReady returns the messages to try now, each the first of its line, and for how long no other gets ready by itself. Those that have
// failed least come first, so that they hold up no new one. Last attempts wait for nothing but a worker.
func (q *queue) takeReady(last bool) (ready []*message, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	soonest := now.Add(time.Hour)
	if !last && !q.finishBy.IsZero() {
		soonest = q.finishBy
	}
	lines := maps.Clone(q.busy)
	for _, m := range q.waiting {
		if lines[m.line] {
			continue
		}
		lines[m.line] = true
		at := slices.MaxFunc([]time.Time{m.next, q.retryAfter, q.nextStart, m.gate.opensAt()}, time.Time.Compare)
		switch {
		case last || !at.After(now):
			ready = append(ready, m)
		case at.Before(soonest):
			soonest = at
		}
	}
	slices.SortStableFunc(ready, func(a, b *message) int { return cmp.Compare(a.failures, b.failures) })
	ready = ready[:min(len(ready), q.workers-len(q.busy))]
	for _, m := range ready {
		q.busy[m.line] = true
	}
	q.waiting = slices.DeleteFunc(q.waiting, func(m *message) bool { return slices.Contains(ready, m) })
	return ready, soonest.Sub(now)
}

var errStopped = refusedError{"nth stopped before it was delivered"}

// attempt tries a message once, and reports the result.
func (q *queue) attempt(ctx context.Context, m *message, last bool) {
	defer q.wake()
	err := m.deliver(ctx)
	_, lost := errors.AsType[refusedError](err)
	nothing := errors.Is(err, errNothing)
	failed := err != nil && !lost && !nothing
	interrupted := failed && !last && ctx.Err() != nil
	if failed && last {
		failed, lost, err = false, true, errStopped
	}
	q.mu.Lock()
	result := m.result(err, lost)
	delete(q.busy, m.line)
	q.nextStart = time.Now().Add(q.pace)
	if failed && !interrupted {
		q.failed(m, err)
	}
	if failed {
		q.putBack(m)
	} else {
		m.failures = 0
	}
	q.mu.Unlock()
	if !nothing && !interrupted {
		q.report(result)
	}
}

// failed plans the next attempt. The pause is jittered, so that not all messages come at once when their destination works again. The
// mutex is held.
func (q *queue) failed(m *message, err error) {
	now := time.Now()
	pause := min(minPause<<min(m.failures, 16), max(shortPause, now.Sub(m.queued)/60), q.maxPause)
	m.failures++
	m.next = now.Add(wait.Jitter(pause/2, 1))
	if later, asks := errors.AsType[retryAfterError](err); asks && now.Add(later.after).After(q.retryAfter) {
		q.retryAfter = now.Add(later.after)
	}
}
