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
	// minPause is the pause after a first failure. It doubles with each failure, up to shortPause, as most interrupted machines are gone
	// soon. After half an hour, the pause is a sixtieth of the message's age.
	minPause, shortPause = time.Second, 30 * time.Second
	// maxRetryAfter bounds the pause that a destination may ask for.
	maxRetryAfter = time.Hour
	// flushTimeout bounds the last attempt to deliver what is left when nth stops.
	flushTimeout = 2 * time.Second
)

// refusedError is the error of a message that the queue does not try again: it is lost, for a reason that is not a failure to repeat.
type refusedError struct{ why string }

func (e refusedError) Error() string { return e.why }

// retryAfterError is the error of an answer that asks the sender to pause.
type retryAfterError struct {
	answer string
	after  time.Duration
}

func (e retryAfterError) Error() string {
	return fmt.Sprintf("%s: it asks for a pause of %s", e.answer, e.after.Round(time.Second))
}

// errNothing is the error of a message that need not be delivered any more: the queue drops it without a report.
var errNothing = errors.New("there is nothing to deliver")

// DeliveryResult is the result of an attempt to deliver a message.
type DeliveryResult struct {
	// Event is the ID of the event that the message is about, and Outcome what is reported of it.
	Event, Outcome string
	// Err is why it was not delivered; nil if it was.
	Err error
	// Lost is set if it never will be.
	Lost bool
	// Again is set if an earlier attempt to deliver the same message has failed.
	Again bool
}

// message is one thing to deliver.
type message struct {
	// deliver tries once. Without an error it is delivered. A refusedError gives the message up, errNothing drops it without a report,
	// and a retryAfterError asks for a pause; after any other error it is tried again.
	deliver func(ctx context.Context) error
	// line names the line in which the message waits. Messages of one line are delivered one at a time, the oldest first.
	line           string
	event, outcome string // for its DeliveryResult
	gate           *gate  // nothing is delivered before it opens

	// The queue's mutex is held for these.
	queued   time.Time // with a monotonic reading, so that a change of the clock does not matter
	next     time.Time // the earliest time of the next attempt
	failures int
}

// result returns what to report of an attempt that ended with err, or of a message that is lost without an attempt. The caller holds the
// queue's mutex, or the queue's loop has ended.
func (m *message) result(err error, lost bool) DeliveryResult {
	return DeliveryResult{Event: m.event, Outcome: m.outcome, Err: err, Lost: lost, Again: m.failures > 0}
}

// queue holds the messages for one destination. run delivers them, each attempt in a goroutine of its own.
type queue struct {
	limit    int           // messages that wait, besides those that are being delivered
	workers  int           // attempts at a time
	pace     time.Duration // the pause after each attempt
	maxPause time.Duration // the longest pause between two attempts for a message
	report   func(DeliveryResult)
	woken    chan struct{} // has an element if the loop is to look again

	mu         sync.Mutex      // for all that follows
	waiting    []*message      // the oldest first, without those that are being delivered
	busy       map[string]bool // the lines of the messages that are being delivered
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

// add adds a message, unless run has ended or the message waits already. It does not block. If more than limit messages wait, the oldest is
// lost. A message that is being delivered may be added again: then it is delivered once more, as the Node's condition may have changed.
func (q *queue) add(m *message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || slices.Contains(q.waiting, m) {
		return
	}
	m.queued = time.Now()
	q.waiting = append(q.waiting, m)
	for len(q.waiting) > q.limit {
		go q.report(q.waiting[0].result(errors.New("too many are waiting"), true)) // report may block, or need the mutex.
		q.waiting = q.waiting[1:]
	}
	q.wake()
}

// putBack puts a message whose attempt failed back among those that wait, before all younger ones. The mutex is held.
func (q *queue) putBack(m *message) {
	if slices.Contains(q.waiting, m) { // add has added it while it was being delivered.
		return
	}
	at := slices.IndexFunc(q.waiting, func(other *message) bool { return !other.queued.Before(m.queued) })
	if at < 0 {
		at = len(q.waiting)
	}
	q.waiting = slices.Insert(q.waiting, at, m)
}

// retry makes the queue try all messages now, without their pauses, as what they failed for may have changed.
func (q *queue) retry() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.retryAfter = time.Time{}
	for _, m := range q.waiting {
		m.next = time.Time{}
	}
	q.wake()
}

// finish makes run end once all messages are delivered, or after a duration. Nothing may be added after it.
func (q *queue) finish(within time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.finishBy = time.Now().Add(within)
	q.wake()
}

// run delivers messages until ctx ends or finish makes it end. Then it tries each message that is left once more, for flushTimeout at most,
// and reports those that are lost.
func (q *queue) run(ctx context.Context) {
	var attempts sync.WaitGroup
	q.deliver(ctx, &attempts, untilStopped)
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer stop()
	q.deliver(last, &attempts, lastAttempts)
	attempts.Wait()
	for _, m := range q.waiting {
		q.report(m.result(errStopped, true))
	}
}

// The stages of run, as the parameter last of the queue's methods.
const (
	untilStopped = false // nth is running
	lastAttempts = true  // nth stops: each message gets one more attempt
)

// deliver is the queue's loop: it starts attempts until ctx ends or finished says so.
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

// finished reports whether deliver may end before its context does: finish was called or nth stops, and nothing is left to deliver. It may
// also end when the time that finish has given is over.
func (q *queue) finished(last bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !last && q.finishBy.IsZero() {
		return false // More messages may come.
	}
	return len(q.waiting)+len(q.busy) == 0 || !last && !time.Now().Before(q.finishBy)
}

// takeReady removes the messages to try now from those that wait, and returns them. It takes the first of each line that is not busy, once
// its time has come; for a last attempt at once. If they are more than the free workers, it takes those that failed least often, so that old
// failures do not hold up new messages. pause is how long to wait for the next message whose time comes.
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
			continue // An older message of this line comes first.
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

// errStopped is why a message is lost whose last attempt failed, or that got none in time.
var errStopped = refusedError{"nth stopped before it was delivered"}

// attempt tries a message once. It reports the result, and puts the message back among those that wait if it is to be tried again. A last
// attempt that fails makes the message lost.
func (q *queue) attempt(ctx context.Context, m *message, last bool) {
	defer q.wake()
	err := m.deliver(ctx)
	_, lost := errors.AsType[refusedError](err)
	nothing := errors.Is(err, errNothing)
	failed := err != nil && !lost && !nothing
	interrupted := failed && !last && ctx.Err() != nil // nth stops. run makes and reports a last attempt, so that this one does not count.
	if failed && last {
		failed, lost, err = false, true, errStopped
	}
	q.mu.Lock()
	result := m.result(err, lost)
	delete(q.busy, m.line)
	q.nextStart = time.Now().Add(q.pace)
	if failed && !interrupted {
		q.planNext(m, err)
	}
	if failed {
		q.putBack(m)
	} else {
		m.failures = 0 // The message about the Node's condition is added again when that may have changed.
	}
	q.mu.Unlock()
	if !nothing && !interrupted {
		q.report(result)
	}
}

// planNext plans the next attempt for a message that failed with err. The pause is jittered, so that messages of many machines do not arrive
// at once when their destination works again. The mutex is held.
func (q *queue) planNext(m *message, err error) {
	now := time.Now()
	pause := min(minPause<<min(m.failures, 16), max(shortPause, now.Sub(m.queued)/60), q.maxPause)
	m.failures++
	m.next = now.Add(wait.Jitter(pause/2, 1))
	if later, asks := errors.AsType[retryAfterError](err); asks && now.Add(later.after).After(q.retryAfter) {
		q.retryAfter = now.Add(later.after)
	}
}
