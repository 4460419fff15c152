// Package sqs is an event source: an SQS queue, as EventBridge, Auto Scaling and SNS fill it.
//
// Parse reads a message: what it says of which instances. It is pure, and has a verdict on everything else, too: what
// concerns nobody here is deleted, and what cannot be understood is reported once and left to the dead-letter queue.
//
// A Message stays in flight while its work is done: the Queue extends its visibility timeout until the work is Done, which deletes
// the message, or it is Returned. Deletions are retried until they succeed. SQS promises little: a message may come twice, may
// become visible to others while the work goes on, and its receipt handle may be stale. When it comes again, it is recognized by
// its ID.
package sqs

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// Options say which queue it is and how it is read.
type Options struct {
	// URL is the queue's.
	URL string
	// AWS has the credentials, and where SQS is.
	AWS aws.Config
	// Visibility is the visibility timeout of a message, which is extended while its work goes on.
	Visibility time.Duration
	// Receivers is how many requests wait for messages at the same time.
	Receivers int
	// Paused, if set, reports whether no messages are to be received now, because nobody can work on them. What is in flight
	// stays so until it is Done or Returned.
	Paused func() bool
	// DryRun leaves every message in the queue.
	DryRun bool
	// Tell, if set, is called with what happens to messages. It must not block.
	Tell func(Report)
	// Trouble, if set, is called with why the queue cannot be read, once for each attempt, and with nil when it can be again.
	Trouble func(error)
}

// What is what happened to a message.
type What string

// What happens to messages.
const (
	Received What = "received"
	// NotOurs: nobody here needs it; it is deleted. Poisoned: it cannot be understood; it is left.
	NotOurs  What = "not-ours"
	Poisoned What = "poisoned"
	// Extended: its visibility timeout was extended. Lost: it could not be, and others may see the message.
	Extended What = "extended"
	Lost     What = "lost"
	// Returned and Deleted: its work is left for later, or done.
	Returned What = "returned"
	Deleted  What = "deleted"
)

// Whats lists what happens to messages.
func Whats() []What {
	return []What{Received, NotOurs, Poisoned, Extended, Lost, Returned, Deleted}
}

// Report is what happened to a message.
type Report struct {
	What    What
	Message string
	// Why belongs to NotOurs, Poisoned and Lost.
	Why string
	// Sent is when the message was put into the queue.
	Sent time.Time
	// Receives is how often it had been received.
	Receives int
}

const (
	// longPoll is how long SQS waits for a message before it answers that there is none: the longest that it allows.
	longPoll = 20 * time.Second
	// maxBatch is how many messages SQS handles in one request, at most.
	maxBatch = 10
	// maxHeld bounds the messages in flight. It is far above any storm, and below what SQS allows.
	maxHeld = 20_000
	// requestTimeout bounds a request that does not wait for messages.
	requestTimeout = 5 * time.Second
	// stopTimeout is how long Run waits, at the end, for SQS to be told what was decided.
	stopTimeout = 10 * time.Second
	// maxSilence is how long a receiver may make no request: far longer than a request, or the pause after one that failed,
	// can take.
	maxSilence = 90 * time.Second
)

// Queue reads a queue. Its methods may be called from several goroutines.
type Queue struct {
	opts   Options
	client *sqs.Client
	wake   chan struct{} // for sync

	mu       sync.Mutex
	inFlight map[string]*Message // by the message's ID
	// finished are messages whose work is done, and poisoned those that were reported, to recognize them.
	finished, poisoned recentIDs
	failing            bool
	holdReturns        bool        // nothing is returned for now
	lastRequests       []time.Time // of each receiver; empty while nobody receives
	lastAnswer         time.Time   // to a request for messages
}

// New returns a queue that nobody reads yet.
func New(opts Options) *Queue {
	return &Queue{
		opts: opts, client: sqs.NewFromConfig(opts.AWS), wake: make(chan struct{}, 1),
		inFlight: map[string]*Message{}, finished: newRecentIDs(), poisoned: newRecentIDs(),
	}
}

// Run passes messages to take, which must not block, until ctx ends. Then it waits, for a while, until all messages are Done
// or Returned and SQS has been told.
func (q *Queue) Run(ctx context.Context, take func(*Message)) {
	syncing, stop := context.WithCancel(context.WithoutCancel(ctx))
	q.resetHeartbeats(q.opts.Receivers)
	var syncer, receivers sync.WaitGroup
	syncer.Go(func() { q.sync(syncing) })
	for number := range q.opts.Receivers {
		receivers.Go(func() { q.receive(ctx, number, take) })
	}
	<-ctx.Done()
	q.resetHeartbeats(0)
	q.setHoldReturns(true)
	receivers.Wait()
	q.setHoldReturns(false)
	q.flush(syncing)
	stop()
	syncer.Wait()
}

// setHoldReturns holds back what is to be returned, or releases it. A request for messages that has just been canceled must
// not get what was returned a moment ago: nobody would know of it.
func (q *Queue) setHoldReturns(on bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.holdReturns = on
	q.wakeSync()
}

// flush waits until no message is in flight.
func (q *Queue) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	ticks := time.NewTicker(20 * time.Millisecond)
	defer ticks.Stop()
	for q.Held() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// Held is how many messages are in flight.
func (q *Queue) Held() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.inFlight)
}

func (q *Queue) report(r Report) {
	if q.opts.Tell != nil {
		q.opts.Tell(r)
	}
}

func (q *Queue) resetHeartbeats(receivers int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lastRequests = make([]time.Time, receivers)
	for i := range q.lastRequests {
		q.lastRequests[i] = time.Now()
	}
}

func (q *Queue) beat(receiver int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if receiver < len(q.lastRequests) {
		q.lastRequests[receiver] = time.Now()
	}
}

// Stuck returns an error if a receiver hangs. SQS not answering, or refusing, is trouble, and nothing is stuck.
func (q *Queue) Stuck() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, last := range q.lastRequests {
		if silence := time.Since(last); silence > maxSilence {
			return fmt.Errorf("receiving from the queue: neither an answer nor an error for %s", silence.Round(time.Second))
		}
	}
	return nil
}

// Status is the status of a queue.
type Status struct {
	// Held is how many messages are in flight, and Oldest when the oldest of them was sent; zero if there is none.
	Held   int
	Oldest time.Time
	// Up says whether the last request for messages was answered, and Answered when one last was.
	Up       bool
	Answered time.Time
}

// Status returns the queue's current status.
func (q *Queue) Status() Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := Status{Held: len(q.inFlight), Up: !q.failing && !q.lastAnswer.IsZero(), Answered: q.lastAnswer}
	for _, m := range q.inFlight {
		if !m.Sent.IsZero() && (now.Oldest.IsZero() || m.Sent.Before(now.Oldest)) {
			now.Oldest = m.Sent
		}
	}
	return now
}
