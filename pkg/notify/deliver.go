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
	// minPause is the pause after a first failure. It doubles with each failure, up to maxPause.
	minPause, maxPause = time.Second, time.Minute
	// maxBusy bounds the pause that a destination may ask for.
	maxBusy = 5 * time.Minute
	// flushTimeout bounds the last attempts to deliver what is left when nth stops.
	flushTimeout = 2 * time.Second
	// finishTimeout bounds how long a queue delivers what is left after finish: the drains of other nodes come first.
	finishTimeout = 5 * time.Minute
)

// refusedError is the error of a message that is not tried again: it is lost.
type refusedError struct{ why string }

func (e refusedError) Error() string { return e.why }

// busyError is the error of a destination that asks for a pause.
type busyError struct {
	answer string
	pause  time.Duration
}

func (e busyError) Error() string {
	return fmt.Sprintf("%s: it asks for a pause of %s", e.answer, e.pause)
}

// errNothing is the error of a message that need not be delivered any more: the queue drops it without a report.
var errNothing = errors.New("there is nothing to deliver")

// errStopped is why a message is lost whose last attempt failed, or that got none in time.
var errStopped = errors.New("nth stopped before it was delivered")

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
	// and a busyError asks for a pause; after any other error it is tried again.
	deliver func(ctx context.Context) error
	// line names the line in which the message waits. Messages of one line are delivered one at a time, the oldest first.
	line           string
	event, outcome string // for its DeliveryResult
	gate           *gate  // nothing is delivered before it opens

	crowded bool // it is lost, as too many wait; the queue's mutex is held for this
}

// queue delivers messages to one destination. While a line has messages, it has a goroutine, which tries them until they are delivered.
type queue struct {
	limit  int // messages that wait or are being delivered
	report func(DeliveryResult)
	slots  chan struct{} // one element for each attempt under way

	begun    chan struct{}   // closed by run, which sets attempts before
	attempts context.Context // ends flushTimeout after a stop
	stopping chan struct{}   // closed at a stop: each message is tried once more, without pauses
	finished chan struct{}   // closed by finish
	lines    sync.WaitGroup

	mu        sync.Mutex      // for all that follows
	waiting   []*message      // the oldest first, with those that are being delivered
	busy      map[string]bool // the lines that have a goroutine
	busyUntil time.Time       // the end of the pause that the destination has asked for
	retried   chan struct{}   // closed by retry, which replaces it
	closed    bool            // nothing is added any more
}

// newQueue returns an empty queue. attempts is how many attempts are made at a time. The other parameters are the values of its fields.
func newQueue(limit, attempts int, report func(DeliveryResult)) *queue {
	return &queue{
		limit: limit, report: report, slots: make(chan struct{}, attempts),
		begun: make(chan struct{}), stopping: make(chan struct{}), finished: make(chan struct{}), busy: map[string]bool{}, retried: make(chan struct{}),
	}
}

// add adds a message, unless the queue is closed. It does not block. If more than limit messages wait, the oldest is lost.
func (q *queue) add(m *message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.waiting = append(q.waiting, m)
	if !q.busy[m.line] {
		q.busy[m.line] = true
		q.lines.Go(func() { q.work(m) })
	}
	if len(q.waiting) > q.limit {
		oldest := q.waiting[0]
		oldest.crowded = true
		q.waiting = q.waiting[1:]
		// report may block, or need the mutex.
		q.lines.Go(func() {
			q.report(DeliveryResult{Event: oldest.event, Outcome: oldest.outcome, Err: errors.New("too many are waiting"), Lost: true})
		})
	}
}

// work delivers a message and those after it in its line, until there is none.
func (q *queue) work(m *message) {
	<-q.begun
	for ; m != nil; m = q.next(m) {
		q.deliver(m)
	}
}

// next forgets a message, and returns the one that its line delivers now; nil if there is none.
func (q *queue) next(done *message) *message {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(m *message) bool { return m == done })
	i := slices.IndexFunc(q.waiting, func(m *message) bool { return m.line == done.line })
	if i < 0 {
		delete(q.busy, done.line)
		return nil
	}
	return q.waiting[i]
}

// deliver tries a message until it is delivered or lost, and reports each attempt.
func (q *queue) deliver(m *message) {
	var next time.Time // the earliest time of the next attempt
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		last := q.await(m, next)
		result := DeliveryResult{Event: m.event, Outcome: m.outcome, Again: !next.IsZero()}
		result.Err = q.attempt(m)
		_, refused := errors.AsType[refusedError](result.Err)
		switch {
		case errors.Is(result.Err, errNothing): // It need not be delivered any more, or add has reported it as lost.
			return
		case result.Err != nil && !refused && (last || q.attempts.Err() != nil):
			result.Err, result.Lost = errStopped, true
		case refused:
			result.Lost = true
		}
		q.report(result)
		if result.Err == nil || result.Lost {
			return
		}
		// Messages of many machines must not arrive at once when their destination works again.
		next = time.Now().Add(wait.Jitter(pause/2, 1))
		if busy, ok := errors.AsType[busyError](result.Err); ok {
			q.mu.Lock()
			q.busyUntil = time.Now().Add(busy.pause)
			q.mu.Unlock()
		}
	}
}

// attempt tries a message once, when a slot is free.
func (q *queue) attempt(m *message) error {
	select {
	case q.slots <- struct{}{}:
	case <-q.attempts.Done():
		return q.attempts.Err()
	}
	defer func() { <-q.slots }()
	if !q.isCrowded(m) {
		if err := m.deliver(q.attempts); !q.isCrowded(m) {
			return err
		}
	}
	return errNothing // add has reported it as lost.
}

// isCrowded reads message.crowded.
func (q *queue) isCrowded(m *message) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return m.crowded
}

// await waits until a message may be tried: at the time next, once its gate is open, and after a pause that the destination has asked for.
// retry ends the pauses. last is true if nth has stopped meanwhile: then the next attempt is the last.
func (q *queue) await(m *message, next time.Time) (last bool) {
	for {
		q.mu.Lock()
		busyUntil, retried := q.busyUntil, q.retried
		q.mu.Unlock()
		opens, changed := m.gate.opensAt()
		left := time.Until(slices.MaxFunc([]time.Time{next, busyUntil, opens}, time.Time.Compare))
		if left <= 0 {
			return false
		}
		select {
		case <-q.stopping:
			return true
		case <-retried:
			next = time.Time{}
		case <-changed:
		case <-time.After(left):
		}
	}
}

// retry makes the queue try all messages now, without their pauses, as what they failed for may have changed.
func (q *queue) retry() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.busyUntil = time.Time{}
	close(q.retried)
	q.retried = make(chan struct{})
}

// finish makes run end once all messages are delivered, or after finishTimeout. Nothing is added after it. Call it once.
func (q *queue) finish() { close(q.finished) }

// run delivers messages until ctx ends or finish makes it end. Then it tries each message that is left once more, for flushTimeout at most,
// and reports those that are lost.
func (q *queue) run(ctx context.Context) {
	attempts, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	q.attempts = attempts
	close(q.begun)
	select {
	case <-ctx.Done():
	case <-q.finished:
	}
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		q.lines.Wait()
	}()
	select {
	case <-delivered:
	case <-ctx.Done():
	case <-time.After(finishTimeout):
	}
	close(q.stopping)
	defer time.AfterFunc(flushTimeout, abort).Stop()
	<-delivered
}
