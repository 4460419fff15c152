package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
)

const (
	// maxWaiting is how many messages wait for one destination at most: more than the drains of a thousand nodes make.
	maxWaiting = 4096
	// workers is how many messages are delivered to one destination at a time.
	workers = 8
	// maxAge is the age at which a message is given up.
	maxAge = 24 * time.Hour
	// minPause is the pause after a first failure. It doubles with each failure, up to maxPause.
	minPause, maxPause = time.Second, time.Minute
	// flushTimeout bounds the last attempts to deliver what is left when nth stops.
	flushTimeout = 2 * time.Second
)

// refusedError is the error of a message that is not tried again: it is lost.
type refusedError struct{ why string }

func (e refusedError) Error() string { return e.why }

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
	// deliver tries once. Without an error it is delivered. A refusedError gives the message up, and errNothing drops it without a
	// report; after any other error it is tried again.
	deliver func(ctx context.Context) error
	// line names the line in which the message waits. Messages of one line are delivered one at a time, the oldest first.
	line           string
	event, outcome string // for its DeliveryResult

	made  time.Time     // when it was added
	next  time.Time     // when it may be tried; the queue's mutex is held for this
	pause time.Duration // the last one; 0 if no attempt has failed
}

// queue delivers messages to one destination, in lines: a message that fails holds up only those of its line.
type queue struct {
	report func(DeliveryResult)
	lines  *workqueue.Typed[string] // those that a worker is to look at

	mu       sync.Mutex // for all that follows
	waiting  []*message // the oldest first, with those that are being delivered
	stopping bool       // each message is tried once more, and none is added
}

// newQueue returns an empty queue. report is called with the result of each attempt.
func newQueue(report func(DeliveryResult)) *queue {
	return &queue{report: report, lines: workqueue.NewTyped[string]()}
}

// add adds a message that is tried after delay, once those of its line that were added earlier are settled. If the message waits for its first
// attempt already, that is made at the earlier of the two times. add does not block. If more than maxWaiting messages wait, the oldest is lost.
func (q *queue) add(m *message, delay time.Duration) {
	q.mu.Lock()
	if q.stopping {
		q.mu.Unlock()
		return
	}
	now := time.Now()
	if m.made.IsZero() {
		m.made, m.next = now, now.Add(delay)
		q.waiting = append(q.waiting, m)
	}
	if next := now.Add(delay); next.Before(m.next) {
		m.next = next
	}
	oldest, crowded := q.waiting[0], len(q.waiting) > maxWaiting
	if crowded {
		q.waiting = q.waiting[1:]
	}
	q.mu.Unlock()
	q.lookIn(m.line, delay)
	if crowded {
		q.report(DeliveryResult{Event: oldest.event, Outcome: oldest.outcome, Err: errors.New("too many are waiting"), Lost: true})
	}
}

// lookIn has a worker look at a line after delay. After a stop it does nothing.
func (q *queue) lookIn(line string, delay time.Duration) {
	if delay <= 0 {
		q.lines.Add(line)
		return
	}
	time.AfterFunc(delay, func() { q.lines.Add(line) })
}

// run delivers messages until ctx ends. Then it tries each that is left once more, for flushTimeout at most, and reports those that are lost.
// Call it once.
func (q *queue) run(ctx context.Context) {
	attempts, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	var working sync.WaitGroup
	for range workers {
		working.Go(func() { q.work(attempts) })
	}
	<-ctx.Done()
	defer time.AfterFunc(flushTimeout, abort).Stop()
	q.mu.Lock()
	q.stopping = true
	for _, m := range q.waiting {
		q.lines.Add(m.line)
	}
	q.mu.Unlock()
	q.lines.ShutDown()
	working.Wait()
}

// work delivers the messages of one line after another, until the queue is shut down.
func (q *queue) work(ctx context.Context) {
	for {
		line, ended := q.lines.Get()
		if ended {
			return
		}
		for m := q.first(line); m != nil && q.try(ctx, m); {
			m = q.first(line)
		}
		q.lines.Done(line)
	}
}

// first returns the oldest message of a line; nil if it has none, or that one must wait.
func (q *queue) first(line string) *message {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.IndexFunc(q.waiting, func(m *message) bool { return m.line == line })
	if i < 0 || !q.stopping && time.Now().Before(q.waiting[i].next) {
		return nil
	}
	return q.waiting[i]
}

// try makes one attempt to deliver a message, and reports its result. It returns false if the message is to be tried again later.
func (q *queue) try(ctx context.Context, m *message) (settled bool) {
	result := DeliveryResult{Event: m.event, Outcome: m.outcome, Again: m.pause > 0}
	result.Err = m.deliver(ctx)
	_, refused := errors.AsType[refusedError](result.Err)
	nothing := errors.Is(result.Err, errNothing)
	q.mu.Lock()
	i := slices.Index(q.waiting, m)
	switch {
	case i < 0: // add has reported it as lost.
		nothing = true
	case result.Err == nil, nothing:
	case refused:
		result.Lost = true
	case q.stopping:
		result.Err, result.Lost = errors.New("nth stopped before it was delivered"), true
	case time.Since(m.made) >= maxAge:
		result.Err, result.Lost = fmt.Errorf("it is older than a day: %w", result.Err), true
	}
	settled = nothing || result.Err == nil || result.Lost
	if settled && i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
	if !settled {
		m.pause = min(max(2*m.pause, minPause), maxPause)
		pause := wait.Jitter(m.pause/2, 1) // Messages of many machines must not arrive at once when their destination works again.
		m.next = time.Now().Add(pause)
		q.lookIn(m.line, pause)
	}
	q.mu.Unlock()
	if !nothing {
		q.report(result)
	}
	return settled
}
