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
	// maxRequests is how many updates are requested at the same time.
	maxRequests = 8
	// maxReturn is a little less than the twelve hours for which SQS hides a message at most.
	maxReturn = 12*time.Hour - 10*time.Minute
)

// Message is a message that is in flight while its work is done. Either Done or Return ends it, once.
type Message struct {
	// ID is the message's, Sent when it was put into the queue, and Receives how often it has been received so far.
	ID       string
	Sent     time.Time
	Receives int
	// Notices are what it says.
	Notices []Notice

	queue *Queue
	// The queue's mutex guards what follows.
	wanted   wanted
	due      time.Time // when the next request is to be made for it
	failures int       // in a row, of such requests
}

// wanted is what SQS is to do with a message.
type wanted struct {
	what   Outcome // Extended, Returned or Deleted
	handle string  // the receipt handle by which SQS knows it
	hidden time.Duration
}

// receive requests messages until ctx ends. It waits while too much is in flight, and backs off while SQS cannot be reached.
func (q *Queue) receive(ctx context.Context, number int, take func(*Message)) {
	defer q.note(number, time.Time{})
	failures := 0
	for ctx.Err() == nil {
		q.note(number, time.Now())
		if q.isFull() {
			role.Sleep(ctx, minBackoff)
			continue
		}
		messages, err := q.request(ctx)
		if ctx.Err() != nil && err != nil {
			return
		}
		q.noteAnswer(err)
		if err != nil {
			failures++
			role.Sleep(ctx, role.Pause(failures, minBackoff, maxBackoff))
			continue
		}
		failures = 0
		for _, raw := range messages {
			q.handle(raw, take)
		}
	}
}

// note notes when a receiver made its last request.
func (q *Queue) note(receiver int, asked time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked[receiver] = asked
}

func (q *Queue) isFull() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return max(q.notices, len(q.inFlight)) >= maxHeld
}

// request asks SQS for messages and waits for some: longPoll at most.
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

// noteAnswer reports whether the queue can be read; success only after a failure.
func (q *Queue) noteAnswer(err error) {
	q.mu.Lock()
	news := err != nil || q.failing
	q.failing = err != nil
	if err == nil {
		q.answered = time.Now()
	}
	q.mu.Unlock()
	if news && q.opts.Trouble != nil {
		q.opts.Trouble(err)
	}
}

// handle parses a message and hands it over, unless it is known or concerns nobody. One that cannot be understood is
// left alone: SQS delivers it again, until it moves it to the dead-letter queue.
func (q *Queue) handle(raw types.Message, take func(*Message)) {
	m := newMessage(q, raw)
	ended, known := q.ended.Get(m.ID)
	if ended == Poisoned {
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
	if !q.admit(m, known) {
		return
	}
	q.report(m.report(Received, ""))
	if ignored {
		q.report(m.report(NotOurs, notOurs.Why))
		m.Done()
		return
	}
	take(m)
}

// newMessage returns a message as it was received. Its visibility timeout is due to be extended when a third of it has passed.
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

// admit accepts a message unless it is in flight: then that one gets the new receipt handle. One whose work is finished is deleted, and one
// too many is returned.
func (q *Queue) admit(m *Message, finished bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	known, held := q.inFlight[m.ID]
	switch {
	case held && known.wanted.what != Returned:
		known.wanted.handle, known.due = m.wanted.handle, m.due
		if known.wanted.what == Deleted {
			q.want(known, Deleted, 0)
		}
		return false
	case held: // It was returned, and SQS has delivered it again: the work begins again.
		q.drop(known)
	case finished && q.opts.DryRun: // A dry run deletes no message, so that SQS delivers it again and again.
		return false
	}
	full := q.notices+len(m.Notices) > maxHeld
	if finished || full {
		m.Notices = nil
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

// drop forgets a message that is not in flight any more. The mutex is held.
func (q *Queue) drop(m *Message) {
	if q.inFlight[m.ID] == m {
		delete(q.inFlight, m.ID)
		q.notices -= len(m.Notices)
	}
}

// Done has the message deleted: all work for it is done, or concerns nobody here.
func (m *Message) Done() {
	q := m.queue
	q.ended.Add(m.ID, Deleted)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.opts.DryRun {
		q.drop(m)
	} else {
		q.want(m, Deleted, 0)
	}
}

// Return puts the message back into the queue, to be received again, here or elsewhere, after that time. It is rounded up to seconds.
func (m *Message) Return(after time.Duration) {
	q := m.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.want(m, Returned, min(max(after, 0), maxReturn))
}

func (m *Message) report(what Outcome, why string) Report {
	return Report{Outcome: what, Message: m.ID, Why: why, Sent: m.Sent, Receives: m.Receives}
}

// want has SQS asked for something at once. The mutex is held.
func (q *Queue) want(m *Message, what Outcome, hidden time.Duration) {
	m.wanted.what, m.wanted.hidden, m.due = what, hidden, time.Time{}
	loop.Nudge(q.wake)
}

// update is a request for one message, with what was wanted when it was made.
type update struct {
	message *Message
	wanted
}

// settle asks SQS for what is due, within ctx, and waits for the answers. Then it pauses, if that was all: until an update is wanted, for
// settleInterval at most, and not once idle has ended.
func (q *Queue) settle(idle, ctx context.Context) {
	batches := q.due()
	var requests sync.WaitGroup
	for _, batch := range batches[:min(len(batches), maxRequests)] {
		requests.Go(func() { q.send(ctx, batch) })
	}
	requests.Wait()
	if len(batches) > maxRequests {
		return // The others are next.
	}
	select {
	case <-idle.Done():
	case <-q.wake:
		role.Sleep(idle, batchWindow) // More updates may come, and share a request.
	case <-time.After(settleInterval):
	}
}

// due returns what is due now, in batches of which each is one request. Deletions come last: they can wait.
func (q *Queue) due() [][]update {
	q.mu.Lock()
	defer q.mu.Unlock()
	var deletions, changes []update
	now := time.Now()
	for _, m := range q.inFlight {
		switch {
		case m.due.After(now):
		case m.wanted.what == Deleted:
			deletions = append(deletions, update{m, m.wanted})
		default:
			changes = append(changes, update{m, m.wanted})
		}
	}
	return slices.Concat(slices.Collect(slices.Chunk(changes, maxBatch)), slices.Collect(slices.Chunk(deletions, maxBatch)))
}

// send makes one request and takes in the results.
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

// entryError is the error of one message in a batch.
func entryError(id string, failed []types.BatchResultErrorEntry, err error) error {
	if err != nil {
		return err
	}
	i := slices.IndexFunc(failed, func(f types.BatchResultErrorEntry) bool { return aws.ToString(f.Id) == id })
	switch {
	case i < 0:
		return nil
	case failed[i].SenderFault:
		return errStale
	}
	return &smithy.GenericAPIError{Code: aws.ToString(failed[i].Code), Message: aws.ToString(failed[i].Message)}
}

// never is a time that does not come.
const never = 365 * 24 * time.Hour

// settled takes in what came of an update, and returns what has happened to the message; "" if nothing has. What fails is tried again. If a
// permission is missing, that is said once.
func (q *Queue) settled(u update, err error) (what Outcome, why string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	m, now := u.message, time.Now()
	if q.inFlight[m.ID] != m || m.wanted != u.wanted {
		return "", "" // Something else is wanted by now, or the message came again: that is another update.
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
		q.drop(m) // If others see it although its work is done, it is deleted when it comes again.
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
