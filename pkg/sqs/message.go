package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

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
	// batchWindow is how long an update waits for others to share its request.
	batchWindow = 10 * time.Millisecond
	// settleInterval is how often the messages are looked through without being woken.
	settleInterval = time.Second
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
	wanted   wanted
	due      time.Time // when to ask SQS for what is wanted
	failures int       // how many requests for what is wanted have failed in a row
}

// wanted is what SQS is to do with a message.
type wanted struct {
	what   Outcome       // the outcome to reach: Extended, Returned or Deleted
	handle string        // the receipt handle by which SQS knows it
	hidden time.Duration // how long nobody receives the message, if it is Extended or Returned
}

// receive is one of Run's receivers, with its number. It requests messages and calls deliver with them until ctx ends. It makes no request
// while too much is in flight, and pauses after one that failed.
func (q *Queue) receive(ctx context.Context, number int, deliver func(*Message)) {
	defer q.setAsked(number, time.Time{}) // A receiver that has ended does not count as stalled.
	failures := 0
	for ctx.Err() == nil {
		q.setAsked(number, time.Now())
		if q.isFull() {
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

// setAsked notes, for Stalled, when a receiver made its last request; zero if it has ended.
func (q *Queue) setAsked(receiver int, asked time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked[receiver] = asked
}

// isFull reports whether so much is in flight that no more messages are to be received.
func (q *Queue) isFull() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return max(q.notices, len(q.inFlight)) >= maxHeld
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

// noteAnswer notes how a request for messages ended, for Status. It calls Options.Trouble with each failure, and with nil for the first success
// after failures.
func (q *Queue) noteAnswer(err error) {
	q.mu.Lock()
	worthReporting := err != nil || q.failing
	q.failing = err != nil
	if err == nil {
		q.answered = time.Now()
	}
	q.mu.Unlock()
	if worthReporting && q.opts.Trouble != nil {
		q.opts.Trouble(err)
	}
}

// handle parses a received message and calls deliver with it, unless it needs no work. It has a message deleted that does not concern
// nth-queue. It leaves a message alone that it cannot understand: SQS delivers that again and again, and then moves it to the dead-letter
// queue.
func (q *Queue) handle(raw types.Message, deliver func(*Message)) {
	m := newMessage(q, raw)
	ended, known := q.ended.Get(m.ID)
	if ended == Poisoned {
		return // It was reported when it came first.
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
	if !q.admit(m, known) {
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
	m := &Message{queue: q, ID: aws.ToString(raw.MessageId), Sent: now, Receives: 1}
	m.wanted = wanted{Extended, aws.ToString(raw.ReceiptHandle), q.opts.Visibility}
	m.due = now.Add(q.opts.Visibility / 3)
	if ms, err := strconv.ParseInt(raw.Attributes[string(sentTimestamp)], 10, 64); err == nil {
		m.Sent = cmp.Or(event.CredibleTime(time.UnixMilli(ms)), now)
	}
	if n, err := strconv.Atoi(raw.Attributes[string(receiveCount)]); err == nil {
		m.Receives = max(n, 1)
	}
	return m
}

// admit puts a received message in flight, and reports whether work for it is to begin. finished says that its work was done before. admit
// returns false in three cases:
//   - The same message is in flight already. That one gets the new receipt handle, as SQS accepts only the latest.
//   - Its work is finished: Run deletes it again.
//   - Too much is in flight: Run returns it to the queue.
func (q *Queue) admit(m *Message, finished bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	known, held := q.inFlight[m.ID]
	switch {
	case held && known.wanted.what != Returned:
		known.wanted.handle, known.due = m.wanted.handle, m.due
		if known.wanted.what == Deleted {
			q.want(known, Deleted, 0) // At once: m.due is the time for an extension.
		}
		return false
	case held: // It was returned, and SQS has delivered it again: the work begins again.
		q.drop(known)
	case finished && q.opts.DryRun: // A dry run deletes no message, so that SQS delivers it again and again.
		return false
	}
	full := q.notices+len(m.Notices) > maxHeld
	if finished || full {
		m.Notices = nil // Nobody reads them, and they would count towards maxHeld.
	}
	q.inFlight[m.ID] = m
	q.notices += len(m.Notices)
	switch {
	case finished:
		q.want(m, Deleted, 0)
	case full:
		q.want(m, Returned, q.opts.Visibility)
	}
	return !finished && !full
}

// drop forgets a message that is not in flight any more, unless a newer delivery of it has replaced this one. The caller holds q.mu.
func (q *Queue) drop(m *Message) {
	if q.inFlight[m.ID] == m {
		delete(q.inFlight, m.ID)
		q.notices -= len(m.Notices)
	}
}

// Done has Run delete the message from the queue: all work for it is done, or it does not concern nth-queue. In a dry run, the message stays in
// the queue, and is forgotten here.
func (m *Message) Done() {
	q := m.queue
	q.ended.Add(m.ID, Deleted) // SQS may deliver it once more.
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.opts.DryRun {
		q.drop(m)
	} else {
		q.want(m, Deleted, 0)
	}
}

// Return has Run put the message back into the queue. This nth-queue or another receives it again after that time, rounded up to seconds and
// bounded by maxReturn.
func (m *Message) Return(after time.Duration) {
	q := m.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.want(m, Returned, min(max(after, 0), maxReturn))
}

// report returns a report about the message.
func (m *Message) report(what Outcome, why string) Report {
	return Report{Outcome: what, Message: m.ID, Why: why, Sent: m.Sent, Receives: m.Receives}
}

// want has Run ask SQS at once for what is to be done with a message, and wakes it. The caller holds q.mu.
func (q *Queue) want(m *Message, what Outcome, hidden time.Duration) {
	m.wanted.what, m.wanted.hidden, m.due = what, hidden, time.Time{}
	loop.Nudge(q.wake)
}

// update is a request for one message, with what was wanted when it was made.
type update struct {
	message *Message
	wanted
}

// settle is one round of Run. It sends SQS the updates that are due, up to maxRequests batches, and waits for the answers; ctx bounds the
// requests. If no batch is left, it then pauses: until an update is wanted, settleInterval has passed, or the context pausing ends.
func (q *Queue) settle(pausing, ctx context.Context) {
	batches := q.due()
	var requests sync.WaitGroup
	for _, batch := range batches[:min(len(batches), maxRequests)] {
		requests.Go(func() { q.send(ctx, batch) })
	}
	requests.Wait()
	if len(batches) > maxRequests {
		return // The next round sends the other batches.
	}
	select {
	case <-pausing.Done():
	case <-q.wake:
		loop.Await(pausing, nil, batchWindow) // More updates may come, and share a request.
	case <-time.After(settleInterval): // An extension may be due.
	}
}

// due returns the updates that are due now, in batches: each batch is one request, and has only deletions or none. Batches of
// deletions come last, as they can wait.
func (q *Queue) due() [][]update {
	q.mu.Lock()
	defer q.mu.Unlock()
	var deletions, changes []update
	now := time.Now()
	for _, m := range q.inFlight {
		switch {
		case m.due.After(now): // later
		case m.wanted.what == Deleted:
			deletions = append(deletions, update{m, m.wanted})
		default:
			changes = append(changes, update{m, m.wanted})
		}
	}
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
	for i, u := range batch {
		if what, why := q.settled(u, entryError(strconv.Itoa(i), failed, err)); what != "" {
			q.report(u.message.report(what, why))
		}
	}
}

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

// errStale means that SQS does not accept the receipt handle any more, so that there is no use in trying again.
var errStale = errors.New("the receipt handle is stale")

// entryError returns the error for the message with this ID in a batch; nil if there is none. failed and err are the results of the
// request: err fails all of its messages.
func entryError(id string, failed []types.BatchResultErrorEntry, err error) error {
	if err != nil {
		return err
	}
	i := slices.IndexFunc(failed, func(f types.BatchResultErrorEntry) bool { return aws.ToString(f.Id) == id })
	switch {
	case i < 0:
		return nil
	case failed[i].SenderFault: // Only the handle can be wrong: nth-queue sends valid numbers.
		return errStale
	}
	return &smithy.GenericAPIError{Code: aws.ToString(failed[i].Code), Message: aws.ToString(failed[i].Message)}
}

// never is a time that does not come.
const never = 365 * 24 * time.Hour

// settled notes how the request for an update ended; err is nil if SQS has done what was wanted. It returns what happened to the message and
// why, for a report; "" if nothing is to be reported. After a failure it sets the time for the next attempt, and returns Lost if a permission is
// missing, for the first failure of a row.
func (q *Queue) settled(u update, err error) (what Outcome, why string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	m, now := u.message, time.Now()
	if q.inFlight[m.ID] != m || m.wanted != u.wanted {
		return "", "" // Meanwhile something else is wanted, or the message came again. That is another update.
	}
	stale := errors.Is(err, errStale)
	switch {
	case err != nil && !stale:
		m.failures++
		m.due = now.Add(role.Pause(m.failures, minBackoff, maxBackoff))
		if m.failures == 1 && role.Refused(err) {
			return Lost, err.Error()
		}
		return "", ""
	case u.what != Extended:
		q.drop(m) // It is deleted or returned. With a stale handle it comes again, and admit deals with it.
	case stale:
		m.due = now.Add(never) // No request can succeed until SQS delivers it again, with a new receipt handle.
	default:
		m.due, m.failures = now.Add(u.hidden/3), 0
	}
	if stale {
		return Lost, err.Error()
	}
	return u.what, ""
}
