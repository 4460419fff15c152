// Package sqs is an event source: it reads an SQS queue to which EventBridge, Auto Scaling and SNS send messages.
//
// Parse (parse.go) reads what a message says of which instances. It has no effect. A table (rows) says which messages it understands.
// nth-queue deletes a message that does not concern it. It reports a message that it cannot understand once, and leaves it to the dead-letter
// queue.
//
// Newcomers begin with Queue.Run. It receives messages and delivers them (message.go). A Message stays in flight while its work is done: Run
// extends its visibility timeout until the owner calls Done, which deletes the message, or Return, which puts it back. SQS may deliver a message
// twice, and may not accept an old receipt handle. Run recognizes a message that comes again by its ID.
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

// Options say which queue a Queue reads, and how. Only Run needs Report and Trouble.
type Options struct {
	// URL is the queue's. Requests go to its host, unless the field AWS names another endpoint, or asks for FIPS or dual-stack addresses.
	URL string
	// AWS has the credentials and the region.
	AWS aws.Config
	// Visibility is the visibility timeout of a message. Run extends it by as much while the message is in flight.
	Visibility time.Duration
	// DryRun leaves every message in the queue.
	DryRun bool
	// Report is called with what happens to each message. It must not block.
	Report func(Report)
	// Trouble is called once at the start of an outage, with the error, and once at its end, with nil. In an outage, SQS answers no
	// request for messages. Trouble must not block, nor call the Queue.
	Trouble func(error)
}

// Outcome is what happened to a message.
type Outcome string

// What happens to messages.
const (
	Received Outcome = "received"
	// NotOurs: the message does not concern nth-queue, which deletes it. Poisoned: nth-queue cannot understand the message, and leaves it in
	// the queue.
	NotOurs  Outcome = "not-ours"
	Poisoned Outcome = "poisoned"
	// Extended: the visibility timeout was extended. Lost: SQS refuses to change or delete the message, and other programs may receive it.
	Extended Outcome = "extended"
	Lost     Outcome = "lost"
	// Returned: the message is back in the queue, and its work is left for later. Deleted: the message is deleted, and its work done.
	Returned Outcome = "returned"
	Deleted  Outcome = "deleted"
)

// Outcomes lists all outcomes.
func Outcomes() []Outcome {
	return []Outcome{Received, NotOurs, Poisoned, Extended, Lost, Returned, Deleted}
}

// Report is what happened to a message.
type Report struct {
	Outcome Outcome
	Message string // the message's ID
	// Why is the reason for NotOurs, Poisoned and Lost; empty for other outcomes.
	Why string
	// Refused is the outcome that SQS refuses to a Lost message: Extended, Returned or Deleted; empty for other outcomes.
	Refused Outcome
	// Sent is when the message was put into the queue.
	Sent time.Time
	// Receives is how often the message had been received.
	Receives int
}

const (
	// longPoll is how long SQS waits for a message before it answers that there is none: the longest that it allows.
	longPoll = 20 * time.Second
	// maxBatch is how many messages SQS handles in one request, at most.
	maxBatch = 10
	// receivers is how many requests wait for messages at the same time. If one hangs, the others receive the messages.
	receivers = 3
	// maxHeld bounds the messages in flight. SQS allows 120,000. pkg/fleet, which gets the messages, bounds their notices.
	maxHeld = 60_000
	// maxRemembered is how many ended messages are recognized when they come again.
	maxRemembered = 8192
	// requestTimeout bounds a request that does not wait for messages.
	requestTimeout = 5 * time.Second
	// stopTimeout is how long Run waits, after the end of its ctx, for messages to end and for SQS to delete or return them.
	stopTimeout = 10 * time.Second
	// maxSilence is how long all receivers may make no request. A request, or the pause after a failed one, takes far less.
	maxSilence = 90 * time.Second
	// settleInterval is how often Run sends SQS the updates that are due. Updates that gather meanwhile share a request.
	settleInterval = 500 * time.Millisecond
)

// Queue reads a queue. Its methods may be called from several goroutines.
type Queue struct {
	opts    Options
	account string // the AWS account in the queue's URL; with "", Parse reads events of any account
	client  *sqs.Client
	ended   *lru.Cache // the outcomes (Deleted or Poisoned) of messages that need no work any more, by message ID

	mu       sync.Mutex
	inFlight map[string]*Message // by message ID
	ending   []update            // the next updates of messages that are not in flight any more
	failing  bool                // the last request for messages failed
	asked    time.Time           // when a receiver last made a request, or could have; zero while no receiver runs
	answered time.Time           // when SQS last answered a request for messages
}

// New returns a Queue. It makes no request. If the URL cannot be parsed, New returns no error: Run's requests fail then.
func New(opts Options) *Queue {
	q := &Queue{opts: opts, account: ParseURL(opts.URL).Account, inFlight: map[string]*Message{}, ended: lru.New(maxRemembered)}
	address, err := url.Parse(opts.URL)
	q.client = sqs.NewFromConfig(opts.AWS, func(o *sqs.Options) {
		// The SDK's default is the region's public endpoint. The URL may have another host, such as a VPC endpoint: the client asks that host,
		// unless AWS's own settings choose an endpoint.
		chosen := o.BaseEndpoint != nil || o.EndpointOptions.UseFIPSEndpoint == aws.FIPSEndpointStateEnabled ||
			o.EndpointOptions.UseDualStackEndpoint == aws.DualStackEndpointStateEnabled
		if err == nil && address.Host != "" && !chosen {
			o.BaseEndpoint = aws.String(address.Scheme + "://" + address.Host)
		}
	})
	return q
}

// Run receives messages until ctx ends, and calls deliver with each that needs work, from several goroutines. deliver must not block. After the
// end of ctx, Run waits until each message is ended by Done or Return, and SQS has deleted or returned it. It waits for stopTimeout at most.
func (q *Queue) Run(ctx context.Context, deliver func(*Message)) {
	var receiving sync.WaitGroup
	for range receivers {
		receiving.Go(func() { q.receive(ctx, deliver) })
	}
	settling := context.WithoutCancel(ctx) // The end of ctx must not cut off an update that is being sent.
	for loop.Await(ctx, nil, settleInterval) {
		q.settle(settling)
	}
	// The receivers end first: one that still runs could receive a message that was just returned, and drop it.
	receiving.Wait()
	q.setAsked(time.Time{}) // Without receivers, nothing is Stalled.
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
		return fmt.Errorf("SQS has given neither an answer nor an error for %s", silence.Round(time.Second))
	}
	return nil
}

// setAsked sets q.asked.
func (q *Queue) setAsked(asked time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked = asked
}

// full reports whether so many messages are in flight that no more may be received.
func (q *Queue) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.inFlight) >= maxHeld
}

// Status is the status of a queue.
type Status struct {
	// Held is how many messages are in flight or about to be deleted or returned. Oldest is when the oldest message in flight was sent; zero if
	// no message is in flight.
	Held   int
	Oldest time.Time
	// Up is set if SQS answered the last request for messages. Answered is when it last answered one; zero if it never did.
	Up       bool
	Answered time.Time
}

// Status returns the queue's current status.
func (q *Queue) Status() Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	status := Status{Held: len(q.inFlight) + len(q.ending), Up: !q.failing && !q.answered.IsZero(), Answered: q.answered}
	for _, m := range q.inFlight {
		if status.Oldest.IsZero() || m.Sent.Before(status.Oldest) {
			status.Oldest = m.Sent
		}
	}
	return status
}
