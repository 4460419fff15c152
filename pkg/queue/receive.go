package queue

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
	sentAt       = types.MessageSystemAttributeNameSentTimestamp
	receiveCount = types.MessageSystemAttributeNameApproximateReceiveCount
)

const firstPause, longestPause = 500 * time.Millisecond, 30 * time.Second

// receive asks for messages, one request after the other, until ctx ends. It waits while it is paused, and while SQS cannot
// be asked, for longer each time.
func (q *Queue) receive(ctx context.Context, number int, take func(*Lease)) {
	failures := 0
	for ctx.Err() == nil {
		q.beat(number)
		if q.Held() >= mostHeld || q.opts.Paused != nil && q.opts.Paused() {
			sleep(ctx, firstPause)
			continue
		}
		messages, err := q.ask(ctx)
		if ctx.Err() != nil && err != nil {
			return
		}
		q.heard(err)
		if err != nil {
			failures++
			sleep(ctx, role.Pause(failures, firstPause, longestPause))
			continue
		}
		failures = 0
		for _, m := range messages {
			q.meet(m, take)
		}
	}
}

func (q *Queue) ask(ctx context.Context) ([]types.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, longPoll+patience)
	defer cancel()
	answer, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &q.opts.URL, MaxNumberOfMessages: batch,
		VisibilityTimeout: seconds(q.opts.Visibility), WaitTimeSeconds: seconds(longPoll),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{sentAt, receiveCount},
	})
	if err != nil {
		return nil, fmt.Errorf("receiving from the queue %s: %w", q.opts.URL, err)
	}
	return answer.Messages, nil
}

// heard passes on whether the queue can be read, the good news only after bad.
func (q *Queue) heard(err error) {
	q.mu.Lock()
	news := err != nil || q.troubled
	q.troubled = err != nil
	if err == nil {
		q.answered = time.Now()
	}
	q.mu.Unlock()
	if news && q.opts.Trouble != nil {
		q.opts.Trouble(err)
	}
}

// meet takes in one message.
func (q *Queue) meet(m types.Message, take func(*Lease)) {
	l := &Lease{
		queue: q, ID: aws.ToString(m.MessageId), Sent: sent(m), Receives: received(m),
		handle: aws.ToString(m.ReceiptHandle), until: time.Now().Add(q.opts.Visibility),
	}
	if !q.admit(l) {
		return
	}
	q.tell(l.report(Received, ""))
	var stranger NotOursError
	var err error
	switch l.Notices, err = Parse(aws.ToString(m.Body)); {
	case err == nil:
		l.date()
		take(l)
	case errors.As(err, &stranger):
		q.tell(l.report(NotOurs, stranger.Why))
		l.Done()
	default:
		q.leave(l, err)
	}
}

// date gives what does not tell when it is of the time at which it was put into the queue.
func (l *Lease) date() {
	for i := range l.Notices {
		if ev := &l.Notices[i].Event; ev.Noticed.IsZero() {
			ev.Noticed = l.Sent
		}
	}
}

// admit takes a lease in, unless its message is known: then the one that is known gets the new handle.
func (q *Queue) admit(l *Lease) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	// What is on its way back into the queue has arrived there, and begins anew.
	if known, held := q.leases[l.ID]; held && known.wants != returning {
		known.handle, known.until, known.again, known.lost = l.handle, l.until, time.Time{}, false
		q.nudge()
		return false
	}
	if q.finished.has(l.ID) {
		if !q.opts.DryRun {
			l.wants, q.leases[l.ID] = deletion, l
			q.nudge()
		}
		return false
	}
	q.leases[l.ID] = l
	return true
}

// leave leaves a message that nobody understands where it is, and says so once.
func (q *Queue) leave(l *Lease, err error) {
	q.mu.Lock()
	delete(q.leases, l.ID)
	told := q.poisoned.has(l.ID)
	q.poisoned.add(l.ID)
	q.mu.Unlock()
	if !told {
		q.tell(l.report(Poisoned, err.Error()))
	}
}

func sent(m types.Message) time.Time {
	ms, err := strconv.ParseInt(m.Attributes[string(sentAt)], 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

func received(m types.Message) int {
	n, err := strconv.Atoi(m.Attributes[string(receiveCount)])
	if err != nil {
		return 1
	}
	return n
}

// seconds rounds up, as SQS knows nothing shorter.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
