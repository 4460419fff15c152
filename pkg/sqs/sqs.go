// Package sqs is an event source: it reads an SQS queue to which EventBridge, Auto Scaling and SNS send messages.
//
// Parse (parse.go) reads a message: what it says of which instances. It has no effect, and a table (rows) says which messages it understands.
// nth-queue deletes a message that does not concern it. It reports a message that it cannot understand once, and leaves it to the dead-letter
// queue.
//
// Queue.Run (message.go) receives messages and hands them over. A Message stays in flight while its work is done: Run extends its visibility
// timeout until Done, which deletes the message, or Return, which gives it back. SQS promises little: a message may come twice, and its receipt
// handle may be stale. Run recognizes a message that comes again by its ID.
package sqs

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"k8s.io/utils/lru"

	"github.com/nth-project/nth/pkg/loop"
)

// Options say which queue it is and how it is read.
type Options struct {
	// URL is the queue's. Requests go to its host, unless AWS names another endpoint, or asks for FIPS or dual-stack addresses.
	URL string
	// AWS has the credentials and the region.
	AWS aws.Config
	// Visibility is the visibility timeout of a message, which is extended while its work continues.
	Visibility time.Duration
	// DryRun leaves every message in the queue.
	DryRun bool
	// Report, if set, is called with what happens to messages. It must not block.
	Report func(Report)
	// Trouble, if set, is called with the reason when the queue cannot be read, once for an outage, and with nil when it can be read again. It
	// must not block, nor call the Queue.
	Trouble func(error)
}

// Outcome is what happened to a message.
type Outcome string

// What happens to messages.
const (
	Received Outcome = "received"
	// NotOurs: it does not concern nth-queue, which deletes it. Poisoned: nth-queue cannot understand it, and leaves it in the queue.
	NotOurs  Outcome = "not-ours"
	Poisoned Outcome = "poisoned"
	// Extended: its visibility timeout was extended. Lost: SQS refuses to change or delete it, and others may receive it.
	Extended Outcome = "extended"
	Lost     Outcome = "lost"
	// Returned: it is back in the queue, and its work is left for later. Deleted: its work is done.
	Returned Outcome = "returned"
	Deleted  Outcome = "deleted"
)

// Outcomes lists what happens to messages.
func Outcomes() []Outcome {
	return []Outcome{Received, NotOurs, Poisoned, Extended, Lost, Returned, Deleted}
}

// Report is what happened to a message.
type Report struct {
	Outcome Outcome
	Message string
	// Why is the reason for NotOurs, Poisoned and Lost; empty for other outcomes.
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
	// receivers is how many requests wait for messages at the same time, so that one that hangs delays no message.
	receivers = 3
	// maxHeld bounds the messages in flight. SQS allows 120,000. Who gets the messages bounds their notices.
	maxHeld = 60_000
	// maxRemembered is how many messages are recognized when they come again.
	maxRemembered = 8192
	// requestTimeout bounds a request that does not wait for messages.
	requestTimeout = 5 * time.Second
	// stopTimeout is how long Run waits, at the end, to send SQS what was decided.
	stopTimeout = 10 * time.Second
	// maxSilence is how long all receivers may make no request: far longer than a request, or the pause after one that failed,
	// can take.
	maxSilence = 90 * time.Second
	// settleInterval is how often Run asks SQS for what is due. Meanwhile updates gather, to share a request.
	settleInterval = 500 * time.Millisecond
)

// Queue reads a queue. Its methods may be called from several goroutines.
type Queue struct {
	opts    Options
	account string // the AWS account in the queue's URL; with "", Parse takes events of any account
	client  *sqs.Client
	ended   *lru.Cache // messages that need no work any more: Deleted or Poisoned, by their IDs

	mu       sync.Mutex
	inFlight map[string]*Message // by the message's ID
	ending   []update            // what SQS is to be asked for messages that are in flight no more
	failing  bool                // the last request for messages failed
	asked    time.Time           // when a receiver last made a request; zero while none runs
	answered time.Time           // when SQS last answered a request for messages
}

// New returns a Queue that has made no request yet. A URL that cannot be parsed is no error here: Run's requests fail then.
func New(opts Options) *Queue {
	q := &Queue{opts: opts, account: ParseURL(opts.URL).Account, inFlight: map[string]*Message{}, ended: lru.New(maxRemembered)}
	address, err := url.Parse(opts.URL)
	q.client = sqs.NewFromConfig(opts.AWS, func(o *sqs.Options) {
		// By itself the SDK sends requests to the region's public address. The URL may have that of a VPC endpoint. It counts unless AWS's
		// own settings choose an endpoint.
		chosen := o.BaseEndpoint != nil || o.EndpointOptions.UseFIPSEndpoint == aws.FIPSEndpointStateEnabled ||
			o.EndpointOptions.UseDualStackEndpoint == aws.DualStackEndpointStateEnabled
		if err == nil && address.Host != "" && !chosen {
			o.BaseEndpoint = aws.String(address.Scheme + "://" + address.Host)
		}
	})
	return q
}

// Run receives messages until ctx ends, and calls deliver with each. deliver must not block. Then Run waits until each message
// is Done or Returned and SQS has been asked for that, for stopTimeout at most.
func (q *Queue) Run(ctx context.Context, deliver func(*Message)) {
	var receiving sync.WaitGroup
	for range receivers {
		receiving.Go(func() { q.receive(ctx, deliver) })
	}
	settling := context.WithoutCancel(ctx) // Requests under way when ctx ends are completed.
	for loop.Await(ctx, nil, settleInterval) {
		q.settle(settling)
	}
	// A returned message is visible in the queue at once. A receiver that still runs could receive it and drop it.
	receiving.Wait()
	q.setAsked(time.Time{})
	settling, cancel := context.WithTimeout(settling, stopTimeout)
	defer cancel()
	for {
		q.settle(settling)
		if q.Status().Held == 0 || !loop.Await(settling, nil, settleInterval) {
			return
		}
	}
}

// Stalled returns an error if all receivers hang, and nil otherwise. If SQS refuses requests or does not answer, nothing hangs: the requests
// end with errors, which Options.Trouble gets.
func (q *Queue) Stalled() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if silence := time.Since(q.asked); !q.asked.IsZero() && silence > maxSilence {
		return fmt.Errorf("receiving from the queue: neither an answer nor an error for %s", silence.Round(time.Second))
	}
	return nil
}

// setAsked notes, for Stalled, when a receiver made its last request; zero if none runs. It reports whether there is room for more messages.
func (q *Queue) setAsked(asked time.Time) (room bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked = asked
	return len(q.inFlight) < maxHeld
}

// Status is the status of a queue.
type Status struct {
	// Held is how many messages are in flight or about to be deleted or returned. Oldest is when the oldest in flight was sent; zero if there is
	// none.
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
	now := Status{Held: len(q.inFlight) + len(q.ending), Up: !q.failing && !q.answered.IsZero(), Answered: q.answered}
	for _, m := range q.inFlight {
		if now.Oldest.IsZero() || m.Sent.Before(now.Oldest) {
			now.Oldest = m.Sent
		}
	}
	return now
}

// report calls Options.Report, if it is set.
func (q *Queue) report(r Report) {
	if q.opts.Report != nil {
		q.opts.Report(r)
	}
}
