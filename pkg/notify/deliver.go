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
	// maxAge is the age at which a message that cannot be delivered is lost.
	maxAge = 24 * time.Hour
	// minPause is the pause after a first failure. It doubles with each failure, up to maxPause.
	minPause, maxPause = time.Second, time.Minute
	// flushTimeout is how long queue.run takes at most, when nth stops, to try the messages that are left.
	flushTimeout = 2 * time.Second
)

// refusedError is the error of a message that its destination will never accept: the queue does not try again, and the message is lost.
type refusedError struct{ why string }

func (e refusedError) Error() string { return e.why }

// errNothing is the error of a message that need not be delivered any more: the queue drops it without a report.
var errNothing = errors.New("there is nothing to deliver")

// DeliveryResult is the result of an attempt to deliver a message.
type DeliveryResult struct {
	// Event is the ID of the event that the message is about, Node the name of its node, if known, and Outcome the outcome of the notice.
	Event, Node, Outcome string
	// Err is why the message was not delivered; nil if it was.
	Err error
	// Lost is set if Err is, and the message will not be tried again.
	Lost bool
	// Again is set if an earlier attempt to deliver the same message has failed.
	Again bool
}

// message is one thing to deliver.
type message struct {
	// deliver makes one attempt. With nil, the message is delivered. With a refusedError it is lost, and with errNothing it is dropped
	// without a report. After any other error, the queue tries again.
	deliver func(ctx context.Context) error
	// line names the line in which the message waits. Messages of one line are delivered one at a time, the oldest first.
	line  string
	what  string         // what is written, in words, for report
	about DeliveryResult // what each result says of the message

	// The queue sets these, with its mutex held.
	made  time.Time     // when the message was added
	next  time.Time     // the time before which it is not tried
	pause time.Duration // the pause after the last attempt; 0 if no attempt has failed
}

// queue delivers messages to one destination, in lines: a message that fails delays only later messages of its line.
type queue struct {
	report func(what string, r DeliveryResult)
	lines  *workqueue.Typed[string] // the lines whose messages a worker is to try

	mu       sync.Mutex // for the fields below
	waiting  []*message // the oldest first, without those that are being delivered
	stopping bool       // nth stops: each message is tried once more, and none is added
}

// newQueue returns an empty queue. report is called with the result of each attempt, and with what its message writes.
func newQueue(report func(what string, r DeliveryResult)) *queue {
	return &queue{report: report, lines: workqueue.NewTyped[string]()}
}

// add adds a message, which is tried after delay, but after all earlier messages of its line. add does not block. It does nothing once nth stops.
//
// A message may be added again. If it still waits, its next attempt is made at the earlier of the two times. If more than maxWaiting messages
// wait, the oldest is lost.
func (q *queue) add(m *message, delay time.Duration) {
	q.mu.Lock()
	if q.stopping {
		q.mu.Unlock()
		return
	}
	now := time.Now()
	next := now.Add(delay)
	if waits := slices.Contains(q.waiting, m); !waits {
		m.made, m.next = now, next
		q.waiting = append(q.waiting, m)
	} else if next.Before(m.next) {
		m.next = next
	}
	oldest, crowded := q.waiting[0], len(q.waiting) > maxWaiting
	if crowded {
		q.waiting = q.waiting[1:]
	}
	q.mu.Unlock()
	q.wake(m.line, delay)
	if crowded {
		lost := oldest.about
		lost.Err, lost.Lost = errors.New("too many messages are waiting, so the oldest is dropped"), true
		q.report(oldest.what, lost)
	}
}

// wake has a worker try the messages of a line after delay. It does not wait for that. Once the queue is shut down, wake has no effect.
func (q *queue) wake(line string, delay time.Duration) {
	if delay <= 0 {
		q.lines.Add(line)
		return
	}
	time.AfterFunc(delay, func() { q.lines.Add(line) })
}

// run delivers messages until ctx ends. Then it tries each message that is left once more, and reports those that are lost. The last attempts take
// flushTimeout at most. Call it once.
func (q *queue) run(ctx context.Context) {
	attempts, abort := context.WithCancel(context.WithoutCancel(ctx)) // The last attempts are made after ctx has ended.
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
	q.lines.ShutDown() // The workers end once they have tried all lines that were added.
	working.Wait()
}

// work delivers messages, one line after another, until the queue is shut down and no line is left. Each worker runs it.
func (q *queue) work(ctx context.Context) {
	for {
		line, ended := q.lines.Get()
		if ended {
			return
		}
		for {
			if m := q.next(line); m == nil || !q.try(ctx, m) {
				break
			}
		}
		q.lines.Done(line)
	}
}

// next takes the oldest message of a line out of the queue; nil if the line is empty, or it is too early to try that message.
func (q *queue) next(line string) *message {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.IndexFunc(q.waiting, func(m *message) bool { return m.line == line })
	if i < 0 || !q.stopping && time.Now().Before(q.waiting[i].next) {
		return nil
	}
	m := q.waiting[i]
	q.waiting = slices.Delete(q.waiting, i, i+1)
	return m
}

// try makes one attempt to deliver a message, and reports the result. finished says that the message is delivered, dropped or lost. Otherwise
// the message waits again, first in its line, for the next attempt.
func (q *queue) try(ctx context.Context, m *message) (finished bool) {
	err := m.deliver(ctx)
	q.mu.Lock()
	result := m.about
	result.Err, result.Again = err, m.pause > 0
	_, refused := errors.AsType[refusedError](err)
	dropped := errors.Is(err, errNothing)
	finished = true
	switch {
	case err == nil, dropped: // The message is not lost.
	case refused:
		result.Lost = true
	case q.stopping:
		result.Err, result.Lost = errors.New("nth stopped before the delivery"), true
	case time.Since(m.made) >= maxAge:
		result.Err, result.Lost = fmt.Errorf("not delivered within a day; the last error: %w", err), true
	default:
		finished = false
	}
	if finished {
		m.pause = 0
	} else {
		m.pause = min(max(2*m.pause, minPause), maxPause)
		pause := wait.Jitter(m.pause/2, 1) // Messages of many machines must not arrive at once when their destination works again.
		m.next = time.Now().Add(pause)
		if addedAgain := slices.Contains(q.waiting, m); !addedAgain {
			i, _ := slices.BinarySearchFunc(q.waiting, m.made, func(other *message, made time.Time) int { return other.made.Compare(made) })
			q.waiting = slices.Insert(q.waiting, i, m)
		}
		q.wake(m.line, pause)
	}
	q.mu.Unlock()
	if !dropped {
		q.report(m.what, result)
	}
	return finished
}
