package queue

import (
	"context"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// Options say which queue it is and how it is read.
type Options struct {
	// URL is the queue's.
	URL string
	// AWS says with whose credentials and where SQS is asked.
	AWS aws.Config
	// Visibility is how long a message is kept from others at a time; it is extended while its work goes on.
	Visibility time.Duration
	// Receivers is how many requests wait for messages at the same time.
	Receivers int
	// Paused, if set, tells whether no messages are to be received now: whoever works on them cannot. What is held stays
	// so until it is Done or Returned.
	Paused func() bool
	// DryRun leaves every message in the queue.
	DryRun bool
	// Tell, if set, hears what becomes of messages. It must not block.
	Tell func(Report)
	// Trouble, if set, hears why the queue cannot be read, once for each attempt, and nil when it can be again.
	Trouble func(error)
}

// What says which thing happened to a message.
type What string

// The things that happen to messages.
const (
	Received What = "received"
	// NotOurs: nobody here needs it; it is deleted. Poisoned: it cannot be understood; it is left.
	NotOurs  What = "not-ours"
	Poisoned What = "poisoned"
	// Extended: it is kept for longer. Lost: it could not be, and others may see it.
	Extended What = "extended"
	Lost     What = "lost"
	// Returned and Deleted: its work is left to a later time, or done.
	Returned What = "returned"
	Deleted  What = "deleted"
)

// Report is one thing that happened to a message.
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
	// longPoll is how long SQS waits for a message before it answers that there is none: the longest it allows.
	longPoll = 20 * time.Second
	// batch is how many messages SQS handles in one request, at most.
	batch = 10
	// mostHeld bounds the messages that are held at once. It is far above any storm, and below what SQS allows.
	mostHeld = 20_000
	// patience bounds one request that does not wait for messages.
	patience = 5 * time.Second
	// farewell is how long Run waits, at the end, for what has been decided to reach SQS.
	farewell = 10 * time.Second
)

// Queue is a queue that is being worked off. Its methods may be called from several goroutines.
type Queue struct {
	opts   Options
	client *sqs.Client
	wake   chan struct{}

	mu     sync.Mutex
	leases map[string]*Lease // by the message's ID
	// finished holds messages whose work is done, and poisoned those that were told, to know them if they come again.
	finished, poisoned recent
	troubled           bool
	hushed             bool        // nothing is returned for now
	pulses             []time.Time // when each receiver last began to ask; empty while nobody receives
	answered           time.Time   // when SQS last answered a request for messages
}

// New returns a queue that nobody reads yet.
func New(opts Options) *Queue {
	return &Queue{
		opts: opts, client: sqs.NewFromConfig(opts.AWS), wake: make(chan struct{}, 1),
		leases: map[string]*Lease{}, finished: newRecent(), poisoned: newRecent(),
	}
}

// Run hands the messages that come to take, which must not block, until ctx ends. Then it waits, for a while, until all
// leases are Done or Returned and SQS knows of it.
func (q *Queue) Run(ctx context.Context, take func(*Lease)) {
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	q.begin()
	var keeper, receivers sync.WaitGroup
	keeper.Go(func() { q.keep(keeping) })
	for number := range q.opts.Receivers {
		receivers.Go(func() { q.receive(ctx, number, take) })
	}
	<-ctx.Done()
	q.rest()
	q.hush(true)
	receivers.Wait()
	q.hush(false)
	q.flush(keeping)
	stop()
	keeper.Wait()
}

// hush keeps back what is to be returned, or lets it go. A request for messages that has just been given up must not get
// what was returned a moment ago: nobody would know of it.
func (q *Queue) hush(on bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hushed = on
	q.nudge()
}

// flush waits until no lease is left.
func (q *Queue) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, farewell)
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

// Held is how many messages are held now.
func (q *Queue) Held() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.leases)
}

func (q *Queue) tell(r Report) {
	if q.opts.Tell != nil {
		q.opts.Tell(r)
	}
}
