// Package sqs is an event source: an SQS queue, as EventBridge, Auto Scaling and SNS fill it.
//
// Parse reads a message: what it says of which instances. It is pure, and a table (rows) says which messages it understands. What
// concerns nobody here is deleted; what cannot be understood is reported once and left to the dead-letter queue.
//
// Queue.Run receives messages and hands them over. A Message stays in flight while its work is done: its visibility timeout is
// extended until the work is Done, which deletes the message, or the message is Returned. SQS promises little: a message may come
// twice, and its receipt handle may be stale. When it comes again, it is recognized by its ID.
package sqs

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"k8s.io/utils/lru"
)

// Options say which queue it is and how it is read.
type Options struct {
	// URL is the queue's. Its host is asked, unless AWS, or the environment that AWS is from, has an endpoint, FIPS or dual-stack.
	URL string
	// AWS has the credentials and the region.
	AWS aws.Config
	// Visibility is the visibility timeout of a message, which is extended while its work continues.
	Visibility time.Duration
	// DryRun leaves every message in the queue.
	DryRun bool
	// Report, if set, is called with what happens to messages. It must not block.
	Report func(Report)
	// Trouble, if set, is called with why the queue cannot be read, once for each attempt, and with nil when it can be again.
	Trouble func(error)
}

// Outcome is what happened to a message.
type Outcome string

// What happens to messages.
const (
	Received Outcome = "received"
	// NotOurs: nobody here needs it; it is deleted. Poisoned: it cannot be understood; it is left.
	NotOurs  Outcome = "not-ours"
	Poisoned Outcome = "poisoned"
	// Extended: its visibility timeout was extended. Lost: SQS refuses to change or delete it, and others may receive it.
	Extended Outcome = "extended"
	Lost     Outcome = "lost"
	// Returned and Deleted: its work is left for later, or done.
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
	// receivers is how many requests wait for messages at the same time, so that one that hangs delays no message.
	receivers = 3
	// maxHeld bounds the notices in flight, and the messages: with the largest message (see maxBody) there is room for a storm. SQS
	// allows 120,000 messages.
	maxHeld = 60_000
	// maxRemembered is how many messages are recognized when they come again.
	maxRemembered = 8192
	// requestTimeout bounds a request that does not wait for messages.
	requestTimeout = 5 * time.Second
	// stopTimeout is how long Run waits, at the end, to send SQS what was decided.
	stopTimeout = 10 * time.Second
	// maxSilence is how long a receiver may make no request: far longer than a request, or the pause after one that failed,
	// can take.
	maxSilence = 90 * time.Second
)

// Queue reads a queue. Its methods may be called from several goroutines.
type Queue struct {
	opts    Options
	account string // the queue's; "" if its URL does not say
	client  *sqs.Client
	wake    chan struct{} // for Run
	ended   *lru.Cache    // by the IDs of messages that need no work any more: Deleted or Poisoned

	mu       sync.Mutex
	inFlight map[string]*Message // by the message's ID
	notices  int                 // of all that is in flight
	failing  bool
	asked    [receivers]time.Time // when each receiver last made a request; zero while it does not run
	answered time.Time            // when one last was answered
}

// New returns a queue that nobody reads yet.
func New(opts Options) *Queue {
	q := &Queue{opts: opts, wake: make(chan struct{}, 1), inFlight: map[string]*Message{}, ended: lru.New(maxRemembered)}
	address, err := url.Parse(opts.URL)
	if err == nil {
		q.account, _, _ = strings.Cut(strings.TrimPrefix(address.Path, "/"), "/")
	}
	if !accountID.pattern.MatchString(q.account) {
		q.account = ""
	}
	q.client = sqs.NewFromConfig(opts.AWS, func(o *sqs.Options) {
		// The SDK takes the region's public address, which is not the one of a VPC endpoint.
		chosen := o.BaseEndpoint != nil || o.EndpointOptions.UseFIPSEndpoint == aws.FIPSEndpointStateEnabled ||
			o.EndpointOptions.UseDualStackEndpoint == aws.DualStackEndpointStateEnabled
		if err == nil && address.Host != "" && !chosen {
			o.BaseEndpoint = aws.String(address.Scheme + "://" + address.Host)
		}
	})
	return q
}

// Run passes messages to take, which must not block, until ctx ends. Then it waits, for a while, until all messages are Done
// or Returned and SQS knows.
func (q *Queue) Run(ctx context.Context, take func(*Message)) {
	var receiving sync.WaitGroup
	for number := range receivers {
		receiving.Go(func() { q.receive(ctx, number, take) })
	}
	settling := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		q.settle(ctx, settling)
	}
	// A request for messages that has just been canceled must not get what is returned: nobody would know of it.
	receiving.Wait()
	settling, cancel := context.WithTimeout(settling, stopTimeout)
	defer cancel()
	for q.Status().Held > 0 && settling.Err() == nil {
		q.settle(settling, settling)
	}
}

// Stalled returns an error if a receiver hangs. SQS not answering, or refusing, is trouble, and nothing is stuck.
func (q *Queue) Stalled() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, asked := range q.asked {
		if silence := time.Since(asked); !asked.IsZero() && silence > maxSilence {
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
	now := Status{Held: len(q.inFlight), Up: !q.failing && !q.answered.IsZero(), Answered: q.answered}
	for _, m := range q.inFlight {
		if now.Oldest.IsZero() || m.Sent.Before(now.Oldest) {
			now.Oldest = m.Sent
		}
	}
	return now
}

func (q *Queue) report(r Report) {
	if q.opts.Report != nil {
		q.opts.Report(r)
	}
}
