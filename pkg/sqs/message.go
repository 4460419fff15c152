package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"golang.org/x/sync/errgroup"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/role"
)

// The permissions, by their names in IAM policies.
const (
	receiveMessage   = "sqs:ReceiveMessage"
	changeVisibility = "sqs:ChangeMessageVisibility"
	deleteMessage    = "sqs:DeleteMessage"
)

const (
	sentTimestamp = types.MessageSystemAttributeNameSentTimestamp
	receiveCount  = types.MessageSystemAttributeNameApproximateReceiveCount

	minBackoff, maxBackoff = 500 * time.Millisecond, 30 * time.Second
	// maxRequests is how many batches of updates are sent at the same time.
	maxRequests = 8
	// maxReturn is a little less than the twelve hours for which SQS hides a message at most.
	maxReturn = 12*time.Hour - 10*time.Minute
)

// Message is a message that is in flight while its work is done. Its owner ends it by calling Done or Return, once.
type Message struct {
	// ID is the message's, Sent when it was put into the queue, and Receives how often it has been received so far.
	ID       string
	Sent     time.Time
	Receives int
	// Notices are what the message says.
	Notices []Notice

	queue *Queue
	// The queue's mutex guards what follows.
	handle string    // the receipt handle by which SQS knows it
	due    time.Time // when its visibility timeout is to be extended; zero if SQS refuses that
	lost   bool      // it was reported as Lost
}

// receive is one of Run's receivers. It requests messages and calls deliver with them until ctx ends. It makes no request while too many are
// in flight, and pauses after one that failed.
func (q *Queue) receive(ctx context.Context, deliver func(*Message)) {
	for failures := 0; ctx.Err() == nil; {
		if !q.setAsked(time.Now()) {
			loop.Await(ctx, nil, minBackoff)
			continue
		}
		messages, err := q.request(ctx)
		if ctx.Err() != nil && err != nil {
			return // The request was canceled, which is no trouble.
		}
		q.noteAnswer(err)
		if err != nil {
			failures++
			loop.Await(ctx, nil, role.Pause(failures, minBackoff, maxBackoff))
			continue
		}
		failures = 0
		for _, raw := range messages {
			q.handle(raw, deliver)
		}
	}
}

// request asks SQS for messages, and returns up to maxBatch of them. If the queue is empty, it waits for longPoll, and returns none.
func (q *Queue) request(ctx context.Context) ([]types.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, longPoll+requestTimeout)
	defer cancel()
	answer, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &q.opts.URL, MaxNumberOfMessages: maxBatch,
		VisibilityTimeout: seconds(q.opts.Visibility), WaitTimeSeconds: seconds(longPoll),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{sentTimestamp, receiveCount},
	})
	if err != nil {
		return nil, fmt.Errorf("receiving from the queue %s: %w", q.opts.URL, role.Explain(receiveMessage, longPoll+requestTimeout, err))
	}
	return answer.Messages, nil
}

// noteAnswer notes how a request for messages ended, for Status. It calls Options.Trouble with the first failure of an outage, and with nil
// for the first success after that.
func (q *Queue) noteAnswer(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	changed := q.failing != (err != nil)
	if q.failing = err != nil; !q.failing {
		q.answered = time.Now()
	}
	if changed && q.opts.Trouble != nil {
		q.opts.Trouble(err)
	}
}

// handle parses a received message and calls deliver with it, unless it needs no work. It has a message deleted that does not concern
// nth-queue, or whose work was done before. It leaves a message alone that it cannot understand: SQS delivers that again and again, and then
// moves it to the dead-letter queue.
func (q *Queue) handle(raw types.Message, deliver func(*Message)) {
	m := newMessage(q, raw)
	if ended, known := q.ended.Get(m.ID); known {
		if m.lost = true; ended == Deleted { // What SQS refuses was reported when the message came first.
			m.Done()
		}
		return
	}
	var err error
	m.Notices, err = Parse(aws.ToString(raw.Body), q.account, m.Sent)
	notOurs, ignored := errors.AsType[NotOursError](err)
	if err != nil && !ignored {
		q.ended.Add(m.ID, Poisoned)
		q.report(m.report(Received, ""))
		q.report(m.report(Poisoned, err.Error()))
		return
	}
	if !q.admit(m) {
		return
	}
	q.report(m.report(Received, ""))
	if ignored {
		q.report(m.report(NotOurs, notOurs.Why))
		m.Done()
		return
	}
	deliver(m)
}

// newMessage returns a message as SQS has delivered it, not parsed yet. Its visibility timeout is to be extended when a third of it has
// passed. If SQS does not say when the message was sent, Sent is now.
func newMessage(q *Queue, raw types.Message) *Message {
	now := time.Now()
	m := &Message{queue: q, ID: aws.ToString(raw.MessageId), Sent: now, Receives: 1, handle: aws.ToString(raw.ReceiptHandle), due: now.Add(q.opts.Visibility / 3)}
	if ms, err := strconv.ParseInt(raw.Attributes[string(sentTimestamp)], 10, 64); err == nil {
		m.Sent = cmp.Or(event.CredibleTime(time.UnixMilli(ms)), now)
	}
	if n, err := strconv.Atoi(raw.Attributes[string(receiveCount)]); err == nil {
		m.Receives = max(n, 1)
	}
	return m
}

// admit puts a received message in flight, and reports whether its work is to begin. If it is in flight already, that one gets the new receipt
// handle, as SQS accepts only the latest.
func (q *Queue) admit(m *Message) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	known, held := q.inFlight[m.ID]
	if held {
		known.handle, known.due = m.handle, m.due
	} else {
		q.inFlight[m.ID] = m
	}
	return !held
}

// Done has Run delete the message from the queue: all work for it is done, or it does not concern nth-queue. In a dry run, the message stays in
// the queue. If SQS does not delete it, it comes again, and is recognized.
func (m *Message) Done() {
	m.queue.ended.Add(m.ID, Deleted)
	m.end(Deleted, 0)
}

// Return has Run put the message back into the queue. This nth-queue or another receives it again after that time, rounded up to seconds and
// bounded by maxReturn, or sooner if SQS does not do so.
func (m *Message) Return(after time.Duration) { m.end(Returned, min(max(after, 0), maxReturn)) }

// end takes the message out of flight, and has Run ask SQS for what is wanted.
func (m *Message) end(what Outcome, hidden time.Duration) {
	q := m.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inFlight[m.ID] == m {
		delete(q.inFlight, m.ID)
	}
	if what != Deleted || !q.opts.DryRun {
		q.ending = append(q.ending, update{m, what, m.handle, hidden})
	}
}

// report returns a report about the message.
func (m *Message) report(what Outcome, why string) Report {
	return Report{Outcome: what, Message: m.ID, Why: why, Sent: m.Sent, Receives: m.Receives}
}

// update is what SQS is asked to do with a message.
type update struct {
	message *Message
	what    Outcome       // the outcome to reach: Extended, Returned or Deleted
	handle  string        // the message's receipt handle
	hidden  time.Duration // how long nobody receives the message, if it is Extended or Returned
}

// settle is one round of Run. It sends SQS the updates that are due, and waits for the answers.
func (q *Queue) settle(ctx context.Context) {
	var requests errgroup.Group
	requests.SetLimit(maxRequests)
	for _, batch := range q.due() {
		requests.Go(func() error { q.send(ctx, batch); return nil })
	}
	_ = requests.Wait() // send has no error.
}

// due returns the updates that are due now, in batches: each batch is one request, and has only deletions or none. Batches of
// deletions come last, as they can wait.
func (q *Queue) due() [][]update {
	q.mu.Lock()
	defer q.mu.Unlock()
	var deletions, changes []update
	for _, m := range q.inFlight {
		if !m.due.IsZero() && !m.due.After(time.Now()) {
			changes = append(changes, update{m, Extended, m.handle, q.opts.Visibility})
		}
	}
	for _, u := range q.ending {
		if u.what == Deleted {
			deletions = append(deletions, u)
		} else {
			changes = append(changes, u)
		}
	}
	q.ending = nil
	return slices.Concat(slices.Collect(slices.Chunk(changes, maxBatch)), slices.Collect(slices.Chunk(deletions, maxBatch)))
}

// send makes the request for one batch, and notes and reports the result for each message.
func (q *Queue) send(ctx context.Context, batch []update) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request := q.changeVisibility
	if batch[0].what == Deleted {
		request = q.delete
	}
	failed, err := request(ctx, batch)
	results := slices.Repeat([]error{err}, len(batch))
	for _, f := range failed {
		if i, err := strconv.Atoi(aws.ToString(f.Id)); err == nil && i >= 0 && i < len(batch) {
			results[i] = fmt.Errorf("%w: %s", errStale, aws.ToString(f.Code))
		}
	}
	for i, u := range batch {
		q.settled(u, results[i])
	}
}

// settled notes and reports how the request for an update ended; err is nil if SQS has done what was wanted. After an outage, an extension is
// tried again. A message that was not deleted or returned comes again.
func (q *Queue) settled(u update, err error) {
	q.mu.Lock()
	m, lost := u.message, errors.Is(err, errStale) || role.Refused(err)
	newlyLost := lost && !m.lost
	m.lost = m.lost || lost
	switch {
	case u.what != Extended || m.handle != u.handle: // It is in flight no more, or has come again.
	case lost:
		m.due = time.Time{} // until SQS delivers it again, with a new receipt handle
	case err != nil:
		m.due = time.Now().Add(u.hidden / 6)
	default:
		m.due = time.Now().Add(u.hidden / 3)
	}
	q.mu.Unlock()
	switch {
	case err == nil:
		q.report(m.report(u.what, ""))
	case newlyLost:
		q.report(m.report(Lost, err.Error()))
	}
}

// errStale means that SQS does not accept a receipt handle any more. Nothing else can be wrong with one message of a batch.
var errStale = errors.New("the receipt handle is stale")

// delete asks SQS to delete messages. It returns those that SQS has not deleted, by their indexes in the batch. The error is about
// the request as a whole.
func (q *Queue) delete(ctx context.Context, batch []update) ([]types.BatchResultErrorEntry, error) {
	in := &sqs.DeleteMessageBatchInput{QueueUrl: &q.opts.URL}
	for i, u := range batch {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: new(strconv.Itoa(i)), ReceiptHandle: &u.handle})
	}
	out, err := q.client.DeleteMessageBatch(ctx, in)
	if err != nil {
		return nil, role.Explain(deleteMessage, requestTimeout, err)
	}
	return out.Failed, nil
}

// changeVisibility asks SQS to hide messages for a time from now. It returns those for which SQS has not done so, by their indexes
// in the batch. The error is about the request as a whole.
func (q *Queue) changeVisibility(ctx context.Context, batch []update) ([]types.BatchResultErrorEntry, error) {
	in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &q.opts.URL}
	for i, u := range batch {
		in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
			Id: new(strconv.Itoa(i)), ReceiptHandle: &u.handle, VisibilityTimeout: seconds(u.hidden),
		})
	}
	out, err := q.client.ChangeMessageVisibilityBatch(ctx, in)
	if err != nil {
		return nil, role.Explain(changeVisibility, requestTimeout, err)
	}
	return out.Failed, nil
}

// seconds rounds up to SQS's unit.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }
