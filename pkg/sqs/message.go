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

	// minBackoff and maxBackoff bound the pauses after requests for messages that fail.
	minBackoff, maxBackoff = 500 * time.Millisecond, 30 * time.Second
	// maxRequests is how many batches of updates are sent at the same time.
	maxRequests = 8
)

// Message is a message that is in flight while its work is done. Run's deliver gets it, and ends it by one call of Done or Return.
type Message struct {
	ID       string    // from SQS; it stays the same when the message is received again
	Sent     time.Time // when the message was put into the queue
	Receives int       // how often the message has been received so far
	// Notice is what the message says.
	Notice Notice

	queue *Queue
	// The queue's mutex guards the fields below.
	handle       string    // SQS's receipt handle of the latest receipt
	due          time.Time // when to extend the visibility timeout; zero if SQS refuses that
	lossReported bool      // a Lost report was made, and is not repeated
}

// receive is the loop of one receiver, a goroutine of Run. It requests messages and passes them to handle until ctx ends. It makes no request
// while full, and pauses after a request that failed.
func (q *Queue) receive(ctx context.Context, deliver func(*Message)) {
	for failures := 0; ctx.Err() == nil; {
		q.setAsked(time.Now()) // A receiver that waits for room does not hang, either.
		if q.full() {
			loop.Await(ctx, nil, minBackoff)
			continue
		}
		messages, err := q.request(ctx)
		if ctx.Err() != nil && err != nil {
			return // The end of ctx has canceled the request: the queue has no trouble.
		}
		q.recordAnswer(err)
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

// request asks SQS for messages, and returns up to maxBatch of them. If the queue is empty, SQS waits for longPoll, and request returns none.
func (q *Queue) request(ctx context.Context) ([]types.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, longPoll+requestTimeout)
	defer cancel()
	answer, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &q.opts.URL, MaxNumberOfMessages: maxBatch,
		VisibilityTimeout: seconds(q.opts.Visibility), WaitTimeSeconds: seconds(longPoll),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{sentTimestamp, receiveCount},
	})
	if err != nil {
		return nil, role.Explain(receiveMessage, longPoll+requestTimeout, err)
	}
	return answer.Messages, nil
}

// recordAnswer remembers for Status how a request for messages ended. It calls Options.Trouble when that changes: with the error that begins an
// outage, and with nil when SQS answers again.
func (q *Queue) recordAnswer(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	failing := err != nil
	changed := failing != q.failing
	q.failing = failing
	if !failing {
		q.answered = time.Now()
	}
	if changed {
		q.opts.Trouble(err)
	}
}

// handle parses a received message, puts it in flight, and calls deliver with it. Some messages are not delivered:
//   - One that is in flight already: see admit.
//   - One whose work was done before, or that does not concern nth-queue: Run deletes it.
//   - One that nth-queue cannot understand: it stays in the queue. SQS delivers it several times, then moves it to the dead-letter queue.
func (q *Queue) handle(raw types.Message, deliver func(*Message)) {
	m := newMessage(q, raw)
	if ended, known := q.ended.Get(m.ID); known {
		m.lossReported = true // If SQS refuses to delete the message, that was reported the first time.
		if ended == Deleted {
			m.Done()
		}
		return // A Poisoned message stays in the queue.
	}
	var err error
	m.Notice, err = Parse(aws.ToString(raw.Body), q.account, m.Sent)
	notOurs, ignored := errors.AsType[NotOursError](err)
	if err != nil && !ignored {
		q.ended.Add(m.ID, Poisoned)
		q.opts.Report(m.report(Received, ""))
		q.opts.Report(m.report(Poisoned, err.Error()))
		return
	}
	if !q.admit(m) {
		return
	}
	q.opts.Report(m.report(Received, ""))
	if ignored {
		q.opts.Report(m.report(NotOurs, notOurs.Why))
		m.Done()
		return
	}
	deliver(m)
}

// newMessage returns a Message for what SQS has delivered. It is not parsed yet, and not in flight. If SQS does not say when the message was
// sent, Sent is now.
func newMessage(q *Queue, raw types.Message) *Message {
	now := time.Now()
	m := &Message{
		queue: q, ID: aws.ToString(raw.MessageId), Sent: now, Receives: 1, handle: aws.ToString(raw.ReceiptHandle),
		due: now.Add(q.opts.Visibility / 3), // Two thirds of the visibility timeout are left for further attempts.
	}
	if ms, err := strconv.ParseInt(raw.Attributes[string(sentTimestamp)], 10, 64); err == nil {
		m.Sent = cmp.Or(event.CredibleTime(time.UnixMilli(ms)), now)
	}
	if n, err := strconv.Atoi(raw.Attributes[string(receiveCount)]); err == nil {
		m.Receives = max(n, 1)
	}
	return m
}

// admit puts a received message in flight, and returns true. It returns false if a Message with this ID is in flight already. That Message gets
// the new receipt handle, because SQS accepts only the latest.
func (q *Queue) admit(m *Message) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if earlier, found := q.inFlight[m.ID]; found {
		earlier.handle, earlier.due = m.handle, m.due
		return false
	}
	q.inFlight[m.ID] = m
	return true
}

// Done makes Run delete the message from the queue: its work is done, or it does not concern nth-queue. In a dry run, the message stays in the
// queue. If SQS does not delete the message and delivers it again, handle recognizes it.
func (m *Message) Done() {
	m.queue.ended.Add(m.ID, Deleted)
	m.end(Deleted, 0)
}

// Return makes Run put the message back into the queue. SQS hides the message until that time has passed, rounded up to seconds. Then
// this nth-queue or another receives it again; sooner, if SQS does not do what Run asks.
func (m *Message) Return(after time.Duration) { m.end(Returned, after) }

// end takes the message out of flight, and leaves it to Run to ask SQS for the outcome. That is Deleted, or Returned after the time hidden.
func (m *Message) end(what Outcome, hidden time.Duration) {
	q := m.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inFlight[m.ID] == m { // handle also ends messages that were never in flight.
		delete(q.inFlight, m.ID)
	}
	if what != Deleted || !q.opts.DryRun { // A dry run deletes nothing.
		q.ending = append(q.ending, update{m, what, m.handle, hidden})
	}
}

// report returns a report about the message.
func (m *Message) report(what Outcome, why string) Report {
	return Report{Outcome: what, Message: m.ID, Why: why, Sent: m.Sent, Receives: m.Receives}
}

// update is what Run asks SQS to do with a message.
type update struct {
	message *Message
	what    Outcome       // the outcome to reach: Extended, Returned or Deleted
	handle  string        // the message's receipt handle when the update was made
	hidden  time.Duration // how long SQS hides the message from now, for Extended and Returned
}

// settle sends SQS the updates that are due, and waits for the answers. Run calls it every settleInterval.
func (q *Queue) settle(ctx context.Context) {
	var requests errgroup.Group
	requests.SetLimit(maxRequests)
	for _, batch := range q.due() {
		requests.Go(func() error { q.send(ctx, batch); return nil })
	}
	_ = requests.Wait() // send returns no error.
}

// due returns the updates that are due now, in batches of one request each. A batch has only deletions, or only changes of the visibility
// timeout. Deletions come last, as they can wait. due empties q.ending.
func (q *Queue) due() [][]update {
	q.mu.Lock()
	defer q.mu.Unlock()
	var deletions, changes []update
	for _, m := range q.inFlight {
		if m.due.IsZero() || m.due.After(time.Now()) {
			continue // SQS refuses to extend the visibility timeout, or has time left.
		}
		changes = append(changes, update{m, Extended, m.handle, q.opts.Visibility})
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

// send makes the request for one batch, and calls finish with the result for each update.
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
		i, err := strconv.Atoi(aws.ToString(f.Id)) // the entry's index: see delete and changeVisibility
		if err == nil && i >= 0 && i < len(batch) {
			results[i] = fmt.Errorf("%w: %s", errStale, aws.ToString(f.Code))
		}
	}
	for i, u := range batch {
		q.finish(u, results[i])
	}
}

// finish takes the result of the request for an update, and reports it; err is nil if SQS has done what the update asks for. If the message is
// still in flight, finish sets the time of the next extension. A deletion or a return is not repeated: SQS delivers the message again.
func (q *Queue) finish(u update, err error) {
	q.mu.Lock()
	m, lost := u.message, errors.Is(err, errStale) || role.Refused(err)
	newlyLost := lost && !m.lossReported
	m.lossReported = m.lossReported || lost
	switch {
	case u.what != Extended: // The message is not in flight any more.
	case m.handle != u.handle: // SQS has delivered the message again meanwhile, and admit has set m.due.
	case lost:
		m.due = time.Time{} // No extension until SQS delivers the message again, with a new receipt handle.
	case err != nil:
		m.due = time.Now().Add(u.hidden / 6) // An outage: try again, sooner than after a success.
	default:
		m.due = time.Now().Add(u.hidden / 3)
	}
	q.mu.Unlock()
	switch {
	case err == nil:
		q.opts.Report(m.report(u.what, ""))
	case newlyLost:
		report := m.report(Lost, err.Error())
		report.Refused = u.what
		q.opts.Report(report)
	}
}

// errStale means that SQS does not accept a receipt handle any more. SQS has no other reason to refuse a single message of a batch.
var errStale = errors.New("the message's receipt handle is no longer valid")

// delete asks SQS to delete the messages of a batch. It returns an entry for each message that SQS has not deleted, whose Id is the index in the
// batch. The error is about the request as a whole.
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

// changeVisibility asks SQS to hide each message of a batch for as long as its update says. It returns an entry for each message that SQS has not
// hidden, whose Id is the index in the batch. The error is about the request as a whole.
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

// seconds returns a duration in seconds, SQS's unit, rounded up.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }
