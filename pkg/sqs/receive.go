package sqs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/nth-project/nth/pkg/role"
)

const (
	sentTimestamp = types.MessageSystemAttributeNameSentTimestamp
	receiveCount  = types.MessageSystemAttributeNameApproximateReceiveCount
)

const minBackoff, maxBackoff = 500 * time.Millisecond, 30 * time.Second

// receive requests messages until ctx ends. It waits while it is paused, and backs off while SQS cannot be reached.
func (q *Queue) receive(ctx context.Context, receiver int, take func(*Message)) {
	failures := 0
	for ctx.Err() == nil {
		q.beat(receiver)
		if q.Held() >= maxHeld || q.opts.Paused != nil && q.opts.Paused() {
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
		for _, m := range messages {
			q.handle(m, take)
		}
	}
}

func (q *Queue) request(ctx context.Context) ([]types.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, longPoll+requestTimeout)
	defer cancel()
	answer, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &q.opts.URL, MaxNumberOfMessages: maxBatch,
		VisibilityTimeout: seconds(q.opts.Visibility), WaitTimeSeconds: seconds(longPoll),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{sentTimestamp, receiveCount},
	})
	if err != nil {
		return nil, fmt.Errorf("receiving from the queue %s: %w", q.opts.URL, err)
	}
	return answer.Messages, nil
}

// noteAnswer reports whether the queue can be read; success only after a failure.
func (q *Queue) noteAnswer(err error) {
	q.mu.Lock()
	news := err != nil || q.failing
	q.failing = err != nil
	if err == nil {
		q.lastAnswer = time.Now()
	}
	q.mu.Unlock()
	if news && q.opts.Trouble != nil {
		q.opts.Trouble(err)
	}
}

func (q *Queue) handle(raw types.Message, take func(*Message)) {
	m := newMessage(q, raw)
	if !q.admit(m) {
		return
	}
	q.report(m.report(Received, ""))
	var notOurs NotOursError
	var err error
	switch m.Notices, err = Parse(aws.ToString(raw.Body)); {
	case err == nil:
		for i := range m.Notices {
			if ev := &m.Notices[i].Event; ev.Noticed.IsZero() {
				ev.Noticed = m.Sent
			}
		}
		take(m)
	case errors.As(err, &notOurs):
		q.report(m.report(NotOurs, notOurs.Why))
		m.Done()
	default:
		q.leave(m, err)
	}
}

// admit accepts a message unless it is known: then the known one gets the new receipt handle.
func (q *Queue) admit(m *Message) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	// One that was being returned has arrived in the queue, and begins anew.
	if known, held := q.inFlight[m.ID]; held && known.intent != returnMessage {
		known.handle, known.visibleAt, known.retryAt, known.lost = m.handle, m.visibleAt, time.Time{}, false
		q.wakeSync()
		return false
	}
	if q.finished.has(m.ID) {
		if !q.opts.DryRun {
			m.intent, q.inFlight[m.ID] = deleteMessage, m
			q.wakeSync()
		}
		return false
	}
	q.inFlight[m.ID] = m
	return true
}

// leave leaves a message that cannot be understood in the queue, and reports it once.
func (q *Queue) leave(m *Message, err error) {
	q.mu.Lock()
	delete(q.inFlight, m.ID)
	reported := q.poisoned.has(m.ID)
	q.poisoned.add(m.ID)
	q.mu.Unlock()
	if !reported {
		q.report(m.report(Poisoned, err.Error()))
	}
}

// seconds rounds up to SQS's unit.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }

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
	handle      string
	visibleAt   time.Time // when others may see the message again, as far as is known
	intent      intent
	returnAfter time.Duration // how long others shall not see it once it is returned
	busy        bool          // a request for it is under way
	retryAt     time.Time     // when the next may be made after failures
	failures    int
	lost        bool // it cannot be extended any more
}

// intent is what is to be done with a message.
type intent int

const (
	holdMessage intent = iota
	returnMessage
	deleteMessage
)

func newMessage(q *Queue, raw types.Message) *Message {
	m := &Message{
		queue: q, ID: aws.ToString(raw.MessageId), Receives: 1,
		handle: aws.ToString(raw.ReceiptHandle), visibleAt: time.Now().Add(q.opts.Visibility),
	}
	if ms, err := strconv.ParseInt(raw.Attributes[string(sentTimestamp)], 10, 64); err == nil {
		m.Sent = time.UnixMilli(ms)
	}
	if n, err := strconv.Atoi(raw.Attributes[string(receiveCount)]); err == nil {
		m.Receives = n
	}
	return m
}

// Done has the message deleted: all work for it is done, or is none of ours.
func (m *Message) Done() {
	q := m.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.finished.add(m.ID)
	if q.opts.DryRun {
		delete(q.inFlight, m.ID)
		return
	}
	m.intent, m.retryAt = deleteMessage, time.Time{}
	q.wakeSync()
}

// Return leaves the work to whoever receives the message after that time, which is rounded up to seconds.
func (m *Message) Return(after time.Duration) {
	q := m.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	m.intent, m.returnAfter, m.retryAt = returnMessage, min(max(after, 0), maxReturn), time.Time{}
	q.wakeSync()
}

// maxReturn is a little less than the twelve hours for which SQS hides a message at most.
const maxReturn = 12*time.Hour - 10*time.Minute

func (m *Message) report(what What, why string) Report {
	return Report{What: what, Message: m.ID, Why: why, Sent: m.Sent, Receives: m.Receives}
}

// isDue reports whether a request for the message is to be made.
func (m *Message) isDue(now time.Time, visibility time.Duration) bool {
	switch {
	case m.busy, m.retryAt.After(now):
		return false
	case m.intent == holdMessage:
		return !m.lost && !m.visibleAt.Add(-visibility*2/3).After(now)
	}
	return true
}

// recentIDs remembers the last few thousand IDs.
type recentIDs struct {
	known map[string]bool
	order []string
}

const maxRecent = 8192

func newRecentIDs() recentIDs { return recentIDs{known: map[string]bool{}} }

func (r *recentIDs) has(id string) bool { return r.known[id] }

func (r *recentIDs) add(id string) {
	if r.known[id] {
		return
	}
	if len(r.order) >= maxRecent {
		delete(r.known, r.order[0])
		r.order = r.order[1:]
	}
	r.known[id] = true
	r.order = append(r.order, id)
}
